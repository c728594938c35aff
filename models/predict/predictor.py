"""Predictions from a model artifact: from cases to values with intervals, with no training library imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.batch.category import CaseCategory, CategoryCache
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec, get_family
from ..engine.program import Program
from ..engine.runtime import GraphError, Runtime, mask_device_features, weighted_sum
from ..family_model.artifact import FamilyModel, load_family, read_manifest
from ..family_model.artifact_files import ArtifactError
from ..family_model.device_correction import Adaptation, points_by_target
from ..family_model.device_transfer import transfer
from ..family_model.domain import extrapolate, log2_excess
from ..family_model.family_regressor import FamilyRegressor, Query
from ..family_model.gaussian_process import Points
from ..family_model.intervals import COVERAGE_RANGE, SCORED, TargetColumns, check_coverage
from ..family_model.products import alignment_excess, bound_by_streams, unknown_vectors
from ..family_model.utilisation import UtilisationModel
from .case_notes import Novelty, notes
from .in_domain import CategoryRecord, RecordColumns, record_or_like, training_support
from .law import cases_by_law, with_law
from .power_cap import alone_in_loops, among_others, under_settings
from .power_law import PowerSetting
from .prediction import TARGETS, Prediction, Predictions, answer_programs


@dataclass(frozen=True, slots=True)
class RawEstimates:
    """Estimates before calibration: direct or transferred, and the inputs of the correction model.

    Attributes:
        logs: ln of each target's answer (s; share of the power limit), shape `(n,)`.
        regimes: Each target's regime before any adaptation, shape `(n,)`.
        points: Per target, where the cases lie for a correction; empty where none was asked for.
        near_duplicate: How far another edition of the chip was measured with the same impl, shape `(n,)`.
        limit_w: Power limits, shape `(n,)`, or `(1,)` where no points were asked for.
    """

    logs: Mapping[str, Floats]
    regimes: Mapping[str, Any]
    points: Mapping[str, Points]
    near_duplicate: Floats
    limit_w: Floats


class FamilyPredictor:
    """One family's graphs under a catalogue of devices, ready to run. Safe to share between threads."""

    def __init__(self, model: FamilyModel, regressor: str, devices: Catalogue) -> None:
        """The predictor of a family's model; `regressor` is the name of what was trained."""
        self.model = model
        self.regressor = regressor
        self.devices = devices
        self._family = get_family(model.schema.family)
        self._targets = tuple(name for name, target in model.targets.items() if target.members)
        self.records = CategoryCache(partial(record_or_like, model, record_of=self._record))

    @cached_property
    def _scale_graphs(self) -> tuple[int | None, ...]:
        """The graph of the error sizes of each target with scores; None where there is none."""
        return tuple(self.model.targets[name].scale_graph for name in SCORED if name in self.model.targets)

    @cached_property
    def _error_graphs(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(graph for graph in self._scale_graphs if graph is not None))

    @cached_property
    def _answers(self) -> Mapping[bool, Program]:
        return answer_programs(self.model, len(self._targets), self._scale_graphs)

    @cached_property
    def _runtime(self) -> Runtime:
        return Runtime(self.model.graphs)

    @cached_property
    def _learned(self) -> FamilyRegressor:
        model = self.model
        members = {name: model.targets[name].members for name in self._targets}
        return FamilyRegressor(model.schema, self._runtime, members, model.analytic, model.free, model.measured,
                               self.devices, model.shift)  # fmt: skip

    def with_adaptations(self, adaptations: Mapping[str, Mapping[str, Adaptation]]) -> FamilyPredictor:
        """The same with other adaptations, by device and target; what was made of the graphs is shared."""
        other = FamilyPredictor(replace(self.model, adaptations=adaptations), self.regressor, self.devices)
        other._runtime, other._learned = self._runtime, self._learned
        return other

    def _record(self, category: CaseCategory) -> CategoryRecord:
        inputs = self._learned.inputs_of([category])[0]
        support = training_support(self.model, self.regressor, inputs.features, self._family, self._learned.measured)
        return CategoryRecord.of(self.model, inputs, self._learned.sources_of(inputs.features.category), support)

    def load(self) -> None:
        """Create the graphs' sessions now.

        Raises:
            GraphError: a graph is not valid.
        """
        width = len(self.model.schema.names) + (self.model.analytic is not None)
        self._runtime.run(np.zeros((1, width), dtype=np.float32))

    def predict(self, cases: Cases, coverage: float) -> Predictions:
        """Predictions of cases of this family, see `Predictor.predict_cases`."""
        model, code = self.model, cases.categories.code
        records = [self.records[category] for category in cases.categories.distinct]
        columns, before = RecordColumns.of(records, code), cases
        query = self._learned.query(cases := columns.reshaped(cases), [record.inputs for record in records], code)
        larger, work = log2_excess(cases.sizes, columns.largest_sizes), query.features.work
        excess, tiles = model.domain.excess(query.features)
        unaligned = alignment_excess(query.features, columns.least_alignment, columns.most_alignment)
        excess, learned = np.maximum(excess, larger) + unaligned, all(record.support.is_learned for record in records)
        vectors = unknown_vectors(cases, columns.unknown_vectors)
        excess = excess if vectors is None else np.where(vectors, 1.0, excess)
        if not learned:
            excess = np.where(columns.learned > 0, excess, 0.0)
        adapted = any(record.adaptations for record in records)
        estimates, scales = self._estimate(query, records, columns, (larger, vectors), with_points=adapted)
        scales[:1] = [scale + columns.reshaped_error(before, cases) for scale in scales[:1]]
        deviation = self._correct(estimates, records, code) if adapted else None
        inputs = [*estimates.logs.values(), *scales, work.lower_bound_s, excess, estimates.near_duplicate]
        inputs += [] if model.utilisation is None else [work.bounds_s["compute"], work.dram_all_s]
        inputs += [] if deviation is None else [*deviation]
        numbers = np.array([record.scores[coverage] for record in records])
        rows, _ = self._answers[deviation is not None].run(np.stack(inputs), numbers, code)
        targets = [TargetColumns(*rows[i : i + 3]) for i in range(0, len(rows), 3)]
        targets += [TargetColumns(*np.full((3, len(code)), np.nan))] * (3 - len(targets))
        too_large, by_case = work.footprint_b > columns.memory_b, [records[i] for i in code.tolist()]
        every = (
            [record.notes for record in by_case] if not (too_large.any() or excess.any())
            else notes(model, cases, query.features, Novelty(excess, tiles, too_large), by_case)
        )  # fmt: skip
        answers = Predictions(
            targets=dict(zip(TARGETS, targets, strict=True)),
            coverage=coverage,
            method=[record.support.method for record in by_case],
            in_domain=np.array([not note for note in every], dtype=np.bool_),
            notes=every,
            bound=work.binding(),
            breakdown=work.bounds_s,
            regimes=[record.support.answer_regime["latency"] for record in by_case],
            timings=[record.support.timing for record in by_case],
        )
        return alone_in_loops(cases, answers, self.devices, model, work)

    def estimate(self, cases: Cases) -> RawEstimates:
        """What the model says of cases before any calibration, and where they lie for one.

        Raises:
            SpecError: unknown device, or a dtype it has no peak for.
        """
        records, code = [self.records[category] for category in cases.categories.distinct], cases.categories.code
        columns = RecordColumns.of(records, code)
        query = self._learned.query(cases := columns.reshaped(cases), [record.inputs for record in records], code)
        unlike = log2_excess(cases.sizes, columns.largest_sizes), unknown_vectors(cases, columns.unknown_vectors)
        return self._estimate(query, records, columns, unlike, with_points=True)[0]

    def _estimate(
        self, query: Query, records: Sequence[CategoryRecord], columns: RecordColumns, unlike: tuple[Floats, Any], *,
        with_points: bool,
    ) -> tuple[RawEstimates, list[Floats]]:  # fmt: skip
        """Own answers where a case's like was measured on its device, else transferred ones; and the sizes of errors.

        `unlike`: the `log2_excess` of the cases and their `unknown_vectors`. Sizes: a column for each of `_scale_graphs`.
        """
        larger, vectors = unlike
        code, members, supports = query.categories.code, self._learned.members, [record.support for record in records]
        # Where others answer for all cases, running the graphs would be in vain.
        items = [target for target in self._targets if any(target in support.direct for support in supports)]
        graphs = [graph for target in items for graph, _, _ in members[target]]
        unseen = [support.is_unseen for support in supports]
        is_transferred = any(support.transferred for support in supports)
        free = () if self.model.free is None or not is_transferred else (self.model.free,)
        if not any(unseen):
            outputs = errors = self._runtime.run(query.x, (*graphs, *self._error_graphs, *free))
        else:
            # For those whose like was never measured there, nothing says where a case ran, as in calibrating.
            x = mask_device_features(query.x, self.model.schema)
            if not all(unseen):
                x = np.where(np.array(unseen)[code][:, None], x, query.x)
            outputs = self._runtime.run(query.x, graphs) if graphs else {}
            errors = self._runtime.run(x, (*self._error_graphs, *free))
        scales = [errors[graph][:, 0] for graph in self._scale_graphs if graph is not None]
        logs = {
            target: weighted_sum(outputs, members[target]) if target in items else np.zeros(len(code))
            for target in self._targets
        }
        logs["latency"] = logs["latency"] + query.log_base
        if larger.any():
            seen = np.array([support.own_regime["latency"] == "seen" for support in supports])[code]
            logs["latency"] = extrapolate(
                logs["latency"], scales[0], query.cases, query.log_base, columns.largest_sizes,
                lambda cases, rows: self._own_latency(cases, query, code[rows]), seen,
            )  # fmt: skip
        parts: dict[str, dict[str, Floats]] = {target: {} for target in logs}
        near_duplicate = np.zeros(len(code))
        if is_transferred:
            freely = errors[free[0]][:, 0] if free else None
            self._transfer(query, records, logs, freely, parts if with_points else None, near_duplicate)
        if vectors is not None:
            bound_by_streams(logs["latency"], scales[0], query.features.work, vectors)
        logs["latency"] = np.maximum(logs["latency"], columns.log_floor_s(query.cases, query.features.work))
        if not with_points:
            return RawEstimates(logs, {}, {}, near_duplicate, columns.limit_w), scales
        limit_w = np.broadcast_to(columns.limit_w, code.shape)
        regimes = {target: np.array([support.own_regime[target] for support in supports])[code] for target in logs}
        points = points_by_target(self._learned, self.model.domain, query, logs, parts)
        return RawEstimates(logs, regimes, points, near_duplicate, limit_w), scales

    def _transfer(
        self, query: Query, records: Sequence[CategoryRecord], logs: Mapping[str, Floats], free: Floats | None,
        parts: Mapping[str, dict[str, Floats]] | None, near_duplicate: Floats,
    ) -> None:  # fmt: skip
        """Fill in the answers of other devices: into `logs`, their terms into `parts` if there is one, and `near_duplicate`."""
        code, supports = query.categories.code, [record.support for record in records]
        for targets in dict.fromkeys(support.transferred for support in supports if support.transferred):
            here = [support.transferred == targets for support in supports]
            rows = None if all(here) else np.flatnonzero(np.array(here)[code])
            sources = [record.sources if there else () for record, there in zip(records, here, strict=True)]
            answer = transfer(
                self._learned, query, sources, sorted(targets), rows, free=free, with_parts=parts is not None
            )
            index: Any = slice(None) if rows is None else rows
            near_duplicate[index] = answer.same_duplicate
            for target, column in answer.logs.items():
                logs[target][index] = column
                if parts is not None:
                    for name, part in answer.parts[target].items():
                        parts[target].setdefault(name, np.full(len(code), np.nan))[index] = part

    def _own_latency(self, cases: Cases, query: Query, code: Indices) -> tuple[Floats, Floats]:
        """ln(s) that the model answers for resized cases of a query, and of what that is a ratio to, shape `(n,)` each."""
        part, triples = self._learned.query(cases, query.inputs, code), self._learned.members["latency"]
        outputs = self._runtime.run(part.x, [graph for graph, _, _ in triples])
        return weighted_sum(outputs, triples) + part.log_base, part.log_base

    def _correct(self, estimates: RawEstimates, records: Sequence[CategoryRecord], code: Indices) -> Floats:
        """Add what calibration taught to the estimates; returns the standard deviations left, NaN where nothing was taught."""
        deviation = np.full((len(self._scale_graphs), len(code)), np.nan)
        names = [record.inputs.features.device.name for record in records]
        for device in dict.fromkeys(name for name in names if name in self.model.adaptations):
            rows = np.flatnonzero(np.array([name == device for name in names])[code])
            for target, adaptation in self.model.adaptations[device].items():
                mean, deviation[SCORED.index(target), rows] = adaptation.at(estimates.points[target].take(rows))
                estimates.logs[target][rows] += mean
        return deviation


