"""A route whose answers take long enough to be worked out on a thread, whatever the length of the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from anyio.to_thread import run_sync
from starlette.types import Receive, Scope, Send

from ..features.errors import SpecError
from .metrics import Metrics
from .predict import JSON, media_type, read_body
from .problems import ProblemError, field_problem
from .settings import Settings
from .source import Loaded, PredictorSource


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
        loaded = self._source.current()
        if loaded is None:
            raise ProblemError(503, f"no model is loaded: {self._source.problem}", headers={"retry-after": "2"})
        answer = await run_sync(partial(self._answer, Call(loaded, self._settings, self._metrics), body))
        length = str(len(answer)).encode()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/json"), (b"content-length", length)]})  # fmt: skip
        await send({"type": "http.response.body", "body": answer})


def refused(error: SpecError, field: str) -> ProblemError:
    """A refusal of the predictor as a problem of the field the error names, or else of `field`."""
    found = field_problem(error, error.field or field)
    return ProblemError(422, found.detail, [found])
