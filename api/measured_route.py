"""GET /v1/measurements, GET /v1/measurements/sets and POST /v1/measurements/like: what was measured, to look through."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.to_thread import run_sync
from starlette.types import Receive, Scope, Send

from ..features.device import Catalogue
from .bodies import JSON, media_type, read_body, send_json
from .measured_reader import MeasuredError, MeasuredReader
from .measured_request import read_like_question, read_rows_question
from .measured_wire import Question, SetsQuestion
from .problems import FieldProblem, ProblemError
from .query import parameters
from .requests import invalid
from .turns import turn

PATH = "/v1/measurements"
SETS_PATH = "/v1/measurements/sets"
LIKE_PATH = "/v1/measurements/like"
MAX_BODY_B = 16384
"""Longest body of a question, bytes: one spec and a few device names. A question must also fit into a pipe at once."""
MAX_WAITING = 64
"""Questions that wait for their turn; they are answered one after the other, some hundred a second."""
WAIT_S = 10.0
"""Seconds that a question waits for its turn before it is sent away."""


class MeasuredTurns:
    """Questions to one reader, one at a time, so that waiting ones hold no threads that predictions need."""

    def __init__(self, reader: MeasuredReader) -> None:
        self._reader = reader
        self._turns = anyio.Semaphore(1)

    async def ask(self, question: Question) -> bytes:
        """The JSON of the answer.

        Raises:
            ProblemError: the question is refused, too many wait, or the process that reads rows failed.
        """
        async with turn(self._turns, MAX_WAITING, WAIT_S, _busy()):
            try:
                return await run_sync(self._reader.ask, question)
            except MeasuredError as error:
                if error.status == 422:
                    raise invalid([FieldProblem(error.field, error.detail)]) from error
                headers = {"retry-after": "2"} if error.status == 503 else {}
                raise ProblemError(error.status, error.detail, headers=headers) from error

    def close(self) -> None:
        """End the reader's process, if there is one."""
        self._reader.close()


class MeasuredEndpoint:
    """The ASGI application behind one of the GET routes; `question` makes the question of a query string."""

    def __init__(self, turns: MeasuredTurns, question: Callable[[bytes], Question]) -> None:
        self._turns = turns
        self._question = question

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        await send_json(send, await self._turns.ask(self._question(scope["query_string"])))


class LikeEndpoint:
    """The ASGI application behind `/v1/measurements/like`."""

    def __init__(self, turns: MeasuredTurns, devices: Catalogue) -> None:
        self._turns = turns
        self._devices = devices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        media_type(headers, JSON)
        body = await read_body(headers, receive, MAX_BODY_B, "a question is one spec and a few device names")
        await send_json(send, await self._turns.ask(read_like_question(body, self._devices)))


def sets_endpoint(turns: MeasuredTurns) -> MeasuredEndpoint:
    """What answers `/v1/measurements/sets`."""

    def question(query: bytes) -> Question:
        parameters(query, ())
        return SetsQuestion()

    return MeasuredEndpoint(turns, question)


def rows_endpoint(turns: MeasuredTurns, devices: Catalogue) -> MeasuredEndpoint:
    """What answers `/v1/measurements`; devices may be given by the catalogue's aliases."""
    return MeasuredEndpoint(turns, lambda query: read_rows_question(query, devices))


def _busy() -> ProblemError:
    return ProblemError(503, "too many questions about measured rows wait; try again", headers={"retry-after": "2"})
