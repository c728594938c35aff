"""The outermost layer: counts every request, sets safe headers, and lets no failure out but as problem+json."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .problems import MEDIA_TYPE, FieldProblem, ProblemError, problem_bytes

_log = logging.getLogger("kernelcast.api")

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", PAGE_POLICY.encode()),
)


class Boundary:
    """ASGI middleware around the whole service; `routes` are the paths that metrics name."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._exact = frozenset(path for path in routes if "{" not in path)
        self._prefixes = tuple((path.partition("{")[0], path) for path in routes if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens inside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        method: str = scope["method"]
        status = 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_SAFE_HEADERS]
            await send(message)

        if method == "HEAD":
            # The server leaves the body out, going by its own copy of the scope.
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, watched_send)
        except Exception:  # the server's boundary: no failure may show a traceback or take the connection down
            _log.exception("%s %s failed", method, scope["path"])
            if status:
                raise
            failure = ProblemError(500, "an error in the server; it has been logged")
            await problem_response(failure)(scope, receive, watched_send)
        finally:
            self._metrics.request(self._route(scope["path"]), method, status, time.perf_counter() - started)

    def _route(self, path: str) -> str:
        if path in self._exact:
            return path
        return next((route for prefix, route in self._prefixes if path.startswith(prefix)), "other")


def problem_response(error: ProblemError) -> Response:
    """The answer a problem becomes."""
    body = problem_bytes(error.status, error.detail, error.errors)
    return Response(body, error.status, error.headers, media_type=MEDIA_TYPE)


def install_problem_handlers(app: FastAPI) -> None:
    """Make every refusal of the application, and of the framework under it, a problem."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)  # noqa: S101 - registered for this type only
        return problem_response(error)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
        headers = dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == 404:
            detail = "no such address; the service is described at /openapi.json"
        elif error.status_code == 405:
            detail = f"{request.url.path} takes {headers.get('Allow', 'another method')}"
        return problem_response(ProblemError(error.status_code, detail, headers=headers))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
        errors = [FieldProblem(".".join(map(str, one["loc"][1:])), str(one["msg"])) for one in error.errors()]
        return problem_response(ProblemError(422, "the request's parameters are not valid", errors))

    app.add_exception_handler(ProblemError, refused)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, invalid)
