"""Predictions from a model artifact: the serving side, with no training library imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError, listed
from ..features.extract import NO_THREADS, Features, extract, kv_pairs, setting_words, thread_words
from ..features.kernel import KernelSpec
from .analytic import attributes_of
from .artifact import ArtifactError, FamilyModel, TargetModel, load_family, read_manifest
from .domain import widening
from .engine import GraphError, Runtime, answered, with_base
from .intervals import Scores, check_coverage, scale_of
from .limits import power_limits_w
from .prediction import TARGETS, Prediction, Predictions, TargetColumns

_STEPS_PER_UNKNOWN_WORD = 2.0
"""A dtype, variant or impl never measured widens like a case two typical spacings outside the domain: doubled."""


_SCALED_BOUND = "scaled bound"
"""Method where no learned model applies: the lower bound times the family's median ratio to it."""

_MOST_LOG_WIDTH = 50.0
"""Keeps an absurdly wide upper end finite."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What every target of one call shares: the graphs' answers, each case's regime and widening, the coverage asked."""

    answers: list[Floats]
    regimes: Any
    factor: Floats
    coverage: float


class Predictor(Protocol):
    """Anything that predicts: a trained artifact, a registry's champion, a fake in tests."""

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        """Predictions in the order given; any mix of families; `devices` names one device per spec.

        Raises:
            SpecError: unknown device, a family the model was not trained on, or a coverage outside what is possible.
        """

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """Predictions of cases of one family, in columns."""


def load_predictor(path: Path, devices: Catalogue | None = None) -> ArtifactPredictor:
    """The predictor an artifact directory holds; a family's graphs are read when first asked for.

    Raises:
        ArtifactError: the directory is no artifact, or its manifest is damaged.
    """
    return ArtifactPredictor(path, read_manifest(path), devices or catalogue())


class ArtifactPredictor:
    """Predicts with the graphs of an artifact. Safe to share between threads."""

    def __init__(self, directory: Path, manifest: Mapping[str, Any], devices: Catalogue) -> None:
        self.directory = directory
        self.manifest = manifest
        self.devices = devices
        self._engines: dict[str, FamilyEngine] = {}
        self._lock = Lock()

    @property
    def families(self) -> tuple[str, ...]:
        """Families the model was trained on."""
        return tuple(self.manifest["families"])

    def load_all(self) -> None:
        """Read and check every family now, so that a damaged artifact is found before it serves.

        Raises:
            ArtifactError: a file is missing, damaged, or made for other features.
        """
        for family in self.families:
            try:
                self._engine(family).load()
            except GraphError as error:
                raise ArtifactError(f"{self.directory}: a graph of {family} cannot be run: {error}") from error

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        """See `Predictor.predict`."""
        by_family: dict[str, list[int]] = {}
        for i, spec in enumerate(specs):
            by_family.setdefault(spec.family, []).append(i)
        answers: dict[int, Prediction] = {}
        for rows in by_family.values():
            cases = Cases.of([specs[i] for i in rows], [devices[i] for i in rows])
            predictions = self.predict_cases(cases, coverage=coverage)
            answers.update((i, predictions.row(j)) for j, i in enumerate(rows))
        return [answers[i] for i in range(len(specs))]

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """See `Predictor.predict_cases`."""
        check_coverage(coverage)
        return self._engine(cases.family.name).predict(cases, coverage, self.devices)

    def _engine(self, family: str) -> FamilyEngine:
        if family not in self._engines:
            if family not in self.families:
                raise SpecError(
                    f"the model in {self.directory} was not trained on {family}; it knows: {listed(self.families)}",
                    field="family",
                )
            with self._lock:
                if family not in self._engines:
                    model = load_family(self.directory, self.manifest, family)
                    self._engines[family] = FamilyEngine(model, str(self.manifest["regressor"]))
        return self._engines[family]


