"""What a recorded program costs on a device: its kernels predicted once each, added up, and seen by operator and module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...models.predict.prediction import Interval, Prediction
from ...models.predict.predictor import Predictor
from ..whole_model import MAX_COUNT, Kernel, WholeModelPrediction, compose
from .kernels.kernel_use import KernelUse
from .kernels.table import NOT_ANSWERED, is_known, kernels_of, makes_state
from .memory import Memory
from .operation import Operation, Recording

HOST_CALL_S = {"gpu": Interval(10.5e-6, 5.3e-6, 28e-6), "cpu": Interval(1.5e-6, 0.75e-6, 3e-6)}
"""What the host takes for one kernel of eager PyTorch, beside the kernel. GPU: a call in a loop, a launch alone, a call in a
model under the profiler, all measured beside an H200 (docs/h200.md). CPU: modules and autograd, beyond the call itself that is
in the kernel's time, fitted to nine programs of tiny tensors on a Xeon of 2.3 GHz."""

HOST_VIEW_S = Interval(2.2e-6, 1.1e-6, 4.4e-6)
"""The same for a call that only gives another view of a tensor, of the same programs."""

_POWER_SPREAD = 1.3
"""How far the power of a kernel without one may lie outside the range of the program's others, as for MLIR programs."""


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


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """What one run of a program costs on a device. Where the device cannot run an operator, there are no totals.

    Attributes:
        device: Catalogue name.
        title: Full name.
        latency_s: Time of one run; None where `unanswered` says why.
        power_w: Mean power; None where it is unknown.
        energy_j: Energy of one run; None likewise.
        coverage: Share of programs the intervals are built to contain.
        kernels_s: Seconds of all kernels one after the other.
        host_s: Seconds that the host takes to call them: beside them on a GPU, between them on a CPU.
        bound_by: `device`, or `host` where that takes longer than the kernels.
        launches: Kernels that run.
        bound_s: The time no run of these kernels can beat.
        memory_b: Memory of the device; None where none is public.
        fits: Whether the peak fits into it; None likewise.
        by_operator: Longest first.
        by_module: Longest first.
        by_phase: Forward, backward and optimiser.
        by_bound: Share of the kernels' time by what binds it.
        rough_share: Share of the kernels' time of operators that have no kernel of their own in the families.
        unanswered: Operators the device has no answer for, and why.
        notes: What to know of the answer.
        whole: The composed prediction; None where there are no totals.
    """

    device: str
    title: str
    latency_s: Interval | None
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    kernels_s: float
    host_s: float
    bound_by: str
    launches: int
    bound_s: float | None
    memory_b: float | None
    fits: bool | None
    by_operator: tuple[Share, ...]
    by_module: tuple[Share, ...]
    by_phase: tuple[Share, ...]
    by_bound: Mapping[str, float]
    rough_share: float
    unanswered: tuple[str, ...]
    notes: tuple[str, ...]
    whole: WholeModelPrediction | None


@dataclass(frozen=True, slots=True)
class Priced:
    """A recording with its kernels for one kind of device.

    Attributes:
        operations: Those that a step other than the first runs.
        uses: The kernels of each.
        views: Calls that only gave another view of a tensor.
    """

    operations: Sequence[Operation]
    uses: Sequence[Sequence[KernelUse]]
    views: int

    @property
    def launches(self) -> int:
        """Kernels that run."""
        return sum(use.count for uses in self.uses for use in uses)


def priced(recording: Recording, kind: str) -> Priced:
    """The kernels of a recording's operations on a kind of device, `gpu` or `cpu`."""
    operations = [operation for operation in recording.operations if not makes_state(operation, recording)]
    uses = [kernels_of(operation, kind) for operation in operations]
    if recording.tf32 and kind == "gpu":
        uses = [[_in_tf32(use) for use in some] for some in uses]
    return Priced(operations, uses, recording.views)


def _in_tf32(use: KernelUse) -> KernelUse:
    product = use.spec.family in ("gemm", "conv2d") and use.spec.dtype == "fp32"
    return replace(use, spec=replace(use.spec, dtype="tf32")) if product else use


