"""The best plan for each aim, those that no other beats in everything, and how sure a ranking is.

Two plans share most of what may be wrong about them: the model's kernels, the engine's scheduler, the client. What they share
cancels. What is left of the error of ln(a / b) was measured on pairs of public services of one model under one load per device
that differ in one thing alone (`benchmarks/llm_serving.py --ranking`); of plans that differ in several it is added in squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..predict import SIGMAS_OF_90
from ..speculation import UNMEASURED
from .question import PlanQuestion
from .space import Setting
from .sweep import Candidate

Measure = Callable[[Candidate], float]

COST, LATENCY, ENERGY, GPUS, THROUGHPUT = "cost", "latency", "energy", "gpus", "throughput"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a plan may be best in.

    Attributes:
        title: What it is.
        measure: What is least for the best plan; NaN where unknown.
        then: What decides between plans of equal measure.
        target: What errors of its measure are like, a key of `SPREADS`.
    """

    title: str
    measure: Measure
    then: Measure
    target: str


AIMS: Mapping[str, Aim] = {
    COST: Aim(
        "least cost per token", lambda item: item.cost_per_million_tokens, lambda item: item.tpot_s, "throughput"
    ),
    LATENCY: Aim("least time per token", lambda item: item.tpot_s, lambda item: item.cost_per_million_tokens, "tpot"),
    ENERGY: Aim("least energy per token", lambda item: item.energy_per_token_j, lambda item: item.tpot_s, "energy"),
    THROUGHPUT: Aim(
        "most tokens per second", lambda item: 1 / item.throughput_tok_s, lambda item: item.tpot_s, "throughput"
    ),
    GPUS: Aim("fewest GPUs", lambda item: float(item.gpus), lambda item: item.cost_per_million_tokens, "throughput"),
}
"""Aims by name."""


def aims_of(question: PlanQuestion) -> tuple[str, ...]:
    """The aims that differ under a question: at a rate all plans give as many tokens; without a load all use the same GPUs."""
    if question.rate is not None:
        return (COST, LATENCY, ENERGY, GPUS)
    return (
        (COST, LATENCY, ENERGY, THROUGHPUT)
        if question.concurrency is None
        else (COST, LATENCY, ENERGY, THROUGHPUT, GPUS)
    )


def ranked(items: Sequence[Candidate], aim: Aim) -> list[Candidate]:
    """Plans, the best first; those of unknown measure are left out."""
    known = (item for item in items if math.isfinite(aim.measure(item)))
    return sorted(known, key=lambda item: (aim.measure(item), aim.then(item), item.tpot_s))


FRONT: tuple[Measure, ...] = (AIMS[COST].measure, AIMS[LATENCY].measure, AIMS[ENERGY].measure)


def pareto_front(items: Sequence[Candidate]) -> list[Candidate]:
    """Plans that no other one equals or beats in cost, time per token and energy per token together, by cost.

    Unknown energy counts as infinite.
    """

    def point(item: Candidate) -> tuple[float, ...]:
        values = (measure(item) for measure in FRONT)
        return tuple(value if math.isfinite(value) else math.inf for value in values)

    points = sorted(((point(item), item) for item in items), key=lambda pair: pair[0])
    front: list[tuple[tuple[float, ...], Candidate]] = []
    for values, item in points:
        # Sorted by cost, only what is already there can beat it.
        if not any(other[1] <= values[1] and other[2] <= values[2] for other, _ in front):
            front.append((values, item))
    return [item for _, item in front]


_THROUGHPUT = {"device": 0.33, "plan": 0.21, "formats": 0.24, "engine": 0.16, "load": 0.24, "speculation": 0.35}
SPREADS: Mapping[str, Mapping[str, float]] = {
    "throughput": _THROUGHPUT,
    "tpot": {"device": 0.19, "plan": 0.16, "formats": 0.2, "engine": 0.16, "load": 0.16, "speculation": 0.35},
    "energy": _THROUGHPUT,
}
"""90 % of errors of ln(a / b) are within it, by what was predicted and what differs. Of energy there are too few pairs: it has
those of throughput, whose errors its own are mostly (energy is power times time, and power errs by less). Of guesses there are
none: their spread is that of devices, the widest, by judgement."""


def spread(first: Candidate, second: Candidate, target: str) -> float:
    """90 % of errors of ln(first / second) are within it; 0 of plans that are alike."""
    alike = (first.concurrency, first.replicas, first.chunk) == (second.concurrency, second.replicas, second.chunk)
    return math.hypot(setting_spread(first.setting, second.setting, target), 0 if alike else SPREADS[target]["load"])


def setting_spread(first: Setting, second: Setting, target: str) -> float:
    """The same of settings under one load; wider where both guess or have experts on the host, which was not measured."""
    names = ("device", "plan", "formats", "engine", "speculation")
    differs = [SPREADS[target][name] for name in names if getattr(first, name) != getattr(second, name)]
    is_unmeasured = (first.speculation and second.speculation) or (first.host_experts and second.host_experts)
    return math.hypot(*differs) * (UNMEASURED if is_unmeasured else 1)


def probability_less(ratio: float, half_width: float) -> float:
    """Probability that a quantity is less than another, of which it is predicted to be `ratio` times.

    Args:
        ratio: quantity over the other, as predicted.
        half_width: 90 % of errors of its logarithm are within it.
    """
    if not half_width:
        return 0.5 if ratio == 1 else float(ratio < 1)
    return 0.5 * math.erfc(math.log(ratio) / (half_width / SIGMAS_OF_90) / math.sqrt(2))
