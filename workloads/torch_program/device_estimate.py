"""What a recorded program costs on a device: its kernels predicted once each, added up, and seen by operator and module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...models.predict.power_cap import in_steady_state, rows_under
from ...models.predict.power_law import PowerSetting
from ...models.predict.prediction import Interval, Prediction, Predictor
from ..memory_reads import cache_reach, cpu_stream, streamed
from ..savings import IDLE_SHARE
from ..whole_model import MAX_COUNT, Kernel, WholeModelPrediction, compose
from .kernels.collectives import link_notes
from .kernels.host_calls import host_s
from .kernels.kernel_use import LINK, KernelUse
from .kernels.table import NOT_ANSWERED, is_known
from .memory import Memory, relief
from .shares import Leaf, Priced, Share, Shares

_FAR_WIDER = 1.5
"""How many times wider, in logarithms, a kernel's interval is than that of what stands in for it, for that to answer."""

_POWER_SPREAD = 1.3
"""How far the power of a kernel without one may lie outside the range of the program's others, as for MLIR programs."""


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
        overlap_s: Seconds of collectives beside other kernels, which the run does not wait for.
        host_s: Seconds that the host takes to call them: beside them on a GPU, between them on a CPU.
        idle_share: Share of the run in which a GPU waits for its host; 0 on a CPU, None where there are no totals.
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
        leaves: Seconds of each operator in each place, in the order of first calls.
    """

    device: str
    title: str
    latency_s: Interval | None
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    kernels_s: float
    overlap_s: float
    host_s: float
    idle_share: float | None
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
    leaves: tuple[Leaf, ...]


def estimate_on(
    predictor: Predictor, program: Priced, device: Device, memory: Memory, *, threads: int | None = None, coverage: float = 0.9,
    setting: PowerSetting | None = None,
) -> DeviceEstimate:  # fmt: skip
    """What a program costs on one device.

    Args:
        predictor: the kernel model.
        program: what runs, priced for the device's kind.
        device: where.
        memory: its peak.
        threads: CPU threads; None on a GPU or for all cores.
        coverage: share of programs the intervals are to contain.
        setting: how the device is set; None: as it comes.

    Raises:
        SpecError: nothing runs, coverage outside what is possible, or the device cannot be set so.
    """
    if not program.launches:
        raise SpecError("the program runs no operator; put the work inside the `with` block", field="program")
    is_cpu = device.kind == "cpu"
    placed = [[_on(use, threads if is_cpu else None) for use in uses] for uses in program.uses]
    every = (spec for uses in placed for use in uses for spec in _specs_of(use))
    known, refusals = _predictions(predictor, list(dict.fromkeys(every)), device.name, coverage)
    placed = [[each for use in uses for each in _answering(use, known)] for uses in placed]
    # Programs that were captured before this was recorded have weights alone that come from memory.
    reach = cache_reach(predictor, device, threads, coverage) if any(program.reuse) else None
    if reach is not None:
        placed = [
            _with_fetches(uses, reach.fetched_b(reuse, operation.bytes_in + operation.bytes_out))
            for uses, operation, reuse in zip(placed, program.operations, program.reuse, strict=True)
        ]
    counts: Counter[KernelUse] = Counter()
    for calls, uses in zip(program.counts, placed, strict=True):
        for use in uses:
            counts[replace(use, count=1, stand_in="")] += calls * use.count
    unanswered = _unanswered(program, placed, refusals)
    answered = [use for use in counts if use.spec in known]
    parts = [known[use.spec] for use in answered]
    if reach is None:
        rate_b_per_s = cpu_stream(predictor, device, threads, coverage)
        parts = streamed(
            [use.spec for use in answered], [counts[use] for use in answered], parts, device, None, rate_b_per_s
        )
    adjusted = {use: use.adjusted(part, device) for use, part in zip(answered, parts, strict=True)}
    if reach is not None:
        adjusted = {use: reach.with_fetches(part, use.fetched_b) for use, part in adjusted.items()}
    steady = in_steady_state(
        [use.spec for use in adjusted], list(adjusted.values()), [counts[use] for use in adjusted], device
    )
    adjusted = dict(zip(adjusted, steady, strict=True))
    answers = _with_power(_under(_with_power(adjusted, counts), adjusted, device, setting), counts)
    shares = Shares(program, placed, answers)
    memory_b = device.fact("memory_b")
    whole = None
    latency = power_w = energy_j = idle_share = None
    overlap_s = _overlap_s(program, placed, answers)
    host = host_s(predictor, device, program.host_work)
    if not unanswered:
        kernels = [Kernel(use.spec, min(counts[use], MAX_COUNT)) for use in answers]
        whole = compose(kernels, list(answers.values()))
        alone = _overlapped(_with_tail(whole.latency_s, answers, counts), overlap_s)
        # A CPU runs its own calls; a GPU works on what was launched while the host goes on.
        latency = alone + host if is_cpu else _longer(alone, host)
        gaps_s = latency.value - alone.value
        idle_share = 0.0 if is_cpu else gaps_s / latency.value
        whole = compose(kernels, list(answers.values()), launch_s=gaps_s / program.launches)
        own_w = device.fact("tdp_w")
        if whole.energy_j is not None and whole.power_w is not None and own_w is not None:
            idle_w = IDLE_SHARE.scaled(own_w)
            limit_w = own_w if setting is None else setting.power_limit_w or own_w
            # What waits for links draws little: of what overlaps the kernels' energy is all.
            alone_j = whole.energy_j.scaled(1 - overlap_s / shares.total_s)
            energy_j = alone_j + idle_w.scaled(gaps_s)
            drawn_w = whole.power_w + idle_w.scaled(gaps_s / latency.value)
            power_w = Interval(*(min(end, limit_w) for end in _ends(drawn_w)))
    notes = _notes(program, placed, device, whole)
    if memory_b is not None and memory.peak_b > memory_b:
        notes.insert(0, f"it does not fit: {relief(memory, memory_b)}")
    return DeviceEstimate(
        device=device.name, title=device.title, latency_s=latency,
        power_w=power_w, energy_j=energy_j,
        coverage=coverage, kernels_s=shares.total_s, overlap_s=overlap_s, host_s=host.value, idle_share=idle_share,
        bound_by="host" if host.value > shares.total_s - overlap_s else "device", launches=program.launches,
        bound_s=None if whole is None else whole.bound_s, memory_b=memory_b,
        fits=None if memory_b is None else memory.peak_b <= memory_b,
        by_operator=shares.by(lambda operation: operation.name),
        by_module=shares.by(lambda operation: operation.module or "outside modules"),
        by_phase=shares.by(lambda operation: operation.phase), by_bound=shares.by_bound(), rough_share=shares.rough_share(),
        unanswered=unanswered, notes=tuple(notes), whole=whole, leaves=shares.leaves(),
    )  # fmt: skip


def _on(use: KernelUse, threads: int | None) -> KernelUse:
    others = tuple(_on(each, threads) for each in use.otherwise)
    return replace(use, spec=replace(use.spec, threads=threads), otherwise=others)


def _with_fetches(uses: Sequence[KernelUse], fetched_b: float) -> list[KernelUse]:
    """The kernels of an operator, of which the first fetches what its tensors lack in the caches."""
    return [replace(use, fetched_b=fetched_b / use.count) if i == 0 else use for i, use in enumerate(uses)]


def _specs_of(use: KernelUse) -> Iterator[KernelSpec]:
    """What is predicted to answer a use; where something may stand in for it also calls of both, as which the device may have
    been measured.
    """
    yield use.spec
    if use.otherwise:
        yield _called(use)
    for each in use.otherwise:
        yield _called(each)
        yield from _specs_of(each)


def _called(use: KernelUse) -> KernelSpec:
    return replace(use.spec, timing="call")


def _answering(use: KernelUse, known: Mapping[KernelSpec, Prediction]) -> tuple[KernelUse, ...]:
    """A use, or what stands in for it where the model knows its family from no device of the kind, or is surer of that.

    Also where that is faster, and the use takes no longer.
    """
    answer, others = known.get(use.spec), tuple(each for other in use.otherwise for each in _answering(other, known))
    if use.at_most and answer is not None:
        times_s = [known[each.spec].latency_s.value for each in others if each.spec in known]
        if len(times_s) == len(others) and answer.latency_s.value > sum(times_s):
            return others
    elif use.otherwise and (answer is None or answer.regime == "unseen_kind" or _surer(use.otherwise, use, known)):
        return others
    return (replace(use, otherwise=(), at_most=False),)


def _surer(others: Sequence[KernelUse], use: KernelUse, known: Mapping[KernelSpec, Prediction]) -> bool:
    """Whether nothing like the use was measured on the device, and the others were or have far narrower intervals."""

    def is_measured(each: KernelUse) -> bool:
        answers = (known.get(each.spec), known.get(_called(each)))
        return any(
            answer is not None and answer.regime in ("seen", "adapted") and answer.in_domain for answer in answers
        )

    def log_width(each: KernelUse) -> float:
        interval = known[each.spec].latency_s if each.spec in known else None
        return inf if interval is None or not interval.lower else log(interval.upper / interval.lower)

    if is_measured(use):
        return False
    return all(map(is_measured, others)) or log_width(use) > _FAR_WIDER * max(map(log_width, others))


def _longer(a: Interval, b: Interval) -> Interval:
    return Interval(*(max(x, y) for x, y in zip(_ends(a), _ends(b), strict=True)))


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.lower, interval.upper


def _predictions(
    predictor: Predictor, specs: Sequence[KernelSpec], device: str, coverage: float
) -> tuple[dict[KernelSpec, Prediction], dict[KernelSpec, str]]:
    """Predictions by spec, and why others have none."""
    known: dict[KernelSpec, Prediction] = {}
    refusals: dict[KernelSpec, str] = {}
    groups: dict[tuple[str, str], list[KernelSpec]] = defaultdict(list)
    for spec in specs:
        groups[spec.family, spec.dtype].append(spec)
    loops = predictor.in_long_loops()
    for group in groups.values():
        try:
            answers = loops.predict(group, [device] * len(group), coverage=coverage)
            known.update(zip(group, answers, strict=True))
        except SpecError as error:
            if error.field not in ("dtype", "family"):
                raise
            # A device refuses a dtype, and a model a family, not single sizes.
            refusals.update(dict.fromkeys(group, str(error)))
    return known, refusals


def _overlap_s(
    program: Priced, placed: Sequence[Sequence[KernelUse]], answers: Mapping[KernelUse, Prediction]
) -> float:
    """Seconds of collectives that run beside kernels: in each pass as long as there are any, and all but one collective, the
    first that a pass waits for or the last that waits for its gradients.
    """
    kernels_s, sent_s, alone_s = (defaultdict[str, float](float) for _ in range(3))
    for operation, calls, uses in zip(program.operations, program.counts, placed, strict=True):
        for use in uses:
            answer = answers.get(replace(use, count=1, stand_in=""))
            if answer is None:
                continue
            time_s, phase = answer.latency_s.value, operation.phase
            if answer.bound != LINK:
                kernels_s[phase] += calls * use.count * time_s
            elif use.exchange is not None and use.exchange.overlaps:
                sent_s[phase] += calls * use.count * time_s
                alone_s[phase] = max(alone_s[phase], time_s)
    return sum(min(kernels_s[phase], time_s - alone_s[phase]) for phase, time_s in sent_s.items())


def _overlapped(total: Interval, overlap_s: float) -> Interval:
    """A total without what overlaps; its upper end is without any overlap, as kernels slow down collectives and each other."""
    share = 1 - overlap_s / total.value
    return Interval(total.value * share, total.lower * share, total.upper)


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


def _under(
    answers: dict[KernelUse, Prediction], adjusted: Mapping[KernelUse, Prediction], device: Device,
    setting: PowerSetting | None,
) -> dict[KernelUse, Prediction]:  # fmt: skip
    """Answers on a device that is set so. What waits for links does not follow its clock, and stays as it was adjusted."""
    if setting is None:
        return answers
    uses = [use for use, answer in answers.items() if answer.bound != LINK]
    rows = rows_under([answers[use] for use in uses], [device] * len(uses), [setting] * len(uses))
    return {**adjusted, **dict(zip(uses, rows, strict=True))}


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
    for operation, calls, uses in zip(program.operations, program.counts, placed, strict=True):
        for use in uses:
            if use.spec in refusals:
                reasons[f"{operation.name}: {refusals[use.spec]}"] += calls
    return tuple(f"{reason} ({times} calls)" for reason, times in reasons.most_common())


def _notes(
    program: Priced, placed: Sequence[Sequence[KernelUse]], device: Device, whole: WholeModelPrediction | None
) -> list[str]:
    notes = []
    unknown = Counter(operation.name for operation in program.operations if not is_known(operation))
    by_bytes = [name for name in unknown if name.split(".")[0] not in NOT_ANSWERED]
    if by_bytes:
        notes.append(f"no family for {', '.join(by_bytes)}: priced by the bytes each reads and writes, widely")
    exchanges = {
        operation.name: use.exchange
        for operation, uses in zip(program.operations, placed, strict=True)
        for use in uses
        if use.exchange is not None and use.exchange.time_on(device) is not None
    }
    notes += link_notes(exchanges.values(), device)
    elsewhere = [name for name in unknown if name.split(".")[0] in NOT_ANSWERED and name not in exchanges]
    if elsewhere:
        notes.append(f"links between devices are not known: {', '.join(elsewhere)} is its memory traffic alone")
    if whole is not None and whole.power_w is None:
        why = (
            "its power limit is not public"
            if device.fact("tdp_w") is None
            else "too few kernels with power were measured"
        )
        notes.append(f"power and energy on {device.name} are unknown: {why}")
    runs_as = {}
    for uses in placed:
        for use in uses:
            unit = "matrix" if use.spec.family in ("gemm", "conv2d", "attention") else "vector"
            if (use.spec.dtype, unit) not in runs_as and device.runs(use.spec.dtype, unit):
                runs_as[use.spec.dtype, unit] = device.peak_flops_per_s(use.spec.dtype, unit)[1]
    for (dtype, unit), other in runs_as.items():
        if other != dtype and dtype != "tf32":
            notes.append(f"{device.name} has no {dtype} in its {unit} units: they compute in {other}")
    return [*program.notes, *notes, *(() if whole is None else whole.notes)]
