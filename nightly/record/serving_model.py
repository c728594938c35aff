"""What serves now: its version, its directory and its predictor."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from ...features.device import Catalogue, catalogue
from ...files import home_dir
from ...models.family_model.artifact import CHAMPION_POINTER, default_model_dir
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.predictor import ArtifactPredictor, load_predictor

SHIPPED = "shipped"
"""The version of the model that serves where nothing was promoted."""


def serving_version() -> str | None:
    """The version that serves: the pointer's, `shipped` where there is none, None where the pointer cannot be read."""
    pointer = home_dir() / CHAMPION_POINTER
    if not pointer.exists():
        return SHIPPED
    try:
        return str(json.loads(pointer.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def serving_model() -> tuple[Path, str | None]:
    """The model directory that serves, and why it cannot be loaded; None where it can."""
    try:
        return serving_predictor().directory, None
    except ArtifactError as error:
        return home_dir() / CHAMPION_POINTER, str(error)


def serving_predictor(devices: Catalogue | None = None) -> ArtifactPredictor:
    """The model that serves, every family of it read and checked; read again only where its files have changed since.

    Raises:
        ArtifactError: it cannot be loaded.
    """
    directory = default_model_dir()
    try:
        files = tuple(sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in directory.iterdir()))
    except OSError:
        # Reading it says what is wrong with it.
        files = ()
    return _read(directory, files, devices or catalogue())


@lru_cache(maxsize=2)
def _read(directory: Path, files: tuple[tuple[str, int, int], ...], devices: Catalogue) -> ArtifactPredictor:  # noqa: ARG001
    """The predictor of a directory whose `files` are these; with others it is another."""
    predictor = load_predictor(directory, devices)
    predictor.load_all()
    return predictor
