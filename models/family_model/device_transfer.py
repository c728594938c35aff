"""Answers for what was never measured on a device, transferred from devices on which it was.

Three answers are made and averaged: that of measured devices, times the ratio of the fitted analytic model between
the two; the analytic model's own; and that of trees which see scale-free features only. The nearer a measured device, the
more its answer counts; of two editions of one chip it counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.batch.category import CaseCategories, CaseCategory, CategoryCache, measured_label
from ...features.cost.bounds import Counts, counts
from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...features.kernel import get_family
from ...features.vector.extract import CategoryEncoder, CategoryFeatures, Features, features_of
from ...features.vector.schema import FeatureSchema
from ..engine.runtime import Runtime, append_log_base, weighted_sum
from ..regressor import Matrix
from .analytic import AnalyticModel

ANALYTIC, FREE = "analytic", "scale-free"

Members = Mapping[str, tuple[tuple[int, int, float], ...]]

REACH = 0.3
"""Distance at which a source's weight falls to 1/e."""

_LEAST_WEIGHT = 0.01
"""A source whose weight is below this share of the nearest one's is left out: it would move an answer by a fraction of a
per cent, and costs as much as the nearest."""

_FACTS = ("compute_units", "boost_clock_hz", "memory_bandwidth_b_per_s", "l2_b", "tdp_w")

_OTHER_ARCHITECTURE = 0.5
_OTHER_VENDOR = 1.0
"""What another architecture or vendor adds, in doublings of every fact: kernels are written anew for each. Chosen once, with
`REACH`, on devices left out of public tables (docs/decisions/009-unseen-devices.md)."""

_DUPLICATE_WITHIN, _STRANGER_BEYOND = 0.15, 0.5
"""Devices this near are one chip in two editions (another memory, another board: A100 40 and 80 GB are 0.10 apart, H100 and
H200 SXM 0.16); beyond the second figure only the general laws carry over."""


@dataclass(frozen=True, slots=True)
class CategoryInputs:
    """What the inputs of the graphs take from a case's category.

    Attributes:
        features: Its features.
        log_weights: ln of the analytic model's weights, shape `(n_terms,)`; None where latency is a ratio to the lower bound.
    """

    features: CategoryFeatures
    log_weights: Floats | None


@dataclass(frozen=True, slots=True)
class Source:
    """A device on which the like of a category was measured.

    Attributes:
        device: Its name.
        similarity: How near it is, 0 to 1: its weight.
        near_duplicate: How far it is another edition of the same chip, 0 to 1.
        targets: The targets measured there.
        inputs: The inputs of the category on that device.
    """

    device: str
    similarity: float
    near_duplicate: float
    targets: frozenset[str]
    inputs: CategoryInputs


@dataclass(frozen=True, slots=True)
class Query:
    """Cases as a family's graphs meet them.

    Attributes:
        cases: The cases.
        counted: Their operand counts.
        categories: Their categories, under catalogue names.
        inputs: What the inputs take from each category.
        features: Their features.
        log_base: ln of what latency is learned as a ratio to, in seconds, shape `(n,)`.
        x: What the graphs read, float32 `(n, n_inputs)`.
    """

    cases: Cases
    counted: Counts
    categories: CaseCategories
    inputs: Sequence[CategoryInputs]
    features: Features
    log_base: Floats
    x: Matrix


