"""Routes that take a JSON body and answer it on a thread, and the limits on how many do so at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...features.errors import SpecError
from ..middleware.admission import take_slot
from ..model_source import LoadedModel, Service, require_model
from ..settings import Settings
from ..telemetry.metrics import Metrics
from ..transport.bodies import read_json_body
from ..transport.problems import ProblemError, field_problem


@dataclass(frozen=True, slots=True)
class Call:
    """What an answer is computed from.

    Attributes:
        loaded: The model that was loaded when the request came.
        settings: Settings of the service.
        metrics: Counters of requests and predictions.
    """

    loaded: LoadedModel
    settings: Settings
    metrics: Metrics


Answer = Callable[[Call, bytes], bytes]
"""From the bytes of a request to those of its answer; raises ProblemError."""


class JsonEndpoint:
    """The ASGI application of a route that takes a JSON body and answers by `answer`.

    Args:
        service: What it is built from.
        answer: Gives the answer; it works on a thread.
        limit_b: Longest body; default: that of the settings.
        inline_b: Bodies up to this size are answered on the event loop.
    """

    def __init__(self, service: Service, answer: Answer, limit_b: int | None = None, inline_b: int = -1) -> None:
        self._service = service
        self._answer = answer
        self._limit_b = service.settings.max_body_b if limit_b is None else limit_b
        self._inline_b = inline_b

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        body = await read_json_body(dict(scope["headers"]), receive, self._limit_b)
        service = self._service
        call = Call(require_model(service.source), service.settings, service.metrics)
        is_inline = len(body) <= self._inline_b
        answer = self._answer(call, body) if is_inline else await on_thread(self._answer, call, body)
        await Response(answer, media_type="application/json")(scope, receive, send)


def refusal_problem(error: SpecError, field: str) -> ProblemError:
    """A refusal of the predictor as a problem of the field the error names, or else of `field`."""
    problem = field_problem(error, error.field or field)
    return ProblemError(422, problem.detail, [problem])


LARGE_AT_ONCE = 4
"""Large answers worked out at the same time in one process. The interpreter works on one at a time whatever their number, and a
hundred thousand rows in columns take some 90 MB while they are worked on."""

_Parts = TypeVarTuple("_Parts")
_Answer = TypeVar("_Answer")
_large: RunVar[anyio.CapacityLimiter] = RunVar("kernelcast large answers")


async def on_thread(work: Callable[[Unpack[_Parts]], _Answer], *parts: *_Parts) -> _Answer:
    """The result of `work(*parts)`, which may be large, from a thread; at most `LARGE_AT_ONCE` run at a time."""
    try:
        limiter = _large.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(LARGE_AT_ONCE)
        _large.set(limiter)
    return await run_sync(work, *parts, limiter=limiter)


@asynccontextmanager
async def acquire_slot(
    slots: anyio.Semaphore, max_waiting: int, wait_s: float, busy: ProblemError
) -> AsyncIterator[None]:
    """One of the `slots`, for as long as the context lasts.

    Raises:
        ProblemError: `busy`, where `max_waiting` others wait already, or no slot came free within `wait_s`.
    """
    if not await take_slot(slots, max_waiting, wait_s):
        raise busy
    try:
        yield
    finally:
        slots.release()
