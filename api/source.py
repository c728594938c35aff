"""Where the service gets its predictor from: one given, or an artifact directory that is watched for change.

Every few seconds the manifest's signature (real path, modification time, size) is compared; when it changed, the new
artifact is loaded beside the old one and swapped in, or, if it is bad, the old one stays and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import get_family
from ..models.artifact import MANIFEST
from ..models.mlir.predictor import ModulePredictor, load_module_predictor
from ..models.predictor import ArtifactPredictor, Predictor, load_predictor
from .describe import family_example
from .requests import read_spec

_log = logging.getLogger("kernelcast.api")
_LONGEST = 40
"""Longest list of a manifest shown in its summary; quantile tables and sample points say nothing to a reader."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A predictor that answers requests, the devices it knows, and what its manifest says.

    `programs` predicts programs with that predictor's kernels; None where there is only a predictor.
    """

    predictor: Predictor
    catalogue: Catalogue
    name: str
    path: Path | None
    manifest: Mapping[str, Any]
    loaded_at: str
    programs: ModulePredictor | None = None


class PredictorSource(Protocol):
    """Gives the predictor that answers now."""

    problem: str | None
    """Why the newest artifact was not taken, None when it was."""

    def current(self) -> Loaded | None:
        """The predictor that answers now, None while there is none."""

    def refresh(self) -> bool:
        """Look for a newer predictor and take it; True when it changed. May take seconds: call it off the event loop."""


class FixedSource:
    """One predictor that never changes, for tests and for embedding."""

    def __init__(
        self,
        predictor: Predictor | None,
        catalogue: Catalogue,
        name: str = "fixed",
        programs: ModulePredictor | None = None,
    ) -> None:
        self.problem: str | None = None if predictor is not None else "no predictor was given"
        self._loaded = None if predictor is None else Loaded(predictor, catalogue, name, None, {}, _now(), programs)

    def current(self) -> Loaded | None:
        """See `PredictorSource`."""
        return self._loaded

    def refresh(self) -> bool:
        """See `PredictorSource`."""
        return False


class DirectorySource:
    """An artifact directory, looked up anew at every refresh because a promotion points elsewhere.

    `locate` gives the directory (`default_model_dir`, or a fixed one). A directory that does not load is tried again
    only when its manifest changes, and what served before goes on serving.
    """

    def __init__(self, locate: Callable[[], Path], catalogue: Catalogue) -> None:
        self.problem: str | None = "no model was looked for yet"
        self._locate = locate
        self._catalogue = catalogue
        self._loaded: Loaded | None = None
        self._tried: tuple[object, ...] | None = None

    def current(self) -> Loaded | None:
        """See `PredictorSource`."""
        return self._loaded

    def refresh(self) -> bool:
        """See `PredictorSource`."""
        try:
            path = self._locate().resolve()
            signature = _signature(path)
        except (SpecError, OSError) as error:
            # Whatever is found next is looked at anew, or this problem would outlast its cause.
            self._tried = None
            self._keep(str(error))
            return False
        if signature == self._tried:
            return False
        self._tried = signature
        try:
            predictor = load_predictor(path, self._catalogue)
            predictor.load_all()
            _warm_up(predictor)
            programs = load_module_predictor(predictor)
        except (SpecError, OSError) as error:
            self._keep(str(error))
            return False
        except Exception as error:  # noqa: BLE001 - graphs fail with errors of their engine's own; the old model goes on
            self._keep(f"the model does not run: {error!r}")
            return False
        self._loaded = Loaded(
            predictor, self._catalogue, path.name, path, summary(predictor.manifest), _now(), programs
        )
        self.problem = None
        return True

    def _keep(self, problem: str) -> None:
        """Go on with what there is, and say why; once, not at every look."""
        if problem != self.problem:
            kept = "; the model loaded before goes on serving" if self._loaded else ""
            _log.error("the model was not loaded: %s%s", problem, kept)
        self.problem = problem


def _warm_up(predictor: ArtifactPredictor) -> None:
    """One prediction of each family: the first takes far longer than the others, and a graph that fails, fails here."""
    for name in predictor.families:
        example = family_example(get_family(name), predictor.manifest["families"][name]["devices"][0])
        spec, device = read_spec(example, predictor.devices)
        predictor.predict([spec], [device])


def summary(manifest: Any) -> Any:
    """The manifest without what only a machine reads: long lists become their length."""
    if isinstance(manifest, Mapping):
        return {str(key): summary(value) for key, value in manifest.items()}
    if isinstance(manifest, list | tuple):
        return f"{len(manifest)} entries" if len(manifest) > _LONGEST else [summary(value) for value in manifest]
    return manifest


def _signature(path: Path) -> tuple[object, ...]:
    state = (path / MANIFEST).stat()
    return str(path), state.st_mtime_ns, state.st_size, state.st_ino


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
