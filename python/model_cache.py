"""The model that Python asks: read once, and again only when it changes on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from ..features.errors import SpecError
from ..files import home_dir
from ..models.family_model.artifact import CHAMPION_POINTER, default_model_dir
from ..models.family_model.artifact_files import MANIFEST
from ..models.predict.predictor import ArtifactPredictor, load_predictor

if TYPE_CHECKING:
    from ..workloads.mlir.predictor import ModulePredictor
    from ..workloads.serving.predict import ServingPredictor

_Predictor = TypeVar("_Predictor")

_MOST = 4
"""Models that stay loaded beside each other; the one loaded first goes first."""

_State = tuple[int, int, int] | None
"""Time, size and inode of a file; None where there is none."""


@dataclass(slots=True)
class _Model:
    """A loaded model with what else was made of it.

    Attributes:
        directory: Where it was read from.
        state: Its manifest when it was read. A manifest has the checksums of all files, so that it changes with each of them.
        predictor: The predictor of kernels.
        others: Predictors that build on that one, by the function that makes them.
    """

    directory: Path
    state: _State
    predictor: ArtifactPredictor
    others: dict[Callable[[ArtifactPredictor], Any], Any] = field(default_factory=dict)


_models: dict[tuple[Path | None, Path, _State], _Model] = {}
"""By the directory that was named, or None and the champion's pointer file as it was."""
_lock = Lock()


def load(model: Path | str | None = None) -> ArtifactPredictor:
    """The predictor of a model directory; without one, of the promoted champion or else the shipped model.

    It is read by the first call, and again by the first one after it changed on disk; threads may share it.

    Raises:
        kernelcast.SpecError: the directory is no model, or is damaged.
    """
    return _model(model).predictor


def programs(model: Path | str | None) -> ModulePredictor:
    """The predictor of MLIR programs by the kernels of a model.

    Raises:
        SpecError: as for `load`.
    """
    # Imported late, as what follows below: most of what asks about kernels never needs it.
    from ..workloads.mlir.predictor import load_module_predictor

    return _built_on(model, load_module_predictor)


def services(model: Path | str | None) -> ServingPredictor:
    """The predictor of services of language models by the kernels of a model.

    Raises:
        SpecError: as for `load`.
    """
    from ..workloads.serving.predict import ServingPredictor

    return _built_on(model, ServingPredictor)


def _built_on(model: Path | str | None, make: Callable[[ArtifactPredictor], _Predictor]) -> _Predictor:
    """The predictor that `make` builds on a model's, built by the first call."""
    item = _model(model)
    with _lock:
        if make not in item.others:
            item.others[make] = make(item.predictor)
        result: _Predictor = item.others[make]
        return result


def _model(model: Path | str | None) -> _Model:
    if model is None:
        pointer = home_dir() / CHAMPION_POINTER
        key = (None, pointer, _state(pointer))
        return _current(key, default_model_dir)
    if not isinstance(model, str | PathLike):
        raise SpecError(f"a model is named by its directory, got {type(model).__name__}", field="model")
    directory = Path(model).absolute()
    return _current((directory, directory, None), lambda: directory)


def _current(key: tuple[Path | None, Path, _State], locate: Callable[[], Path]) -> _Model:
    """The model of a key, unless its manifest changed since it was read."""
    item = _models.get(key)
    if item is not None and item.state == _state(item.directory / MANIFEST):
        return item
    with _lock:
        item = _models.get(key)
        if item is not None and item.state == _state(item.directory / MANIFEST):
            return item
        directory = locate()
        # Looked at before reading: a change in between is noticed by the next call.
        state = _state(directory / MANIFEST)
        item = _Model(directory, state, load_predictor(directory))
        _models.pop(key, None)
        _models[key] = item
        while len(_models) > _MOST:
            del _models[next(iter(_models))]
        return item


def _state(path: Path) -> _State:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
