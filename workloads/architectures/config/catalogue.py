"""The models that ship, by name: a repository's, or a short one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ....features.errors import SpecError, listed
from ..facts import ModelFacts
from .reading import read_config_file, read_facts

MODELS = Path(__file__).with_name("models.yaml")


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: Mapping[str, Mapping[str, Any]] = yaml.load(MODELS.read_text(encoding="utf-8"), loader)["models"]  # noqa: S506
    return MappingProxyType(entries)


@cache
def _names() -> Mapping[str, str]:
    """Repository by any name in lower case."""
    return MappingProxyType({
        alias.lower(): name for name, entry in _entries().items() for alias in (name, *entry["aliases"])
    })  # fmt: skip


def model_names() -> tuple[str, ...]:
    """The models that ship."""
    return tuple(_entries())


def published_parameters(name: str) -> float:
    """Parameters that the makers of a shipped model publish."""
    return float(_entries()[name]["parameters"])


def model_facts(name: str) -> ModelFacts:
    """The facts of a shipped model.

    Raises:
        SpecError: there is none of that name; the message names the nearest.
    """
    key = _names().get(name.lower()) if isinstance(name, str) else None
    if key is None:
        nearest = difflib.get_close_matches(str(name).lower(), _names(), n=3, cutoff=0.5)
        hint = (
            f"nearest: {listed(_names()[word] if word not in _entries() else word for word in nearest)}; "
            if nearest
            else ""
        )
        raise SpecError(
            f"no model {name!r} ships; {hint}give its configuration (--config config.json), or one of: {listed(model_names())}",
            field="model",
        )
    return read_facts(_entries()[key]["config"], key, source=f"config.json of huggingface.co/{key}")


def facts_of(model: str | Path | Mapping[str, Any] | ModelFacts) -> ModelFacts:
    """The facts of a model, by the name of one that ships, the path of a `config.json`, or what such a file says.

    A text is a path where it ends in `.json`, or is that of a folder with a `config.json`.

    Raises:
        SpecError: there is no such model or file, or the configuration is refused.
    """
    if isinstance(model, ModelFacts):
        return model
    if isinstance(model, Mapping):
        return read_facts(model, str(model.get("_name_or_path") or "model"))
    path = Path(model)
    if (path / "config.json").is_file():
        return read_config_file(path / "config.json")
    if isinstance(model, Path) or path.suffix == ".json":
        return read_config_file(path)
    return model_facts(model)
