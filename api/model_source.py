"""Where the service gets its predictor from: one given, or an artifact directory that is watched for change.

Every few seconds the directory's signature (real path; name, time and size of every file) is compared; when it changed, the
new artifact is loaded beside the old one and swapped in, or, if it is bad, the old one stays and the log says why. What was
refused is looked at again when any of its files changes, as a copy that was half done goes on, and else once a minute, as a
full memory or table of files may have been the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import get_family
from ..features.spec_io.json_schema import family_example
from ..features.spec_io.reading import read_spec
from ..models.family_model.artifact import shipped_model_dir
from ..models.family_model.artifact_files import MANIFEST
from ..models.predict.prediction import Predictor
from ..models.predict.predictor import ArtifactPredictor, load_predictor
from ..workloads.mlir.predictor import ModulePredictor, load_module_predictor
from .settings import Settings
from .telemetry.metrics import Metrics
from .transport.problems import ProblemError

_log = logging.getLogger("kernelcast.api")
RETRY_S = 60.0
"""Time after which a directory that did not load is tried again though no file of it changed."""

FIRST_LOOK_S = 30.0
"""Longest that the start waits for the first look; a model that takes longer is answered from when it is there."""

SHIPPED_NAME = "pretrained"
"""Name of the model that comes with kernelcast."""

_LONGEST = 40
"""Longest list of a manifest shown in its summary; quantile tables and sample points say nothing to a reader."""

_FOR_MACHINES = frozenset({"analytic", "domain", "files", "graphs", "largest", "measured", "targets"})
"""Entries of a manifest that its summary leaves out: coefficients, sample points and checksums, nine tenths of its bytes."""

_VERSION_DIGITS = 12


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A predictor that answers requests.

    Attributes:
        predictor: The predictor of kernels.
        catalogue: The devices it predicts on.
        name: Name of the model in answers and metrics.
        path: Its artifact directory, None where it was passed in.
        manifest: Its manifest, with long lists shortened to their length.
        loaded_at: When it was loaded, ISO 8601.
        programs: Predictor of programs by these kernels, None where there is none.
        version: First hex digits of the SHA-256 of its manifest, as in the registry.
    """

    predictor: Predictor
    catalogue: Catalogue
    name: str
    path: Path | None
    manifest: Mapping[str, Any]
    loaded_at: str
    programs: ModulePredictor | None = None
    version: str = "unversioned"


class PredictorSource(Protocol):
    """Gives the predictor that answers now."""

    problem: str | None
    """Why the newest artifact was not taken, None when it was."""

    current: LoadedModel | None
    """The predictor that answers now, None while there is none."""

    def refresh(self) -> bool:
        """Look for a newer predictor and take it; True when it changed. May take seconds: call it off the event loop."""


def require_model(source: PredictorSource) -> LoadedModel:
    """What answers now.

    Raises:
        ProblemError: 503, nothing does yet.
    """
    loaded = source.current
    if loaded is None:
        raise ProblemError(503, f"no model is loaded: {source.problem}", headers={"retry-after": "2"})
    return loaded


@dataclass(frozen=True, slots=True)
class Service:
    """What endpoints that predict are built from; there is one for all routes of an application.

    Attributes:
        source: The model that answers now.
        settings: The settings of the service.
        metrics: Counters of requests and predictions.
        devices: The catalogue that the service lists.
    """

    source: PredictorSource
    settings: Settings
    metrics: Metrics
    devices: Catalogue


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
        self.current: LoadedModel | None = (
            None if predictor is None else LoadedModel(predictor, catalogue, name, None, {}, _now(), programs)
        )

    def refresh(self) -> bool:
        """See `PredictorSource`."""
        return False


