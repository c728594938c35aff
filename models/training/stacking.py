"""Weighing the members of a fit by how well they answered rows they had not seen (stacking: Wolpert, 1992)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...features.batch.cases import Floats
from .fitting import Answers, Fit, MemberAnswers, TrainingTable

_EQUAL_PULL = 0.02
"""Pull towards equal weights, as a share of the rows: with few rows the members are near an even mean."""

_LEAST_WEIGHT = 0.1
"""A member with less is left out: it costs time on every request and says little."""

Weights = Mapping[str, Mapping[str, float]]
"""For each target the weight of every member, by name; they add up to 1."""


def stacking_weights(table: TrainingTable, answers: MemberAnswers) -> Weights:
    """Weights of the members of each target: not negative, adding up to 1, least squares on held-out rows."""
    return {target: _weights(table.log_labels[target], members) for target, members in answers.items()}


def combined(table: TrainingTable, answers: MemberAnswers, weights: Weights) -> Answers:
    """The weighed answers; latency is never below the bound, as when served."""
    blended = {target: np.full(len(table), np.nan) for target in table.log_labels}
    for target, members in answers.items():
        shares = _present(weights[target], members)
        total, there = np.zeros(len(table)), np.zeros(len(table))
        for name, share in shares.items():
            known = ~np.isnan(members[name])
            total[known] += share * members[name][known]
            there[known] += share
        # Where a member did not answer, the others have its share.
        blended[target] = np.where(there > 0, total / np.where(there > 0, there, 1.0), np.nan)
    blended["latency"] = np.maximum(blended["latency"], table.log_bound)
    return blended


def weighed_members(final: Fit, weights: Weights) -> tuple[Fit, dict[str, tuple[tuple[int, int, float], ...]]]:
    """The fit with only the graphs that have a weight, and for each target its (graph, column, weight) triples."""
    places: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for i, graph in enumerate(final.graphs):
        for column, target in enumerate(graph.targets):
            places.setdefault(target, {}).setdefault(graph.member, []).append((i, column))
    shares = {target: _present(weights[target], members) for target, members in places.items()}
    wanted = sorted({i for target, members in shares.items() for name in members for i, _ in places[target][name]})
    number = {old: new for new, old in enumerate(wanted)}
    # Several fits of one member share its weight.
    triples = {
        target: tuple(
            (number[i], column, round(share / len(places[target][name]), 4))
            for name, share in members.items()
            for i, column in places[target][name]
        )
        for target, members in shares.items()
    }
    return Fit(tuple(final.graphs[i] for i in wanted), final.analytic), triples


def _weights(labels: Floats, members: Mapping[str, Floats]) -> dict[str, float]:
    from scipy.optimize import nnls

    names = list(members)
    columns = np.stack([members[name] for name in names], axis=1)
    known = ~(np.isnan(columns).any(axis=1) | np.isnan(labels))
    equal = np.full(len(names), 1.0 / len(names))
    if len(names) == 1 or not known.any():
        return dict(zip(names, equal.tolist(), strict=True))
    # Against their mean, so that the sum of weights is free to be fixed; the last rows pull to equal weights and to a sum of 1.
    middle = columns[known].mean(axis=1, keepdims=True)
    spread = columns[known] - middle
    wanted = labels[known] - middle[:, 0]
    size = max(float(np.sqrt((spread**2).mean())), 1e-9)
    pull = np.sqrt(_EQUAL_PULL * known.sum()) * size
    sum_to_one = 1e3 * size * np.sqrt(known.sum())
    a = np.vstack([spread, pull * np.eye(len(names)), sum_to_one * np.ones((1, len(names)))])
    b = np.concatenate([wanted, pull * equal, [sum_to_one]])
    weights, _ = nnls(a, b)
    return dict(zip(names, (weights / weights.sum()).tolist(), strict=True))


def _present(weights: Mapping[str, float], members: Mapping[str, object]) -> dict[str, float]:
    """Weights of the members there are, without the negligible, adding up to 1 again."""
    there = {name: weights.get(name, 0.0) for name in members}
    largest = max(there.values())
    if largest <= 0.0:
        return dict.fromkeys(there, 1.0 / len(there))
    shares = {name: weight for name, weight in there.items() if weight >= min(_LEAST_WEIGHT, largest)}
    total = sum(shares.values())
    return {name: weight / total for name, weight in shares.items()}


_EQUAL_PULL_OF_SETTING = 0.05
"""Pull towards equal weights, in units of the mean error: with few rows members are near an even mean."""

_LEAST_WEIGHT_OF_SETTING = 0.05
"""A member with less is left out: it costs time on every request and says little."""


def blend_weights(answers: Mapping[str, Floats], log_latency: Floats, weight: Floats) -> dict[str, Floats]:
    """Weights of the members for each setting, shape `(n_settings,)`: not negative, adding up to 1, for the smallest mean of
    |ln(predicted / measured)|, whose minimum odd rows do not rule.

    Args:
        answers: for each member logarithms of seconds for programs it had not seen, shape `(n, n_settings)`.
        log_latency: measured, likewise, NaN where nothing was.
        weight: how much each row counts, likewise.
    """
    names = list(answers)
    weights = np.stack([
        _of_setting(np.stack([answers[name][:, j] for name in names], axis=1), log_latency[:, j], weight[:, j])
        for j in range(log_latency.shape[1])
    ], axis=1)  # fmt: skip
    return dict(zip(names, weights, strict=True))


def _of_setting(columns: Floats, labels: Floats, counts: Floats) -> Floats:
    from scipy.optimize import minimize

    known = ~np.isnan(labels)
    n_members = columns.shape[1]
    equal = np.full(n_members, 1.0 / n_members)
    if not known.any() or n_members == 1:
        return equal
    x, y, share = columns[known], labels[known], counts[known] / counts[known].sum()
    scale = max(float(share @ np.abs(x @ equal - y)), 1e-9)

    def loss(w: Floats) -> float:
        # A rounded corner, so that the search has a slope everywhere.
        errors = np.hypot((x @ w - y) / scale, 0.1)
        return float(share @ errors + _EQUAL_PULL_OF_SETTING * ((w - equal) ** 2).sum())

    of_setting = minimize(loss, equal, bounds=[(0.0, 1.0)] * n_members, method="SLSQP",
                     constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0}).x  # fmt: skip
    return _without_small(of_setting)


def _without_small(weights: Floats) -> Floats:
    large = np.where(weights >= min(_LEAST_WEIGHT_OF_SETTING, float(weights.max())), weights, 0.0)
    rounded: Floats = np.round(large / large.sum(), 4)
    return rounded
