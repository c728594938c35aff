"""A program as the sum of its kernels: each predicted by the kernel model, or estimated analytically where it knows none.

This answers for devices and compilers on which no whole program was measured. Kernels of one program run back to back; how
their errors add up is in `whole_model`. What is not a kernel of any family is estimated from its arithmetic and traffic, and an
operation that was not understood counts as moving its operands slowly, with an interval of orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist

from ...features.cost.bounds import BOUNDS
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.mlir.program import FREE, Group, Node, Program
from ...features.mlir.vectors.device_limits import Hardware
from ...models.predict.prediction import Interval, Prediction, Predictor
from ..whole_model import Kernel, WholeModelPrediction, compose
from .learned.program_model import ProgramAnswer
from .prediction import GroupCost, ProgramCost

_STAND_IN_FACTOR = 1.25
"""How much further the ends of a kernel's interval lie where its spec is only like what it does."""

_ALL_UNKNOWN_SHARE = 0.2
"""A program is outside what is known when groups that are guesses or outside a family's domain take more of its
time."""

_POWER_SPREAD = 1.3
"""How far the power of a kernel nothing is known of may lie outside the range of those in the same program."""


@dataclass(frozen=True, slots=True)
class FallbackEfficiency:
    """What a kind of kernel reaches when nothing better is known.

    Attributes:
        of_peak: Share of the arithmetic peak.
        of_bandwidth: Share of the bandwidth.
        factor: By how much its time may be off either way at a coverage of 90 %.
    """

    of_peak: float
    of_bandwidth: float
    factor: float


FALLBACK_EFFICIENCY: Mapping[str, FallbackEfficiency] = {
    "contraction": FallbackEfficiency(0.3, 0.5, 4.0),
    "convolution": FallbackEfficiency(0.2, 0.5, 5.0),
    "attention": FallbackEfficiency(0.2, 0.5, 5.0),
    "normalization": FallbackEfficiency(0.1, 0.5, 3.5),
    "softmax": FallbackEfficiency(0.1, 0.5, 3.5),
    "reduction": FallbackEfficiency(0.1, 0.5, 4.0),
    "elementwise": FallbackEfficiency(0.15, 0.6, 3.0),
    "movement": FallbackEfficiency(0.1, 0.4, 4.0),
    "gather": FallbackEfficiency(0.05, 0.15, 6.0),
    "random": FallbackEfficiency(0.05, 0.4, 6.0),
    "sort": FallbackEfficiency(0.01, 0.03, 12.0),
    "unknown": FallbackEfficiency(0.01, 0.05, 100.0),
}
"""Judged, not fitted: the factor of each is as wide as the judgement is rough."""

_FREE_KINDS = FallbackEfficiency(1.0, 0.6, 6.0)
_TRANSCENDENTAL_FLOPS = 12.0
"""Arithmetic of one exponential, root or division in polynomials of fp32 (Cephes takes 10 to 20)."""

_STANDARD_COVERAGE = 0.9


def compose_program(kernels: Predictor, program: Program, on: Hardware, *, coverage: float = 0.9) -> ProgramCost:
    """A program's cost from its kernels' on one device, see the module.

    Args:
        kernels: the kernel model.
        program: what runs.
        on: the device and its threads.
        coverage: share of programs the intervals are to contain.

    Raises:
        SpecError: coverage outside what is possible.
    """
    running = [group for group in program.groups if group.runs > 0]
    known, refusals = _kernel_predictions(kernels, running, on, coverage)
    power = _power_range(
        [
            prediction
            for prediction in known.values()
            if prediction.power_w is not None and prediction.energy_j is not None
        ]
    )
    parts = []
    for i, group in enumerate(running):
        predicted = known.get(i)
        kernel = (
            _analytic_cost(group, on, coverage, power) if predicted is None else _wider_if_stand_in(predicted, group)
        )
        parts.append(_times(kernel, group.runs))
    if not parts:
        return _nothing_runs(on, program, coverage)
    named = [_kernel(i, group, i in known) for i, group in enumerate(running)]
    whole = compose(named, parts)
    guessed = [i for i in range(len(running)) if i not in known]
    widening = _unread_widening(program)
    latency = _stretched(_with_tails(whole.latency_s, [parts[i].latency_s for i in guessed]), widening)
    energy = None
    if whole.energy_j is not None:
        tails = [joules for i in guessed if (joules := parts[i].energy_j) is not None]
        energy = _stretched(_with_tails(whole.energy_j, tails), widening)
    outside = sum(
        part.time_share for i, part in enumerate(whole.parts) if i not in known or not part.prediction.in_domain
    )
    return ProgramCost(
        latency_s=latency,
        power_w=whole.power_w,
        energy_j=energy,
        in_domain=outside <= _ALL_UNKNOWN_SHARE and program.unread_share == 0 and not program.not_understood,
        notes=tuple(_notes(program, running, guessed, whole, refusals)),
        bound_s=whole.bound_s,
        breakdown=_breakdown(parts),
        groups=tuple(
            _cost(program, group, on, part.latency_s, part.energy_j, part.time_share, part.prediction.bound)
            for group, part in zip(running, whole.parts, strict=True)
        ),
    )


