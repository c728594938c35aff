"""One client connection: uvicorn's HTTP/1.1 over llhttp, bounded in what a client may make it keep and for how long.

uvicorn leaves four things open that a service on a network needs closed: a head that never ends (in time or in bytes), a reader
that does not read, a connection that says nothing, and requests that meet a worker as it stops. What a client sends is limited
here before the application sees it; how long a body and an answer may take is the application's business.
"""

from __future__ import annotations

import asyncio
from asyncio.events import TimerHandle
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .problems import MEDIA_TYPE, problem_bytes

HEAD_S = 10.0
"""Longest from the connection, or from a head's first byte, to its last."""

MAX_HEAD_B = 32 << 10
"""Longest request line and headers together, bytes. Browsers and proxies stay under 16 KiB."""

MAX_HEADERS = 100
"""Most headers of a request."""

MAX_PIPELINED = 64
"""Most requests that wait on one connection behind the one that is answered."""

SEND_WINDOW_S = 20.0
SEND_LEAST_B = 64 << 10
"""A reader takes at least `SEND_LEAST_B` of a waiting answer in every `SEND_WINDOW_S`, or loses the connection."""

MAX_UNREAD_B = 256 << 20
"""Most bytes of answers that readers of one worker have still to take, together: a request of 0.7 MB has an answer of 27 MB,
and one who takes it slowly keeps it for hours."""

LINGER_S = 0.5
"""How long a connection with nothing asked stays open when its worker stops: a request already on its way is answered."""

MAX_CONNECTIONS = 8000
"""Most connections of one worker; the server takes fewer where the process may open fewer files."""


class Limits(ServerState):
    """What the connections of one worker share.

    `is_draining` is set when it stops; `most` connections are open at once; `unread` are those with an answer that is not
    taken as fast as it is sent, the slowest first.
    """

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        super().__init__()
        self.is_draining = False
        self.most = most
        self.unread: dict[Connection, None] = {}

    def drop_slowest(self) -> None:
        """Close the connections that have waited longest for their readers, until the others' answers are within bounds."""
        left = sum(one.transport.get_write_buffer_size() for one in self.unread)
        while left > MAX_UNREAD_B and len(self.unread) > 1:
            slowest = next(iter(self.unread))
            del self.unread[slowest]
            left -= slowest.transport.get_write_buffer_size()
            slowest.transport.abort()


