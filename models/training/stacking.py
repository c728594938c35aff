"""Weighing the members of a fit by how well they answered rows they had not seen (stacking: Wolpert, 1992)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...features.batch.cases import Floats
from .fitting import Answers, Fit, MemberAnswers, TrainingTable

_EQUAL_PULL = 0.05
"""Pull towards equal weights, in units of the mean error: with few rows members are near an even mean."""

_LEAST_WEIGHT = 0.1
"""A member with less is left out: it costs time on every request and says little."""

Weights = Mapping[str, Mapping[str, float]]
"""For each target the weight of every member, by name; they add up to 1."""


def stacking_weights(table: TrainingTable, answers: MemberAnswers) -> Weights:
    """Weights of the members of each target on held-out rows, see `_weights`."""
    weights = {}
    for target, members in answers.items():
        best = _weights(np.stack(list(members.values()), axis=1), table.log_labels[target])
        weights[target] = dict(zip(members, best.tolist(), strict=True))
    return weights


def combined(table: TrainingTable, answers: MemberAnswers, weights: Weights) -> Answers:
    """The weighed answers; latency is never below the bound, as when served."""
    blended = {target: np.full(len(table), np.nan) for target in table.log_labels}
    for target, members in answers.items():
        total, there = np.zeros(len(table)), np.zeros(len(table))
        for name, share in weights[target].items():
            known = ~np.isnan(members[name])
            total[known] += share * members[name][known]
            there[known] += share
        # Where a member did not answer, the others have its share.
        blended[target] = np.where(there > 0, total / np.where(there > 0, there, 1.0), np.nan)
    blended["latency"] = np.maximum(blended["latency"], table.log_bound)
    return blended


def unneeded(weights: Weights) -> frozenset[tuple[str, str]]:
    """Members and targets without weight."""
    return frozenset(
        (name, target) for target, shares in weights.items() for name, share in shares.items() if not share
    )


def weighed_members(final: Fit, weights: Weights) -> tuple[Fit, dict[str, tuple[tuple[int, int, float], ...]]]:
    """The fit with only the graphs that have a weight, and for each target its (graph, column, weight) triples."""
    places = {
        (target, graph.member): (i, column)
        for i, graph in enumerate(final.graphs) for column, target in enumerate(graph.targets)
        if weights[target][graph.member]
    }  # fmt: skip
    numbers = sorted({i for i, _ in places.values()})
    triples: dict[str, tuple[tuple[int, int, float], ...]] = {}
    for (target, member), (i, column) in places.items():
        triples[target] = (*triples.get(target, ()), (numbers.index(i), column, weights[target][member]))
    return Fit(tuple(final.graphs[i] for i in numbers), final.analytic), triples


def blend_weights(answers: Mapping[str, Floats], log_latency: Floats, weight: Floats) -> dict[str, Floats]:
    """Weights of the members for each setting, shape `(n_settings,)`, see `_weights`.

    Args:
        answers: for each member logarithms of seconds for programs it had not seen, shape `(n, n_settings)`.
        log_latency: measured, likewise, NaN where nothing was.
        weight: how much each row counts, likewise.
    """
    names = list(answers)
    weights = np.stack([
        _weights(np.stack([answers[name][:, j] for name in names], axis=1), log_latency[:, j], weight[:, j])
        for j in range(log_latency.shape[1])
    ], axis=1)  # fmt: skip
    return dict(zip(names, weights, strict=True))


def _weights(columns: Floats, labels: Floats, counts: Floats | None = None) -> Floats:
    """Weights of members, shape `(n_members,)`: not negative, adding up to 1, for the smallest mean of
    |ln(predicted / measured)|, whose minimum odd rows do not rule.

    Args:
        columns: the members' answers, shape `(n, n_members)`; rows with a NaN do not count.
        labels: what was measured, shape `(n,)`, likewise.
        counts: how much each row counts; None is each alike.
    """
    from scipy.optimize import minimize

    known = ~(np.isnan(columns).any(axis=1) | np.isnan(labels))
    n_members = columns.shape[1]
    equal = np.full(n_members, 1.0 / n_members)
    if not known.any() or n_members == 1:
        return equal
    share = np.ones(known.sum()) if counts is None else counts[known]
    x, y, share = columns[known], labels[known], share / share.sum()
    scale = max(float(share @ np.abs(x @ equal - y)), 1e-9)

    def loss(w: Floats) -> float:
        # A rounded corner, so that the search has a slope everywhere.
        errors = np.hypot((x @ w - y) / scale, 0.1)
        return float(share @ errors + _EQUAL_PULL * ((w - equal) ** 2).sum())

    best: Floats = minimize(loss, equal, bounds=[(0.0, 1.0)] * n_members, method="SLSQP",
                     constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0}).x  # fmt: skip
    large = np.where(best >= min(_LEAST_WEIGHT, float(best.max())), best, 0.0)
    rounded: Floats = np.round(large / large.sum(), 4)
    return rounded
