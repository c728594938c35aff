"""Bodies between the socket and the routes: requests read within their limits, and answers in JSON sent in one piece."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from .compression import is_packed, unpack
from .problems import ProblemError

JSON = frozenset({"application/json"})
"""The media type of a body that is JSON."""


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str = "send the specs in parts"
) -> bytes:
    """The body, read no further than its limit; `advice` says what to do about one that is longer.

    A gzip body is unpacked on a thread, and is within the limit both packed and unpacked.

    Raises:
        ProblemError: 413 as soon as the body is known to be longer; the connection is closed rather than drained. 415 for a
            body packed with something else than gzip, 400 for one that is no gzip or cut short.
    """
    if is_packed(headers):
        return await run_sync(unpack, await _read_plain(headers, receive, limit_b, advice), limit_b, advice)
    return await _read_plain(headers, receive, limit_b, advice)


async def _read_plain(headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str) -> bytes:
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit_b:
        raise _too_large(limit_b, advice)
    message: Message = await receive()
    body: bytes = message.get("body", b"")
    if len(body) > limit_b:
        raise _too_large(limit_b, advice)
    if not message.get("more_body"):
        return body
    parts, length = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > limit_b:
            raise _too_large(limit_b, advice)
    if message["type"] == "http.disconnect":
        raise ProblemError(400, "the connection was closed before the whole body had come")
    return b"".join(parts)


def _too_large(limit_b: int, advice: str) -> ProblemError:
    return ProblemError(413, f"the body is longer than {limit_b} bytes; {advice}", headers={"connection": "close"})


def media_type(headers: Mapping[bytes, bytes], taken: Collection[str]) -> str:
    """The media type of a body, one of those `taken`.

    Raises:
        ProblemError: 415 for another, and for text that is not UTF-8.
    """
    given = headers.get(b"content-type", b"").decode("latin-1")
    name, _, parameters = given.partition(";")
    if (found := name.strip().lower()) not in taken:
        shown = f"got {given[:100]!r}" if given else "none was given"
        raise ProblemError(415, f"send the header content-type: {' or '.join(sorted(taken))} ({shown})")
    charset = parameters.strip().lower().partition("charset=")[2].strip('"')
    if charset not in ("", "utf-8", "utf8"):
        raise ProblemError(415, f"bodies are UTF-8; got charset {charset[:40]!r}")
    return found


async def send_json(send: Send, answer: bytes) -> None:
    """Send a 200 with the JSON."""
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-type", b"application/json"), (b"content-length", length)]})  # fmt: skip
    await send({"type": "http.response.body", "body": answer})


def json_response(answer: Any) -> Response:
    """A 200 with the answer as JSON, for routes that give a response back."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
