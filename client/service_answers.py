"""What a service says of itself: the models that answer, and whether it is up."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class ServedModel(msgspec.Struct, frozen=True):
    """A model that answers requests."""

    name: Annotated[str, Meta(description="Name of the artifact")]
    path: Annotated[str | None, Meta(description="Directory it was loaded from")]
    loaded_at: Annotated[str, Meta(description="UTC, ISO 8601")]
    manifest: Annotated[dict[str, Any], Meta(description="The artifact's manifest without what only a machine reads")]
    problem: Annotated[str | None, Meta(description="Why a newer artifact was not taken, null when there is none")]


class ServedModels(msgspec.Struct, frozen=True):
    """Loaded models."""

    models: list[ServedModel]


class Health(msgspec.Struct, frozen=True):
    """State of the service."""

    status: str
