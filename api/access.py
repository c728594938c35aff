"""Who may ask: API keys, and, where there are none, only this machine's own programs and pages.

Without keys the service is safe on a loopback address alone, and there only from programs: any web page open in a browser on
the machine can send requests to 127.0.0.1. Two headers tell such a page apart. Host is the page's own name when it lets that
name resolve to 127.0.0.1 (DNS rebinding), and Origin is the page's address whenever it posts. No answer ever has a CORS header.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ..features.errors import SpecError
from .boundary import problem_response
from .keys import ADMIN, Key, KeyRing, read_key_file
from .metrics import Metrics
from .problems import FieldProblem, ProblemError
from .settings import Settings

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
"""What whoever watches the service asks: answered to anyone, whatever they call this machine."""

OPEN_PATHS = frozenset({"/", "/favicon.ico", "/docs", "/docs/", "/openapi.json"})
OPEN_FOLDERS = ("/static/", "/docs/")
"""The page, the documentation and the description of the routes: they are in every copy of the package, so no key is asked."""

ADMIN_FOLDER = "/v1/admin/"
"""What changes the service; opened by a key of scope admin and nothing else, not even from this machine."""

_MAKE_KEY = "`kernelcast keys new` makes one, and `kernelcast serve --keys FILE` takes it"
_LARGE_BODY_B = 65536


def check_exposure(settings: Settings) -> None:
    """Refuse to listen where others could ask without a key, and a key file that would let nobody in.

    Raises:
        SpecError: the host is not a loopback address and there is no key and no `allow_open`, or the key file is none.
    """
    if settings.api_keys_file is not None and not read_key_file(settings.api_keys_file) and not settings.api_keys:
        raise SpecError(
            f"the key file {settings.api_keys_file} holds no key, so nobody could ask; "
            f"run: kernelcast keys new --scope read --name NAME --file {settings.api_keys_file}",
            field="api_keys_file",
        )
    if settings.api_keys or settings.api_keys_file is not None or settings.allow_open or is_own(settings.host):
        return
    raise SpecError(
        f"others can reach {settings.host or 'an empty host (every address)'}, and there are no API keys. Make one with "
        "`kernelcast keys new --scope read --name NAME` and give its file with --keys, or listen on 127.0.0.1; "
        "behind a proxy that asks who is there, say --allow-open",
        field="host",
    )


def is_own(host: str) -> bool:
    """Whether only this machine can reach `host`: a loopback address, or a name that resolves to such addresses alone."""
    try:
        return _is_loopback(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback(ipaddress.ip_address(str(one[4][0]).partition("%")[0])) for one in found)


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@lru_cache(maxsize=64)
def _listens_on(address: str) -> bool | None:
    """Whether an address that a connection came to is loopback; None where it is no IP address, such as a Unix socket."""
    try:
        return _is_loopback(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return None


class Access:
    """ASGI middleware inside `Boundary`: lets a request through, or answers 401 or 403 with what is missing."""

    def __init__(self, app: ASGIApp, ring: KeyRing, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._ring = ring
        self._metrics = metrics
        self._is_open = settings.allow_open
        self._allowed = frozenset(name.lower() for name in settings.allowed_hosts)
        # Not an address: 0.0.0.0 stands for this machine in browsers too, and pages of others may use it.
        self._names = self._allowed | ({settings.host.lower()} if _listens_on(settings.host) is None else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or have it answered."""
        if scope["type"] == "http" and scope["path"] not in HEALTH_PATHS:
            headers = dict(scope["headers"])
            try:
                self._check(scope, headers)
            except ProblemError as error:
                if _has_large_body(headers):
                    # Nobody reads it; the connection would go on taking it.
                    error.headers["connection"] = "close"
                await problem_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        path: str = scope["path"]
        if self._allowed or not (self._ring.is_set or self._is_open):
            self._check_place(scope, headers)
        if not self._ring.is_set:
            if path.startswith(ADMIN_FOLDER):
                raise self._refused(
                    "key_missing", 403, f"{path} needs a key of scope admin, and this service has no keys; {_MAKE_KEY}"
                )
        elif path not in OPEN_PATHS and not path.startswith(OPEN_FOLDERS):
            key = self._key(headers)
            if path.startswith(ADMIN_FOLDER) and key.scope != ADMIN:
                raise self._refused(
                    "key_scope", 403, f"the key {key.name} is of scope {key.scope}; {path} needs one of scope admin",
                    'Bearer realm="kernelcast", error="insufficient_scope", scope="admin"',
                )  # fmt: skip
            scope.setdefault("state", {})["key_name"] = key.name

    def _key(self, headers: Mapping[bytes, bytes]) -> Key:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if not scheme:
            raise self._refused(
                "key_missing", 401, "this address needs an API key; send the header `Authorization: Bearer kc_…`",
                'Bearer realm="kernelcast"',
            )  # fmt: skip
        if scheme.lower() != "bearer":
            raise self._refused(
                "key_missing", 401,
                f"the header Authorization is of kind {scheme[:20]!r}; send `Authorization: Bearer kc_…`",
                'Bearer realm="kernelcast"',
            )  # fmt: skip
        key = self._ring.find(token.strip())
        if key is None:
            raise self._refused(
                "key_unknown", 401,
                "this API key is not known here, or was revoked; ask whoever runs this service for another",
                'Bearer realm="kernelcast", error="invalid_token"',
            )  # fmt: skip
        return key

    def _check_place(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what did not come from this machine's own programs, or by one of the names that are allowed."""
        came_to = (scope.get("server") or ("",))[0]
        is_own_address = _listens_on(came_to)
        if is_own_address is False and not (self._ring.is_set or self._is_open):
            raise ProblemError(
                403,
                f"this service is reached at {came_to} and has no API keys, so it answers to nobody but its own machine; "
                f"whoever runs it: {_MAKE_KEY}, or say KERNELCAST_ALLOW_OPEN=1 behind a proxy that asks who is there",
            )
        if is_own_address is None and not self._allowed:
            return
        given = headers.get(b"host", b"").decode("latin-1").lower()
        name = _name_of(given)
        if name not in self._names and not (_is_this_machine(name) and is_own_address):
            raise self._wrong(
                "host", f"this service is not known as {name[:100]!r}; ask for localhost or 127.0.0.1, or add the name to "
                "KERNELCAST_ALLOWED_HOSTS",
            )  # fmt: skip
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and not self._ring.is_set and not self._is_same(origin, given):
            raise self._wrong(
                "origin", f"this service has no API keys and takes no requests from pages of {origin[:100]!r}; "
                f"with keys it does: {_MAKE_KEY}",
            )  # fmt: skip

    def _is_same(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.netloc == host or (parts.hostname or "") in self._allowed

    def _refused(self, reason: str, status: int, detail: str, challenge: str = "") -> ProblemError:
        self._metrics.refused(reason)
        headers = {"www-authenticate": challenge} if challenge else None
        return ProblemError(status, detail, [FieldProblem("headers.authorization", detail)], headers)

    def _wrong(self, header: str, detail: str) -> ProblemError:
        self._metrics.refused("other")
        return ProblemError(403, detail, [FieldProblem(f"headers.{header}", detail)])


def describe_access(document: dict[str, Any], refusal: Callable[[int], dict[str, Any]]) -> None:
    """Add to an OpenAPI document how keys are sent, and what every route but those of health answers without a right one.

    Keys are described as optional, since whether they are asked for is a setting of the service.
    """
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key that `kernelcast keys new` made, where keys are set",
        }
    }
    document["security"] = [{}, {"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in HEALTH_PATHS:
                operation["security"] = []
                continue
            for status in (401, 403):
                operation["responses"].setdefault(str(status), refusal(status))
            if path.startswith(ADMIN_FOLDER):
                operation["security"] = [{"key": []}]


def _name_of(host: str) -> str:
    """The name of a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.partition(":")[0]


@lru_cache(maxsize=64)
def _is_this_machine(name: str) -> bool:
    """Whether a name stands for this machine whatever a name server says: localhost (RFC 6761, 6.3) or a loopback address."""
    return name == "localhost" or name.endswith(".localhost") or _listens_on(name) is True


def _has_large_body(headers: Mapping[bytes, bytes]) -> bool:
    stated = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not stated.isdigit() or int(stated[:20]) > _LARGE_BODY_B