class FamilyRegressor:
    """What was learned of one family, ready to answer under a catalogue of devices."""

    def __init__(
        self,
        schema: FeatureSchema,
        runtime: Runtime,
        members: Members,
        analytic: AnalyticModel | None,
        free: int | None,
        measured: Mapping[str, Sequence[str]],
        devices: Catalogue,
        shift: float = 0.0,
    ) -> None:
        """What was learned.

        Args:
            schema: Names the features.
            runtime: Runs the graphs.
            members: Each target's (graph, column, weight) triples in `runtime`.
            analytic: The fitted analytic model that latency is a ratio to, if any.
            free: The graph of the scale-free trees, which answer ln(latency / lower bound).
            measured: For each target the `measured_label`s of what was measured where.
            devices: The devices known.
            shift: Added to ln(latency) of devices without a near duplicate.
        """
        self.schema = schema
        self.runtime = runtime
        self.members = members
        self.free = free
        self.shift = shift
        self.devices = devices
        self._unit = get_family(schema.family).unit
        self.analytic = analytic
        self._measured = {target: frozenset(labels) for target, labels in measured.items()}
        self._encoder = CategoryEncoder(schema, devices)
        self._inputs = CategoryCache(self._find_inputs)

    def inputs_of(self, categories: Sequence[CaseCategory]) -> list[CategoryInputs]:
        """What the inputs take from each category.

        Raises:
            SpecError: unknown device, or a dtype a device has no peak for.
        """
        return [self._inputs[category] for category in categories]

    def _find_inputs(self, category: CaseCategory) -> CategoryInputs:
        features = self._encoder.encode([category])[0]
        weights = None if self.analytic is None else self.analytic.log_weights(features.category, features.read_as)
        return CategoryInputs(features, weights)

    def sources_of(self, category: CaseCategory) -> tuple[Source, ...]:
        """The measured devices that say something of a category, a catalogue name's."""
        sources = [source for name in self.schema.devices if (source := self._source(category, name)) is not None]
        nearest = {
            target: max((source.similarity for source in sources if target in source.targets), default=0.0)
            for target in self._measured
        }
        # A source counts where it does for one of its targets at least.
        return tuple(
            source for source in sources
            if any(source.similarity >= _LEAST_WEIGHT * nearest[target] for target in source.targets)
        )  # fmt: skip

    def _source(self, category: CaseCategory, name: str) -> Source | None:
        """What a measured device says of the category, None for another kind of device, the same one, or nothing measured."""
        device, origin = self.devices.get(category.device), self.devices.get(name)
        moved = category._replace(device=name)
        targets = frozenset(target for target, labels in self._measured.items() if measured_label(moved) in labels)
        if device.kind != origin.kind or device.name == origin.name or not targets:
            return None
        try:
            origin.peak_flops_per_s(category.dtype, self._unit)
        except SpecError:
            # Measured under a catalogue that knew a peak for it; without one it has no features here.
            return None
        apart = distance(device, origin)
        return Source(name, math.exp(-apart / REACH), near_duplicate(apart), targets, self.inputs_of([moved])[0])

    def query(self, cases: Cases, inputs: Sequence[CategoryInputs], code: Indices) -> Query:
        """The cases as the graphs meet them; `inputs` are those of their categories, `code` says which each case has."""
        counted = counts(cases)
        features = features_of(cases, counted, self.schema, [entry.features for entry in inputs], code)
        base = self.log_base(features, inputs, code)
        categories = CaseCategories(tuple(entry.features.category for entry in inputs), code)
        x = append_log_base(features.values, None if self.analytic is None else base)
        return Query(cases, counted, categories, inputs, features, base, x)

    def log_base(self, features: Features, inputs: Sequence[CategoryInputs], code: Indices) -> Floats:
        """Ln of what latency is learned as a ratio to, in seconds, shape `(n,)`."""
        if self.analytic is None:
            return np.log(features.work.lower_bound_s)
        weights = np.array([entry.log_weights for entry in inputs])
        # A row of terms after the other, so that sums do not depend on how many categories there are.
        parts = np.add(np.log(features.terms), weights if len(inputs) == 1 else weights[code], order="C")
        top = parts.max(axis=1)
        log_sum: Floats = top + np.log(np.exp(parts - top[:, None]).sum(axis=1))
        return log_sum


@dataclass(frozen=True, slots=True)
class TransferEstimate:
    """Answers transferred from other devices.

    Attributes:
        logs: ln of each target's answer (s; share of the power limit), shape `(n,)`; NaN where nothing can be transferred.
        parts: By target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`.
        near_duplicate: How far another edition of the same chip was measured, 0 to 1, shape `(n,)`.
    """

    logs: Mapping[str, Floats]
    parts: Mapping[str, Mapping[str, Floats]]
    near_duplicate: Floats


