"""What a GPU campaign measures, and in which order: coverage first, then uncertainty per second.

Candidates come from `sweeps`, those beyond the card's limits left out; `coverage` orders them. What is measured already
is counted and kept away from, so a later plan goes on where an earlier one stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ....datasets.rows.splits import mixed, word_hash
from ....features.device import Device, catalogue
from ....features.kernel import KernelSpec, get_family
from .strata import GPU_LIMITS, Cell, CoverageOrder, Limits, Stratum, estimates
from .sweeps import SWEEPS, GpuSweep, get_sweep

OVERSAMPLING = 3
"""Candidates per wanted case, so that every stratum has some to choose from."""

LEAST_CANDIDATES = 48
"""Candidates of the rarest setting."""

CASE_OVERHEAD_S = 0.1
"""What a case costs beside its calls: operands, capture, warm-up, the least sampling time."""

CALLS = 20
"""Calls of a case that are too long to be repeated for the sake of the clock."""

LEAST_CELL_WEIGHT = 1 / 120
"""No cell gets less than this share of a campaign."""

HEAD_START = 200
"""Cases before the first tiled one, while tiled kernels are compiled in the background."""

TILED_EVERY = 4
"""From then on every fourth case is a tiled one, as long as there are any."""


REGIMES_OF = "nvidia-h200-sxm-141gb"
"""The device whose limits say which regime a case is in, where only an even spread matters and none is named."""


def gpu_plan(
    n_rows: int,
    seed: int,
    *,
    device: str | Device,
    measured: Sequence[KernelSpec] = (),
    tiled: Sequence[KernelSpec] = (),
    families: Sequence[str] = tuple(SWEEPS),
    limits: Limits = GPU_LIMITS,
) -> list[KernelSpec]:
    """Up to `n_rows` cases not measured yet, none twice; equal arguments give equal plans.

    Candidates are drawn anew for every number of measured cases, so that runs of one seed add up without end. Any prefix of
    300 cases holds every family, impl and dtype, in random order within rounds of 100. `tiled` cases keep their order and
    fill every fourth place after the first 200.

    Raises:
        SpecError: a family has no GPU sweep, or the device no peak for a dtype.
    """
    card = _card(device)
    known = {spec.case_id for spec in measured}
    rng = np.random.default_rng(seed_after(seed, known))
    waiting = [spec for spec in tiled if spec.case_id not in known]
    n_tiled = min(len(waiting), max(0, n_rows - HEAD_START) // TILED_EVERY)
    sweeps = [_runnable(get_sweep(name), card) for name in families]
    candidates = _candidates(sweeps, n_rows, rng)
    specs = [spec for spec in candidates if spec.case_id not in known]
    if not specs:
        return waiting[:n_rows]
    estimated = estimates(specs, card)
    allowed = np.flatnonzero(estimated.within(limits)).tolist()
    specs = [specs[i] for i in allowed]
    order = CoverageOrder(
        specs,
        [estimated.strata[i] for i in allowed],
        CASE_OVERHEAD_S + CALLS * estimated.call_s[allowed],
        rng,
        from_model=[candidates[spec] for spec in specs],
        measured=_with_strata(measured, card),
        weights=_cell_weights(sweeps),
    )
    return _interleaved([specs[i] for i in order.take(n_rows - n_tiled)], waiting[:n_tiled])


def seed_after(seed: int, known: Collection[object]) -> list[int]:
    """The seed of a plan's candidates: another one once more is known, or runs of one seed would exhaust their candidates."""
    return [seed, len(known)]