def learned(program: Program, on: Hardware, answer: ProgramAnswer) -> ProgramCost:
    """A program's cost from what was learned on whole programs, spread over its kernels."""
    bounds = [on.bounds_s(each.flops, each.bytes_in + each.bytes_out, each.dtype, each.kind) for each in program.groups]
    products_s = sum(
        least_s["compute"] * each.runs
        for least_s, each in zip(bounds, program.groups, strict=True) if each.spec and each.spec.family == "gemm"
    )  # fmt: skip
    # A compiler that fuses further than was taken here beats the sum of its kernels' bounds, not its products' arithmetic.
    answered = answer.latency_s
    latency_s = Interval(*(max(end, products_s) for end in (answered.value, answered.lower, answered.upper)))
    value, costs, breakdown = latency_s.value, [], dict.fromkeys(BOUNDS, 0.0)
    longer = value / answered.value if answered.value else 1.0
    for group, least_s, seconds in zip(program.groups, bounds, (longer * answer.group_s).tolist(), strict=True):
        bound = max(least_s, key=lambda name: least_s[name])
        breakdown[bound] += least_s[bound] * group.runs
        costs.append(_cost(program, group, on, seconds, None, seconds / value if value else 0.0, bound))
    bound_s = sum(breakdown.values())
    possible = min(1.0, (latency_s.lower - products_s) / (bound_s - products_s)) if bound_s > products_s else 1.0
    least = {name: seconds * possible for name, seconds in breakdown.items()}
    least["compute"] += products_s * (1.0 - possible)
    return ProgramCost(
        latency_s=_stretched(latency_s, _unknown_widening(program)),
        in_domain=answer.excess <= 0 and not program.not_understood and program.unread_share == 0,
        notes=(*([answer.why] if answer.why else []), *_text_notes(program)),
        bound_s=sum(least.values()),
        breakdown=least,
        groups=tuple(costs),
    )


def _unknown_widening(program: Program) -> tuple[float, float]:
    """What operations that were not understood or read do to a learned answer: by their share of operations it may be
    off by orders of magnitude.
    """
    costly = sum(1 for node in program.nodes if node.kind not in FREE)
    share = len(program.not_understood) / costly if costly else 0.0
    factor, wider = _unread_widening(program)
    return factor, wider * FALLBACK_EFFICIENCY["unknown"].factor ** share


def _kernel_predictions(
    kernels: Predictor, groups: Sequence[Group], on: Hardware, coverage: float
) -> tuple[dict[int, Prediction], list[str]]:
    """Predictions of the groups that are kernels of a family, by position, and why some could not be predicted."""
    specs = {i: _placed(group.spec, on) for i, group in enumerate(groups) if group.spec is not None}
    distinct = list(dict.fromkeys(specs.values()))
    known: dict[KernelSpec, Prediction] = {}
    refusals: list[str] = []
    by_family: dict[str, list[KernelSpec]] = {}
    for spec in distinct:
        by_family.setdefault(spec.family, []).append(spec)
    for family, family_specs in by_family.items():
        try:
            known.update(zip(family_specs, _predicted(kernels, family_specs, on, coverage), strict=True))
        except SpecError:
            for spec in family_specs:
                # One spec the model refuses must not take the others of its family with it.
                try:
                    known[spec] = _predicted(kernels, [spec], on, coverage)[0]
                except SpecError as error:
                    if error.field == "coverage":
                        raise
                    refusals.append(f"{family} is estimated on paper: {error}")
    return {i: known[spec] for i, spec in specs.items() if spec in known}, list(dict.fromkeys(refusals))


def _placed(spec: KernelSpec, on: Hardware) -> KernelSpec:
    return replace(spec, threads=on.threads) if on.is_cpu else spec


def _predicted(kernels: Predictor, specs: Sequence[KernelSpec], on: Hardware, coverage: float) -> list[Prediction]:
    # A compiled program's kernels are queued ahead of a GPU, which hides launches.
    alone = [replace(spec, timing="device") for spec in specs]
    return kernels.predict(alone, [on.device.name] * len(specs), coverage=coverage)


