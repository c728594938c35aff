"""An answer given before the whole body was read, that the other side gets to see.

Closing at once on a sender that still sends makes its system drop the answer: a proxy then reports a broken service (502) where
the service said that the body is too long (413). So what still comes is read and thrown away for a while, as nginx itself does
(its `lingering_close`), within bounds that keep a hostile sender cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MAX_DECLARED_B = 32 << 20
"""Longest body with a stated length that is read to its end."""

MAX_UNDECLARED_B = 8 << 20
"""Most that is read of a body whose length is not stated, or stated to be longer than `MAX_DECLARED_B`."""

IDLE_S = 1.0
TOTAL_S = 10.0
"""Longest wait for the next part, and for all of them."""


class Lingering(Response):
    """An answer that is sent whole, then waits for the sender to finish before the connection closes.

    For answers with the header `connection: close` to requests whose body may still be coming.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, read on, and only then say that it is complete."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOTAL_S):
                await _drain(receive, _most_b(scope))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive, most_b: int) -> None:
    message: dict[str, Any] = {"more_body": True}
    while message.get("more_body") and most_b > 0:
        message = dict(await asyncio.wait_for(receive(), IDLE_S))
        most_b -= len(message.get("body", b""))


def _most_b(scope: Scope) -> int:
    stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    is_short = stated.isdigit() and int(stated[:20]) <= MAX_DECLARED_B
    return MAX_DECLARED_B if is_short else MAX_UNDECLARED_B
