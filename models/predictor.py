"""Predictions from a model artifact: the serving side, with no training library imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from ..features.cases import Cases
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec
from .artifact import ArtifactError, load_family, read_manifest
from .engine import GraphError
from .family_engine import FamilyEngine
from .intervals import check_coverage
from .prediction import Prediction, Predictions

_PIECE_ROWS = 2048
"""Cases predicted at a time: what a piece needs stays in the processor's caches, and memory does not grow with a request."""


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
        engine = self._engine(cases.family.name)
        if len(cases) <= _PIECE_ROWS:
            return engine.predict(cases, coverage, self.devices)
        pieces = [np.arange(start, min(start + _PIECE_ROWS, len(cases))) for start in range(0, len(cases), _PIECE_ROWS)]
        return Predictions.joined([engine.predict(cases.take(rows), coverage, self.devices) for rows in pieces])

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
