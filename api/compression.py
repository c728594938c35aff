"""gzip, both ways: answers are packed for clients that take it, and packed requests are unpacked within a hard limit.

Only gzip: every client and proxy knows it, and Python's own zlib makes it without holding the interpreter's lock.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

from anyio.to_thread import run_sync

from .problems import ProblemError

LEAST_B = 1024
"""Shorter answers are sent as they are: they fit one packet either way."""

LEVEL = 1
"""For answers made for one request: a batch of 1.6 MB shrinks to 27 % at 180 MB/s, where level 6 reaches 23 % at 16 MB/s."""

INLINE_B = 32 << 10
"""Up to this size an answer is packed on the event loop (some 0.2 ms); larger ones on a thread."""

REQUEST_ENCODINGS = "gzip"
"""What a request's body may be packed with, for the Accept-Encoding of a refusal (RFC 7694)."""

_GZIP_WINDOW = 31  # zlib's largest window, 15 bits, + 16 for a gzip header instead of a zlib one
_PACKABLE = (b"text/", b"application/json", b"application/problem+json", b"application/schema+json", b"image/svg+xml",
             b"application/javascript")  # fmt: skip
_MAX_ACCEPT = 500
_UNPACKED_STATUS = frozenset({204, 206, 304})

Headers = Iterable[tuple[bytes, bytes]]


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether a client that sent this Accept-Encoding prefers gzip to the answer as it is (RFC 9110, 12.5.3).

    No header means that anything goes, but not that gzip is understood: such clients get the answer as it is. A quality that
    cannot be read counts as 0.
    """
    # Clients send few different ones; what is longer than any of these is not kept.
    return _accepts_gzip(accept_encoding[:_MAX_ACCEPT])


@lru_cache(maxsize=256)
def _accepts_gzip(accept_encoding: bytes) -> bool:
    weights: dict[str, float] = {}
    for part in accept_encoding.decode("latin-1").lower().split(","):
        name, *parameters = (text.strip() for text in part.split(";"))
        weights[name] = _weight(parameters)
    gzip = max(weights.get("gzip", -1.0), weights.get("x-gzip", -1.0))
    if gzip < 0:
        gzip = weights.get("*", 0.0)
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0


def is_packable(status: int, headers: Mapping[bytes, bytes]) -> bool:
    """Whether an answer with these headers gains by gzip: long enough, text or numbers, and not packed already."""
    length = headers.get(b"content-length", b"")
    if length and int(length) < LEAST_B:
        return False
    return (
        status not in _UNPACKED_STATUS
        and b"content-encoding" not in headers
        and headers.get(b"content-type", b"").startswith(_PACKABLE)
    )


def packed_headers(headers: Headers, length: int | None) -> list[tuple[bytes, bytes]]:
    """The headers of an answer once it is packed to `length` bytes (None: not known yet).

    A strong ETag becomes a weak one, as the bytes are others than those it was made for (RFC 9110, 8.8.3).
    """
    kept = []
    for name, value in headers:
        if name == b"etag" and not value.startswith(b"W/"):
            kept.append((name, b"W/" + value))
        elif name != b"content-length":
            kept.append((name, value))
    if length is not None:
        kept.append((b"content-length", b"%d" % length))
    kept.append((b"content-encoding", b"gzip"))
    return kept


def pack(body: bytes, level: int = LEVEL) -> bytes:
    """The body as one gzip member, without a time in it: the same body gives the same bytes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


class Packer:
    """Packs an answer that comes in parts; each part can be read when it is sent."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)

    async def part(self, body: bytes, *, is_last: bool) -> bytes:
        """The next part, packed; a large one on a thread."""
        if len(body) > INLINE_B:
            return await run_sync(self._part, body, is_last)
        return self._part(body, is_last)

    def _part(self, body: bytes, is_last: bool) -> bytes:
        return self._packer.compress(body) + self._packer.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request's body is gzip.

    Raises:
        ProblemError: 415, it is packed with something else.
    """
    given = headers.get(b"content-encoding", b"identity").strip().lower()
    if given in (b"gzip", b"x-gzip"):
        return True
    if given in (b"identity", b""):
        return False
    shown = given.decode("latin-1")[:40]
    raise ProblemError(
        415, f"a body may be sent with content-encoding gzip or as it is; got {shown!r}",
        headers={"accept-encoding": REQUEST_ENCODINGS},
    )  # fmt: skip


def unpack(body: bytes, limit_b: int, advice: str) -> bytes:
    """The body of one gzip member; no more than `limit_b` + 1 bytes of it are ever made.

    Raises:
        ProblemError: 413 where it is longer unpacked than `limit_b`; 400 where it is no gzip, is cut short or goes on after it.
    """
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = unpacker.decompress(body, limit_b + 1)
    except zlib.error as error:
        raise ProblemError(400, f"the body is not the gzip that content-encoding says it is: {error}") from error
    if len(found) > limit_b:
        raise ProblemError(413, f"the body is longer than {limit_b} bytes when it is unpacked; {advice}")
    if not unpacker.eof:
        raise ProblemError(400, "the gzip body ends before its end; send all of it")
    if unpacker.unused_data:
        raise ProblemError(400, f"{len(unpacker.unused_data)} bytes follow the gzip body; send it as one gzip member")
    return found
