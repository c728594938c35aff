"""The outermost layer: names, counts and packs every answer, sets safe headers, lets no failure out but as problem+json."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import lru_cache

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .compression import LEAST_B, Packer, accepts_gzip, is_packable, packed_headers
from .exchange import CURRENT, new_exchange
from .inference.errors import is_inference, with_error
from .lingering import Lingering
from .metrics import Metrics
from .policy import PAGE_POLICY, SAFE_HEADERS
from .problems import MEDIA_TYPE, FieldProblem, ProblemError, problem_bytes
from .request_log import log_request
from .tracing import Tracing

_log = logging.getLogger("kernelcast.api")

_POLICY = b"content-security-policy"
_PAGE_POLICY = (_POLICY, PAGE_POLICY.encode())
_VARY = (b"vary", b"Accept-Encoding")
_MAX_PATH = 400
_MAX_METHOD = 20


class Boundary:
    """ASGI middleware around the whole service; `routes` are the paths that metrics name.

    Every answer gets the request's id, and gzip where the client takes it and the answer is long. `log_requests` writes a line
    for each, `tracing` a span.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        routes: Iterable[str],
        *,
        log_requests: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
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
            return
        started = time.perf_counter()
        method: str = scope["method"]
        path: str = scope["path"]
        route = path if path in self._exact else self._route_of(path[:_MAX_PATH])
        headers = dict(scope["headers"])
        exchange = new_exchange(headers.get(b"x-request-id", b""))
        traffic = _Traffic(receive, send, exchange.request_id, accepts_gzip(headers.get(b"accept-encoding", b"")))
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        if method == "HEAD":
            # The server leaves the body out, going by its own copy of the scope.
            scope = {**scope, "method": "GET"}
        token = CURRENT.set(exchange)
        running = None if self._tracing is None else self._tracing.begin(exchange, method, route, headers)
        self._metrics.in_flight += 1
        try:
            await self._app(scope, traffic.receive if has_body else receive, traffic.send)
        except Exception:  # the server's boundary: no failure may show a traceback or take the connection down
            _log.exception("%s %s failed", method[:_MAX_METHOD], path[:_MAX_PATH])
            # What fails after its answer, as work does whose time was up, has nothing left to say.
            if not traffic.is_done:
                if traffic.is_started:
                    raise
                traffic.forget()
                failure = ProblemError(500, "an error in the server; it has been logged")
                await problem_response(failure, path)(scope, receive, traffic.send)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.in_flight -= 1
            sent_b = 0 if method == "HEAD" else traffic.sent_b
            self._metrics.request(route, method, traffic.status, seconds, traffic.taken_b if has_body else None, sent_b)
            if self._tracing is not None and running is not None:
                self._tracing.end(running, exchange, traffic.status)
            if self._log_requests:
                log_request(exchange, scope, method, route, traffic.status, seconds, sent_b)
            CURRENT.reset(token)

    def _matched(self, path: str) -> str:
        return next((route for pattern, route in self._patterns if pattern.match(path)), "other")


class _Traffic:
    """What goes in and out for one request: counted, and packed where that is asked for and worth it."""

    __slots__ = (
        "_held",
        "_own",
        "_packer",
        "_receive",
        "_send",
        "_takes_gzip",
        "is_done",
        "is_started",
        "sent_b",
        "status",
        "taken_b",
    )

    def __init__(self, receive: Receive, send: Send, request_id: str, takes_gzip: bool) -> None:
        self._receive = receive
        self._send = send
        self._own = (b"x-request-id", request_id.encode("ascii"))
        self._takes_gzip = takes_gzip
        self._held: Message | None = None
        self._packer: Packer | None = None
        self.status = 0
        self.taken_b = 0
        self.sent_b = 0
        self.is_started = False
        self.is_done = False

    async def receive(self) -> Message:
        """The next part of the request."""
        message = await self._receive()
        self.taken_b += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Send the next part of the answer; its start waits for its body where that is to be packed."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = message.get("headers", ())
            found = dict(given)
            headers = message["headers"] = [*given, *SAFE_HEADERS, self._own]
            if _POLICY not in found:
                headers.append(_PAGE_POLICY)
            if is_packable(self.status, found):
                if b"vary" not in found:
                    headers.append(_VARY)
                if self._takes_gzip:
                    self._held = message
                    return
            self.is_started = True
        elif message["type"] == "http.response.body":
            if self._held is not None or self._packer is not None:
                message = await self._packed(message)
            self.sent_b += len(message.get("body", b""))
        await self._send(message)
        self.is_done = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def _packed(self, message: Message) -> Message:
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._packer is None:
            held, self._held = self._held, None
            assert held is not None  # noqa: S101 - the caller has looked; for the type checker
            packed = body
            if more or len(body) >= LEAST_B:
                self._packer = Packer()
                packed = await self._packer.part(body, is_last=not more)
                held["headers"] = packed_headers(held["headers"], None if more else len(packed))
            self.is_started = True
            await self._send(held)
        else:
            packed = await self._packer.part(body, is_last=not more)
        return {**message, "body": packed}

    def forget(self) -> None:
        """Drop an answer of which nothing was sent yet: another takes its place."""
        self._held = None
        self.status = 0


def problem_response(error: ProblemError, path: str = "") -> Response:
    """The answer a problem becomes; `path` is that of the request."""
    body = problem_bytes(error.status, error.detail, error.errors)
    if is_inference(path):
        body = with_error(body)
    # What closes the connection may answer a sender who still sends.
    kind = Lingering if error.headers.get("connection") == "close" else Response
    return kind(body, error.status, error.headers, media_type=MEDIA_TYPE)


def install_problem_handlers(app: FastAPI) -> None:
    """Make every refusal of the application, and of the framework under it, a problem."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)  # noqa: S101 - registered for this type only
        return problem_response(error, request.scope["path"])

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
        headers = dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"no such address; the service is described at {request.scope['root_path']}/openapi.json"
        elif error.status_code == 405:
            detail = f"{request.url.path} takes {headers.get('Allow', 'another method')}"
        return problem_response(ProblemError(error.status_code, detail, headers=headers), request.scope["path"])

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
        errors = [FieldProblem(".".join(map(str, one["loc"][1:])), str(one["msg"])) for one in error.errors()]
        return problem_response(ProblemError(422, "the request's parameters are not valid", errors))

    app.add_exception_handler(ProblemError, refused)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, invalid)
