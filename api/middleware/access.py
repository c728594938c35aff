"""Who may ask: API keys, and, where there are none, only this machine's own programs and pages.

Without keys the service is safe on a loopback address alone, and there only from programs: any web page open in a browser on
the machine can send requests to 127.0.0.1. Two headers tell such a page apart. Host is the page's own name when it lets that
name resolve to 127.0.0.1 (DNS rebinding), and Origin is the page's address whenever it posts. No answer ever has a CORS header.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import Scope

from ...features.errors import SpecError
from ..telemetry.metrics import Metrics
from ..transport.problems import FieldProblem, ProblemError
from .api_keys import ADMIN, Key, KeyRing, read_key_file

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
"""What whoever watches the service asks: answered to anyone, whatever they call this machine."""

OPEN_PATHS = frozenset({"/", "/favicon.ico", "/docs", "/docs/", "/openapi.json"})
OPEN_FOLDERS = ("/static/", "/docs/")
"""The page, the documentation and the description of the routes: they are in every copy of the package, so no key is asked."""

ADMIN_FOLDER = "/v1/admin/"
"""What changes the service; opened by a key of scope admin and nothing else, not even from this machine."""

_MAKE_KEY = "`kernelcast serve keys new` makes one, and `kernelcast serve --keys FILE` takes it"


def check_exposure(host: str, *, has_keys: bool, keys_file: Path | None = None, allow_open: bool = False) -> None:
    """Refuse to listen where others could ask without a key, and a key file that would let nobody in.

    Args:
        host: Address or name to listen on.
        has_keys: Whether keys are set beside those of the file.
        keys_file: File of further keys.
        allow_open: Whether others may ask without a key, as a proxy in front asks for one.

    Raises:
        SpecError: the host is not a loopback address and there is no key and no `allow_open`, or the key file is none.
    """
    if keys_file is not None and not has_keys and not read_key_file(keys_file):
        raise SpecError(
            f"the key file {keys_file} holds no key, so no request could be answered; "
            f"run: kernelcast serve keys new --scope read --name NAME --file {keys_file}",
            field="api_keys_file",
        )
    if has_keys or keys_file is not None or allow_open or is_own(host):
        return
    raise SpecError(
        f"others can reach {host or 'an empty host (every address)'}, and there are no API keys. Make one with "
        "`kernelcast serve keys new --scope read --name NAME` and give its file with --keys, or listen on 127.0.0.1; "
        "behind a proxy that authenticates, use --allow-open",
        field="host",
    )


def is_own(host: str) -> bool:
    """Whether only this machine can reach `host`: a loopback address, or a name that resolves to such addresses alone."""
    try:
        return _is_loopback(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        addresses = socket.getaddrinfo(host, None) if host else []
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(
        _is_loopback(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in addresses
    )


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


class AccessControl:
    """Who may ask, by key, host name and origin; `ErrorBoundary` asks it before it passes a request on."""

    def __init__(
        self,
        ring: KeyRing,
        metrics: Metrics,
        *,
        host: str = "127.0.0.1",
        allow_open: bool = False,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self._ring = ring
        self._metrics = metrics
        self._is_open = allow_open
        self._allowed = frozenset(name.lower() for name in allowed_hosts)
        # Not an address: 0.0.0.0 stands for this machine in browsers too, and pages of others may use it.
        self._names = self._allowed | ({host.lower()} if _listens_on(host) is None else set())

    def check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request that may not ask; of another with a key, note the key's name in the scope.

        Raises:
            ProblemError: 401 or 403, with what is missing.
        """
        path: str = scope["path"]
        if path in HEALTH_PATHS:
            return
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
        if scheme.lower() != "bearer":
            wrong = (
                f"the header Authorization has the scheme {scheme[:20]!r}"
                if scheme
                else "this address needs an API key"
            )
            raise self._refused(
                "key_missing", 401,
                f"{wrong}; send {'' if scheme else 'the header '}`Authorization: Bearer kc_…`",
                'Bearer realm="kernelcast"',
            )  # fmt: skip
        key = self._ring.find(token.strip())
        if key is None:
            raise self._refused(
                "key_unknown", 401,
                "this API key is unknown or revoked; ask the operator of this service for another",
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
                f"this service is reached at {came_to} and has no API keys, so it answers requests from its own machine only; "
                f"to open it: {_MAKE_KEY}, or set KERNELCAST_ALLOW_OPEN=1 behind a proxy that authenticates",
            )
        if is_own_address is None and not self._allowed:
            return
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
        if name not in self._names and not (_is_this_machine(name) and is_own_address):
            raise self._wrong(
                "host", f"this service does not allow the host name {name[:100]!r}; use localhost or 127.0.0.1, or add the "
                "name to KERNELCAST_ALLOWED_HOSTS",
            )  # fmt: skip
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and not self._ring.is_set and not self._is_same(origin, host):
            raise self._wrong(
                "origin", f"this service has no API keys and refuses requests from pages of {origin[:100]!r}; "
                f"to allow them: {_MAKE_KEY}",
            )  # fmt: skip

    def _is_same(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.netloc == host or (parts.hostname or "") in self._allowed

    def _refused(self, reason: str, status: int, detail: str, challenge: str = "") -> ProblemError:
        self._metrics.count_refusal(reason)
        headers = {"www-authenticate": challenge} if challenge else None
        return ProblemError(status, detail, [FieldProblem("headers.authorization", detail)], headers)

    def _wrong(self, header: str, detail: str) -> ProblemError:
        self._metrics.count_refusal("other")
        return ProblemError(403, detail, [FieldProblem(f"headers.{header}", detail)])


@lru_cache(maxsize=64)
def _is_this_machine(name: str) -> bool:
    """Whether a name stands for this machine whatever a name server says: localhost (RFC 6761, 6.3) or a loopback address."""
    return name == "localhost" or name.endswith(".localhost") or _listens_on(name) is True