class Connection(HttpToolsProtocol):
    """A connection within the limits above; give the class to uvicorn as `http`, and `Limits` as its server state."""

    limits: Limits

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if not isinstance(server_state, Limits):
            raise TypeError("the server's state must be api.connection.Limits")
        self.limits = server_state
        self._head_timer: TimerHandle | None = None
        self._send_timer: TimerHandle | None = None
        self._linger_timer: TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self._is_in_head = False
        self._heads = 0
        self._head_b = 0
        self._unsent_b = 0
        self._refusal: tuple[int, str] | None = None
        self._is_closed_to_requests = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            self._refuse(503, f"{self.limits.most} connections are open, the most this server takes; try again shortly")
            return
        self._watch_head()
        if self.limits.is_draining:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; requests that waited behind another are not answered, as nobody reads them."""
        for name in ("_head_timer", "_send_timer", "_linger_timer"):
            self._stop(name)
        self.limits.unread.pop(self, None)
        self.pipeline.clear()
        if self._answering is not None:
            # uvicorn tells the newest request alone, and the one before would write to a connection that is no more.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; what is no HTTP/1.1, or more than the limits allow, ends the connection with a problem."""
        self._unset_keepalive_if_required()
        if self._is_closed_to_requests:
            return
        head = self._heads if self._is_in_head else None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No other protocol is spoken. The request is answered as any other; what follows is not this protocol.
            self._end_after_answers()
            return
        except httptools.HttpParserError as error:
            self._refuse(*(self._refusal or (400, f"this is no HTTP/1.1 request: {_reason(error)}")))
            return
        if self._is_in_head:
            # Only what belongs to this head alone; where the data holds the end of something else, the next will tell.
            self._head_b += len(data) if head == self._heads else 0
            if self._head_b > MAX_HEAD_B:
                self._refuse(*_HEAD_TOO_LONG)
            elif self._head_timer is None:
                self._watch_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head = True
        self._heads += 1
        self._head_b = 0

    def on_headers_complete(self) -> None:
        """The head is there: refuse it, or hand the request on."""
        self._stop("_head_timer")
        self._is_in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_B or len(self.headers) > MAX_HEADERS:
            self._refuse_in_callback(*_HEAD_TOO_LONG)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse_in_callback(
                400, f"more than {MAX_PIPELINED} requests wait on this connection; wait for answers"
            )
        # RFC 9112, 3.2: a server must refuse a request of HTTP/1.1 with no host, or with more than one.
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refuse_in_callback(400, f"a request has one host header, this one has {hosts or 'none'}")
        super().on_headers_complete()
        if self.limits.is_draining:
            self._end_after_answers()

    def shutdown(self) -> None:
        """The worker stops: answer what is asked and what is on its way, then close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif self._linger_timer is None:
            self._unset_keepalive_if_required()
            self._linger_timer = self.loop.call_later(LINGER_S, self._close_if_idle)

    def pause_writing(self) -> None:
        """The reader is slower than the answer: watch that it reads at all."""
        super().pause_writing()
        self._watch_reader()
        self.limits.unread[self] = None
        self.limits.drop_slowest()

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        self._stop("_send_timer")
        self.limits.unread.pop(self, None)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked: close, also when the last answer is still not read."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._is_in_head:
            self._refuse(408, f"the request's head did not come within {HEAD_S:g} s")
        else:
            self.transport.close()

    def _watch_reader(self) -> None:
        if self._send_timer is None:
            self._unsent_b = self.transport.get_write_buffer_size()
            self._send_timer = self.loop.call_later(SEND_WINDOW_S, self._check_reader)

    def _check_reader(self) -> None:
        self._send_timer = None
        if self.transport.get_write_buffer_size() > max(0, self._unsent_b - SEND_LEAST_B):
            self.transport.abort()
        else:
            self._watch_reader()

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _end_after_answers(self) -> None:
        """Take no further request; the connection closes with the last answer that is due."""
        if self.cycle is None or self.cycle.response_complete:
            self._is_closed_to_requests = True
            self.transport.close()
        else:
            self.cycle.keep_alive = False
            self._is_closed_to_requests = not self.cycle.more_body

    def _refuse_in_callback(self, status: int, detail: str) -> None:
        """Stop the parser; `data_received` gives the refusal."""
        self._refusal = status, detail
        raise ValueError(detail)

    def _refuse(self, status: int, detail: str) -> None:
        """End the connection with a problem, or, behind a request that is being answered, without one."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            # A problem now would be taken for the answer to the request before.
            self._end_after_answers()
            return
        self._is_closed_to_requests = True
        body = problem_bytes(status, detail)
        fields = (
            *self.server_state.default_headers, (b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)),
            (b"x-content-type-options", b"nosniff"), (b"connection", b"close"),
        )  # fmt: skip
        head = b"".join(b"%s: %s\r\n" % field for field in fields)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()

    def _stop(self, name: str) -> None:
        timer: TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


_HEAD_TOO_LONG = (
    431,
    f"a request's head may have {MAX_HEADERS} headers and {MAX_HEAD_B} bytes in all; send fewer or shorter ones",
)


def _reason(error: Exception) -> str:
    """What the parser says is wrong; an error in one of our callbacks says nothing of use to a client."""
    if isinstance(error, httptools.HttpParserCallbackError):
        return "its address or its headers cannot be read"
    return str(error)[:200] or type(error).__name__