def estimate_on(
    predictor: Predictor, program: Priced, device: Device, memory: Memory, *, threads: int | None = None, coverage: float = 0.9
) -> DeviceEstimate:  # fmt: skip
    """What a program costs on one device.

    Args:
        predictor: the kernel model.
        program: what runs, priced for the device's kind.
        device: where.
        memory: its peak.
        threads: CPU threads; None on a GPU or for all cores.
        coverage: share of programs the intervals are to contain.

    Raises:
        SpecError: nothing runs, or coverage outside what is possible.
    """
    if not program.launches:
        raise SpecError("the program runs no operator; put the work inside the `with` block", field="program")
    is_cpu = device.kind == "cpu"
    placed = [
        [replace(use, spec=replace(use.spec, threads=threads)) if is_cpu else use for use in uses]
        for uses in program.uses
    ]
    counts: Counter[KernelUse] = Counter()
    for uses in placed:
        for use in uses:
            counts[replace(use, count=1, stand_in="")] += use.count
    known, refusals = _predictions(predictor, list(dict.fromkeys(use.spec for use in counts)), device.name, coverage)
    unanswered = _unanswered(program, placed, refusals)
    answers = _with_power({use: _adjusted(known[use.spec], use) for use in counts if use.spec in known}, counts)
    shares = _Shares(program, placed, answers)
    memory_b = device.fact("memory_b")
    whole = None
    latency = None
    host = _plus(_times(HOST_CALL_S[device.kind], program.launches), _times(HOST_VIEW_S, program.views))
    if not unanswered:
        kernels = [Kernel(use.spec, min(counts[use], MAX_COUNT)) for use in answers]
        whole = compose(kernels, list(answers.values()))
        alone = _with_tail(whole.latency_s, answers, counts)
        # A CPU runs its own calls; a GPU works on what was launched while the host goes on.
        latency = _plus(alone, host) if is_cpu else _longer(alone, host)
        whole = compose(kernels, list(answers.values()), launch_s=(latency.value - alone.value) / program.launches)
    return DeviceEstimate(
        device=device.name, title=device.title, latency_s=latency,
        power_w=None if whole is None else whole.power_w, energy_j=None if whole is None else whole.energy_j,
        coverage=coverage, kernels_s=shares.total_s, host_s=host.value,
        bound_by="host" if host.value > shares.total_s else "device", launches=program.launches,
        bound_s=None if whole is None else whole.bound_s, memory_b=memory_b,
        fits=None if memory_b is None else memory.peak_b <= memory_b,
        by_operator=shares.by(lambda operation: operation.name),
        by_module=shares.by(lambda operation: _merged(operation.module)),
        by_phase=shares.by(lambda operation: operation.phase), by_bound=shares.by_bound(), rough_share=shares.rough_share(),
        unanswered=unanswered, notes=_notes(program, placed, device, whole), whole=whole,
    )  # fmt: skip


def _times(interval: Interval, count: int) -> Interval:
    return Interval(*(end * count for end in _ends(interval)))


def _plus(a: Interval, b: Interval) -> Interval:
    return Interval(*(x + y for x, y in zip(_ends(a), _ends(b), strict=True)))


def _longer(a: Interval, b: Interval) -> Interval:
    return Interval(*(max(x, y) for x, y in zip(_ends(a), _ends(b), strict=True)))


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.lower, interval.upper


def _merged(module: str) -> str:
    """The path of a module with the numbers of repeated ones left out, so that equal layers are one."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", module) or "outside modules"


def _predictions(
    predictor: Predictor, specs: Sequence[KernelSpec], device: str, coverage: float
) -> tuple[dict[KernelSpec, Prediction], dict[KernelSpec, str]]:
    """Predictions by spec, and why others have none."""
    known: dict[KernelSpec, Prediction] = {}
    refusals: dict[KernelSpec, str] = {}
    groups: dict[tuple[str, str], list[KernelSpec]] = defaultdict(list)
    for spec in specs:
        groups[spec.family, spec.dtype].append(spec)
    for group in groups.values():
        try:
            known.update(zip(group, predictor.predict(group, [device] * len(group), coverage=coverage), strict=True))
        except SpecError as error:
            if error.field not in ("dtype", "family"):
                raise
            # A device refuses a dtype, and a model a family, not single sizes.
            refusals.update(dict.fromkeys(group, str(error)))
    return known, refusals


def _adjusted(prediction: Prediction, use: KernelUse) -> Prediction:
    """A kernel's prediction as that of what it stands for."""
    if use.scale == 1.0 and use.widening == 1.0:
        return prediction
    return replace(
        prediction,
        latency_s=_scaled(prediction.latency_s, use),
        energy_j=None if prediction.energy_j is None else _scaled(prediction.energy_j, use),
        breakdown={name: seconds * use.scale for name, seconds in prediction.breakdown.items()},
    )


