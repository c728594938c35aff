"""A program with its kernels, and where their time goes: by operator, module and phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...models.predict.prediction import Prediction
from .captured import Program
from .kernels.host_calls import HostWork
from .kernels.kernel_use import KernelUse, rows_and_cols
from .kernels.table import ON_LISTS, kernels_of
from .operation import BACKWARD, OPTIMIZER, Operation


@dataclass(frozen=True, slots=True)
class Priced:
    """A program with its kernels for one kind of device.

    Attributes:
        operations: Calls that differ.
        counts: How many there are of each.
        uses: The kernels of one of each.
        reuse: What one of each touches that the program touched long before, see `Call`.
        views: Calls that only gave another view of a tensor.
        graphs: Calls of what was compiled as one.
        notes: What was fused.
    """

    operations: Sequence[Operation]
    counts: Sequence[int]
    uses: Sequence[Sequence[KernelUse]]
    reuse: Sequence[tuple[tuple[float, float], ...]]
    views: int
    graphs: int = 0
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """Kernels that run."""
        return sum(
            count * max(use.count, sum(each.count for each in use.otherwise))
            for count, uses in zip(self.counts, self.uses, strict=True) for use in uses
        )  # fmt: skip

    @property
    def host_work(self) -> HostWork:
        """What the host does to have them run."""
        phases = {operation.phase for operation in self.operations}
        listed = sum(
            count * max((len(value) for value in operation.arguments.values() if isinstance(value, tuple)), default=0)
            for operation, count in zip(self.operations, self.counts, strict=True) if operation.name.startswith(ON_LISTS)
        )  # fmt: skip
        operators = sum(count for count, uses in zip(self.counts, self.uses, strict=True) if uses)
        return HostWork(
            operators, self.launches, self.views, listed, self.graphs, trains=BACKWARD in phases, optimizes=OPTIMIZER in phases
        )  # fmt: skip


def priced(program: Program, kind: str, *, compiled: bool = False) -> Priced:
    """The kernels of a program on a kind of device, `gpu` or `cpu`; `compiled`: as if all of it were compiled."""
    counts = [(call.operation, call.compiled if compiled else call.count, call.reuse) for call in program.calls]
    counts = [each for each in counts if each[1]]
    uses = [kernels_of(operation, kind) for operation, *_ in counts]
    families = [
        name for name, is_rounded in (("gemm", program.tf32), ("conv2d", program.tf32_convolutions)) if is_rounded
    ]
    if families and kind == "gpu":
        uses = [[_in_tf32(use, families) for use in some] for some in uses]
    if kind == "gpu":
        uses = [[_in_wide_rows(use) for use in some] for some in uses]
    fusion = program.whole_fusion if compiled else program.fusion
    notes: tuple[str, ...] = ()
    if fusion.passes or compiled or program.compiles:
        notes = (
            f"what torch.compile would fuse was recorded eagerly: {fusion.words()}, nothing else as fused"
            if fusion.passes
            else "what torch.compile would fuse was recorded eagerly, and nothing is taken as fused",
        )
    trains = any(operation.phase == BACKWARD for operation, *_ in counts)
    graphs = 1 + trains if compiled or program.compiles else 0
    views = 0 if compiled else program.views
    operations, numbers, reuse = zip(*counts, strict=True) if counts else ((), (), ())
    return Priced(operations, numbers, uses, reuse, views, graphs, notes)


def _in_tf32(use: KernelUse, families: Sequence[str]) -> KernelUse:
    is_rounded = use.spec.family in families and use.spec.dtype == "fp32"
    return replace(use, spec=replace(use.spec, dtype="tf32")) if is_rounded else use


_WIDE = 1024
"""Columns of passes that count as wide: from 256 on, predictions for an H200 no longer depend on them."""


def _in_wide_rows(use: KernelUse) -> KernelUse:
    """A pass over narrow rows as one over as many elements in wide ones: to a GPU's kernel a contiguous tensor is one row
    (`coalesce_dimensions` in aten/src/ATen/TensorIterator.cpp). Measured rows of many elements are wide, and predictions of
    others up to six times as long.
    """
    sizes = dict(use.spec.dims)
    if use.spec.family == "elementwise" and sizes["cols"] < _WIDE:
        wide = rows_and_cols(float(sizes["rows"] * sizes["cols"]), _WIDE)
        use = replace(use, spec=replace(use.spec, dims=tuple((name, wide[name]) for name in sizes)))
    return replace(use, otherwise=tuple(map(_in_wide_rows, use.otherwise))) if use.otherwise else use


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


class _Row(NamedTuple):
    """The runs of one kernel of equal calls."""

    operation: Operation
    calls: int
    latency_s: float
    energy_j: float | None
    bound: str
    stand_in: str
    family: str


class Leaf(NamedTuple):
    """The kernels of one operator in one place; `workloads/flame.py` draws them."""

    path: tuple[str, ...]
    latency_s: float
    family: str
    remark: str


def _place(operation: Operation) -> tuple[str, ...]:
    modules = operation.module.replace(".*", "[*]").split(".") if operation.module else []
    return (operation.phase, *(name for name in modules if name != operation.phase), operation.name)


def _as(stand_in: str) -> str:
    return f", estimated as {stand_in}" if stand_in else ""


class Shares:
    """Where the time of the kernels goes."""

    def __init__(
        self, program: Priced, placed: Sequence[Sequence[KernelUse]], answers: Mapping[KernelUse, Prediction]
    ) -> None:
        self._rows: list[_Row] = []
        for operation, calls, uses in zip(program.operations, program.counts, placed, strict=True):
            for use in uses:
                answer = answers.get(replace(use, count=1, stand_in=""))
                if answer is not None:
                    runs = calls * use.count
                    joules = None if answer.energy_j is None else runs * answer.energy_j.value
                    self._rows.append(
                        _Row(
                            operation,
                            calls,
                            runs * answer.latency_s.value,
                            joules,
                            answer.bound,
                            use.stand_in,
                            use.spec.family,
                        )
                    )
        self.total_s = sum(row.latency_s for row in self._rows)

    def by(self, key: Callable[[Operation], str]) -> tuple[Share, ...]:
        """Shares of the operations with equal keys, longest first."""
        groups: dict[str, list[_Row]] = defaultdict(list)
        for row in self._rows:
            groups[key(row.operation)].append(row)
        shares = []
        for name, rows in groups.items():
            bounds: dict[str, float] = defaultdict(float)
            for row in rows:
                bounds[row.bound] += row.latency_s
            joules = [row.energy_j for row in rows if row.energy_j is not None]
            time_s = sum(row.latency_s for row in rows)
            shares.append(
                Share(
                    name=name, calls=sum({id(row.operation): row.calls for row in rows}.values()), latency_s=time_s,
                    energy_j=sum(joules) if len(joules) == len(rows) else None,
                    time_share=time_s / self.total_s if self.total_s else 0.0, bound=max(bounds, key=bounds.__getitem__),
                    stand_in=next((row.stand_in for row in rows if row.stand_in), ""),
                )
            )  # fmt: skip
        return tuple(sorted(shares, key=lambda share: share.latency_s, reverse=True))

    def leaves(self) -> tuple[Leaf, ...]:
        """Every row with its place, in the order of first calls: phase, modules from the outside in, operator."""
        return tuple(
            Leaf(_place(row.operation), row.latency_s, row.family, f"bound by {row.bound}" + _as(row.stand_in))
            for row in self._rows
        )

    def by_bound(self) -> dict[str, float]:
        """Share of the time by what binds the kernels, largest first."""
        seconds: dict[str, float] = defaultdict(float)
        for row in self._rows:
            seconds[row.bound] += row.latency_s
        return {
            name: time_s / self.total_s
            for name, time_s in sorted(seconds.items(), key=lambda item: item[1], reverse=True)
        }

    def rough_share(self) -> float:
        """Share of the time of stand-ins."""
        return sum(row.latency_s for row in self._rows if row.stand_in) / self.total_s if self.total_s else 0.0