class FamilyEngine:
    """One family's graphs, ready to run."""

    def __init__(self, model: FamilyModel, regressor: str) -> None:
        self.model = model
        self.regressor = regressor

    @cached_property
    def _runtime(self) -> Runtime:
        return Runtime(self.model.graphs)

    def load(self) -> None:
        """Create the graphs' sessions now.

        Raises:
            GraphError: a graph is not valid.
        """
        self._runtime.run(np.zeros((1, self._width), dtype=np.float32))

    @property
    def _width(self) -> int:
        return len(self.model.schema.names) + (self.model.analytic is not None)

    def predict(self, cases: Cases, coverage: float, devices: Catalogue) -> Predictions:
        """Predictions of cases of this family, see `Predictor.predict_cases`."""
        cases = cases.with_core_counts(devices)
        features = extract(cases, self.model.schema, devices)
        regimes = self._regimes(cases, devices)
        learned = regimes != "unseen_kind"
        excess = np.where(learned, self.model.domain.excess(features), 0.0)
        settings = setting_words(cases, features.read_as)
        never = np.array([word not in self.model.schema.settings for word in settings.tolist()]) & learned
        strange = self._unknown_words(cases) + never
        log_base = self._log_base(cases, features)
        call = _Call(
            answers=self._runtime.run(with_base(features.values, log_base)),
            regimes=regimes,
            factor=widening(excess + _STEPS_PER_UNKNOWN_WORD * strange),
            coverage=coverage,
        )
        bound = features.work.lower_bound_s
        base = bound if log_base is None else np.exp(log_base)
        # Off the device kinds it was trained on, what was learned means nothing: the family's median ratio stands in.
        modelled = base * np.exp(answered(call.answers, self.model.targets["latency"].members))
        value = np.maximum(np.where(learned, modelled, bound * np.exp(self.model.median_log_ratio)), bound)
        latency = self._interval("latency", value, call, floor=bound)
        power, energy = self._power_and_energy(latency, call, *power_limits_w(cases, devices))
        targets = {"latency_s": latency, "power_w": power, "energy_j": energy}
        notes = self._notes(cases, features, regimes, excess, strange, _memory_b(cases, devices))
        return Predictions(
            targets={name: targets[name] for name in TARGETS},
            coverage=coverage,
            method=self._methods(cases, features, regimes),
            in_domain=np.array([not note for note in notes]),
            notes=notes,
            bound=features.work.binding(),
            breakdown=features.work.bounds_s,
        )

    def _log_base(self, cases: Cases, features: Features) -> Floats | None:
        """Logarithm of the analytic model's seconds, shape `(n,)`, None where latency is a ratio to the lower bound."""
        if self.model.analytic is None:
            return None
        return self.model.analytic.log_latency(features.terms, attributes_of(cases, features.read_as))

    def _interval(
        self, target: str, value: Floats, call: _Call, *, floor: Floats, ceiling: Floats | None = None
    ) -> TargetColumns:
        """Values with their intervals, held between `floor` and `ceiling`; all of shape `(n,)`."""
        model = self.model.targets[target]
        scale = np.ones(len(value)) if model.scale_graph is None else scale_of(call.answers[model.scale_graph][:, 0])
        low, high = np.empty(len(value)), np.empty(len(value))
        for regime in np.unique(call.regimes).tolist():
            rows = call.regimes == regime
            low[rows], high[rows] = _scores(model, regime).bounds(call.coverage)
        # This regime's scores are plain log errors.
        spread = np.where(call.regimes == "unseen_kind", 1.0, scale) * call.factor
        top = np.full(len(value), np.inf) if ceiling is None else ceiling
        lower = np.clip(value * np.exp(low * spread), floor, np.minimum(value, top))
        upper = np.clip(value * np.exp(np.minimum(high * spread, _MOST_LOG_WIDTH)), value, np.maximum(top, value))
        return TargetColumns(value, lower, upper)

    def _power_and_energy(
        self, latency: TargetColumns, call: _Call, limit_w: Floats, idle_w: Floats
    ) -> tuple[TargetColumns, TargetColumns]:
        if "power" not in self.model.targets:
            return TargetColumns.unknown(len(limit_w)), TargetColumns.unknown(len(limit_w))
        value = np.clip(limit_w * np.exp(answered(call.answers, self.model.targets["power"].members)), idle_w, limit_w)
        power = self._interval("power", value, call, floor=idle_w, ceiling=limit_w)
        # No energy outside what the ends of latency at the least and the most power would give.
        energy = self._interval(
            "energy", latency.value * value, call, floor=latency.lower * idle_w, ceiling=latency.upper * limit_w
        )
        # A kind of device whose power was never measured, or without a public limit, has none to tell.
        known = (call.regimes != "unseen_kind") & ~np.isnan(limit_w)
        return _where(known, power), _where(known, energy)

    def _regimes(self, cases: Cases, devices: Catalogue) -> Any:
        regimes = np.empty(len(cases), dtype="U16")
        for index, (name,) in cases.groups("device"):
            device = devices.get(name)
            seen = "seen" if device.name in self.model.devices else "unseen_device"
            regimes[index] = seen if device.kind in self.model.kinds else "unseen_kind"
        return regimes

    def _methods(self, cases: Cases, features: Features, regimes: Any) -> list[str]:
        pairs: dict[tuple[str, str, str], str] = {}
        methods = []
        for given, used, regime in zip(cases.impl.tolist(), features.read_as.tolist(), regimes.tolist(), strict=True):
            if (key := (given, used, regime)) not in pairs:
                name = _SCALED_BOUND if regime == "unseen_kind" else self.regressor
                stand_in = used != given and regime != "unseen_kind"
                pairs[key] = f"{name} ({given or 'impl not given'}: read as {used})" if stand_in else name
            methods.append(pairs[key])
        return methods

    def _unknown_words(self, cases: Cases) -> Floats:
        """How many words (dtype, variant, impl, threads …) and knobs of each case the model never saw, shape `(n,)`."""
        strange = np.zeros(len(cases))
        for _, words, given in self._words(cases):
            strange += [word not in words for word in given.tolist()]
        for column in self._unknown_knobs(cases).values():
            strange += ~np.isnan(column)
        return strange

    def _unknown_knobs(self, cases: Cases) -> dict[str, Floats]:
        return {name: column for name, column in cases.config.items() if name not in self.model.schema.knobs}

    def _words(self, cases: Cases) -> tuple[tuple[str, tuple[str, ...], Any], ...]:
        schema = self.model.schema
        return (("dtype", schema.dtypes, cases.dtype), ("variant", schema.variants, cases.variant),
                ("impl", (*schema.impls, ""), cases.impl), ("dtype/kv_dtype", schema.kv_pairs, kv_pairs(cases)),
                ("cache_state", schema.cache_states, cases.cache_state),
                ("threads", tuple(dict.fromkeys((*schema.threads, NO_THREADS))), thread_words(cases)))  # fmt: skip

    def _notes(
        self, cases: Cases, features: Features, regimes: Any, excess: Floats, strange: Floats, memory_b: Floats
    ) -> list[tuple[str, ...]]:
        notes: list[tuple[str, ...]] = [()] * len(cases)
        too_large = features.work.footprint_b > memory_b
        for i in np.flatnonzero((regimes != "seen") | (excess > 0) | (strange > 0) | too_large).tolist():
            found = []
            if too_large[i]:
                needed, there = features.work.footprint_b[i] / 1e9, memory_b[i] / 1e9
                found.append(
                    f"operands of {needed:.3g} GB do not fit into {cases.device[i]}'s {there:.3g} GB of memory"
                )
            if regimes[i] == "unseen_device":
                found.append(f"{cases.device[i]} is not among the measured devices: {listed(self.model.devices)}")
            if regimes[i] == "unseen_kind":
                found.append(f"no {cases.family.name} was measured on a device of {cases.device[i]}'s kind")
            for what, words, given in self._words(cases):
                if given[i] not in words:
                    known = listed(word for word in words if word and word != NO_THREADS)
                    found.append(f"{what} {str(given[i])!r} was never measured; measured: {known}")
            found += [f"{name} was never set in what was measured, and is left out of account"
                      for name, column in self._unknown_knobs(cases).items() if not np.isnan(column[i])]  # fmt: skip
            if not found and strange[i] > 0:
                found.append(self._never_together(cases, features, i))
            if excess[i] > 0:
                found.append(self.model.domain.farthest(features, i))
            notes[i] = tuple(found)
        return notes

    def _never_together(self, cases: Cases, features: Features, i: int) -> str:
        """Why a case is strange all of whose words are known by themselves."""
        impl = str(features.read_as[i])
        known = [word for word in self.model.schema.settings if word.split(" ")[0] == impl]
        asked = str(setting_words(cases.take([i]), features.read_as[[i]])[0])
        return f"{asked!r} was never measured; measured of {impl}: {listed(known) or 'nothing'}"


def _memory_b(cases: Cases, devices: Catalogue) -> Floats:
    """Memory of each case's device in bytes, shape `(n,)`, infinite where it is not public."""
    memory = np.full(len(cases), np.inf)
    for index, (name,) in cases.groups("device"):
        memory[index] = devices.get(name).fact("memory_b") or np.inf
    return memory


def _scores(model: TargetModel, regime: str) -> Scores:
    return model.scores[regime if regime in model.scores else "seen"]


def _where(known: Any, columns: TargetColumns) -> TargetColumns:
    return TargetColumns(*(np.where(known, column, np.nan) for column in (columns.value, columns.lower, columns.upper)))
