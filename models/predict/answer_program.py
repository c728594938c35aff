"""From what graphs answer to values and intervals, as programs of the compiled engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.program import Program
from ..family_model.artifact import FamilyModel
from ..family_model.intervals import ROW_NUMBERS, WIDENING_PER_STEP, interval_ends, interval_rows

_STEPS_PER_UNKNOWN_LABEL = 2.0
"""A dtype, variant or impl never measured widens like a case two typical spacings outside the domain: doubled."""


HOST_S = 60e-6
"""Most time of a call beside its kernel's: hosts of public tables take 25 to 58 us for a launch."""

MOST_PASSES: Mapping[str, float] = {"copy": 2.0, "elementwise": 3.0, "softmax": 4.0}
"""Families of which memory bounds from above what a GPU never measured takes: `HOST_S` and so many times what its bytes take at
the peak. Of 7 GPUs' elementwise kernels 99.9 % take no longer, of their softmaxes 99.0; norms of few long rows do."""


def answer_programs(model: FamilyModel, n_logs: int, scale_graphs: Sequence[int | None]) -> Mapping[bool, Program]:
    """From logs, error sizes and what else `predict` gives to `interval_rows`; True: with deviations of an adaptation."""
    n_scores = len(scale_graphs)
    n_scales = sum(graph is not None for graph in scale_graphs)
    utilisation = model.utilisation
    n_single = 3 if utilisation is None else 5
    passes = MOST_PASSES.get(model.schema.family, 0.0)

    def formula(logs: Any, scales: Any, single: Any, deviation: Any, numbers: Any, scores: Any) -> Any:
        (bound_s, excess, near_duplicate, *peaks_s), (learned, novelty, limit_w, idle_w, host_s) = single, numbers
        # Off the device kinds it was trained on, what was learned means nothing: the median ratio stands in.
        scaled = bound_s * np.exp(model.median_log_ratio)
        latency_s = np.maximum(np.where(learned > 0, np.exp(logs[0]), scaled), bound_s)
        factor = 1.0 + WIDENING_PER_STEP * (excess + _STEPS_PER_UNKNOWN_LABEL * novelty)
        left, ends = iter(scales), []
        for i, graph in enumerate(scale_graphs):
            score, scale = scores[i * ROW_NUMBERS : (i + 1) * ROW_NUMBERS], None if graph is None else next(left)
            claimed = deviation[i] if len(deviation) else None
            ends.append(interval_ends(score, scale, factor, near_duplicate, claimed))
        if passes and peaks_s:
            low, high, *regime = ends[0]
            most = np.maximum((host_s + passes * peaks_s[1]) / latency_s, 1.0)
            ends[0] = (low, np.minimum(high, most), *regime)
        log_power = logs[1] if n_logs > 1 else utilisation and utilisation.log_share(latency_s, *peaks_s)
        return interval_rows(
            latency_s, bound_s, log_power, limit_w, idle_w, ends, energy_is_product=utilisation is not None
        )

    return {
        adapted: Program(formula, (n_logs, n_scales, n_single, n_scores * adapted), (5, n_scores * ROW_NUMBERS))
        for adapted in (False, True)
    }
