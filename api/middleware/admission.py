"""Admission control: how many requests one process works on at once, for how long, and how many bytes of bodies it holds.

A request takes a slot once its whole body is there, so that slow senders hold none, and frees it when all work for it has
ended. Work on a thread cannot be stopped from outside: at the time limit the caller gets its answer (504), and the work goes on
to its end and keeps its slot. There are fewer slots than the thread pool has threads, so running work can neither
pile up nor keep the health routes, which take no slot, from answering.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..telemetry.metrics import Metrics
from ..telemetry.request_log import CURRENT_REQUEST, RequestContext
from ..transport.problems import ProblemError
from .access import HEALTH_PATHS
from .error_boundary import problem_response

ALWAYS_PATHS = HEALTH_PATHS | {"/metrics"}
"""Answered under any load: they report the load."""

WAIT_S = 5.0
"""Longest wait for a slot before a request is refused."""

MAX_WAITING = 256
"""Most requests that wait for a slot; the next is refused at once."""

_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


async def take_slot(slots: anyio.Semaphore, max_waiting: int, wait_s: float) -> bool:
    """Take a slot, a free one at once; False where `max_waiting` others wait already, or none came free within `wait_s`."""
    with contextlib.suppress(anyio.WouldBlock):
        slots.acquire_nowait()
        return True
    if slots.statistics().tasks_waiting >= max_waiting:
        return False
    with anyio.move_on_after(wait_s) as wait:
        await slots.acquire()
    return not wait.cancelled_caught


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one process takes on at once, and for how long.

    Attributes:
        max_concurrency: Requests worked on at once.
        max_held_b: Bytes of all request bodies together.
        body_timeout_s: Longest time for a body to arrive.
        request_timeout_s: Longest time for an answer, from the whole body on.
    """

    max_concurrency: int
    max_held_b: int
    body_timeout_s: float
    request_timeout_s: float


class AdmissionControl:
    """ASGI middleware inside `ErrorBoundary`: 408 for slow bodies, 503 without a free slot or memory, 504 for slow answers.

    `held_b` is how many bytes of bodies are held now.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self.limits = limits
        self.metrics = metrics
        self.slots = anyio.Semaphore(limits.max_concurrency)
        self.held_b = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request within the limits."""
        if scope["type"] != "http" or scope["path"] in ALWAYS_PATHS:
            await self._app(scope, receive, send)
            return
        slow_at = asyncio.get_running_loop().time() + self.limits.body_timeout_s
        admission = _Admission(self, scope, receive, send, CURRENT_REQUEST.get() or RequestContext(), slow_at)
        try:
            if scope["method"] in _BODILESS:
                try:
                    await admission.begin()
                except ProblemError as error:
                    # Outside of the application, whose handlers answer the others.
                    await problem_response(error, scope["path"])(scope, receive, send)
                    return
            await self._app(scope, admission.receive, admission.send)
        finally:
            # All work has ended: what the request holds is given back.
            if admission.timer is not None:
                admission.timer.cancel()
            self.held_b -= admission.held_b
            if admission.has_slot:
                self.slots.release()
            if admission.refusal is not None:
                await admission.refusal


@dataclass(slots=True)
class _Admission:
    """One request: what it holds, and its `receive` and `send` between the server and the application.

    Attributes:
        slow_at: When its body comes too late, by the loop's clock.
        held_b: Bytes of its body.
        timer: Ends its time.
        refusal: Tells the caller that the answer is late.
        has_slot: Whether it holds a slot.
        is_late: Whether its time is over.
        is_read: Whether all of its body was read.
        is_started: Whether its answer has begun.
    """

    _control: AdmissionControl
    _scope: Scope
    _receive: Receive
    _send: Send
    _request: RequestContext
    slow_at: float
    held_b: int = 0
    timer: asyncio.TimerHandle | None = None
    refusal: asyncio.Task[None] | None = None
    has_slot: bool = False
    is_late: bool = False
    is_read: bool = False
    is_started: bool = False

    async def receive(self) -> Message:
        """The next part of the body; with the last, the request has its slot.

        Raises:
            ProblemError: 408 for a body that is not there in time, 503 where there is no memory for it or no slot.
        """
        if self.is_read:
            # What still comes is nothing to work on: a disconnect, or the rest of a body that was refused.
            message = await self._receive()
            self._request.body_b += len(message.get("body", b""))
            return message
        control = self._control
        try:
            async with asyncio.timeout_at(self.slow_at):
                message = await self._receive()
        except TimeoutError:
            raise self._refused(
                "time", 408, f"the body did not come within {control.limits.body_timeout_s:g} s; send it faster, or in parts",
                {"connection": "close"},
            ) from None  # fmt: skip
        size = len(message.get("body", b""))
        self.held_b += size
        control.held_b += size
        self._request.body_b += size
        if control.held_b > control.limits.max_held_b:
            raise self._refused(
                "concurrency", 503, f"the bodies being read and worked on have {control.limits.max_held_b} bytes in all, the "
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
            if self.timer is not None:
                self.timer.cancel()
            if message.get("status") == 413:
                self._control.metrics.count_refusal("body")
        await self._send(message)

    async def begin(self) -> None:
        """Take a slot, and start the time.

        Raises:
            ProblemError: 503, no slot came free.
        """
        if self.has_slot:
            return
        control = self._control
        if not await take_slot(control.slots, MAX_WAITING, WAIT_S):
            raise self._refused(
                "concurrency", 503,
                f"{control.limits.max_concurrency} requests are being answered, the most this server works on at once; "
                "try again shortly", {"retry-after": "2"},
            )  # fmt: skip
        self.has_slot = True
        self.timer = asyncio.get_running_loop().call_later(control.limits.request_timeout_s, self._late)

    def _late(self) -> None:
        if self.is_started:
            return
        self.is_late = True
        limits = self._control.limits
        error = self._refused(
            "time", 504,
            f"the answer took longer than {limits.request_timeout_s:g} s; send fewer rows at once, or raise "
            "KERNELCAST_REQUEST_TIMEOUT_S. The work continues to its end and until then occupies one of the "
            f"{limits.max_concurrency} slots of this server",
        )  # fmt: skip
        answer = problem_response(error, self._scope["path"])
        self.refusal = asyncio.create_task(answer(self._scope, self._receive, self._send))

    def _refused(self, reason: str, status: int, detail: str, headers: dict[str, str] | None = None) -> ProblemError:
        self.is_read = True
        self._control.metrics.count_refusal(reason)
        return ProblemError(status, detail, headers=headers)