def _scaled(interval: Interval, use: KernelUse) -> Interval:
    value, lower, upper = (end * use.scale for end in _ends(interval))
    return Interval(value, lower / use.widening, upper * use.widening)


def _with_power(answers: dict[KernelUse, Prediction], counts: Mapping[KernelUse, int]) -> dict[KernelUse, Prediction]:
    """Answers in which kernels without a power draw the mean of the others, and beyond their lowest and highest."""
    watts = [
        (counts[use] * answer.latency_s.value, answer.power_w)
        for use, answer in answers.items()
        if answer.power_w is not None
    ]
    if not watts or len(watts) == len(answers):
        return answers
    mean = sum(time_s * power.value for time_s, power in watts) / sum(time_s for time_s, _ in watts)
    lowest, highest = min(power.lower for _, power in watts), max(power.upper for _, power in watts)
    power_w = Interval(mean, min(lowest, mean / _POWER_SPREAD), max(highest, mean * _POWER_SPREAD))
    return {
        use: answer if answer.power_w is not None else replace(
            answer, power_w=power_w,
            energy_j=Interval(*(a * b for a, b in zip(_ends(answer.latency_s), _ends(power_w), strict=True))),
        )
        for use, answer in answers.items()
    }  # fmt: skip


def _with_tail(total: Interval, answers: Mapping[KernelUse, Prediction], counts: Mapping[KernelUse, int]) -> Interval:
    """A total that reaches at least as far up as with one of its rough parts at its own upper end."""
    tails = [
        counts[use] * (answer.latency_s.upper - answer.latency_s.value)
        for use, answer in answers.items()
        if use.widening > 1.0
    ]
    return replace(total, upper=max(total.upper, total.value + max(tails, default=0.0)))


def _unanswered(
    program: Priced, placed: Sequence[Sequence[KernelUse]], refusals: Mapping[KernelSpec, str]
) -> tuple[str, ...]:
    reasons: Counter[str] = Counter()
    for operation, uses in zip(program.operations, placed, strict=True):
        for use in uses:
            if use.spec in refusals:
                reasons[f"{operation.name}: {refusals[use.spec]}"] += 1
    return tuple(f"{reason} ({times} calls)" for reason, times in reasons.most_common())


class _Shares:
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


def _notes(
    program: Priced, placed: Sequence[Sequence[KernelUse]], device: Device, whole: WholeModelPrediction | None
) -> tuple[str, ...]:
    notes = []
    unknown = Counter(operation.name for operation in program.operations if not is_known(operation))
    by_bytes = [name for name in unknown if name.split(".")[0] not in NOT_ANSWERED]
    if by_bytes:
        notes.append(f"no family for {', '.join(by_bytes)}: priced by the bytes each reads and writes, widely")
    if elsewhere := [name for name in unknown if name.split(".")[0] in NOT_ANSWERED]:
        notes.append(
            f"links between devices and to the host are not predicted: {', '.join(elsewhere)} is its memory traffic alone"
        )
    runs_as = {}
    for uses in placed:
        for use in uses:
            unit = "matrix" if use.spec.family in ("gemm", "conv2d", "attention") else "vector"
            if use.spec.dtype not in runs_as and device.runs(use.spec.dtype, unit):
                runs_as[use.spec.dtype] = device.peak_flops_per_s(use.spec.dtype, unit)[1]
    for dtype, other in runs_as.items():
        if other != dtype and dtype != "tf32":
            notes.append(f"{device.name} has no {dtype}: it computes in {other}")
    return (*notes, *(() if whole is None else whole.notes))
