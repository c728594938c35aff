"""Which kind of case a case is, about how long it takes, and the order in which cases are worth measuring.

A model is only as good as its emptiest corner, so plans count rows by stratum: who runs what in which dtype, on which
kind of shape, with which caches, and which limit binds.

The emptiest stratum goes first, in it what is least known per second. Strata lie in cells (family, impl, dtype), and a campaign
shares its rows out twice: to the cell that lags furthest behind its weight, then in that cell to the stratum that does. Among a
stratum's cases the one furthest from any measured or chosen case of its cell, per second it costs, is taken: the posterior
deviation of a Gaussian process grows with that distance (maximin designs: Johnson, Moore and Ylvisaker, "Minimax and maximin
distance designs", 1990).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Cases, Floats, Indices
from ....features.cost.bounds import work
from ....features.device import Catalogue, Device
from ....features.kernel import KernelSpec
from ...cpu.plans.shapes import MODEL_SHARE

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
    """What a case may cost on the card.

    Attributes:
        memory_b: Most bytes it needs there.
        call_s: Most seconds per call, as guessed.
    """

    memory_b: float = 4e9
    call_s: float = 30e-3


GPU_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Estimates:
    """About `n` cases; each field of length `n`.

    Attributes:
        strata: Their strata.
        call_s: Guessed seconds per call.
        memory_b: Bytes they need.
    """

    strata: tuple[Stratum, ...]
    call_s: Floats
    memory_b: Floats

    def within(self, limits: Limits) -> npt.NDArray[np.bool_]:
        """Which cases are small enough, shape `(n,)`."""
        return (self.memory_b <= limits.memory_b) & (self.call_s <= limits.call_s)


def estimates(specs: Sequence[KernelSpec], device: Device) -> Estimates:
    """Strata and rough costs of cases of any families on one device.

    Times are the lower bound of `features.cost.bounds` over `EFFICIENCY`.

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
        cases = Cases.from_specs([specs[i] for i in index], [device.name] * len(index))
        costs = work(cases, catalogue)
        memory_s = np.maximum(costs.bounds_s["dram"], costs.bounds_s["cache"])
        busy_s = np.maximum(memory_s, costs.bounds_s["compute"])
        kinds = np.where(costs.bounds_s["compute"] >= memory_s, 2, 1)
        regimes[index] = np.array(REGIMES, dtype=object)[np.where(busy_s < LAUNCH_BOUND_S, 0, kinds)]
        call_s[index] = np.maximum(busy_s / EFFICIENCY, LEAST_CALL_S)
        memory_b[index] = costs.footprint_b
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


Cell = tuple[str, str, str]
"""Family, impl and dtype."""

ROUND = 100
"""Cases are shuffled in rounds of this many, so that drift over time is not tied to shape and any prefix is covered."""

FARTHEST = 4.0
"""Distances count up to this (a factor of 55 in one size): beyond it a case is simply unknown."""

_OTHER_SETTING = 0.5
"""Distance between two cases of equal sizes in other variants or cache states, about a factor of 1.6 in one size."""

_LAUNCH_WEIGHT = 0.5
"""Weight of launch-bound strata beside others: their times differ least."""

_BLOCK = 512
"""Measured cases whose distances are taken at once."""


@dataclass(slots=True)
class _Group:
    """Cases of one cell: where they lie, what is still to be had, and how far each is from what is known."""

    weight: float
    places: Floats
    cost_s: Floats
    from_model: npt.NDArray[np.bool_]
    distance: Floats
    members: dict[Stratum, Indices]
    rows: Indices
    count: int

    def approach(self, places: Floats) -> None:
        """Note that cases at `places`, shape `(k, d)`, are known now."""
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK]
            # The last column is a code: what differs there is another variant or cache state.
            gaps = _OTHER_SETTING * (self.places[:, -1:] != block[None, :, -1])
            for size in range(self.places.shape[1] - 1):
                gaps += np.abs(self.places[:, size, None] - block[None, :, size])
            np.minimum(self.distance, gaps.min(axis=1), out=self.distance)


