"""Behind a proxy: the prefix the service is reached under, and which proxies are trusted to set the client address.

Everything inside sees paths without the prefix, whether the proxy took it off or passed it on, so metrics, keys and routes
have one name each. The ASGI `root_path` is empty inside: Starlette's router takes a `root_path` off the path once more, and
would answer another path than the one that access was judged by. The prefix itself is `prefix_of(scope)`; the OpenAPI document
lists it as its server.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...features.errors import SpecError
from ..telemetry.request_log import new_request_context
from ..transport.responses import PAGE_POLICY, SAFE_HEADERS

_PREFIX = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", re.ASCII)
_MAX_PREFIX = 200
_PREFIX_STATE = "prefix"
FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-prefix"})
"""Headers that proxies set."""

_log = logging.getLogger("kernelcast.api")


def root_path(text: str) -> str:
    """The prefix as it is used: `/` and nothing become `""`, a slash at the end is dropped.

    Raises:
        ValueError: it is no absolute path of plain segments.
    """
    path = text.strip().removesuffix("/")
    if path and (len(path) > _MAX_PREFIX or not _PREFIX.fullmatch(path)):
        raise ValueError(
            "it must be a path such as /kernelcast: a slash before each part, letters, digits and . _ ~ - in them, "
            f"at most {_MAX_PREFIX} characters"
        )
    return path


def trusted_proxies(text: str) -> tuple[str, ...]:
    """Addresses and networks between commas; `*` alone trusts whoever connects, `none` nobody.

    Raises:
        ValueError: a part is no IP address or network.
    """
    parts = tuple(part for word in text.split(",") if (part := word.strip()))
    if parts == ("none",):
        return ()
    if parts != ("*",):
        for part in parts:
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise ValueError(
                    f"{part!r} is no IP address and no network such as 10.0.0.0/8 ({error}); "
                    "put commas between several, * alone for any, none for nobody"
                ) from error
    return parts


def check_prefix(prefix: str, routes: Collection[str]) -> None:
    """Refuse a prefix that begins like one of the service's own paths: nobody could tell the two apart.

    Raises:
        SpecError: it does.
    """
    first = prefix.split("/")[1] if prefix else ""
    if first and any(path.split("/")[1] == first for path in routes):
        raise SpecError(
            f"the prefix {prefix} begins like the service's own /{first}; choose another", field="root_path"
        )


def prefix_of(scope: Scope) -> str:
    """The prefix that a request came under, `""` for none."""
    prefix: str = scope.get("state", {}).get(_PREFIX_STATE, "")
    return prefix


def _inside(path: str, prefix: str) -> str:
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path


class ProxyHeaders:
    """ASGI middleware for requests under a prefix or with `FORWARDED` headers, which trusted proxies alone may set.

    A `root_path` that the server or a mount has put before the path is taken off first.

    A prefix that was set is the prefix, whatever a request says. Without one, X-Forwarded-Prefix of a trusted proxy is.
    X-Forwarded-For and X-Forwarded-Proto of trusted proxies become the request's client and scheme. `routes` are the
    service's own paths, which no prefix may begin like.
    """

    def __init__(self, app: ASGIApp, prefix: str, trusted: Collection[str], routes: Collection[str]) -> None:
        # Here, as the package is not needed by those who only read settings.
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

        self._app = app
        self._routes = tuple(routes)
        self._prefix = prefix
        # The types of the two servers' ASGI differ in names alone.
        self._forwarded = ProxyHeadersMiddleware(app, list(trusted))  # type: ignore[arg-type]
        self._warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, under the path and the client it really has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        mount = scope.get("root_path", "").rstrip("/")
        path = _inside(scope["path"], mount)
        prefix = self._prefix or self._forwarded_prefix(scope)
        state = {**scope.get("state", {}), _PREFIX_STATE: mount + prefix}
        scope = {**scope, "path": _inside(path, prefix), "root_path": "", "state": state}
        if prefix and path == prefix:
            # The page's own links are relative, and lead astray from an address without the slash.
            query = scope["query_string"].decode("latin-1")
            headers = {name.decode(): value.decode() for name, value in SAFE_HEADERS}
            headers |= {"content-security-policy": PAGE_POLICY}
            headers |= {
                "x-request-id": new_request_context(dict(scope["headers"]).get(b"x-request-id", b"")).request_id
            }
            answer = RedirectResponse(f"{prefix}/{'?' if query else ''}{query}", 308, headers)
            await answer(scope, receive, send)
            return
        await self._forwarded(scope, receive, send)  # type: ignore[arg-type]

    def _forwarded_prefix(self, scope: Scope) -> str:
        text = Headers(scope=scope).get("x-forwarded-prefix", "")
        client = scope.get("client")
        if not text or client is None or client[0] not in self._forwarded.trusted_hosts:
            return ""
        try:
            prefix = root_path(text)
            check_prefix(prefix, self._routes)
        except ValueError as error:
            if not self._warned:
                # Once: what a caller sends through a careless proxy must not fill the log.
                self._warned = True
                _log.warning("X-Forwarded-Prefix %.80r of the proxy %s is ignored: %s", text, client[0], error)
            return ""
        return prefix
