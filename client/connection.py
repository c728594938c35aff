"""HTTP/1.1 to one service: requests as they are sent, connections kept open, answers unpacked, and waiting where it asks to.

Every request of the client only reads, so one may be sent again after a connection broke, or after a 503 or 429 that says
in Retry-After (RFC 9110, section 10.2.3) when to come back.
"""

from __future__ import annotations

import http.client
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from ssl import SSLContext

SPEC_FIELDS = (
    "family", "device", "dtype", "sizes", "variant", "impl", "kv_dtype", "config", "threads", "cache_state", "timing",
    "power_limit_w", "clock_hz", "grid", "electricity_price", "pue",
)  # fmt: skip
"""Fields of a spec, with how its board is set and its electricity; any other keyword is one of its sizes."""

PART_B = 900_000
"""Longest part of a batch in bytes: the service takes 1 MiB unless set otherwise."""

PART_SPECS = 5000
"""Most specs in a part: the service takes 10,000 unless set otherwise."""


def spec(values: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with its sizes in an object of their own, whether they were given so or beside the other fields.

    What is None is left out.

    Raises:
        ClientError: it is no mapping, nor is its `sizes`; or a size is given in both ways.
    """
    if not isinstance(values, Mapping):
        raise ClientError(f"a spec must be a mapping of fields, not {type(values).__name__}")
    sizes = values.get("sizes") or {}
    if not isinstance(sizes, Mapping):
        raise ClientError(f"sizes must be a mapping of names to whole numbers, not {type(sizes).__name__}")
    named = {name: values[name] for name in SPEC_FIELDS if values.get(name) is not None}
    beside = {name: value for name, value in values.items() if name not in SPEC_FIELDS and value is not None}
    if twice := sorted(beside.keys() & sizes.keys()):
        raise ClientError(f"the size {twice[0]} is given twice: in `sizes` and beside it")
    return {**named, "sizes": {**sizes, **beside}}


def names(devices: Sequence[str] | None) -> list[str] | None:
    """Names of devices as they are sent; text alone is one name, as it is a sequence of its letters otherwise."""
    if devices is None:
        return None
    return [devices] if isinstance(devices, str) else list(devices)


def encode(request: Any) -> bytes:
    """The JSON of a request; numpy's columns and numbers are taken as lists and numbers.

    Raises:
        ClientError: it holds what JSON has no form of.
    """
    try:
        return msgspec.json.encode(request, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(f"the request cannot be sent: {error}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def parts(specs: Sequence[Mapping[str, Any]], coverage: float | None) -> Iterator[tuple[int, bytes]]:
    """Bodies of `/v1/predict` that hold the specs in order, each with the position of its first spec."""
    end = b"]}" if coverage is None else b'],"coverage":' + encode(coverage) + b"}"
    items: list[bytes] = []
    first = length = 0
    for position, item in enumerate(specs):
        text = encode(spec(item))
        if items and (length + len(text) > PART_B or len(items) == PART_SPECS):
            yield first, b'{"requests":[' + b",".join(items) + end
            items, first, length = [], position, 0
        items.append(text)
        length += len(text) + 1
    if items:
        yield first, b'{"requests":[' + b",".join(items) + end


def moved(error: ClientError, by: int) -> ClientError:
    """A part's error with positions in the whole batch."""

    def moved_part(field_error: FieldError) -> FieldError:
        if field_error.index is None:
            return field_error
        index = field_error.index + by
        return FieldError(
            field_error.field.replace(f"[{field_error.index}]", f"[{index}]", 1), field_error.detail, index
        )

    errors = [moved_part(field_error) for field_error in error.errors]
    detail = error.detail
    if errors and errors[0].field != error.errors[0].field:
        detail = detail.replace(error.errors[0].field, errors[0].field, 1)
    return ClientError(detail, error.status, errors, error.request_id)


class FieldError(msgspec.Struct, frozen=True):
    """One input that was not accepted: its path (`sizes.m`, `requests[3].device`), and what is wrong with it.

    `index` is the position of the spec in `predict_many`, None elsewhere.
    """

    field: str
    detail: str
    index: int | None = None


class ClientError(Exception):
    """A request that was not answered with a prediction.

    `status` is the HTTP status, None where no answer came (no connection, a timeout, an answer that is not one).
    `detail` says what went wrong and what to do; `errors` names the inputs at fault. `request_id` is the one the service
    gave, for its log, None where it gave none.
    """

    def __init__(
        self, detail: str, status: int | None = None, errors: Sequence[FieldError] = (), request_id: str | None = None
    ) -> None:
        super().__init__(detail if status is None else f"{status}: {detail}")
        self.detail = detail
        self.status = status
        self.errors = tuple(errors)
        self.request_id = request_id

    def __reduce__(self) -> tuple[type[ClientError], tuple[object, ...]]:
        return type(self), (self.detail, self.status, self.errors, self.request_id)


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


_PROBLEMS = msgspec.json.Decoder(_Problem)
"""Made here, since threads that decode a first answer at once end the process, see `client._decoder`."""


def _refused(answer: Answer, address: str) -> ClientError:
    try:
        problem = _PROBLEMS.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Something between here and the service answered.
        problem = _Problem(detail=f"{address} answered with no reason that is known")
    detail = problem.detail or problem.title or f"{address} answered without a reason"
    return ClientError(detail, answer.status, problem.errors, answer.headers.get("x-request-id"))