class CoverageOrder:
    """Hands out the indices of cases, shape `(n,)`, in the order in which they are worth measuring."""

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        strata: Sequence[Stratum],
        cost_s: Floats,
        rng: np.random.Generator,
        *,
        from_model: Sequence[bool] | None = None,
        measured: Sequence[tuple[KernelSpec, Stratum]] = (),
        weights: Mapping[Cell, float] | None = None,
    ) -> None:
        """Cases with their strata and costs in seconds; `measured` are known already; `weights` are cells' shares.

        Without `weights` a cell weighs the root of its number of cases.
        """
        self._rng = rng
        self._strata = strata
        self._counts: Counter[Stratum] = Counter(stratum for _, stratum in measured)
        self._margins: Counter[tuple[str, str]] = Counter()
        for _, stratum in measured:
            self._margins.update(_margins(stratum))
        known: dict[Cell, list[KernelSpec]] = {}
        for spec, _ in measured:
            known.setdefault((spec.family, spec.impl, spec.dtype), []).append(spec)
        rows: dict[Cell, list[int]] = {}
        for i, spec in enumerate(specs):
            rows.setdefault((spec.family, spec.impl, spec.dtype), []).append(i)
        models = np.zeros(len(specs), dtype=np.bool_) if from_model is None else np.array(from_model, dtype=np.bool_)
        self._mixed = bool(models.any())
        self._supply = Counter(strata)
        self._groups: dict[Cell, _Group] = {}
        for cell, index in rows.items():
            at, seen = np.array(index, dtype=np.intp), known.get(cell, [])
            places = _places([*(specs[i] for i in index), *seen])
            members: dict[Stratum, list[int]] = {}
            for local, i in enumerate(index):
                members.setdefault(strata[i], []).append(local)
            group = _Group(
                weight=weights.get(cell, 0.0) if weights is not None else float(np.sqrt(len(index))),
                places=places[: len(at)],
                cost_s=cost_s[at],
                from_model=models[at],
                distance=FARTHEST * rng.uniform(0.5, 1.0, len(at)),
                members={stratum: np.array(local, dtype=np.intp) for stratum, local in members.items()},
                rows=at,
                count=len(seen),
            )
            group.approach(places[len(at) :])
            self._groups[cell] = group

    def take(self, n: int) -> list[int]:
        """The next `n` cases, fewer if there are no more, in random order within rounds of `ROUND`."""
        taken: list[int] = []
        while len(taken) < n and self._groups:
            picked: list[int] = []
            while self._groups and len(picked) < min(ROUND, n - len(taken)):
                picked.append(self._next())
            taken += self._rng.permutation(picked).tolist()
        return taken

    def _next(self) -> int:
        cell = min(self._groups, key=self._lag)
        group = self._groups[cell]
        stratum = min(group.members, key=self._emptiness)
        candidates = group.members[stratum]
        if self._mixed:  # Models' shapes get their share, whatever their distance says.
            wanted = group.from_model[candidates] == (self._rng.random() < MODEL_SHARE)
            candidates = candidates[wanted] if wanted.any() else candidates
        best = int(candidates[np.argmax(group.distance[candidates] / group.cost_s[candidates])])
        group.approach(group.places[best : best + 1])
        self._forget(cell, stratum, best)
        group.count += 1
        self._counts[stratum] += 1
        self._margins.update(_margins(stratum))
        return int(group.rows[best])

    def _lag(self, cell: Cell) -> tuple[float, float]:
        group = self._groups[cell]
        return group.count / max(group.weight, 1e-9), -group.weight

    def _emptiness(self, stratum: Stratum) -> tuple[float, ...]:
        """Strata with more cases weigh more, by the root; equally empty ones go by what their family lacks most."""
        weight = np.sqrt(self._supply[stratum]) * (_LAUNCH_WEIGHT if stratum.regime == "launch" else 1.0)
        return (self._counts[stratum] / weight, *(self._margins[margin] for margin in _margins(stratum)), -weight)

    def _forget(self, cell: Cell, stratum: Stratum, local: int) -> None:
        group = self._groups[cell]
        group.members[stratum] = group.members[stratum][group.members[stratum] != local]
        if not len(group.members[stratum]):
            del group.members[stratum]
        if not group.members:
            del self._groups[cell]


def _margins(stratum: Stratum) -> tuple[tuple[str, str], ...]:
    return tuple((stratum.family, word) for word in (stratum.regime, stratum.cache_state, stratum.variant))


def _places(specs: Sequence[KernelSpec]) -> Floats:
    """Log sizes and knobs of one cell's cases, then a code of variant and cache state, shape `(n, d)`."""
    knobs = sorted({name for spec in specs for name, _ in spec.config})
    settings: dict[tuple[str, str], int] = {}
    codes = [settings.setdefault((spec.variant, spec.cache_state), len(settings)) for spec in specs]
    raw = [dict(spec.config) for spec in specs]
    sizes = [[*(size for _, size in spec.dims), *(row.get(name, 0) for name in knobs)]
             for spec, row in zip(specs, raw, strict=True)]  # fmt: skip
    logs: Floats = np.log1p(np.array(sizes, dtype=np.float64))
    return np.column_stack([logs, np.array(codes, dtype=np.float64)])
