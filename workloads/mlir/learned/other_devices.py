"""Programs measured on other devices, with their times carried over to one.

A compiler makes much the same of an operation on CPUs of one instruction set, and what a program costs on paper there says how
they differ. What remains is a factor for each compiler and thread count: the median over the programs measured on both. So the
programs of one device teach the model of another what their operations cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....features.batch.cases import Floats
from .analytic_base import AnalyticBase
from .measured_programs import MeasuredPrograms
from .ragged_batch import joined

LEAST_SHARED = 20
"""Fewer programs measured on both devices with one compiler say too little of the factor between them."""


def with_other_devices(measured: MeasuredPrograms, others: Sequence[MeasuredPrograms]) -> MeasuredPrograms:
    """`measured`, and after its programs those of `others`, with times as they would be on its device.

    A setting in which too few programs were measured on both devices stays empty; a program without any is left out.
    """
    base = AnalyticBase.fit(measured.programs, measured.log_latency, measured.weight)
    result = measured
    for other in others:
        factors = _factors(measured, other, base)
        log_latency, weight = (_by_setting(measured, other, values) for values in (other.log_latency, other.weight))
        log_latency = log_latency - factors
        known = ~np.isnan(log_latency).all(axis=1)
        if not known.any():
            continue
        some = other.take(known)
        result = MeasuredPrograms(
            measured.device, joined(result.programs, some.programs), result.names + some.names,
            result.sources + some.sources, result.dialects + some.dialects, result.texts + some.texts, measured.settings,
            np.concatenate([result.log_latency, log_latency[known]]), np.concatenate([result.weight, weight[known]]),
            {name: np.concatenate([column, np.full((len(some), len(measured.settings)), np.nan)])
             for name, column in result.characteristics.items()},
            np.concatenate([result.here, np.zeros(len(some), dtype=np.bool_)]),
            np.concatenate([result.carried, np.tile(np.nan_to_num(factors), (len(some), 1))]),
        )  # fmt: skip
    return result


def _by_setting(measured: MeasuredPrograms, other: MeasuredPrograms, values: Floats) -> Floats:
    """The other's values in the settings of `measured`, NaN where it has none, shape `(n, n_settings)`."""
    missing = np.full(len(other), np.nan)
    columns = [values[:, other.settings.index(s)] if s in other.settings else missing for s in measured.settings]
    return np.stack(columns, axis=1)


def _factors(measured: MeasuredPrograms, other: MeasuredPrograms, base: AnalyticBase) -> Floats:
    """Logarithm of how much longer the other device takes in each setting than paper says; NaN where too few were measured."""
    row = {text: i for i, text in enumerate(measured.texts)}
    there = [i for i, text in enumerate(other.texts) if text in row]
    here = [row[other.texts[i]] for i in there]
    beyond_paper = measured.log_latency - base.log_latency(measured.programs)
    other_beyond = _by_setting(measured, other, other.log_latency) - base.log_latency(other.programs)
    apart = other_beyond[there] - beyond_paper[here]
    counts = (~np.isnan(apart)).sum(axis=0)
    return np.array([
        np.nanmedian(column) if n >= LEAST_SHARED else np.nan for column, n in zip(apart.T, counts, strict=True)
    ])  # fmt: skip
