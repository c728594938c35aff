"""Answers for what was never measured on a device, transferred from devices on which it was.

Three answers are made and averaged: that of the nearest measured device, times the ratio of the fitted analytic model
between the two; the analytic model's own; and, where a family has products, that of trees which see scale-free features only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Floats, Indices
from ...features.kernel import get_family
from ..engine.program import Program
from ..engine.runtime import weighted_sum
from .family_regressor import FamilyRegressor, Query, Source
from .utilisation import power_limits_of

ANALYTIC, FREE = "analytic", "scale-free"

STREAM_SHARES = (0.77, 0.87, 0.98)
"""Shares of the peak memory bandwidth that public stream benchmarks reach: lowest, median and highest of 14 GPUs' best
(BabelStream, RRZE's gpu-stream, clpeak and others)."""

_MOST_OF_LIMIT = 0.95
"""Most of any limit on paper that an answer for a device never measured takes: of six GPUs' fp32 products the best one in a
hundred reaches 0.62 to 0.98, of their elementwise kernels 0.74 to 0.91 (NeuSight's tables; MI100's products use matrix
units)."""

_STREAM_WEIGHT, _MOST_GPUS = 4.0, 2
"""How many measured GPUs that share counts as, and beside how many at most: one GPU may reach far less than others (a
copy of torch 0.57 on an H200), several say more than the share."""


@dataclass(frozen=True, slots=True)
class TransferEstimate:
    """Answers transferred from other devices.

    Attributes:
        logs: ln of each target's answer (s; share of the power limit), shape `(n,)`; NaN where nothing can be transferred.
        parts: By target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`.
        alone: How far the answer is that of the nearest measured device alone, 0 to 1, shape `(n,)`.
        same_duplicate: How far another edition of the same chip was measured with the same impl, likewise.
    """

    logs: Mapping[str, Floats]
    parts: Mapping[str, Mapping[str, Floats]]
    alone: Floats
    same_duplicate: Floats


def transfer(
    regressor: FamilyRegressor,
    query: Query,
    sources: Sequence[Sequence[Source]],
    targets: Sequence[str],
    rows: Indices | None = None,
    *,
    free: Floats | None = None,
    with_parts: bool = False,
) -> TransferEstimate:
    """Answers for cases from what was measured on other devices of their kind.

    Args:
        regressor: What was learned.
        query: The cases.
        sources: The sources of each of their categories.
        targets: The targets wanted.
        rows: Which cases are wanted, shape `(n,)`; None: all.
        free: What the scale-free trees answer for all cases of the query, where that is known already.
        with_parts: Whether the answers that were averaged are wanted.
    """
    code = query.categories.code if rows is None else query.categories.code[rows]
    useful = [[source for source in each if not source.targets.isdisjoint(targets)] for each in sources]
    pairs = [source for each in useful for source in each]
    # By category: the pairs of it and each of its sources, -1 where it has fewer; how far that of latency is taken alone.
    pair_of = np.full((len(useful), max(map(len, useful), default=0)), -1, dtype=np.intp)
    numbers = np.zeros((len(useful), 2))
    same = np.zeros(len(useful))
    start = 0
    for i, each in enumerate(useful):
        pair_of[i, : len(each)] = range(start, start + len(each))
        start += len(each)
        if each:
            first = next((source for source in each if "latency" in source.targets), each[0])
            numbers[i] = first.weight, _stream_weight(regressor)
            same[i] = first.near_duplicate * first.is_same
    answers = np.full((len(targets), len(code)), np.nan)
    pair = pair_of.T[:, code]
    place, case = np.divmod(np.flatnonzero(pair >= 0), max(len(code), 1))
    if len(case):
        wanted = case if rows is None else rows[case]
        _fill_in(answers, regressor, query, pairs, pair[place, case], case, wanted, targets)
    base, lower = query.log_base, query.features.work.lower_bound_s
    if free is None and regressor.free is not None and "latency" in targets:
        free = regressor.runtime.run(query.x, only=(regressor.free,))[regressor.free][:, 0]
    general = np.stack(
        [base, lower, np.full(len(base), np.nan) if free is None else free, query.features.work.bounds_s["dram"]]
    )
    general = general if rows is None else general[:, rows]
    if "latency" in targets:
        answers[targets.index("latency")] += general[0]
    if "power" in targets:
        answers[targets.index("power")] += _log_limit_ratios(query, useful)[code]
    columns = np.concatenate([answers, general])
    logs = dict(zip(targets, _average_program(regressor, tuple(targets)).run(columns, numbers, code)[0], strict=True))
    parts = _parts(regressor, answers, useful, code, targets, general) if with_parts else {}
    return TransferEstimate(logs, parts, numbers[code, 0], same[code])


def source_weight(source: Source, n_general: int) -> float:
    """The share of a source in a transferred answer, before that is drawn towards a stream; the rest comes from no device.

    Args:
        source: The source of the target.
        n_general: How many answers come from no source (`ANALYTIC`, `FREE`).
    """
    return source.weight + (1.0 - source.weight) / (1 + n_general)


def _average_program(regressor: FamilyRegressor, targets: tuple[str, ...]) -> Program:
    """The program that averages the answers for the targets; see `transfer`."""
    if targets not in regressor.averages:

        def formula(answers: Any, general: Any, alone: Any, stream: Any) -> Any:
            logs = []
            for log, target in zip(answers, targets, strict=True):
                if target == "latency":
                    others = list(_general(regressor, *general[:3]).values())
                    log = _average(log, others, np.log(general[1]), alone[0])
                    log = log + (1.0 - alone[0]) * regressor.shift
                    log = _towards_stream(log, general[3], (1.0 - alone[0]) * stream[0])
                    log = np.maximum(log, np.log(general[1] / _MOST_OF_LIMIT))
                logs.append(log)
            return np.stack(logs)

        regressor.averages[targets] = Program(formula, (len(targets), 4), (1, 1))
    return regressor.averages[targets]


def _fill_in(
    answers: Floats, regressor: FamilyRegressor, query: Query, pairs: Sequence[Source], pair: Indices, case: Indices,
    rows: Indices, targets: Sequence[str],
) -> None:  # fmt: skip
    """What the graphs answer on the sources, into the columns `case` of `answers`; `pair` is the source of each, `rows` its row
    in the query.
    """
    _, x, _ = regressor.graph_inputs.of(query.cases, query.columns, [source.inputs for source in pairs], pair, rows)
    # Targets that were measured on the same sources are answered in one run.
    alike: dict[tuple[bool, ...], list[str]] = {}
    for target in targets:
        alike.setdefault(tuple(target in source.targets for source in pairs), []).append(target)
    for measured, names in alike.items():
        there = slice(None) if all(measured) else np.flatnonzero(np.array(measured)[pair])
        members = [regressor.members[target] for target in names]
        # All sources in one go: what a run costs is mostly its start.
        outputs = regressor.runtime.run(x[there], [graph for triples in members for graph, _, _ in triples])
        for target, triples in zip(names, members, strict=True):
            answers[targets.index(target), case[there]] = weighted_sum(outputs, triples)


def _parts(
    regressor: FamilyRegressor, answers: Floats, sources: Sequence[Sequence[Source]], code: Indices, targets: Sequence[str],
    general: Floats,
) -> dict[str, dict[str, Floats]]:  # fmt: skip
    """By target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`."""
    parts: dict[str, dict[str, Floats]] = {target: {} for target in targets}
    for category, each in enumerate(sources):
        here = code == category
        for source in each:
            for target, answer in zip(targets, answers, strict=True):
                if target in source.targets:
                    parts[target].setdefault(source.device, np.full(len(code), np.nan))[here] = answer[here]
    if "latency" in parts:
        parts["latency"] |= _general(regressor, *general[:3])
    return parts


def _general(regressor: FamilyRegressor, base: Any, lower: Any, free: Any) -> dict[str, Any]:
    """The answers that come from no source, ln of seconds."""
    general = {} if regressor.analytic is None else {ANALYTIC: base}
    return general if regressor.free is None else general | {FREE: np.log(lower) + free}


def _log_limit_ratios(query: Query, sources: Sequence[Sequence[Source]]) -> Floats:
    """What turns a share of the power limit of a category's source into one of its own device, ln, shape `(n_categories,)`.

    Editions of a chip draw the same watts for the same work, up to their limits; of other chips the share carries over.
    """
    ratios = np.zeros(len(sources))
    for i, (inputs, each) in enumerate(zip(query.inputs, sources, strict=True)):
        limit_w, _ = power_limits_of(inputs.features.device)
        for source in each:
            if "power" in source.targets:
                ratio = power_limits_of(source.inputs.features.device)[0] / limit_w
                ratios[i] = 0.0 if np.isnan(ratio) else source.near_duplicate * np.log(ratio)
    return ratios


def _stream_weight(regressor: FamilyRegressor) -> float:
    """How much the share of memory's peak that streams reach counts beside the GPUs on which a family was measured that only
    moves data.
    """
    gpus = regressor.n_gpus
    is_few = 0 < gpus <= _MOST_GPUS and get_family(regressor.schema.family).tiles is None
    return _STREAM_WEIGHT / (_STREAM_WEIGHT + gpus) if is_few else 0.0


def _towards_stream(log: Any, dram_s: Any, weight: Any) -> Any:
    """The answer drawn towards the time of a stream, as far as memory is what takes the time."""
    share = np.minimum(2.0 * dram_s / np.exp(log), 1.0)
    stream = np.log(np.maximum(dram_s, 1e-12) / STREAM_SHARES[1])
    return log + weight * share * (stream - log)


def _average(transferred: Any, general: Sequence[Any], log_bound: Any, alone: Any) -> Any:
    """The mean of the answers there are, or the transferred one alone as far as `alone` says."""
    stacked = np.stack([transferred, *general])
    missing = np.isnan(stacked)
    count = len(stacked) - missing.sum(axis=0)
    # With no source at all and nothing general either, the lower bound is what is left.
    mean = np.where(count > 0, np.where(missing, 0.0, stacked).sum(axis=0) / np.maximum(count, 1), log_bound)
    share = np.where(missing[0], 0.0, alone)
    return share * np.where(missing[0], 0.0, transferred) + (1.0 - share) * mean
