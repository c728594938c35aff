"""A connection of uvicorn within limits that uvicorn leaves to a proxy: time and size of heads, rests of bodies, slow readers.

uvicorn ends a connection that idles between requests, `AdmissionControl` bounds a body that is being read, and `ErrorBoundary`
refuses whole heads that are too long. Here is what none of them sees.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .problems import MEDIA_TYPE, problem_bytes
from .responses import PAGE_POLICY, SAFE_HEADERS

LINGER_S = 0.5
"""How long an idle connection stays open after its worker was told to stop, so that a request on its way is answered."""

HEAD_S = 20.0
"""Longest time to the end of a head: from the start of the connection, or from the first byte after another request."""

REST_S = 5.0
"""Longest time that what nobody reads is discarded: the rest of a body that was answered early, or of a refused request."""

REST_B = 8 << 20
"""Most bytes of a refused request that are discarded."""

READ_S, READ_LEAST_B = 20.0, 64 << 10
"""In each such time a reader takes at least so many bytes of its answer, or all that is left."""

MAX_FRAMING_B = 64 << 10
"""Most bytes of a head that has no end yet, and of a body beside its content, such as extensions of chunks."""

_CHUNK_LINES_B = 20
"""Bytes of a chunk that are no content and do not count: 16 digits and two line ends."""

_NONE, _EARLIER, _NOW = range(3)
"""When the line came that waits for the content of its chunk: in what is being read now, or before."""

_CHUNK_LINE = re.compile(rb"[0-9A-Fa-f]+[ \t]*(;|\r|$)")

MAX_PIPELINED = 32
"""Most requests that wait on one connection while an earlier one is answered."""

_INVALID = (400, "Invalid HTTP request: this is not HTTP/1.1, or something in it is not allowed; TLS ends at a proxy")
_TRAILER = (400, "Invalid HTTP request: fields after the body are not taken; send every header before it")
_SAFE = [*SAFE_HEADERS, (b"content-security-policy", PAGE_POLICY.encode()), (b"content-type", MEDIA_TYPE.encode())]


def _is_trailer(data: bytes, chunk_line: int) -> bool:
    """Whether `data`, just parsed, ends in a trailer section: in what follows the line of the empty chunk."""
    if chunk_line != _NOW:
        return chunk_line == _EARLIER and data != b"\r"
    lines, _, rest = data.rpartition(b"\n")
    _, is_whole, last = lines.rpartition(b"\n")
    return rest not in (b"", b"\r") or bool(is_whole and not _CHUNK_LINE.match(last))


def _problem_reply(status: int, detail: str) -> bytes:
    body = problem_bytes(status, detail)
    headers = [*_SAFE, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    return STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection within the limits above, which at shutdown waits `LINGER_S` for a request on its way.

    Requests that arrive meanwhile see `is_draining` in their state; `ErrorBoundary` answers them with `connection: close`.
    A request whose trailer section begins is refused: uvicorn would add its fields to headers that were checked before.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_check: asyncio.TimerHandle | None = None
        self._refusal = _INVALID
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._framing_b = 0
        self._chunk_line = _NONE
        self._is_in_head = self._is_in_body = self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._end_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks, and the answers; uvicorn stops that of the last request alone."""
        self._stop_clock()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits."""
        self._framing_b += len(data)
        if self._is_refused:
            if self._framing_b > REST_B:
                self.transport.abort()
            return
        self._chunk_line = min(self._chunk_line, _EARLIER)
        super().data_received(data)
        if self._is_refused:
            return
        # What short lines of chunks leave is no credit for long ones.
        self._framing_b = max(self._framing_b, 0)
        if _is_trailer(data, self._chunk_line):
            self._refuse(*_TRAILER)
        elif self._framing_b > MAX_FRAMING_B:
            self._refuse(431, f"more than {MAX_FRAMING_B} bytes of a head, or of a body beside its content; send fewer")
        elif not self._is_in_body and self._framing_b > 0 and self._deadline is None:
            self._end_within(HEAD_S)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head, self._framing_b = True, 1
        if self.cycle is not None:
            # A clock that runs is of the idle connection; this head gets its own.
            self._stop_clock()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header.

        Raises:
            ValueError: it is in the trailer section.
        """
        if not self._is_in_head:
            self._refusal = _TRAILER
            raise ValueError(_TRAILER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head ends, and what may be a body begins.

        Raises:
            ValueError: too many requests wait already.
        """
        self._stop_clock()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests wait")
        self._is_in_head, self._framing_b = False, 0
        super().on_headers_complete()
        self._is_in_body = True
        self._unanswered.append(self.cycle)
        if self.parser.should_upgrade():
            # The parser reads no further: what comes behind such a request would wait for ever.
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        """The line before a chunk ends."""
        self._chunk_line = _NOW
        self._framing_b -= _CHUNK_LINES_B

    def on_body(self, body: bytes) -> None:
        """Content of the body."""
        self._chunk_line = _NONE
        self._framing_b -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request ends."""
        self._stop_clock()
        self._is_in_body, self._chunk_line = False, _NONE
        self._framing_b = 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._end_within(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """An answer ends; the rest of its request has little time."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self._is_in_body and self.cycle.response_complete and not self._is_refused:
            self._unset_keepalive_if_required()
            self._end_within(REST_S)
        self._end_when_read()

    def timeout_keep_alive_handler(self) -> None:
        """The connection has been idle long enough."""
        super().timeout_keep_alive_handler()
        self._end_when_read()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._reader_check = self.loop.call_later(READ_S, self._check_reader, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has read most of it."""
        super().resume_writing()
        if self._reader_check is not None:
            self._reader_check.cancel()
            self._reader_check = None

    def shutdown(self) -> None:
        """End the connection: after its running request, or after `LINGER_S` where it is idle."""
        self.app_state["is_draining"] = True
        if self.cycle is None or self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self.loop.call_later(LINGER_S, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn says the same of everything
        """Refuse what the parser, or a callback above, does not take."""
        self._refuse(*self._refusal)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer with a problem and end the connection; where an answer to an earlier request is due, end it after that."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_due = cycle is not None and not cycle.response_complete
        if self._is_in_body and cycle is not None and not is_due:
            # The request was answered before its body ended: a second answer would be taken for one to the next request.
            self.transport.close()
            self._end_when_read()
            return
        if is_due and (self.pipeline or cycle.response_started or not self._is_in_body):
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        if is_due:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_problem_reply(status, detail))
        # A close with something unread makes the client's system drop the answer, so what still comes is discarded first.
        self._is_refused, self._framing_b = True, 0
        self.transport.write_eof()
        self._end_within(REST_S)

    def _end_within(self, seconds: float) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(seconds, self._end)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if self._is_in_head and not self._is_refused:
            self._refuse(408, f"the head did not come within {HEAD_S:g} s; send it at once")
        else:
            self.transport.close()
            self._end_when_read()

    def _end_when_read(self) -> None:
        """See to it that a closed connection ends: what its reader never takes would keep it for ever."""
        left_b = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and left_b and self._reader_check is None:
            self._reader_check = self.loop.call_later(READ_S, self._check_reader, left_b)

    def _check_reader(self, before_b: int) -> None:
        left_b = self.transport.get_write_buffer_size()
        if left_b > max(0, before_b - READ_LEAST_B):
            self.transport.abort()
        else:
            self._reader_check = self.loop.call_later(READ_S, self._check_reader, left_b)
