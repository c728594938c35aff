"""How sure it is that one plan is better than another.

Two plans share most of what may be wrong about them: the model's kernels, the engine's scheduler, the client. What they share
cancels. What is left of the error of ln(a / b) was measured on pairs of public services of one model under one load per device
that differ in one thing alone (`benchmarks/llm_serving.py --ranking`); of plans that differ in several it is added in squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .sweep import Candidate

_THROUGHPUT = {"device": 0.41, "plan": 0.36, "formats": 0.27, "engine": 0.22, "load": 0.26}
SPREADS: Mapping[str, Mapping[str, float]] = {
    "throughput": _THROUGHPUT,
    "tpot": {"device": 0.17, "plan": 0.34, "formats": 0.16, "engine": 0.22, "load": 0.18},
    "energy": _THROUGHPUT,
}
"""90 % of errors of ln(a / b) are within it, by what was predicted and what differs. Of energy there are too few pairs: it has
those of throughput, whose errors its own are mostly (energy is power times time, and power errs by less)."""
_NORMAL_90 = 1.645
"""Standard deviations within which 90 % of a normal distribution are."""


def spread(first: Candidate, second: Candidate, target: str) -> float:
    """90 % of errors of ln(first / second) are within it; 0 of plans that are alike."""
    one, other = first.setting, second.setting
    differs = {
        "device": one.device != other.device, "plan": one.plan != other.plan, "formats": one.formats != other.formats,
        "engine": one.engine != other.engine,
        "load": (first.concurrency, first.replicas, first.chunk) != (second.concurrency, second.replicas, second.chunk),
    }  # fmt: skip
    return math.sqrt(sum(SPREADS[target][name] ** 2 for name, is_other in differs.items() if is_other))


def probability_less(ratio: float, half_width: float) -> float:
    """Probability that a quantity is less than another, of which it is predicted to be `ratio` times.

    Args:
        ratio: quantity over the other, as predicted.
        half_width: 90 % of errors of its logarithm are within it.
    """
    if not half_width:
        return 0.5 if ratio == 1 else float(ratio < 1)
    return 0.5 * math.erfc(math.log(ratio) / (half_width / _NORMAL_90) / math.sqrt(2))
