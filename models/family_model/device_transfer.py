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
from ..engine.program import Program
from ..engine.runtime import weighted_sum
from .family_regressor import FamilyRegressor, Query, Source

ANALYTIC, FREE = "analytic", "scale-free"


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
    numbers = np.zeros((len(useful), most + 1))
    same = [max((source.near_duplicate * source.is_same for source in each), default=0.0) for each in useful]
    start = 0
    for each, row, number in zip(useful, pair_of, numbers, strict=True):
        row[: len(each)] = range(start, start + len(each))
        number[: len(each)] = [source.similarity for source in each]
        number[most] = max((source.near_duplicate for source in each), default=0.0)
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
    general = np.stack([base, lower, np.full(len(base), np.nan) if free is None else free])
    general = general if rows is None else general[:, rows]
    if "latency" in targets:
        answers[targets.index("latency")] += general[0]
    columns = np.concatenate([answers.reshape(-1, len(code)), general])
    logs = dict(
        zip(targets, _average_program(regressor, most, tuple(targets)).run(columns, numbers, code)[0], strict=True)
    )
    parts = _parts(regressor, answers, useful, code, targets, general) if with_parts else {}
    return TransferEstimate(logs, parts, numbers[code, most], np.array(same)[code])


def _average_program(regressor: FamilyRegressor, sources: int, targets: tuple[str, ...]) -> Program:
    """The program that averages the answers of so many sources; see `transfer`."""
    key = sources, targets
    if key not in regressor.averages:

        def formula(answers: Any, general: Any, similarity: Any, near: Any) -> Any:
            logs = []
            for i, target in enumerate(targets):
                log = _weighted_mean(answers[i * sources : (i + 1) * sources], similarity)
                if target == "latency":
                    others = list(_general(regressor, *general).values())
                    log = _average(log, others, np.log(general[1]), near[0], regressor.shift)
                logs.append(log)
            return np.stack(logs)

        regressor.averages[key] = Program(formula, (len(targets) * sources, 3), (sources, 1))
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
        parts["latency"] |= _general(regressor, *general)
    return parts


def _general(regressor: FamilyRegressor, base: Any, lower: Any, free: Any) -> dict[str, Any]:
    """The answers that come from no source, ln of seconds."""
    general = {} if regressor.analytic is None else {ANALYTIC: base}
    return general if regressor.free is None else general | {FREE: np.log(lower) + free}


def _weighted_mean(answers: Any, weights: Any) -> Any:
    """The mean of the answers, shape `(n_sources, n)` like their weights, NaN where there is none; shape `(n,)`."""
    total, weight = np.zeros(answers.shape[1]), np.zeros(answers.shape[1])
    # One source after the other, so that a row's mean does not depend on how many rows there are.
    for part, part_weight in zip(answers, weights, strict=True):
        missing = np.isnan(part)
        total = total + np.where(missing, 0.0, part * part_weight)
        weight = weight + np.where(missing, 0.0, part_weight)
    return total / np.where(weight > 0, weight, np.nan)


def _average(transferred: Any, general: Sequence[Any], log_bound: Any, near_duplicate: Any, shift: float) -> Any:
    """The mean of the answers there are, or the transferred one alone as far as it comes from a near duplicate."""
    stacked = np.stack([transferred, *general])
    missing = np.isnan(stacked)
    count = len(stacked) - missing.sum(axis=0)
    # With no source at all and nothing general either, the lower bound is what is left.
    mean = np.where(count > 0, np.where(missing, 0.0, stacked).sum(axis=0) / np.maximum(count, 1), log_bound)
    share = np.where(missing[0], 0.0, near_duplicate)
    return share * np.where(missing[0], 0.0, transferred) + (1.0 - share) * (mean + shift)