def _analytic_cost(group: Group, on: Hardware, coverage: float, power: tuple[float, float, float] | None) -> Prediction:
    """One run of a group, from arithmetic and traffic."""
    rough = FALLBACK_EFFICIENCY.get(group.kind, _FREE_KINDS)
    moved = group.bytes_in + group.bytes_out
    flops = group.flops + _TRANSCENDENTAL_FLOPS * group.transcendentals
    # What is not understood may be a view: that it touches what it is given is a guess, and no bound.
    bounds = on.bounds_s(group.flops, 0.0 if group.kind == "unknown" else moved, group.dtype, group.kind)
    compute_s = flops / (on.peak_flops_per_s(group.dtype, group.kind) * rough.of_peak)
    memory_s = moved / (float(on.rates_b_per_s[on.level(moved)]) * rough.of_bandwidth)
    value = max(compute_s, memory_s) + on.dispatch_s
    # The factors are given at one coverage; as of a normal law in logarithms they grow with it.
    half = log(rough.factor) * normal_width(coverage)
    latency = Interval(value, max(value * exp(-half), min(max(bounds.values()), value)), value * exp(half))
    watts = joules = None
    if power is not None:
        watts = Interval(*power)
        joules = Interval(value * power[0], latency.lower * power[1], latency.upper * power[2])
    return Prediction(
        latency_s=latency, power_w=watts, energy_j=joules, coverage=coverage, method="on paper", in_domain=False,
        notes=(), bound=max(bounds, key=lambda name: bounds[name]), breakdown=bounds, regime="unseen_kind",
    )  # fmt: skip


def normal_width(coverage: float) -> float:
    """Half-width of a normal interval of `coverage` over that of one of `_STANDARD_COVERAGE`."""
    return NormalDist().inv_cdf((1.0 + coverage) / 2.0) / NormalDist().inv_cdf((1.0 + _STANDARD_COVERAGE) / 2.0)


def _power_range(known: Sequence[Prediction]) -> tuple[float, float, float] | None:
    """Power of a kernel of which nothing is known, from the others': the time-weighted mean, and beyond the lowest
    and highest.
    """
    watts = [(prediction.latency_s.value, prediction.power_w) for prediction in known if prediction.power_w is not None]
    if not watts:
        return None
    mean = sum(time * power.value for time, power in watts) / sum(time for time, _ in watts)
    lowest, highest = min(power.lower for _, power in watts), max(power.upper for _, power in watts)
    return mean, min(lowest, mean / _POWER_SPREAD), max(highest, mean * _POWER_SPREAD)


def _wider_if_stand_in(prediction: Prediction, group: Group) -> Prediction:
    if not group.stand_in:
        return prediction
    least = min(max(prediction.breakdown.values(), default=0.0), prediction.latency_s.value)
    wider = _stretched(prediction.latency_s, (1.0, _STAND_IN_FACTOR))
    return replace(
        prediction,
        latency_s=replace(wider, lower=min(max(wider.lower, least), wider.value)),
        energy_j=None if prediction.energy_j is None else _stretched(prediction.energy_j, (1.0, _STAND_IN_FACTOR)),
    )


def _times(prediction: Prediction, runs: float) -> Prediction:
    """All runs of a kernel as one: their errors are the same error."""
    if runs == 1.0:
        return prediction
    return replace(
        prediction,
        latency_s=prediction.latency_s.scaled(runs),
        energy_j=None if prediction.energy_j is None else prediction.energy_j.scaled(runs),
        breakdown={name: seconds * runs for name, seconds in prediction.breakdown.items()},
    )


def _stretched(interval: Interval, widening: tuple[float, float]) -> Interval:
    """The value times the first, its ends further away by the second."""
    factor, wider = widening
    return Interval(interval.value * factor, interval.lower / wider, interval.upper * factor * wider)


def _with_tails(total: Interval, guessed: Sequence[Interval]) -> Interval:
    """A total that reaches at least as far up as it would if one of its guessed parts were at its own upper end.

    Errors of per cents add up otherwise than that of a part that may take a hundred times as long.
    """
    farthest = max((interval.upper - interval.value for interval in guessed), default=0.0)
    return Interval(total.value, total.lower, max(total.upper, total.value + farthest))


def _unread_widening(program: Program) -> tuple[float, float]:
    """What operations no reader made anything of do to a total: they are taken to cost like the others."""
    if program.unread_share <= 0:
        return 1.0, 1.0
    rest = max(1.0 - program.unread_share, 1e-3)
    return 1.0 / rest, (1.0 / rest) ** 2


