"""Readings over nights as cumulative sums: of what all cases share, and of what each does besides.

    ln latency - its median over the nights before  ->  weighted median over cases  ->  in deviations, clipped  ->  CUSUM

The median over cases keeps one noisy case, the clipping one noisy night from deciding. The reference is the regime's first
nights and does not move on, so that a slow creep cannot carry it along. CUSUM: Page, "Continuous inspection schemes",
Biometrika 41, 1954. Everything works on many histories at once: what `benchmarks/drift.py` simulates is what runs at night.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...features.cases import Floats
from .robust import median, side_spread, spread, step_spread, weighted_median


@dataclass(frozen=True, slots=True)
class Watch:
    """How device drift is looked for. Nights count within a regime; sums and limits are in deviations of a night.

    Nothing is said before `least_nights`; the reference grows until `settled` nights and stays. `recent` nights of steps keep
    the deviation up to date. `allowance` is taken off the sums every night, a night counts at most `clip`; beyond `limit` (what
    all cases share) or `case_limit` (one case against the others) there is drift. `floor` is the least deviation in ln, so that
    a clock's resolution is no scatter of zero; no case weighs more than `most_weight` of all. Moves below `least_move` (ln) are
    not worth waking anybody. `confirm_nights` is for how long a drift lasts before it is taken for a new regime. Neighbouring
    nights are taken to correlate by at most `most_correlation`.
    """

    least_nights: int = 10
    settled: int = 30
    recent: int = 20
    allowance: float = 0.75
    clip: float = 3.0
    limit: float = 8.0
    case_limit: float = 13.5
    floor: float = 0.002
    most_weight: float = 0.2
    least_move: float = 0.005
    confirm_nights: int = 3
    most_correlation: float = 0.8


@dataclass(frozen=True, slots=True)
class Sums:
    """What was summed, over histories, nights (and cases).

    `moved` is what all cases share of a night, in ln against the reference, and `scale` its deviation (both `(h, n)`, NaN
    before there is a reference or where too few cases were read). `slower` and `faster` are the sums `(h, n)`;
    `case_moved`, `case_slower` and `case_faster` those of each case beyond the others, `(h, n, c)`.
    """

    moved: Floats
    scale: Floats
    slower: Floats
    faster: Floats
    case_moved: Floats
    case_slower: Floats
    case_faster: Floats


def sums_over_nights(logs: Floats, watch: Watch) -> Sums:
    """The sums for `logs` of shape `(histories, nights, cases)`: ln latency in seconds, NaN where there is none.

    The sum after a night uses that night and those before it only.
    """
    histories, nights = logs.shape[:2]
    moved, scale = np.full((2, histories, nights), np.nan)
    slower, faster = np.zeros((2, histories, nights))
    case_moved = np.full(logs.shape, np.nan)
    case_slower, case_faster = np.zeros((2, *logs.shape))
    reference = _Reference.of(logs[:, : watch.least_nights], watch) if nights > watch.least_nights else None
    for night in range(watch.least_nights, nights):
        if reference is None or watch.least_nights < night <= watch.settled:
            reference = _Reference.of(logs[:, :night], watch)
        shared, own = reference.residuals(logs[:, night])
        moved[:, night], case_moved[:, night] = shared, own
        last = slice(max(night - watch.recent, watch.least_nights), night)
        step, own_step = step_spread(moved[:, last], 1), step_spread(case_moved[:, last], 1)
        scale[:, night] = np.fmax(np.fmax(*reference.scale), step)
        side = np.fmax(np.where(shared >= 0.0, *reference.scale), step)
        own_side = np.fmax(np.where(own >= 0.0, *reference.own_scale), own_step)
        pairs = ((slower, faster, shared / side, watch.limit),
                 (case_slower, case_faster, own / own_side, watch.case_limit))  # fmt: skip
        for up, down, deviations, limit in pairs:
            score = np.nan_to_num(np.clip(deviations, -watch.clip, watch.clip))
            known = ~np.isnan(deviations)
            # Bounded above, so that a drift that is over is forgotten within days.
            most = limit + 2 * watch.clip
            up[:, night] = np.clip(up[:, night - 1] + np.where(known, score - watch.allowance, 0.0), 0.0, most)
            down[:, night] = np.clip(down[:, night - 1] + np.where(known, -score - watch.allowance, 0.0), 0.0, most)
    return Sums(moved, scale, slower, faster, case_moved, case_slower, case_faster)


@dataclass(frozen=True, slots=True)
class _Reference:
    """What nights so far say of each case `(h, c)` and of all together `(h,)`; deviations upwards and downwards apart."""

    centre: Floats
    weights: Floats
    scale: tuple[Floats, Floats]
    own_scale: tuple[Floats, Floats]

    @classmethod
    def of(cls, logs: Floats, watch: Watch) -> _Reference:
        nights = logs.shape[1]
        centre = median(logs, 1)
        weights = _capped(1.0 / np.fmax(spread(logs, 1, centre), watch.floor), watch.most_weight)
        shared, own = _split(logs - centre[:, None], weights[:, None])
        # A deviation from few nights is itself uncertain, and so is the centre: both by about 1/sqrt(n) of a deviation.
        unsure = 1.0 + 4.0 / nights
        return cls(centre, weights, _sides(shared, unsure, watch), _sides(own, unsure, watch))

    def residuals(self, logs: Floats) -> tuple[Floats, Floats]:
        return _split(logs - self.centre, self.weights)


def _sides(residuals: Floats, factor: float, watch: Watch) -> tuple[Floats, Floats]:
    up, down = (np.fmax(side_spread(residuals, 1, upper), watch.floor) for upper in (True, False))
    wider = factor * _hanging_together(residuals, np.fmax(up, down), watch)
    return wider * up, wider * down


def _hanging_together(residuals: Floats, scale: Floats, watch: Watch) -> Floats:
    """By how much wider sums of these nights scatter than sums of independent ones: sqrt((1 + r) / (1 - r)) for a correlation r
    of neighbours, as that of a first-order autoregression (Johnson and Bagshaw, Technometrics 16, 1974).
    """
    steps = np.nan_to_num(np.clip(residuals / scale[:, None], -watch.clip, watch.clip))
    steps = steps - steps.mean(axis=1, keepdims=True)
    square = np.fmax((steps**2).sum(axis=1), 1e-12)
    # Estimated from n nights, a correlation is about 1/n too small (Kendall, Biometrika 41, 1954: (1 + 3r) / n).
    nights = residuals.shape[1]
    found = (steps[:, 1:] * steps[:, :-1]).sum(axis=1) / square
    r = np.clip((nights * found + 1.0) / (nights - 3.0), 0.0, watch.most_correlation)
    wider: Floats = np.sqrt((1.0 + r) / (1.0 - r))
    return wider


def _capped(weights: Floats, most: float) -> Floats:
    """Weights of sum 1 along the last axis, none of them much more than `most` of all."""
    known = np.nan_to_num(weights)
    total = np.maximum(known.sum(axis=-1, keepdims=True), 1e-12)
    capped: Floats = np.minimum(known / total, most)
    return capped


def _split(residuals: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """What all cases share, and what each has besides; NaN where fewer than half of the cases were read."""
    shared = weighted_median(residuals, np.broadcast_to(weights, residuals.shape))
    enough = 2 * np.count_nonzero(~np.isnan(residuals), axis=-1) >= residuals.shape[-1]
    shared = np.where(enough, shared, np.nan)
    return shared, residuals - shared[..., None]
