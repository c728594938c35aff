"""POST /v1/admin/reload: look for a newer model now, and say which one answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ..middleware.access import ADMIN_FOLDER
from ..model_source import PredictorSource
from ..telemetry.metrics import Metrics
from ..transport.bodies import json_response
from ..transport.problems import ProblemError

PATH = f"{ADMIN_FOLDER}reload"
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


class ReloadEndpoint:
    """What answers the route; one look at a time."""

    def __init__(self, source: PredictorSource, metrics: Metrics) -> None:
        self._source = source
        self._metrics = metrics
        self._looking = asyncio.Lock()

    async def __call__(self, _: Request) -> Response:
        """Look, on a thread, and answer what is served then.

        Raises:
            ProblemError: 503, another look is under way.
        """
        if self._looking.locked():
            raise ProblemError(
                503,
                "a check for a newer model is already running; try again when it is done",
                headers={"retry-after": "2"},
            )
        async with self._looking:
            changed = await run_sync(look_for_model, self._source, self._metrics)
        loaded = self._source.current
        answer = ReloadAnswer(
            changed,
            None if loaded is None else loaded.name,
            None if loaded is None else loaded.version,
            None if loaded is None else loaded.loaded_at,
            self._source.problem,
        )
        return json_response(answer)


def endpoint(source: PredictorSource, metrics: Metrics) -> Callable[[Request], Any]:
    """The route's function, of the form that a Starlette route takes."""
    reload = ReloadEndpoint(source, metrics)

    async def answer(request: Request) -> Response:
        return await reload(request)

    return answer
