"""HTTP/1.1 to one service: connections kept open, answers unpacked, and waiting where the service asks to.

Every request of the client only reads, so one may be sent again after a connection broke, or after a 503 or 429 that says
in Retry-After (RFC 9110, section 10.2.3) when to come back.
"""

from __future__ import annotations

import http.client
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from .requests import ClientError, FieldError

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_ANSWER_B = 1 << 29
"""Longest answer that is read, unpacked: far above any, so that a broken one cannot fill the memory."""

MAX_IDLE = 16
"""Most connections kept open while nobody uses them."""

_BLOCK_B = 1 << 20
_AGAIN = frozenset({429, 503})
# What an open connection does that the other side has closed meanwhile.
_BROKEN = (http.client.RemoteDisconnected, ConnectionError, http.client.BadStatusLine)
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service.

    Attributes:
        status: HTTP status.
        headers: Headers by name in lower case.
        body: The body, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Problem(msgspec.Struct):
    """The parts of problem+json (RFC 9457) that a person needs."""

    detail: str = ""
    title: str = ""
    errors: list[FieldError] = []


class Connections:
    """Connections to one address, lent to one thread at a time; safe to share.

    `retries` is how often a request is sent again, `longest_wait_s` the longest one wait before that.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout_s: float, retries: int, longest_wait_s: float,
        ssl_context: SSLContext | None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._open, self._prefix, self.url = _opener(url, timeout_s, ssl_context)
        self._headers = {**headers, "accept-encoding": "gzip"}
        self._retries = retries
        self._longest_wait_s = longest_wait_s
        self._sleep = sleep
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = Lock()
        self._closed = False

    def ask(self, method: str, path: str, body: bytes | None = None, *, again: bool = True) -> Answer:
        """The answer to one request, a body being JSON; without `again` a service that is busy is not waited for.

        Raises:
            ClientError: the service refused it or failed, or no answer came.
        """
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        for left in range(self._retries if again else 0, -1, -1):
            answer = self._once(method, self._prefix + path, body, headers)
            if 200 <= answer.status < 300:
                return answer
            wait_s = _wait_s(answer) if left else None
            if wait_s is None or wait_s > self._longest_wait_s:
                break
            self._sleep(wait_s)
        raise _refused(answer, self.url + path)

    def close(self) -> None:
        """Close every connection; one in use is closed when it is given back."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        while True:
            connection, fresh = self._take()
            reusable = False
            try:
                connection.request(method, path, body, headers)
                with connection.getresponse() as response:
                    headers_got = {name.lower(): value for name, value in response.getheaders()}
                    answer = Answer(response.status, headers_got, _body(response))
                    reusable = not response.will_close
                return answer
            except _BROKEN as error:
                # A connection that idled may have been closed by the service; a new one that breaks is a failure.
                if fresh:
                    raise ClientError(f"no answer from {self.url}: {error or type(error).__name__}") from error
            except TimeoutError as error:
                raise ClientError(f"no answer from {self.url} in {connection.timeout} s; set timeout_s") from error
            except (OSError, http.client.HTTPException, UnicodeError, zlib.error) as error:
                # A host with an empty label is a UnicodeError.
                raise ClientError(f"no answer from {self.url}: {error or type(error).__name__}") from error
            finally:
                self._give_back(connection, reusable)

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._closed:
                raise ClientError("the client is closed; make another")
            if self._idle:
                return self._idle.pop(), False
        return self._open(), True

    def _give_back(self, connection: http.client.HTTPConnection, reusable: bool) -> None:
        with self._lock:
            if reusable and not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def _opener(
    url: str, timeout_s: float, ssl_context: SSLContext | None
) -> tuple[Callable[[], http.client.HTTPConnection], str, str]:
    """What opens a connection to the address, the path before every path, and the address without a slash at its end."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ClientError(f"the address {url!r} cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username is not None:
        raise ClientError(f"the address is {url!r}; it is one such as http://127.0.0.1:8000 or https://host/prefix")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "http":
        return (lambda: http.client.HTTPConnection(host, port, timeout=timeout_s)), prefix, url.rstrip("/")

    import ssl

    context = ssl_context or ssl.create_default_context()
    return (
        (lambda: http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)), prefix, url.rstrip("/"),
    )  # fmt: skip


def _body(response: http.client.HTTPResponse) -> bytes:
    """The body of an answer, unpacked, and no more of it than an answer can have."""
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip"):
        raise ClientError(f"the answer is packed with {encoding[:40]}, which was not asked for", response.status)
    unpack = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    parts: list[bytes] = []
    length = 0
    while block := response.read(_BLOCK_B):
        part = block if unpack is None else unpack.decompress(block, MAX_ANSWER_B - length + 1)
        length += len(part)
        if length > MAX_ANSWER_B:
            raise ClientError(f"the answer is longer than {MAX_ANSWER_B} bytes", response.status)
        parts.append(part)
    if unpack is not None and not unpack.eof:
        raise ClientError("the packed answer ends too early", response.status)
    return b"".join(parts)


def _wait_s(answer: Answer) -> float | None:
    """Seconds until the service wants to be asked again; None where it does not say, or asks not to be."""
    header = answer.headers.get("retry-after", "").strip()
    if answer.status not in _AGAIN or not header:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    left_s = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return math.ceil(max(left_s, 0.0))


def _refused(answer: Answer, address: str) -> ClientError:
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Something between here and the service answered.
        problem = _Problem(detail=f"{address} answered with no reason that is known")
    detail = problem.detail or problem.title or f"{address} answered without a reason"
    return ClientError(detail, answer.status, problem.errors, answer.headers.get("x-request-id"))
