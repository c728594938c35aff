"""A route whose answers take long enough to be worked out on a thread, whatever the length of the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from ..features.errors import SpecError
from .bodies import JSON, media_type, read_body, send_json
from .metrics import Metrics
from .problems import ProblemError, field_problem
from .settings import Settings
from .source import Loaded, PredictorSource, loaded_of
from .turns import on_thread


@dataclass(frozen=True, slots=True)
class Call:
    """What an answer is worked out from: the predictor loaded when the request came, the settings, the counters."""

    loaded: Loaded
    settings: Settings
    metrics: Metrics


Answer = Callable[[Call, bytes], bytes]
"""From the bytes of a request to those of its answer; raises ProblemError."""


class ThreadEndpoint:
    """The ASGI application of a route that takes a JSON body of at most `limit_b` bytes and answers by `answer`."""

    def __init__(
        self, source: PredictorSource, settings: Settings, metrics: Metrics, answer: Answer, limit_b: int
    ) -> None:
        self._source = source
        self._settings = settings
        self._metrics = metrics
        self._answer = answer
        self._limit_b = limit_b

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        media_type(headers, JSON)
        body = await read_body(headers, receive, self._limit_b)
        call = Call(loaded_of(self._source), self._settings, self._metrics)
        await send_json(send, await on_thread(self._answer, call, body))


def refused(error: SpecError, field: str) -> ProblemError:
    """A refusal of the predictor as a problem of the field the error names, or else of `field`."""
    found = field_problem(error, error.field or field)
    return ProblemError(422, found.detail, [found])