def energy_cases(
    specs: Sequence[KernelSpec], share: float = 0.15, seed: int = 0, *, device: str | Device = REGIMES_OF
) -> frozenset[str]:
    """The `case_id`s of about `share` of the hot cases, whose energy is measured too.

    A case is chosen by its own hash, whatever else there is; a stratum that would have none gets the one with the
    lowest hash, so every family, dtype and regime is in it. Cold cases have no steady loop to measure.

    Raises:
        ValueError: the share is not between 0 and 1.
        SpecError: the device has no peak for a dtype.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of cases with energy must be above 0 and at most 1, got {share}")
    hot = [spec for spec in specs if spec.cache_state == "hot"]
    if not hot:
        return frozenset()
    ids = [spec.case_id for spec in hot]
    salt = np.uint64(word_hash(f"energy-{seed}"))
    drawn = mixed(np.array([int(name, 16) for name in ids], dtype=np.uint64) ^ salt).astype(np.float64) / 2.0**64
    chosen = {name for name, place in zip(ids, drawn.tolist(), strict=True) if place < share}
    lowest: dict[Stratum, tuple[float, str]] = {}
    for stratum, place, name in zip(estimates(hot, _card(device)).strata, drawn.tolist(), ids, strict=True):
        lowest[stratum] = min(lowest.get(stratum, (2.0, "")), (place, name))
    return frozenset(chosen | {name for _, name in lowest.values()})


def energy_order(
    specs: Sequence[KernelSpec],
    seed: int,
    *,
    measured: Sequence[KernelSpec] = (),
    device: str | Device = REGIMES_OF,
) -> list[KernelSpec]:
    """All of `specs` in the order in which their energy is worth measuring, those of `measured` left out.

    Every case costs the same here, a steady loop of some seconds, and every family gets as many of the first cases as any
    other: power is learnt family by family, from a few dozen rows. Equal arguments give equal orders.

    Raises:
        SpecError: the device has no peak for a dtype.
    """
    known = {spec.case_id for spec in measured}
    todo = [spec for spec in dict.fromkeys(specs) if spec.case_id not in known]
    if not todo:
        return []
    card = _card(device)
    strata = estimates(todo, card).strata
    order = CoverageOrder(todo, strata, np.ones(len(todo)), np.random.default_rng(seed),
                          measured=_with_strata(measured, card), weights=_equal_families(strata))  # fmt: skip
    return [todo[i] for i in order.take(len(todo))]


def _card(device: str | Device) -> Device:
    return catalogue().get(device) if isinstance(device, str) else device


def _runnable(sweep: GpuSweep, card: Device) -> GpuSweep:
    """The sweep without dtypes that the device has no hardware for."""
    unit = get_family(sweep.family).unit
    return replace(sweep, settings=tuple(setting for setting in sweep.settings if card.runs(setting.dtype, unit)))


def _candidates(sweeps: Sequence[GpuSweep], n_rows: int, rng: np.random.Generator) -> dict[KernelSpec, bool]:
    """Candidates of every setting, each with whether its shape is a model's."""
    pool: dict[KernelSpec, bool] = {}
    shares = sum(sweep.share for sweep in sweeps)
    for sweep in sweeps:
        weights = sum(setting.weight for setting in sweep.settings)
        for setting in sweep.settings:
            wanted = OVERSAMPLING * n_rows * sweep.share / shares * setting.weight / weights
            for spec, from_model in sweep.candidates(setting, max(LEAST_CANDIDATES, round(wanted)), rng):
                pool.setdefault(spec, from_model)
    return pool


def _cell_weights(sweeps: Sequence[GpuSweep]) -> dict[Cell, float]:
    cells: dict[Cell, float] = {}
    for sweep in sweeps:
        total = sum(setting.weight for setting in sweep.settings)
        for setting in sweep.settings:
            cell = (sweep.family, setting.impl, setting.dtype)
            cells[cell] = cells.get(cell, 0.0) + sweep.share * setting.weight / total
    return {cell: max(LEAST_CELL_WEIGHT, weight) for cell, weight in cells.items()}


def _equal_families(strata: Sequence[Stratum]) -> dict[Cell, float]:
    """Equal shares of every family, within one equal shares of every impl and dtype."""
    cells = {(stratum.family, stratum.impl, stratum.dtype) for stratum in strata}
    sizes = Counter(family for family, _, _ in cells)
    return {cell: 1.0 / (len(sizes) * sizes[cell[0]]) for cell in cells}


def _with_strata(specs: Sequence[KernelSpec], device: Device) -> list[tuple[KernelSpec, Stratum]]:
    return list(zip(specs, estimates(specs, device).strata, strict=True)) if specs else []


def _interleaved(untiled: Sequence[KernelSpec], tiled: Sequence[KernelSpec]) -> list[KernelSpec]:
    mixed_in: list[KernelSpec] = list(untiled[:HEAD_START])
    later, waiting = list(untiled[HEAD_START:]), list(tiled)
    step = TILED_EVERY - 1
    for start in range(0, max(len(later), step * len(waiting)), step):
        mixed_in += later[start : start + step]
        mixed_in += waiting[start // step : start // step + 1]
    return mixed_in
