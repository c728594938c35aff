"""How much one process takes on at once and for how long: places, time, bytes of bodies, and bodies that come too slowly.

A request takes a place once its whole body is there, so that slow senders hold none, and gives it back when all work for it has
ended. Work on a thread cannot be stopped from outside: at the time limit the caller gets its answer (504), and the work goes on
to its end and keeps its place. There are fewer places than the thread pool has threads, so what goes on can neither
pile up nor keep the health routes, which take no place, from answering.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import HEALTH_PATHS
from .boundary import problem_response
from .metrics import Metrics
from .problems import ProblemError
from .settings import Settings

ALWAYS_PATHS = HEALTH_PATHS | {"/metrics"}
"""Answered however much there is to do: they say how much that is."""

WAIT_S = 5.0
"""Longest wait for a place before a request is sent away."""

MAX_WAITING = 256
"""Most requests that wait for a place; the next is sent away at once."""

_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class Places:
    """`most` places, taken in the order they were asked for."""

    def __init__(self, most: int) -> None:
        self._turns = asyncio.Semaphore(most)
        self._waiting = 0

    async def take(self) -> bool:
        """Take a place, waiting for one at most `WAIT_S`; False where none came free or too many wait."""
        if not self._turns.locked():
            await self._turns.acquire()
            return True
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        try:
            await asyncio.wait_for(self._turns.acquire(), WAIT_S)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True

    def give_back(self) -> None:
        """Give a place back."""
        self._turns.release()


class Limits:
    """ASGI middleware inside `Access`: 408 for slow bodies, 503 where there is no place or no room, 504 for slow answers.

    `held_b` is how many bytes of bodies are held now.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self.settings = settings
        self.metrics = metrics
        self.places = Places(settings.max_concurrency)
        self.held_b = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request within the limits."""
        if scope["type"] != "http" or scope["path"] in ALWAYS_PATHS:
            await self._app(scope, receive, send)
            return
        turn = _Turn(self, scope, receive, send)
        try:
            if scope["method"] in _BODILESS:
                try:
                    await turn.begin()
                except ProblemError as error:
                    # Outside of the application, whose handlers answer the others.
                    await problem_response(error, scope["path"])(scope, receive, send)
                    return
            await self._app(scope, turn.receive, turn.send)
        finally:
            await turn.end()


class _Turn:
    """One request: what it holds, and what is between the application and the server for it."""

    __slots__ = ("_held_b", "_limits", "_receive", "_refusal", "_scope", "_send", "_timer", "has_place", "is_late", "is_read",
                 "is_started", "slow_at")  # fmt: skip

    def __init__(self, limits: Limits, scope: Scope, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._scope = scope
        self._receive = receive
        self._send = send
        self._held_b = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: asyncio.Task[None] | None = None
        self.has_place = False
        self.is_late = False
        self.is_read = False
        self.is_started = False
        self.slow_at = asyncio.get_running_loop().time() + limits.settings.body_timeout_s

    async def receive(self) -> Message:
        """The next part of the body; with the last, the request has its place.

        Raises:
            ProblemError: 408 for a body that is not there in time, 503 where there is no room for it or no place.
        """
        if self.is_read:
            # What still comes is nothing to work on: a disconnect, or the rest of a body that was refused.
            return await self._receive()
        limits = self._limits
        try:
            async with asyncio.timeout_at(self.slow_at):
                message = await self._receive()
        except TimeoutError:
            raise self._refused(
                "time", 408, f"the body did not come within {limits.settings.body_timeout_s:g} s; send it faster, or in parts",
                {"connection": "close"},
            ) from None  # fmt: skip
        size = len(message.get("body", b""))
        self._held_b += size
        limits.held_b += size
        if limits.held_b > limits.settings.max_held_b:
            raise self._refused(
                "concurrency", 503, f"the bodies being read and worked on have {limits.settings.max_held_b} bytes in all, the "
                "most this server holds; try again shortly", {"connection": "close", "retry-after": "2"},
            )  # fmt: skip
        if not message.get("more_body"):
            self.is_read = True
            if message["type"] == "http.request":
                await self.begin()
        return message

    async def send(self, message: Message) -> None:
        """Send the next part of the answer, unless the caller was already told that it is late."""
        if self.is_late:
            return
        if not self.is_started:
            self.is_started = True
            if self._timer is not None:
                self._timer.cancel()
            if message.get("status") == 413:
                self._limits.metrics.refused("body")
        await self._send(message)

    async def begin(self) -> None:
        """Take a place, and start the time.

        Raises:
            ProblemError: 503, no place came free.
        """
        if self.has_place:
            return
        limits = self._limits
        if not await limits.places.take():
            raise self._refused(
                "concurrency", 503,
                f"{limits.settings.max_concurrency} requests are being answered, the most this server works on at once; "
                "try again shortly", {"retry-after": "2"},
            )  # fmt: skip
        self.has_place = True
        self._timer = asyncio.get_running_loop().call_later(limits.settings.request_timeout_s, self._late)

    async def end(self) -> None:
        """All work has ended: give back what is held."""
        if self._timer is not None:
            self._timer.cancel()
        self._limits.held_b -= self._held_b
        if self.has_place:
            self._limits.places.give_back()
        if self._refusal is not None:
            await self._refusal

    def _late(self) -> None:
        if self.is_started:
            return
        self.is_late = True
        settings = self._limits.settings
        error = self._refused(
            "time", 504,
            f"the answer took longer than {settings.request_timeout_s:g} s; ask for fewer rows at once, or allow more with "
            "KERNELCAST_REQUEST_TIMEOUT_S. The work goes on to its end, and until then is one of the "
            f"{settings.max_concurrency} that this server does at once",
        )  # fmt: skip
        answer = problem_response(error, self._scope["path"])
        self._refusal = asyncio.create_task(answer(self._scope, self._receive, self._send))

    def _refused(self, reason: str, status: int, detail: str, headers: dict[str, str] | None = None) -> ProblemError:
        self.is_read = True
        self._limits.metrics.refused(reason)
        return ProblemError(status, detail, headers=headers)