_PIECE_ROWS = 2048
"""Cases predicted at a time: a piece stays in the processor's caches, and memory does not grow with a request."""


def load_predictor(path: Path, devices: Catalogue | None = None) -> ArtifactPredictor:
    """The predictor an artifact directory holds; a family's graphs are read when first asked for.

    Raises:
        ArtifactError: the directory is no artifact, or its manifest is damaged.
    """
    return ArtifactPredictor(path, read_manifest(path), devices or catalogue())


class ArtifactPredictor:
    """Predicts with the graphs of an artifact. Safe to share between threads."""

    def __init__(
        self, directory: Path, manifest: Mapping[str, Any], devices: Catalogue, loaded: Any = (),
        setting: PowerSetting | None = None, sustained: float = 1.0, is_long: bool = False,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.manifest = manifest
        self.devices = devices
        self.setting, self._sustained, self._is_long = setting, sustained, is_long
        self._loaded: dict[str, FamilyPredictor] = dict(loaded)
        self._lock = Lock()

    @property
    def families(self) -> tuple[str, ...]:
        """Families the model was trained on."""
        return tuple(self.manifest["families"])

    @cached_property
    def utilisation(self) -> UtilisationModel | None:
        """What families with power say of those without, which each of these keeps; None where no family needed it."""
        entries = (entry.get("utilisation") for entry in self.manifest["families"].values())
        return next((UtilisationModel.from_json(entry) for entry in entries if entry), None)

    def with_families(self, families: Mapping[str, FamilyPredictor]) -> ArtifactPredictor:
        """The same with other predictors for some families."""
        return ArtifactPredictor(
            self.directory, self.manifest, self.devices, self._loaded | dict(families), self.setting, self._sustained,
            self._is_long,
        )  # fmt: skip

    def under(self, setting: PowerSetting | None, sustained: float = 1.0) -> ArtifactPredictor:
        """The same for boards set so: what it predicts raises `SpecError` where a device cannot be; None: as they come.

        `sustained` is the power that boards draw where the kernels run over that predicted, as of `predictions_under`.
        """
        if setting is self.setting is None:
            return self
        return self._like(setting, sustained, is_long=self._is_long)

    def in_long_loops(self) -> ArtifactPredictor:
        """The same for kernels that run among others for seconds, see `power_cap.among_others`; under the same setting."""
        return self if self._is_long else self._like(self.setting, self._sustained, is_long=True)

    def _like(self, setting: PowerSetting | None, sustained: float, *, is_long: bool) -> ArtifactPredictor:
        other = ArtifactPredictor(self.directory, self.manifest, self.devices, (), setting, sustained, is_long)
        other._loaded, other._lock = self._loaded, self._lock
        return other

    def load_all(self) -> None:
        """Read and check every family now, so that a damaged artifact is found before it serves.

        Raises:
            ArtifactError: a file is missing, damaged, or made for other features.
        """
        for family in self.families:
            try:
                self.family(family).load()
            except GraphError as error:
                raise ArtifactError(f"{self.directory}: a graph of {family} cannot be run: {error}") from error

    def impls(self, family: str) -> tuple[str, ...]:
        """See `Predictor.impls`."""
        return self.family(family).model.impls()

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        """See `Predictor.predict`."""
        by_family: dict[str, list[int]] = {}
        for i, spec in enumerate(specs):
            by_family.setdefault(spec.family, []).append(i)
        if len(by_family) == 1:
            return self.predict_cases(Cases.from_specs(specs, devices), coverage=coverage).rows()
        answers: dict[int, Prediction] = {}
        for rows in by_family.values():
            cases = Cases.from_specs([specs[i] for i in rows], [devices[i] for i in rows])
            answers.update(zip(rows, self.predict_cases(cases, coverage=coverage).rows(), strict=True))
        return [answers[i] for i in range(len(specs))]

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """See `Predictor.predict_cases`."""
        low, high = COVERAGE_RANGE
        if type(coverage) is not float or not low <= coverage <= high:
            check_coverage(coverage)
        if self.setting is not None:
            predictions = self.under(None).predict_cases(cases, coverage=coverage)
            return under_settings(cases, predictions, self.devices, [self.setting] * len(cases), self._sustained)
        predictions = self._as_measured(cases, coverage)
        family = self._loaded.get(cases.family.name) if self._is_long else None
        model = None if family is None else family.model
        return among_others(cases, predictions, self.devices, model, self.utilisation) if self._is_long else predictions

    def _as_measured(self, cases: Cases, coverage: float) -> Predictions:
        """Predictions of kernels as those of their families' rows were measured, on boards as they come."""
        n = len(cases.dtype)
        if cases.family.launches is not None:
            kinds = self.manifest["families"].get(cases.family.name, {}).get("kinds", ())
            if len(by_law := cases_by_law(cases, self.devices, kinds)):
                return with_law(cases, by_law, self, coverage, self.utilisation)
        family = self._loaded.get(cases.family.name) or self.family(cases.family.name)
        if n <= _PIECE_ROWS:
            return family.predict(cases, coverage)
        pieces = [np.arange(start, min(start + _PIECE_ROWS, n)) for start in range(0, n, _PIECE_ROWS)]
        return Predictions.joined([family.predict(cases.take(rows), coverage) for rows in pieces])

    def family(self, name: str) -> FamilyPredictor:
        """The predictor of one family, read when it is first asked for.

        Raises:
            SpecError: the model was not trained on it.
            ArtifactError: a file is missing, damaged, or made for other features.
        """
        if name not in self._loaded:
            if name not in self.families:
                reason = f"the model in {self.directory} was not trained on {name}; it knows: {listed(self.families)}"
                raise SpecError(reason, field="family")
            with self._lock:
                if name not in self._loaded:
                    model = load_family(self.directory, self.manifest, name)
                    self._loaded[name] = FamilyPredictor(model, str(self.manifest["regressor"]), self.devices)
        return self._loaded[name]
