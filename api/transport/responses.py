"""What answers share: security headers, which allow a browser as little as possible, and cached content with an ETag.

Sources: MDN and the OWASP HTTP Headers Cheat Sheet for each header; CSP Level 3 for the directives.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]


def json_response(answer: Any) -> Response:
    """A 200 with the answer as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def json_endpoint(answer: Callable[[Request], Any]) -> Endpoint:
    """What answers with the result of `answer` as JSON, at once and on the event loop."""

    async def endpoint(request: Request) -> Response:
        return json_response(answer(request))

    return endpoint


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: files of this service alone, nothing inline, no frames around it, no forms out of it."""

_UNUSED = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen", "geolocation", "gyroscope",
    "hid", "magnetometer", "microphone", "midi", "payment", "picture-in-picture", "publickey-credentials-get",
    "screen-wake-lock", "serial", "usb", "xr-spatial-tracking",
)  # fmt: skip
PERMISSIONS_POLICY = ", ".join(f"{name}=()" for name in _UNUSED)
"""Permissions-Policy: the page asks for none of a browser's devices. The clipboard is left out, as the page copies to it."""

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # No window of another site holds a handle to the page, and no other site embeds an answer.
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", PERMISSIONS_POLICY.encode()),
)
"""Headers of every answer beside its Content-Security-Policy."""


_PACKED_LEAST_B = 1024
"""Shorter content is sent as it is: it fits one packet either way."""

_TAG_DIGITS = 32
"""128 bits of the SHA-256 tell one version of a file from another."""


class CachedContent:
    """Bytes of one media type with a weak ETag, which holds for them packed and unpacked (RFC 9110, 8.8.1).

    Clients keep them and revalidate every time (`no-cache`): a 304 costs next to nothing. They are packed once, as small as
    gzip can: a sixth to a third smaller than what is packed for each answer.
    """

    def __init__(self, body: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.body = body
        self.media_type = media_type
        self._tag = f'"{hashlib.sha256(body).hexdigest()[:_TAG_DIGITS]}"'
        self._headers = {"cache-control": "no-cache", "etag": f"W/{self._tag}", **(headers or {})}

    def answer(self, request: Request) -> Response:
        """200 with the bytes, or 304 where the client has them (RFC 9110, 13.1.2)."""
        tags = [tag.strip() for tag in ",".join(request.headers.getlist("if-none-match")).split(",")]
        if "*" in tags or any(tag.removeprefix("W/") == self._tag for tag in tags):
            return Response(status_code=304, headers=self._headers | {"vary": "Accept-Encoding"})
        if len(self._packed) < len(self.body) and "gzip" in request.headers.get("accept-encoding", ""):
            packed = {"content-encoding": "gzip", "vary": "Accept-Encoding"}
            return Response(self._packed, media_type=self.media_type, headers=self._headers | packed)
        return Response(self.body, media_type=self.media_type, headers=self._headers)

    @cached_property
    def _packed(self) -> bytes:
        return self.body if len(self.body) < _PACKED_LEAST_B else gzip.compress(self.body, mtime=0)
