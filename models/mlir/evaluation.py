"""How far predictions for programs are from measurements: in all, and by compiler, threads, source and dialect."""

from __future__ import annotations

import numpy as np

from ...features.cases import Floats
from .measured import MeasuredPrograms

_MOST_TAU_ROWS = 3000


def errors_of(log_answer: Floats, measured: MeasuredPrograms) -> dict[str, dict[str, float]]:
    """Errors of answers, logarithms of seconds of shape `(n, n_settings)`, by slice; `all` is everything together.

    Each slice has `n`, `mean_ape_pct`, `median_ape_pct`, `within_10_pct` and `kendall_tau`.
    """
    names = np.array([f"{compiler}, {threads} threads" for compiler, threads in measured.settings])
    columns = np.tile(names, (len(measured), 1))
    known = ~np.isnan(measured.log_latency) & ~np.isnan(log_answer)
    found = {"all": errors(log_answer[known], measured.log_latency[known])}
    slices = {"": columns}
    for word, labels in (("source", measured.sources), ("dialect", measured.dialects)):
        slices[word] = np.tile(np.array(labels)[:, None], (1, len(names)))
    for word, values in slices.items():
        for value in np.unique(values[known]).tolist():
            rows = known & (values == value)
            found[f"{word} {value}".strip()] = errors(log_answer[rows], measured.log_latency[rows])
    return found


def errors(log_answer: Floats, log_measured: Floats) -> dict[str, float]:
    """Errors of answers, all of shape `(n,)`: absolute percentage errors, and the rank correlation (Kendall's τ-b)."""
    from scipy.stats import kendalltau

    ape = np.abs(np.expm1(log_answer - log_measured)) * 100.0
    rows = np.random.default_rng(0).permutation(len(ape))[:_MOST_TAU_ROWS]
    tau = float(kendalltau(log_answer[rows], log_measured[rows]).statistic) if len(ape) > 1 else float("nan")
    return {
        "n": len(ape),
        "mean_ape_pct": float(ape.mean()),
        "median_ape_pct": float(np.median(ape)),
        "within_10_pct": float((ape <= 10.0).mean() * 100.0),
        "kendall_tau": tau,
    }


def coverage_of(lower: Floats, upper: Floats, log_measured: Floats) -> float:
    """Share of measurements inside intervals, logarithms of any shape, where something was measured."""
    known = ~np.isnan(log_measured)
    inside = (lower[known] <= log_measured[known]) & (log_measured[known] <= upper[known])
    return float(inside.mean())
