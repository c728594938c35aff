"""Routes of the service's own state: the model that answers, health, metrics, and POST /v1/admin/reload."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import msgspec
from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ...client.device_answers import Health, ServedModel, ServedModels
from ..middleware.access import ADMIN_FOLDER
from ..model_source import PredictorSource, require_model
from ..telemetry.metrics import CONTENT_TYPE, Metrics
from ..transport.problems import ProblemError
from ..transport.responses import Endpoint, json_endpoint, json_response

RELOAD_PATH = f"{ADMIN_FOLDER}reload"
_log = logging.getLogger("kernelcast.api")


class ReloadAnswer(msgspec.Struct, frozen=True):
    """What a look for a newer model found."""

    changed: Annotated[bool, Meta(description="Whether another model answers since this look")]
    name: Annotated[str | None, Meta(description="The model that answers now, null while there is none")]
    version: Annotated[str | None, Meta(description="First 12 hex digits of the SHA-256 of its manifest")]
    loaded_at: Annotated[str | None, Meta(description="When it was loaded, ISO 8601")]
    problem: Annotated[str | None, Meta(description="Why the newest one was not taken, null where it was")]


def look_for_model(source: PredictorSource, metrics: Metrics) -> bool:
    """Look for a newer model, count and log what was found; True where another answers now. May take seconds."""
    before = source.problem
    is_new = source.refresh()
    if source.problem is not None and source.problem != before:
        metrics.model_refusals.inc()
    if is_new:
        metrics.model_changes.inc()
        loaded = source.current
        _log.info("model %s answers now", loaded and loaded.path)
    return is_new


def reload_endpoint(source: PredictorSource, metrics: Metrics) -> Endpoint:
    """What answers `/v1/admin/reload`: looks on a thread, one look at a time, and says what is served then."""
    reload_lock = asyncio.Lock()

    async def reload(_: Request) -> Response:
        if reload_lock.locked():
            raise ProblemError(
                503,
                "a check for a newer model is already running; try again when it is done",
                headers={"retry-after": "2"},
            )
        async with reload_lock:
            changed = await run_sync(look_for_model, source, metrics)
        loaded = source.current
        if loaded is None:
            return json_response(ReloadAnswer(changed, None, None, None, source.problem))
        return json_response(ReloadAnswer(changed, loaded.name, loaded.version, loaded.loaded_at, source.problem))

    return reload


def models_endpoint(source: PredictorSource) -> Endpoint:
    """What answers `/v1/models`."""

    def models(_: Request) -> ServedModels:
        loaded = source.current
        if loaded is None:
            return ServedModels([])
        path = None if loaded.path is None else str(loaded.path)
        return ServedModels([ServedModel(loaded.name, path, loaded.loaded_at, dict(loaded.manifest), source.problem)])

    return json_endpoint(models)


def health_endpoint() -> Endpoint:
    """What answers `/healthz`."""
    return json_endpoint(lambda _: Health("ok"))


def ready_endpoint(source: PredictorSource) -> Endpoint:
    """What answers `/readyz`: 503 while there is no model."""

    def ready(_: Request) -> Health:
        require_model(source)
        return Health("ready")

    return json_endpoint(ready)


def metrics_endpoint(metrics: Metrics) -> Endpoint:
    """What answers `/metrics`, on a thread, as several workers' metrics are read from files."""

    async def text(_: Request) -> Response:
        return Response(await run_sync(metrics.text), media_type=CONTENT_TYPE)

    return text
