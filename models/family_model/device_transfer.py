"""Answers for what was never measured on a device, transferred from devices on which it was.

Three answers are made and averaged: that of measured devices, times the ratio of the fitted analytic model between
the two; the analytic model's own; and that of trees which see scale-free features only.
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
from .intervals import power_limits_of

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
        near_duplicate: How far another edition of the same chip was measured, 0 to 1, shape `(n,)`.
        same_duplicate: The same, 0 where that was measured with another impl.
    """

    logs: Mapping[str, Floats]
    parts: Mapping[str, Mapping[str, Floats]]
    near_duplicate: Floats
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
    most = max(map(len, useful), default=0)
    # By category: the pair of it and each of its sources, -1 where it has fewer; how near they are, and the nearest edition.
    pair_of = np.full((len(useful), most), -1, dtype=np.intp)
    numbers = np.zeros((len(useful), most + 2))
    same = [max((source.near_duplicate * source.is_same for source in each), default=0.0) for each in useful]
    start = 0
    for each, row, number in zip(useful, pair_of, numbers, strict=True):
        row[: len(each)] = range(start, start + len(each))
        number[: len(each)] = [source.similarity for source in each]
        number[most] = max((source.near_duplicate for source in each), default=0.0)
        number[most + 1] = _stream_weight(regressor) if each else 0.0
        start += len(each)
    answers = np.full((len(targets), most, len(code)), np.nan)
    pair = pair_of.T[:, code]
    place, case = np.divmod(np.flatnonzero(pair >= 0), len(code))
    if len(case):
        wanted = case if rows is None else rows[case]
        _fill_in(answers, regressor, query, pairs, pair[place, case], (place, case), wanted, targets)
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
        answers[targets.index("power")] += _log_limit_ratios(query, useful, most)[:, code]
    columns = np.concatenate([answers.reshape(-1, len(code)), general])
    logs = dict(
        zip(targets, _average_program(regressor, most, tuple(targets)).run(columns, numbers, code)[0], strict=True)
    )
    parts = _parts(regressor, answers, useful, code, targets, general) if with_parts else {}
    return TransferEstimate(logs, parts, numbers[code, most], np.array(same)[code])


def source_weights(sources: Sequence[Source], n_general: int) -> dict[str, float]:
    """By source its share of a transferred answer, before that is drawn towards a stream; the rest comes from no source.

    Args:
        sources: The sources, all of the target.
        n_general: How many answers come from no source (`ANALYTIC`, `FREE`).
    """
    near = max((source.near_duplicate for source in sources), default=0.0)
    carried = near + (1.0 - near) / (1 + n_general)
    total = sum(source.similarity for source in sources)
    return {source.device: carried * source.similarity / total for source in sources}


def _average_program(regressor: FamilyRegressor, sources: int, targets: tuple[str, ...]) -> Program:
    """The program that averages the answers of so many sources; see `transfer`."""
    key = sources, targets
    if key not in regressor.averages:

        def formula(answers: Any, general: Any, similarity: Any, near: Any, stream: Any) -> Any:
            logs = []
            for i, target in enumerate(targets):
                log = _weighted_mean(answers[i * sources : (i + 1) * sources], similarity)
                if target == "latency":
                    others = list(_general(regressor, *general[:3]).values())
                    log = _average(log, others, np.log(general[1]), near[0])
                    log = log + (1.0 - near[0]) * regressor.shift
                    log = _towards_stream(log, general[3], (1.0 - near[0]) * stream[0])
                    log = np.maximum(log, np.log(general[1] / _MOST_OF_LIMIT))
                logs.append(log)
            return np.stack(logs)

        regressor.averages[key] = Program(formula, (len(targets) * sources, 4), (sources, 1, 1))
    return regressor.averages[key]


def _fill_in(
    answers: Floats, regressor: FamilyRegressor, query: Query, pairs: Sequence[Source], pair: Indices, where: Any,
    rows: Indices, targets: Sequence[str],
) -> None:  # fmt: skip
    """What the graphs answer on the sources, into `answers` at `where`; `pair` is the source of each row, `rows` its case."""
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
            answers[(targets.index(target), *(index[there] for index in where))] = weighted_sum(outputs, triples)