def transfer(
    regressor: FamilyRegressor,
    query: Query,
    sources: Sequence[Sequence[Source]],
    targets: Sequence[str],
    rows: Indices | None = None,
) -> TransferEstimate:
    """Answers for cases from what was measured on other devices of their kind.

    Args:
        regressor: What was learned.
        query: The cases.
        sources: The sources of each of their categories.
        targets: The targets wanted.
        rows: Which cases are wanted, shape `(n,)`; None: all.
    """
    rows = np.arange(len(query.x)) if rows is None else rows
    code, base = query.categories.code[rows], query.log_base[rows]
    members = {target: regressor.members[target] for target in targets}
    useful = [{source.device: source for source in each if not source.targets.isdisjoint(targets)} for each in sources]
    by_device = {
        name: [each.get(name) for each in useful] for name in dict.fromkeys(name for each in useful for name in each)
    }
    # By source and row: how near the source is, and how far it is another edition of the chip.
    numbers = [
        [(0.0, 0.0) if source is None else (source.similarity, source.near_duplicate) for source in by_category]
        for by_category in by_device.values()
    ]
    similarity, duplicate = np.array(numbers).reshape(len(by_device), len(sources), 2).transpose(2, 0, 1)[:, :, code]
    near = duplicate.max(axis=0, initial=0.0)
    there = _SourceRows.of(by_device, code)
    answers = {target: np.full(similarity.shape, np.nan) for target in members}
    if len(there.rows):
        # All sources in one go: what a run costs is mostly its start.
        for target, ratio in there.ratios(regressor, query, rows, members).items():
            answers[target][there.place, there.rows] = ratio
    if "latency" in members:
        answers["latency"] += base
    parts = {target: dict(zip(by_device, table, strict=True)) for target, table in answers.items()}
    logs = {target: _weighted_mean(table, similarity) for target, table in answers.items()}
    if "latency" not in members:
        return TransferEstimate(logs, parts, near)
    log_bound = np.log(query.features.work.lower_bound_s[rows])
    general: dict[str, Floats] = {}
    if regressor.analytic is not None:
        general[ANALYTIC] = base
    if regressor.free is not None:
        ratio = regressor.runtime.run(query.x[rows], only=(regressor.free,))[regressor.free][:, 0]
        general[FREE] = log_bound + ratio
    logs["latency"] = _average(logs["latency"], general, log_bound, near, regressor.shift)
    parts["latency"] |= general
    return TransferEstimate(logs, parts, near)


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """Cases as they would run on their sources, a row per case and source.

    Attributes:
        rows: Which of the wanted cases each row is.
        place: Which source device.
        inputs: The inputs of the distinct pairs of category and source.
        code: Which of `inputs` each row has.
        targets: The targets measured of each pair.
    """

    rows: Indices
    place: Indices
    inputs: tuple[CategoryInputs, ...]
    code: Indices
    targets: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, by_device: Mapping[str, Sequence[Source | None]], code: Indices) -> _SourceRows:
        """The rows for cases of the categories `code`; `by_device` holds the source of each category on each device."""
        rows, place, codes = [], [], []
        inputs: list[CategoryInputs] = []
        targets: list[frozenset[str]] = []
        for device, by_category in enumerate(by_device.values()):
            pair = np.full(len(by_category), -1, dtype=np.intp)
            for category, source in enumerate(by_category):
                if source is not None:
                    pair[category] = len(inputs)
                    inputs.append(source.inputs)
                    targets.append(source.targets)
            pairs = pair[code]
            here = np.flatnonzero(pairs >= 0)
            rows.append(here)
            place.append(np.full(len(here), device, dtype=np.intp))
            codes.append(pairs[here])
        if not inputs:
            nothing = np.zeros(0, dtype=np.intp)
            return cls(nothing, nothing, (), nothing, ())
        return cls(np.concatenate(rows), np.concatenate(place), tuple(inputs), np.concatenate(codes), tuple(targets))

    def ratios(self, regressor: FamilyRegressor, query: Query, wanted: Indices, members: Members) -> dict[str, Floats]:
        """What the graphs answer on the source devices, by target; NaN where a target was not measured there."""
        encoded = [entry.features for entry in self.inputs]
        features = features_of(query.cases, query.counted, regressor.schema, encoded, self.code, wanted[self.rows])
        base = regressor.log_base(features, self.inputs, self.code)
        x = append_log_base(features.values, None if regressor.analytic is None else base)
        ratios = {target: np.full(len(x), np.nan) for target in members}
        # Targets that were measured on the same sources are answered in one run.
        alike: dict[tuple[bool, ...], list[str]] = {}
        for target in members:
            alike.setdefault(tuple(target in targets for targets in self.targets), []).append(target)
        for measured, names in alike.items():
            if not any(measured):
                continue
            rows = slice(None) if all(measured) else np.flatnonzero(np.array(measured)[self.code])
            outputs = regressor.runtime.run(x[rows], [graph for target in names for graph, _, _ in members[target]])
            for target in names:
                ratios[target][rows] = weighted_sum(outputs, members[target])
        return ratios


def _weighted_mean(answers: Floats, weights: Floats) -> Floats:
    """The mean of the answers, shape `(n_sources, n)` like their weights, NaN where there is none; shape `(n,)`."""
    total, weight = np.zeros(answers.shape[1]), np.zeros(answers.shape[1])
    missing = np.isnan(answers)
    # One source after the other, so that a row's mean does not depend on how many rows there are.
    for part, part_weight in zip(
        np.where(missing, 0.0, answers * weights), np.where(missing, 0.0, weights), strict=True
    ):
        total, weight = total + part, weight + part_weight
    return total / np.where(weight > 0, weight, np.nan)


def _average(
    transferred: Floats, general: Mapping[str, Floats], log_bound: Floats, near_duplicate: Floats, shift: float
) -> Floats:
    """The mean of the answers there are, or the transferred one alone as far as it comes from a near duplicate."""
    stacked = np.array([transferred, *general.values()])
    missing = np.isnan(stacked)
    count = len(stacked) - missing.sum(axis=0)
    # With no source at all and nothing general either, the lower bound is what is left.
    mean = np.where(count > 0, np.where(missing, 0.0, stacked).sum(axis=0) / np.maximum(count, 1), log_bound)
    share = np.where(missing[0], 0.0, near_duplicate)
    return share * np.where(missing[0], 0.0, transferred) + (1.0 - share) * (mean + shift)


def distance(a: Device, b: Device) -> float:
    """Mean difference of the datasheet facts both have, in doublings, and more for another architecture or vendor."""
    steps = [
        abs(math.log2(a.required(name) / b.required(name)))
        for name in _FACTS
        if a.fact(name) is not None and b.fact(name) is not None
    ]
    apart = sum(steps) / len(steps) if steps else 1.0
    apart += _OTHER_ARCHITECTURE if a.architecture != b.architecture else 0.0
    return apart + (_OTHER_VENDOR if a.vendor != b.vendor else 0.0)


def near_duplicate(apart: float) -> float:
    """1 for devices that are editions of one chip, 0 for strangers, linear between."""
    return min(max((_STRANGER_BEYOND - apart) / (_STRANGER_BEYOND - _DUPLICATE_WITHIN), 0.0), 1.0)
