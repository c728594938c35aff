"""Seconds of every configuration of every dispatch, and what follows for a module as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...features.device import Device
from ...features.tuning.cpu_block import CORES_FOR_MEMORY
from ...features.tuning.kind import Candidates, Task, get_kind
from ..cost_model import CostModel
from .dispatches import DTYPE, Dispatch
from .spec_text import DATA_TILING, Config, is_tiled

Seconds = NDArray[np.float64]

PACKING_OVER_STREAM = 1.5
"""Rate at which IREE packs weights, over the rate at which one core streams memory: 51 to 82 GB/s for weights of 1 to 4 MB on
Zen 5 (time of data tiling with weights as arguments, less that with weights as constants, IREE 3.13), where one core streams
37 GB/s."""

LEAST_GAIN = 1.1
"""A configuration replaces the compiler's own only where it is predicted to be at least so many times faster.

Of 1.0 to 1.5 this gained most on held-out products (3.1 times IREE's default), and made fewest slower than IREE's own (5 %)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A dispatch with its configurations: the default of the compiler first, its data tiling second where there is one,
    tiles after.

    Attributes:
        dispatch: The dispatch.
        candidates: Its configurations.
        seconds: Seconds of one call, shape `(n,)`.
        measured: Which of them were measured, shape `(n,)`.
        packing_s: Seconds that data tiling saves per call where weights are constants of the module, since those are packed
            at compile time; already subtracted, but never below `least_s`.
        least_s: Seconds the products alone take at the peak of the device.
    """

    dispatch: Dispatch
    candidates: Candidates
    seconds: Seconds
    measured: NDArray[np.bool_]
    packing_s: float = 0.0
    least_s: float = 0.0

    def config(self, i: int) -> Config:
        """Configuration `i`."""
        return self.candidates.config(i)

    @property
    def tiled(self) -> NDArray[np.bool_]:
        """Which configurations name tile sizes, `(n,)`."""
        return np.array([is_tiled(self.config(i)) for i in range(len(self.candidates))])

    @property
    def packed(self) -> int | None:
        """The position of data tiling; None where it does not apply."""
        return next((i for i in range(len(self.candidates)) if DATA_TILING in self.config(i)), None)

    def best(self, allowed: NDArray[np.bool_]) -> int:
        """The fastest of those allowed; 0, the compiler's own, unless another is faster enough.

        Where anything was measured only that counts: a prediction is no match for a measurement.
        """
        pool = allowed & self.measured if self.measured.any() else allowed
        if not pool.any():
            return 0
        order = np.where(pool, self.seconds, np.inf)
        i = int(np.argmin(order))
        margin = 1.0 if self.measured[i] else LEAST_GAIN
        return i if order[i] * margin < order[0] else 0

    def with_measured(self, at: Sequence[int], seconds: Sequence[float]) -> Scored:
        """With measurements at some positions; those that are not finite count as not measured."""
        predicted, measured = self.seconds.copy(), self.measured.copy()
        for i, value in zip(at, seconds, strict=True):
            if np.isfinite(value):
                predicted[i] = max(value - self.packing_s, min(value, self.least_s)) if i == self.packed else value
                measured[i] = True
        return replace(self, seconds=predicted, measured=measured)


def score(dispatch: Dispatch, model: CostModel, device: Device, threads: int) -> Scored:
    """What the model says of every sensible configuration of a dispatch.

    Raises:
        SpecError: the model cannot say.
    """
    kind = get_kind(dispatch.kind)
    task = Task(dispatch.kind, {**dispatch.sizes, "threads": threads}, DTYPE, device.name)
    space = kind.space(task)
    local: list[Config] = [{}, {DATA_TILING: 1}] if DATA_TILING in kind.knobs else [{}]
    # What is fused behind a product is run on whole blocks where the sum is sliced, and models know products alone: measured
    # with IREE 3.13, the best tiles took 10 % longer with a bias and 60 % longer with an erf, where unsliced ones lost nothing.
    tiles = [
        config for config in map(space.config, range(len(space)))
        if is_tiled(config) and not (dispatch.fused and config.get("tile_k"))
    ]  # fmt: skip
    candidates = Candidates.of(task, [*local, *tiles])
    seconds = np.asarray(model.predict(candidates), dtype=np.float64)
    packing_s = _packing_s(dispatch, device) if len(local) > 1 else 0.0
    least_s = 0.0
    if packing_s:
        least_s = _least_s(dispatch, device, threads)
        packing_s = min(packing_s, max(float(seconds[1]) - least_s, 0.0))
        seconds[1] -= packing_s
    return Scored(dispatch, candidates, seconds, np.zeros(len(candidates), dtype=np.bool_), packing_s, least_s)


def _packing_s(dispatch: Dispatch, device: Device) -> float:
    """Seconds a call saves because its weights are packed at compile time: reading and writing them once."""
    s = dispatch.sizes
    weights_b = 4.0 * s["batch"] * s["k"] * s["n"]
    stream = device.measured.get("bandwidth_dram_b_per_s_1t")
    # Where nothing was measured for one core, its share of what the chip has.
    rate = stream.value if stream is not None else device.required("memory_bandwidth_b_per_s") / CORES_FOR_MEMORY
    return 2.0 * weights_b / (PACKING_OVER_STREAM * rate) * dispatch.constant_calls / max(dispatch.calls, 1)


def _least_s(dispatch: Dispatch, device: Device, threads: int) -> float:
    s = dispatch.sizes
    peak, _ = device.peak_flops_per_s(DTYPE, "vector")
    per_core = peak / device.required("compute_units")
    return 2.0 * s["batch"] * s["m"] * s["n"] * s["k"] / (per_core * threads)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile a module: a configuration for every dispatch that can be tuned.

    Attributes:
        name: Name of the way.
        chosen: Position of the configuration among the candidates of each dispatch.
        total_s: Seconds of these dispatches in one call of the module; the others take the same in every variant.
    """

    name: str
    chosen: tuple[int, ...]
    total_s: float


DEFAULT, PACKED, TUNED, TUNED_PACKED, MIXED = "default", "data tiling", "tuned", "tuned, data tiling", "mixed"


def variants(scored: Sequence[Scored]) -> tuple[Variant, ...]:
    """The ways to compile a module that are worth comparing: the compiler's own two, and the best of what can be mixed.

    With data tiling on, products are packed all (`data tiling`, with convolutions tuned as `tuned, data tiling`) or some
    (`mixed`); without it none is.
    """
    plain: dict[str, list[int]] = {DEFAULT: [0] * len(scored), TUNED: [], PACKED: [], TUNED_PACKED: [], MIXED: []}
    for item in scored:
        tiled, packed = item.tiled, item.packed
        local = np.arange(len(tiled)) == 0
        either = tiled | local
        plain[TUNED].append(item.best(either))
        plain[PACKED].append(packed or 0)
        plain[TUNED_PACKED].append(packed or item.best(either))
        plain[MIXED].append(item.best(np.ones(len(tiled), dtype=np.bool_)))
    result: dict[tuple[int, ...], Variant] = {}
    for name in (DEFAULT, PACKED, TUNED, TUNED_PACKED, MIXED):
        chosen = tuple(plain[name])
        # The first of equal ones has the simplest command line; packing nothing is the default.
        result.setdefault(chosen, Variant(name, chosen, total_s(scored, chosen)))
    return tuple(result.values())


def total_s(scored: Sequence[Scored], chosen: Sequence[int]) -> float:
    """Seconds of all calls of the dispatches with the configurations chosen."""
    return float(sum(item.dispatch.calls * item.seconds[i] for item, i in zip(scored, chosen, strict=True)))


def to_measure(scored: Scored, k: int) -> list[int]:
    """Positions worth measuring: the compiler's own choices always, and the `k` tiles predicted to be fastest."""
    tiled = np.flatnonzero(scored.tiled)
    best = tiled[np.argsort(scored.seconds[tiled], kind="stable")][:k]
    return [i for i in range(len(scored.candidates)) if not scored.tiled[i]] + [int(i) for i in best]
