"""What kind of case a case is: its stratum, about how long it takes, and whether it is small enough to measure.

A model is only as good as its emptiest corner, so plans count rows by stratum: who runs what in which dtype, on which
kind of shape, with which caches, and which limit binds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...features.cases import Cases, Floats
from ...features.device import Catalogue, Device
from ...features.kernel import KernelSpec
from ...features.work import work

LAUNCH_BOUND_S = 2e-6
"""A case whose work takes less than this at the peaks is bound by its launch: kernels of any work take 2 to 5 µs."""

EFFICIENCY = 0.3
"""Share of the peak that a kernel is taken to reach when its time is only guessed."""

LEAST_CALL_S = 4e-6
"""Guessed time of the smallest kernel."""

_MATH_SLOWDOWN = 15.0
"""How much longer materialised attention takes than its bound: fp32 products (67 against 989 TFLOP/s on an H200)."""

_SCORE_COPIES_B = 12.0
"""Bytes per score of attention that materialises them: fp32 scores, masked scores and their softmax."""

REGIMES = ("launch", "memory", "compute")


class Stratum(NamedTuple):
    """What cases are counted by."""

    family: str
    impl: str
    dtype: str
    variant: str
    cache_state: str
    regime: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a case may cost on the card: bytes it needs there, and its guessed time per call in seconds."""

    memory_b: float = 4e9
    call_s: float = 30e-3


GPU_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Estimates:
    """About `n` cases: their strata, guessed time per call in seconds and bytes needed, each of length `n`."""

    strata: tuple[Stratum, ...]
    call_s: Floats
    memory_b: Floats

    def within(self, limits: Limits) -> npt.NDArray[np.bool_]:
        """Which cases are small enough, shape `(n,)`."""
        allowed: npt.NDArray[np.bool_] = (self.memory_b <= limits.memory_b) & (self.call_s <= limits.call_s)
        return allowed


def estimates(specs: Sequence[KernelSpec], device: Device) -> Estimates:
    """Strata and rough costs of cases of any families on one device.

    Times are the lower bound of `features.work` over `EFFICIENCY`.

    Raises:
        SpecError: the device has no peak for a dtype.
    """
    regimes = np.empty(len(specs), dtype=object)
    call_s, memory_b = np.empty(len(specs)), np.empty(len(specs))
    catalogue = Catalogue(extra=(device,))
    by_family: dict[str, list[int]] = {}
    for i, spec in enumerate(specs):
        by_family.setdefault(spec.family, []).append(i)
    for index in by_family.values():
        cases = Cases.of([specs[i] for i in index], [device.name] * len(index))
        found = work(cases, catalogue)
        memory_s = np.maximum(found.bounds_s["dram"], found.bounds_s["cache"])
        busy_s = np.maximum(memory_s, found.bounds_s["compute"])
        kinds = np.where(found.bounds_s["compute"] >= memory_s, 2, 1)
        regimes[index] = np.array(REGIMES, dtype=object)[np.where(busy_s < LAUNCH_BOUND_S, 0, kinds)]
        call_s[index] = np.maximum(busy_s / EFFICIENCY, LEAST_CALL_S)
        memory_b[index] = found.footprint_b
    for i in by_family.get("attention", ()):
        if materialises_scores(specs[i]):
            call_s[i] *= _MATH_SLOWDOWN
            memory_b[i] += _SCORE_COPIES_B * _scores(specs[i])
        elif masked(specs[i]):
            memory_b[i] += _SCORE_COPIES_B * specs[i]["q_len"] * specs[i]["kv_len"]
    strata = tuple(
        Stratum(s.family, s.impl, s.dtype, variant_class(s), s.cache_state, regime)
        for s, regime in zip(specs, regimes.tolist(), strict=True)
    )
    return Estimates(strata, call_s, memory_b)


def masked(spec: KernelSpec) -> bool:
    """Whether an attention case needs a mask that `is_causal` does not express."""
    return spec["q_len"] > 1 and bool(spec["window"] or spec["q_len"] != spec["kv_len"])


def materialises_scores(spec: KernelSpec) -> bool:
    """Whether an attention case may write all its scores to memory: with a mask PyTorch's own choice can be that."""
    return spec.impl == "torch-math" or (spec.impl == "torch" and masked(spec))


def _scores(spec: KernelSpec) -> float:
    return float(spec["batch"] * spec["heads"]) * spec["q_len"] * spec["kv_len"]


# Operators of one kind behave alike; a stratum for each of elementwise's twenty would spread a campaign thin.
_CLASSES = {
    "gemm": {"": "plain", "nt": "layout", "tn": "layout", "tt": "layout"},
    "elementwise": (
        dict.fromkeys(("relu", "neg", "abs"), "unary")
        | dict.fromkeys(("gelu", "silu", "tanh", "exp", "sigmoid", "sqrt", "log"), "transcendental")
        | dict.fromkeys(("addu", "mulu", "divu", "powu"), "scalar")
        | dict.fromkeys(("add", "sub", "mul", "div", "pow", "maximum"), "binary")
    ),
    "reduction": dict.fromkeys(("sum", "mean", "max"), "rows")
    | dict.fromkeys(("sum_rows", "mean_rows", "max_rows"), "columns"),
}


def variant_class(spec: KernelSpec) -> str:
    """The kind of variant a case is counted under; attention's also says grouped heads, windows and chunked prompts."""
    if spec.family != "attention":
        return _CLASSES.get(spec.family, {}).get(spec.variant, spec.variant)
    if spec["window"]:
        return "window"
    if masked(spec):
        return "chunked"
    return spec.variant + ("-grouped" if spec["heads"] != spec["kv_heads"] else "")
