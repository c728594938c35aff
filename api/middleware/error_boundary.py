"""The layer around all others: names and counts every answer, sets safe headers, turns every failure into problem+json."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from ..telemetry.metrics import Metrics
from ..telemetry.request_log import CURRENT_REQUEST, RequestContext, log_request, new_request_context
from ..telemetry.tracing import Tracing
from ..transport.problems import MEDIA_TYPE, ProblemError, is_inference, problem_bytes, with_error
from ..transport.responses import PAGE_POLICY, SAFE_HEADERS
from .access import AccessControl
from .proxy import FORWARDED, ProxyHeaders, prefix_of

_log = logging.getLogger("kernelcast.api")

_POLICY = b"content-security-policy"
_PAGE_POLICY = (_POLICY, PAGE_POLICY.encode())
_CLOSE = (b"connection", b"close")
_MAX_PATH = 400
_MAX_METHOD = 20
_LARGE_BODY_B = 65536


MAX_HEAD_B = 32 << 10
"""Longest request line and headers together, bytes. Browsers and proxies stay under 16 KiB."""

MAX_HEADERS = 100
"""Most headers of a request."""


_ONCE = (b"host", b"authorization", b"origin", b"content-type", b"content-encoding", b"x-forwarded-prefix")
"""Headers that say who asks and what for: of two, a proxy may believe another one than this service."""

MAX_DRAINED_B = 32 << 20
"""Most bytes of a refused body that are discarded before the connection closes; a quarter where its length is not stated."""

DRAIN_IDLE_S, DRAIN_S = 0.5, 5.0
"""Longest wait for the next part of a refused body, and for all of it."""


class ErrorBoundary:
    """ASGI middleware around the whole service. Every answer gets the request's id.

    Args:
        app: What answers.
        metrics: Counts every answer.
        routes: The paths that metrics name.
        access: Who may ask; None lets everyone ask.
        prefix: The path that a proxy adds, see `ProxyHeaders`.
        trusted: The proxies whose headers are believed.
        log_requests: Whether to write a line for each request.
        tracing: Makes a span of each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        routes: Collection[str],
        *,
        access: AccessControl | None = None,
        prefix: str = "",
        trusted: Collection[str] = (),
        log_requests: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._prefix = prefix
        self._behind_proxy = ProxyHeaders(self._answer, prefix, trusted, routes)
        self._metrics = metrics
        self._exact = frozenset(path for path in routes if "{" not in path)
        self._patterns = tuple((compile_path(path)[0], path) for path in routes if "{" in path)
        self._log_requests = log_requests
        self._tracing = tracing
        # One application has few devices and families to be asked by name, so most of these are asked again.
        self._route_of = lru_cache(maxsize=1024)(self._matched)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens inside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._prefix or scope.get("root_path") or any(name in FORWARDED for name, _ in scope["headers"]):
            await self._behind_proxy(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        method: str = scope["method"]
        path: str = scope["path"]
        route = path if path in self._exact else self._route_of(path[:_MAX_PATH])
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id")
        request = new_request_context(client_id) if client_id else RequestContext()
        id_header = (b"x-request-id", request.request_id.encode("ascii"))
        traffic = _Traffic(receive, send, id_header, "is_draining" in scope.get("state", ()))
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        if method == "HEAD":
            # The server leaves the body out, going by its own copy of the scope.
            scope = {**scope, "method": "GET"}
        token = CURRENT_REQUEST.set(request)
        running = None if self._tracing is None else self._tracing.begin(request, method, route, headers)
        self._metrics.in_flight.inc()
        try:
            try:
                _check_head(scope)
                if self._access is not None:
                    self._access.check(scope, headers)
            except ProblemError as refusal:
                if _has_large_body(headers):
                    # Nobody reads it; the connection would go on taking it.
                    refusal.headers["connection"] = "close"
                await problem_response(refusal, path)(scope, traffic.receive, traffic.send)
                return
            await self._app(scope, receive, traffic.send)
        except Exception:  # the server's boundary: no failure may show a traceback or take the connection down
            _log.exception("%s %s failed", method[:_MAX_METHOD], path[:_MAX_PATH])
            # The response may have been sent already, such as a 504: then there is nothing left to send.
            if not traffic.is_done:
                if traffic.is_started:
                    raise
                failure = ProblemError(500, "an error in the server; it has been logged")
                await problem_response(failure, path)(scope, receive, traffic.send)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.in_flight.dec()
            sent_b = 0 if method == "HEAD" else traffic.sent_b
            self._metrics.count_request(
                route, method, traffic.status, seconds, request.body_b + traffic.drained_b if has_body else None, sent_b
            )
            if self._tracing is not None and running is not None:
                self._tracing.end(running, request, traffic.status)
            if self._log_requests:
                log_request(request, scope, method, route, traffic.status, seconds, sent_b)
            CURRENT_REQUEST.reset(token)

    def _matched(self, path: str) -> str:
        return next((route for pattern, route in self._patterns if pattern.match(path)), "other")


def _check_head(scope: Scope) -> None:
    """Refuse a head that is too long, names no host, or that two readers of one connection may understand differently.

    Raises:
        ProblemError: 431, 505, 501, 400 or 404; the connection is closed.
    """
    headers = scope["headers"]
    size = (
        len(scope["path"])
        + len(scope.get("query_string", b""))
        + sum(len(name) + len(value) + 4 for name, value in headers)
    )
    if size > MAX_HEAD_B or len(headers) > MAX_HEADERS:
        raise ProblemError(
            431, f"a request's head may have {MAX_HEADERS} headers and {MAX_HEAD_B} bytes in all; send fewer or shorter ones",
            headers={"connection": "close"},
        )  # fmt: skip
    # RFC 9112, 3.2: a server must refuse a request of HTTP/1.1 with no host, or with more than one.
    names = [name for name, _ in headers]
    if len(set(names)) < len(names):
        for name in _ONCE:
            if (times := names.count(name)) > 1:
                detail = f"a request has one {name.decode()} header, this one has {times}"
                raise ProblemError(400, detail, headers={"connection": "close"})
    if b"host" not in names and scope.get("http_version") == "1.1":
        detail = "a request has one host header, this one has none"
        raise ProblemError(400, detail, headers={"connection": "close"})
    version = scope.get("http_version", "1.1")
    if version not in ("1.0", "1.1"):
        detail = f"this service speaks HTTP/1.1 and 1.0, not {version}"
        raise ProblemError(505, detail, headers={"connection": "close"})
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        detail = "the header transfer-encoding may be chunked, once; pack a body with content-encoding: gzip"
        raise ProblemError(501, detail, headers={"connection": "close"})
    if codings and (version == "1.0" or any(name == b"content-length" for name, _ in headers)):
        detail = "a chunked body is one of HTTP/1.1, and has no header content-length"
        raise ProblemError(400, detail, headers={"connection": "close"})
    if not scope["path"].isprintable():
        raise ProblemError(404, "no such address: it has characters that cannot be printed")


def _has_large_body(headers: Mapping[bytes, bytes]) -> bool:
    stated = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not stated.isdigit() or int(stated[:20]) > _LARGE_BODY_B


@dataclass(slots=True)
class _Traffic:
    """Counts what goes in and out for one request, and adds the headers that every answer has."""

    _receive: Receive
    _send: Send
    _request_id: tuple[bytes, bytes]
    _is_draining: bool
    status: int = 0
    drained_b: int = 0
    sent_b: int = 0
    is_started: bool = False
    is_done: bool = False

    async def receive(self) -> Message:
        """The next part of a body that is discarded: admission control counts the others."""
        message = await self._receive()
        self.drained_b += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Send the next part of the answer."""
        if message["type"] == "http.response.start":
            self.is_started = True
            self.status = message["status"]
            headers = message["headers"] = [*message.get("headers", ()), *SAFE_HEADERS, self._request_id]
            if not any(name == _POLICY for name, _ in headers):
                headers.append(_PAGE_POLICY)
            if self._is_draining:
                headers.append(_CLOSE)
        elif message["type"] == "http.response.body":
            self.sent_b += len(message.get("body", b""))
            self.is_done = not message.get("more_body", False)
        await self._send(message)


class DrainingResponse(Response):
    """An answer before the whole body was read: the rest of the body is discarded before the connection closes.

    Closing on a sender that still sends makes its system drop the answer: a proxy then reports a broken service (502) where the
    service said that the body is too long (413).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, discard what still comes, within limits, and then complete the answer."""
        is_stated = any(name == b"content-length" for name, _ in scope["headers"])
        left_b, has_more = MAX_DRAINED_B if is_stated else MAX_DRAINED_B // 4, True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while has_more and left_b > 0:
                    message = await asyncio.wait_for(receive(), DRAIN_IDLE_S)
                    left_b -= len(message.get("body", b""))
                    has_more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def problem_response(error: ProblemError, path: str = "") -> Response:
    """The answer a problem becomes; `path` is that of the request."""
    body = problem_bytes(error.status, error.detail, error.errors)
    if is_inference(path):
        body = with_error(body)
    kind = DrainingResponse if error.headers.get("connection") == "close" else Response
    return kind(body, error.status, error.headers, media_type=MEDIA_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - registered for this type only
    return problem_response(error, request.scope["path"])


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
    headers = dict(error.headers or {})
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"no such address; the service is described at {prefix_of(request.scope)}/openapi.json"
    elif error.status_code == 405:
        detail = f"{request.scope['path'][:_MAX_PATH]} takes {headers.get('Allow', 'another method')}"
    return problem_response(ProblemError(error.status_code, detail, headers=headers), request.scope["path"])


PROBLEM_HANDLERS: Mapping[Any, ExceptionHandler] = {ProblemError: _refused, HTTPException: _refused_by_framework}
"""Makes every refusal of the application, and of the framework under it, a problem."""
