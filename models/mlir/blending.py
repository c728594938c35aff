"""Weighing the members of a model of programs by their answers for programs they had not seen (stacking: Wolpert, 1992)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...features.cases import Floats

_EQUAL_PULL = 0.05
"""Pull towards equal weights, in units of the mean error: with few rows members are near an even mean."""

_LEAST_WEIGHT = 0.05
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
    found = np.stack([
        _of_setting(np.stack([answers[name][:, j] for name in names], axis=1), log_latency[:, j], weight[:, j])
        for j in range(log_latency.shape[1])
    ], axis=1)  # fmt: skip
    return dict(zip(names, found, strict=True))


def blended(answers: Mapping[str, Floats], weights: Mapping[str, Floats]) -> Floats:
    """The weighed mean of the members' answers, shape `(n, n_settings)`."""
    total: Floats = sum((answers[name] * weights[name] for name in weights if np.any(weights[name] > 0)), np.zeros(1))
    return total


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
        return float(share @ errors + _EQUAL_PULL * ((w - equal) ** 2).sum())

    found = minimize(loss, equal, bounds=[(0.0, 1.0)] * n_members, method="SLSQP",
                     constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0}).x  # fmt: skip
    return _without_small(found)


def _without_small(weights: Floats) -> Floats:
    kept = np.where(weights >= min(_LEAST_WEIGHT, float(weights.max())), weights, 0.0)
    shares: Floats = np.round(kept / kept.sum(), 4)
    return shares


def names_in_use(weights: Mapping[str, Floats]) -> Sequence[str]:
    """Members with a weight in any setting."""
    return [name for name, own in weights.items() if np.any(own > 0)]
