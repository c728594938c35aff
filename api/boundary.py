"""The outermost layer: counts every request, turns every failure into problem+json, and sets safe headers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .problems import MEDIA_TYPE, ProblemError, problem_bytes

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
    """ASGI middleware around the whole service."""

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
        except (ProblemError, HTTPException) as error:
            if status:
                raise
            await _send_problem(watched_send, error)
        except Exception:  # noqa: BLE001 - the server's boundary: no failure may show a traceback or kill the worker
            _log.exception("%s %s failed", method, scope["path"])
            if status:
                raise
            await _send_problem(watched_send, ProblemError(500, "an error in the server; it has been logged"))
        finally:
            self._metrics.request(self._route(scope["path"]), method, status, time.perf_counter() - started)

    def _route(self, path: str) -> str:
        if path in self._exact:
            return path
        return next((route for prefix, route in self._prefixes if path.startswith(prefix)), "other")


async def _send_problem(send: Send, error: ProblemError | HTTPException) -> None:
    headers: Mapping[str, str] = error.headers or {}
    if isinstance(error, ProblemError):
        body = problem_bytes(error.status, error.detail, error.errors)
        status = error.status
    else:
        status = error.status_code
        body = problem_bytes(status, _said(error))
    raw = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    raw += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _said(error: HTTPException) -> str:
    if error.status_code == 405:
        return f"this address takes {(error.headers or {}).get('Allow', 'another method')}"
    if error.status_code == 404:
        return "no such address; the service is described at /openapi.json"
    return str(error.detail)