def _parts(
    regressor: FamilyRegressor, answers: Floats, sources: Sequence[Sequence[Source]], code: Indices, targets: Sequence[str],
    general: Floats,
) -> dict[str, dict[str, Floats]]:  # fmt: skip
    """By target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`."""
    parts: dict[str, dict[str, Floats]] = {target: {} for target in targets}
    for category, each in enumerate(sources):
        here = code == category
        for place, source in enumerate(each):
            for target, table in zip(targets, answers, strict=True):
                part = parts[target].setdefault(source.device, np.full(len(code), np.nan))
                part[here] = table[place, here]
    if "latency" in parts:
        parts["latency"] |= _general(regressor, *general[:3])
    return parts


def _general(regressor: FamilyRegressor, base: Any, lower: Any, free: Any) -> dict[str, Any]:
    """The answers that come from no source, ln of seconds."""
    general = {} if regressor.analytic is None else {ANALYTIC: base}
    return general if regressor.free is None else general | {FREE: np.log(lower) + free}


def _log_limit_ratios(query: Query, sources: Sequence[Sequence[Source]], most: int) -> Floats:
    """What turns a share of a source's power limit into one of the category's device, ln, shape `(most, n_categories)`.

    Editions of a chip draw the same watts for the same work, up to their limits; of other chips the share carries over.
    """
    ratios = np.zeros((most, len(sources)))
    for column, (inputs, each) in enumerate(zip(query.inputs, sources, strict=True)):
        limit_w, _ = power_limits_of(inputs.features.device)
        for row, source in enumerate(each):
            ratio = power_limits_of(source.inputs.features.device)[0] / limit_w
            ratios[row, column] = 0.0 if np.isnan(ratio) else source.near_duplicate * np.log(ratio)
    return ratios


def _stream_weight(regressor: FamilyRegressor) -> float:
    """How much the share of memory's peak that streams reach counts beside the GPUs on which a family was measured that only
    moves data.
    """
    names = regressor.measured["latency"].devices if "latency" in regressor.measured else ()
    gpus = sum(regressor.devices.get(name).kind == "gpu" for name in names)
    is_few = 0 < gpus <= _MOST_GPUS and get_family(regressor.schema.family).tiles is None
    return _STREAM_WEIGHT / (_STREAM_WEIGHT + gpus) if is_few else 0.0


def _towards_stream(log: Any, dram_s: Any, weight: Any) -> Any:
    """The answer drawn towards the time of a stream, as far as memory is what takes the time."""
    share = np.minimum(2.0 * dram_s / np.exp(log), 1.0)
    stream = np.log(np.maximum(dram_s, 1e-12) / STREAM_SHARES[1])
    return log + weight * share * (stream - log)


def _weighted_mean(answers: Any, weights: Any) -> Any:
    """The mean of the answers, shape `(n_sources, n)` like their weights, NaN where there is none; shape `(n,)`."""
    total, weight = np.zeros(answers.shape[1]), np.zeros(answers.shape[1])
    # One source after the other, so that a row's mean does not depend on how many rows there are.
    for part, part_weight in zip(answers, weights, strict=True):
        missing = np.isnan(part)
        total = total + np.where(missing, 0.0, part * part_weight)
        weight = weight + np.where(missing, 0.0, part_weight)
    return total / np.where(weight > 0, weight, np.nan)


def _average(transferred: Any, general: Sequence[Any], log_bound: Any, near_duplicate: Any) -> Any:
    """The mean of the answers there are, or the transferred one alone as far as it comes from a near duplicate."""
    stacked = np.stack([transferred, *general])
    missing = np.isnan(stacked)
    count = len(stacked) - missing.sum(axis=0)
    # With no source at all and nothing general either, the lower bound is what is left.
    mean = np.where(count > 0, np.where(missing, 0.0, stacked).sum(axis=0) / np.maximum(count, 1), log_bound)
    share = np.where(missing[0], 0.0, near_duplicate)
    return share * np.where(missing[0], 0.0, transferred) + (1.0 - share) * mean