class DirectorySource:
    """An artifact directory, looked up anew at every refresh because a promotion points elsewhere.

    `locate` gives the directory (`default_model_dir`, or a fixed one). A directory that does not load is tried again
    when one of its files changes, else after `RETRY_S`, and what served before goes on serving. `refresh` may be called from
    several threads: one looks at a time, as two loads at once would take twice the memory.
    """

    def __init__(self, locate: Callable[[], Path], catalogue: Catalogue) -> None:
        self.problem: str | None = "no model was looked for yet"
        self._locate = locate
        self._catalogue = catalogue
        self.current: LoadedModel | None = None
        self._tried: tuple[object, ...] | None = None
        self._retry_at = math.inf
        self._refresh_lock = threading.Lock()
        self._has_garbage = False

    def refresh(self) -> bool:
        """See `PredictorSource`."""
        with self._refresh_lock:
            changed = self._refresh()
            # A model is large and part of cycles (memoised methods), which a collector that counts objects, not bytes, would
            # leave for a long time. Once more at the next look, when the last request that held it is answered.
            if changed or self._has_garbage:
                gc.unfreeze()
                gc.collect()
                _trim_memory()
                # What lives now lives until the next model: batches answer a fifth faster when collections pass it over.
                gc.freeze()
            self._has_garbage = changed
            return changed

    def _refresh(self) -> bool:
        try:
            path = self._locate().resolve()
            signature = _signature(path)
        except (SpecError, OSError) as error:
            # Whatever is found next is looked at anew, or this problem would outlast its cause.
            self._tried = None
            self._report_problem(_reason(error))
            return False
        if signature == self._tried and time.monotonic() < self._retry_at:
            return False
        self._tried, self._retry_at = signature, time.monotonic() + RETRY_S
        try:
            version = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:_VERSION_DIGITS]
            predictor = load_predictor(path, self._catalogue)
            predictor.load_all()
            _warm_up(predictor)
            programs = load_module_predictor(predictor)
        except (SpecError, OSError) as error:
            self._report_problem(_reason(error))
            return False
        except Exception as error:  # noqa: BLE001 - graphs fail with errors of their engine's own; the old model goes on
            self._report_problem(f"the model does not run: {error!r}")
            return False
        self.current = LoadedModel(
            predictor, self._catalogue, _model_name(path), path, summary(predictor.manifest), _now(), programs, version
        )
        self._retry_at = math.inf
        self.problem = None
        return True

    def _report_problem(self, problem: str) -> None:
        """Go on with what there is, and say why; once, not at every look."""
        if problem != self.problem:
            suffix = "; the model loaded before goes on serving" if self.current else ""
            _log.error("the model was not loaded: %s%s", problem, suffix)
        self.problem = problem


class Watcher:
    """Calls `look` at once and then every `every_s` seconds, in a thread of its own that nothing waits for.

    A model is read from a disk that may be slow or hang; neither answers nor the end of the process may depend on it, so the
    thread is a daemon and not one of the event loop's.
    """

    def __init__(self, look: Callable[[], object], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._stopped = threading.Event()

    async def start(self, wait_s: float = FIRST_LOOK_S) -> None:
        """Start looking; comes back after the first look, or after `wait_s`: the service then says that it is not ready."""
        first_look, loop = asyncio.Event(), asyncio.get_running_loop()

        def first_look_done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(first_look.set)

        threading.Thread(target=self._run, args=(first_look_done,), name="model-watch", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(first_look.wait(), wait_s)

    def stop(self) -> None:
        """Look no more; a look that is under way is left to itself."""
        self._stopped.set()

    def _run(self, first_look_done: Callable[[], None]) -> None:
        while True:
            try:
                self._look()
            except Exception:  # noqa: BLE001 - the watch outlives any failure of one look; a thread that died would never look again
                _log.exception("looking for a newer model failed")
            first_look_done()
            if self._stopped.wait(self._every_s):
                return


def _warm_up(predictor: ArtifactPredictor) -> None:
    """One prediction of each family: the first takes far longer than the others, and a graph that fails, fails here."""
    for name in predictor.families:
        example = family_example(get_family(name), predictor.manifest["families"][name]["devices"][0])
        spec, device = read_spec(example, predictor.devices)
        predictor.predict([spec], [device])


def _model_name(path: Path) -> str:
    """Name of a model in answers and metrics: its folder's, or `SHIPPED_NAME`."""
    return SHIPPED_NAME if path == shipped_model_dir().resolve() else path.name


def summary(manifest: Any) -> Any:
    """The manifest without what only a machine reads: `_FOR_MACHINES` is left out, long lists become their length."""
    if isinstance(manifest, Mapping):
        return {str(key): summary(value) for key, value in manifest.items() if key not in _FOR_MACHINES}
    if isinstance(manifest, list | tuple):
        return f"{len(manifest)} entries" if len(manifest) > _LONGEST else [summary(value) for value in manifest]
    return manifest


def _signature(path: Path) -> tuple[object, ...]:
    """What changes when any file of the artifact does. A graph replaced beside its manifest is noticed, and refused."""
    manifest = (path / MANIFEST).stat()
    with os.scandir(path) as entries:
        files = sorted((entry.name, *_state(entry.stat())) for entry in entries)
    return str(path), manifest.st_ino, *files


def _trim_memory() -> None:
    """Give the memory of what was freed back to the system, where the C library has a call for it (glibc: malloc_trim(3)).

    A model is loaded beside the old one by another thread, in pieces that leave holes everywhere: without this a process that
    took six models in twenty minutes grew from 250 to 340 MiB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _reason(error: SpecError | OSError) -> str:
    """Why a model was not taken, in words; of a file that cannot be read, which one."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