def _kernel(i: int, group: Group, is_known: bool) -> Kernel:
    """The group as a kernel of a model: one without a family is one of its kind, like no other."""
    if is_known and group.spec is not None:
        return Kernel(group.spec, name=group.title)
    return Kernel(KernelSpec(group.kind, group.dtype, (("position", i),)), name=group.title)


def _breakdown(parts: Sequence[Prediction]) -> dict[str, float]:
    """Seconds of the bound by the limit that binds each kernel; they add up to it."""
    breakdown = dict.fromkeys(BOUNDS, 0.0)
    for part in parts:
        name = max(part.breakdown, key=lambda name: part.breakdown[name])
        breakdown[name] += part.breakdown[name]
    return breakdown


def _cost(
    program: Program,
    group: Group,
    on: Hardware,
    latency_s: float,
    energy_j: float | None,
    time_share: float,
    bound: str,
) -> GroupCost:
    nodes = [program.nodes[i] for i in group.nodes]
    op_shares = _op_shares(nodes, on)
    by_line: dict[int, float] = {}
    for node, share in zip(nodes, op_shares, strict=True):
        if node.line is not None:
            by_line[node.line] = by_line.get(node.line, 0.0) + share
    lines = tuple(sorted(by_line))
    return GroupCost(
        title=group.title,
        kind=group.kind,
        ops=tuple(node.op for node in nodes),
        lines=lines,
        runs=group.runs,
        latency_s=latency_s,
        energy_j=energy_j,
        time_share=time_share,
        flops=group.flops * group.runs,
        bytes=(group.bytes_in + group.bytes_out) * group.runs,
        bound=bound,
        spec="" if group.spec is None else str(group.spec),
        stand_in=group.stand_in,
        understood=all(node.understood for node in nodes) and group.kind != "unknown",
        op_shares=op_shares,
        line_shares=tuple(by_line[line] for line in lines),
    )


def _op_shares(nodes: Sequence[Node], on: Hardware) -> tuple[float, ...]:
    """Shares of a kernel's time: what arithmetic or traffic of each operation would take alone, over the sum of these."""
    alone = []
    for node in nodes:
        flops = node.flops + _TRANSCENDENTAL_FLOPS * node.transcendentals
        bounds = on.bounds_s(flops, node.bytes_in + node.bytes_out, node.dtype, node.kind)
        # A launch is the kernel's, not the operation's.
        limit_s = max(bounds[name] for name in bounds if name != "launch")
        alone.append(0.0 if node.kind in FREE else limit_s * node.runs)
    whole = sum(alone)
    return tuple(limit_s / whole if whole else 1.0 / len(nodes) for limit_s in alone)


def _notes(
    program: Program,
    groups: Sequence[Group],
    guessed: Sequence[int],
    whole: WholeModelPrediction,
    refusals: Sequence[str],
) -> list[str]:
    notes = []
    if guessed:
        share = sum(whole.parts[i].time_share for i in guessed)
        kinds = ", ".join(dict.fromkeys(groups[i].kind for i in guessed))
        notes.append(
            f"{len(guessed)} of {len(groups)} kernels ({kinds}), {share:.0%} of the time, are estimated on paper"
        )
    if (stand_ins := sum(1 for group in groups if group.spec is not None and group.stand_in)) > 0:
        notes.append(f"{stand_ins} of {len(groups)} kernels are predicted as ones that are only like them")
    return [*notes, *_text_notes(program), *refusals, *whole.notes]


def _text_notes(program: Program) -> list[str]:
    """What the text itself leaves open."""
    text_notes = []
    if program.not_understood:
        names = ", ".join(dict.fromkeys(node.op for node in program.not_understood))
        text_notes.append(f"not understood, and guessed within orders of magnitude: {names}")
    if program.unread_share > 0:
        text_notes.append(
            f"{program.unread_share:.0%} of the text could not be read; it is taken to cost like the rest"
        )
    return text_notes


def _nothing_runs(on: Hardware, program: Program, coverage: float) -> ProgramCost:
    """A program without a kernel: a call, and nothing in it."""
    wide = 5.0 ** normal_width(coverage)
    value = on.dispatch_s
    latency = Interval(value, min(max(value / wide, on.launch_s), value), value * wide)
    note = "nothing in the program computes or moves anything; only a call is left"
    return ProgramCost(
        latency_s=latency, in_domain=program.unread_share == 0, notes=(note,), bound_s=on.launch_s,
        breakdown={**dict.fromkeys(BOUNDS, 0.0), "launch": on.launch_s}, groups=(),
    )  # fmt: skip
