"""A recording with its kernels, and where their time goes: by operator, module and phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...models.predict.prediction import Prediction
from .fusion import fused
from .kernels.kernel_use import KernelUse
from .kernels.table import kernels_of, makes_state
from .operation import Operation, Recording


@dataclass(frozen=True, slots=True)
class Priced:
    """A recording with its kernels for one kind of device.

    Attributes:
        operations: Those that a step other than the first runs.
        uses: The kernels of each.
        views: Calls that only gave another view of a tensor.
        notes: What was fused.
    """

    operations: Sequence[Operation]
    uses: Sequence[Sequence[KernelUse]]
    views: int
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """Kernels that run."""
        return sum(max(use.count, sum(each.count for each in use.otherwise)) for uses in self.uses for use in uses)


def priced(recording: Recording, kind: str, *, compiled: bool = False) -> Priced:
    """The kernels of a recording's operations on a kind of device, `gpu` or `cpu`; `compiled`: as if all were compiled."""
    operations = [operation for operation in recording.operations if not makes_state(operation, recording)]
    after = fused(recording, operations, everything=compiled)
    uses = [kernels_of(operation, kind) for operation in after.operations]
    if recording.tf32 and kind == "gpu":
        uses = [[_in_tf32(use) for use in some] for some in uses]
    notes: tuple[str, ...] = ()
    if after.passes or compiled or any(operation.compiled for operation in operations):
        notes = (
            f"what torch.compile would fuse was recorded eagerly: {after.chained} element-by-element operators are taken as "
            f"{after.passes} passes, nothing else as fused",
        )
    return Priced(after.operations, uses, recording.views, notes)


def _in_tf32(use: KernelUse) -> KernelUse:
    product = use.spec.family in ("gemm", "conv2d") and use.spec.dtype == "fp32"
    return replace(use, spec=replace(use.spec, dtype="tf32")) if product else use


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a program: an operator, a module or a phase.

    Attributes:
        name: What it is; numbers of repeated modules are written `*`.
        calls: Operators it runs.
        latency_s: Seconds of their kernels.
        energy_j: Joules; None where they are unknown.
        time_share: Share of the time of all kernels.
        bound: What binds most of its time: `compute`, `dram`, `cache` or `launch`.
        stand_in: What it is priced as, where that is not its own kernel.
    """

    name: str
    calls: int
    latency_s: float
    energy_j: float | None
    time_share: float
    bound: str
    stand_in: str = ""


class Shares:
    """Where the time of the kernels goes."""

    def __init__(
        self, program: Priced, placed: Sequence[Sequence[KernelUse]], answers: Mapping[KernelUse, Prediction]
    ) -> None:
        self._rows: list[tuple[Operation, float, float | None, str, str]] = []
        for operation, uses in zip(program.operations, placed, strict=True):
            for use in uses:
                answer = answers.get(replace(use, count=1, stand_in=""))
                if answer is not None:
                    joules = None if answer.energy_j is None else use.count * answer.energy_j.value
                    self._rows.append(
                        (operation, use.count * answer.latency_s.value, joules, answer.bound, use.stand_in)
                    )
        self.total_s = sum(row[1] for row in self._rows)

    def by(self, key: Callable[[Operation], str]) -> tuple[Share, ...]:
        """Shares of the operations with equal keys, longest first."""
        groups: dict[str, list[tuple[Operation, float, float | None, str, str]]] = defaultdict(list)
        for row in self._rows:
            groups[key(row[0])].append(row)
        shares = []
        for name, rows in groups.items():
            bounds: Counter[str] = Counter()
            for _, seconds, _, bound, _ in rows:
                bounds[bound] += seconds  # type: ignore[assignment]  # seconds of each, not how many
            joules = [row[2] for row in rows if row[2] is not None]
            time_s = sum(row[1] for row in rows)
            shares.append(
                Share(
                    name=name, calls=len({id(row[0]) for row in rows}), latency_s=time_s,
                    energy_j=sum(joules) if len(joules) == len(rows) else None,
                    time_share=time_s / self.total_s if self.total_s else 0.0, bound=bounds.most_common(1)[0][0],
                    stand_in=next((row[4] for row in rows if row[4]), ""),
                )
            )  # fmt: skip
        return tuple(sorted(shares, key=lambda share: share.latency_s, reverse=True))

    def by_bound(self) -> dict[str, float]:
        """Share of the time by what binds the kernels, largest first."""
        seconds: dict[str, float] = defaultdict(float)
        for _, time_s, _, bound, _ in self._rows:
            seconds[bound] += time_s
        return {
            name: time_s / self.total_s
            for name, time_s in sorted(seconds.items(), key=lambda item: item[1], reverse=True)
        }

    def rough_share(self) -> float:
        """Share of the time of stand-ins."""
        return sum(row[1] for row in self._rows if row[4]) / self.total_s if self.total_s else 0.0
