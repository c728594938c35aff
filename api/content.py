"""Answers that stay the same for long (catalogues, schemas, the page's files): made once, with an ETag, packed once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from .compression import INLINE_B, LEAST_B, accepts_gzip, pack

REVALIDATE = "no-cache"
"""Cache-Control of what may be kept, but has to be asked for anew each time: a 304 costs next to nothing."""

_LEVEL = 9
"""The smallest form zlib makes: it is made once and sent for as long as the process runs."""

_TAG_DIGITS = 32
"""128 bits of the SHA-256 tell one version of a file from another."""


class Content:
    """Bytes of one media type, with a strong ETag for each of its two forms (as it is, and gzip)."""

    def __init__(self, body: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.body = body
        self.media_type = media_type
        self._headers = dict(headers or {})
        self._tag = hashlib.sha256(body).hexdigest()[:_TAG_DIGITS]

    async def answer(self, request: Request) -> Response:
        """200 with the bytes, or 304 where the client has them (RFC 9110, 13.1.2)."""
        packed = None
        if len(self.body) >= LEAST_B and accepts_gzip(request.headers.get("accept-encoding", "").encode("latin-1")):
            packed = await self._packed_once()
        tag = f'"{self._tag}-gzip"' if packed else f'"{self._tag}"'
        headers = {"cache-control": REVALIDATE, "etag": tag, "vary": "Accept-Encoding", **self._headers}
        if _names(request.headers.getlist("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        if packed is None:
            return Response(self.body, media_type=self.media_type, headers=headers)
        return Response(packed, media_type=self.media_type, headers=headers | {"content-encoding": "gzip"})

    async def _packed_once(self) -> bytes | None:
        if len(self.body) > INLINE_B and "_packed" not in self.__dict__:
            return await run_sync(lambda: self._packed)
        return self._packed

    @cached_property
    def _packed(self) -> bytes | None:
        """The gzip form, or None where it is not shorter, as for pictures."""
        packed = pack(self.body, _LEVEL)
        return packed if len(packed) < len(self.body) else None


def _names(if_none_match: list[str], tag: str) -> bool:
    """Whether the field names the tag; compared weakly, as RFC 9110 wants it here."""
    named = [part.strip() for part in ",".join(if_none_match).split(",")]
    return "*" in named or any(part.removeprefix("W/") == tag for part in named)
