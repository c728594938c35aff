"""POST /v1/predict/mlir: what a function of MLIR text costs, on one device or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync
from starlette.types import Receive, Scope, Send

from ..features.errors import SpecError
from ..features.mlir.reading import read
from ..features.mlir.understanding import functions, understand
from .bodies import JSON, media_type, read_body, send_json
from .metrics import Metrics
from .mlir_reader import NativeReader
from .mlir_request import SHORTEN, read_json_request, read_text_request, threads_on
from .mlir_wire import programs_answer
from .problems import ProblemError, field_problem
from .settings import Settings
from .source import PredictorSource
from .turns import turn

PATH = "/v1/predict/mlir"
TEXT = frozenset({"text/plain", "text/mlir", "text/x-mlir", "application/mlir", "application/x-mlir"})
"""Media types of a body that is the text itself."""
AT_ONCE = 2
"""Texts worked on at the same time; more would only make each other slow."""
MAX_WAITING = 16
"""Texts that wait for their turn; each may hold some megabytes."""
WAIT_S = 10.0
"""Seconds that a text waits for its turn before it is sent away."""

_JSON_EXTRA_B = 65536
_T = TypeVar("_T")


class ProgramEndpoint:
    """The ASGI application behind `/v1/predict/mlir`.

    The work on a text is done on a thread, a few texts at a time, and native parsers run in `native`'s process, so that
    neither a long text nor one that brings a parser down is felt by other requests.
    """

    def __init__(
        self,
        source: PredictorSource,
        settings: Settings,
        metrics: Metrics,
        native: NativeReader,
    ) -> None:
        self._source = source
        self._max_text_b = settings.max_mlir_b
        self._metrics = metrics
        self._native = native
        self._turns = anyio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        is_json = media_type(headers, TEXT | JSON) in JSON
        # In JSON a line's end and a quote take two bytes.
        limit_b = 2 * self._max_text_b + _JSON_EXTRA_B if is_json else self._max_text_b
        body = await read_body(headers, receive, limit_b, SHORTEN)
        async with turn(self._turns, MAX_WAITING, WAIT_S, _busy()):
            answer = await run_sync(partial(self.answer, body, scope["query_string"], is_json=is_json))
        await send_json(send, answer)

    def answer(self, body: bytes, query: bytes, *, is_json: bool) -> bytes:
        """The JSON answer to a body, JSON or the text itself with its settings in the query.

        Raises:
            ProblemError: no model is loaded, or the request is not acceptable.
        """
        loaded = self._source.current()
        if loaded is None or loaded.programs is None:
            reason = self._source.problem or "the model that is loaded knows no programs"
            raise ProblemError(503, f"no model is loaded: {reason}", headers={"retry-after": "2"})
        take = read_json_request if is_json else read_text_request
        request = take(body, query, loaded.catalogue, self._max_text_b)
        module = _named("text", lambda: read(request.text, native=self._native))
        self._metrics.text_read(module.reader)
        program = _named("text", lambda: understand(module, request.function, request.bind))
        ask = partial(loaded.programs.predict, program, compiler=request.compiler, coverage=request.coverage)
        threads = threads_on([loaded.catalogue.get(name) for name in request.devices], request.threads)
        asked = list(zip(request.devices, threads, strict=True))
        found = _named("text", lambda: [ask(device, threads=count) for device, count in asked])
        self._metrics.predictions(("mlir", one.device, one.in_domain) for one in found)
        # What stands in for something else was not asked for.
        kernels = dict.fromkeys(group.spec for group in program.groups if group.spec is not None and not group.stand_in)
        for one, count in zip(found, threads, strict=True):
            self._metrics.asked([replace(spec, threads=count) for spec in kernels], [one.device] * len(kernels))
        return msgspec.json.encode(programs_answer(module, functions(module), found))


def _named(field: str, work: Callable[[], _T]) -> _T:
    """The result of the work; what is wrong with its input is a problem of the field the error names, or else of `field`.

    Raises:
        ProblemError: 422 with the error's words.
    """
    try:
        return work()
    except SpecError as error:
        found = field_problem(error, error.field if error.field not in (None, "mlir") else field)
        raise ProblemError(422, found.detail, [found]) from error


def _busy() -> ProblemError:
    return ProblemError(
        503,
        "as many texts as this server works on at once are being predicted; try again",
        headers={"retry-after": "5"},
    )
