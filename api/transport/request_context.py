"""Request context shared by logging, tracing, metrics and error responses."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

KEY_PREFIX = "kc_"
"""The first characters of every API key, so that a search for secrets in a repository or a log finds keys."""

MAX_ID = 128
"""Longest request id that is taken over from a client, characters."""

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:@=+/-]{1,%d}" % MAX_ID)
_KEY = KEY_PREFIX.encode()
_ID_B = 16


@dataclass(slots=True)
class RequestContext:
    """What is known about the request that is being answered.

    Attributes:
        request_id: Safe to print anywhere; a new random one where none is given.
        predictions: Number of predictions made for it.
        families: Number of kernel families among them.
        devices: Number of devices among them.
        body_b: Bytes of its body that have come.
        trace_id: Id of its span in hex, empty where it is not traced.
    """

    request_id: str = field(default_factory=partial(secrets.token_hex, _ID_B))
    predictions: int = 0
    families: int = 0
    devices: int = 0
    body_b: int = 0
    trace_id: str = ""


CURRENT_REQUEST: ContextVar[RequestContext | None] = ContextVar("kernelcast_request", default=None)
"""The request that the running code works for; None outside of one. Threads that work for a request see it too."""


def new_request_context(client_id: bytes) -> RequestContext:
    """A context with the client's id (header X-Request-Id) where that is well-formed, else with a new random one.

    An id is logged and sent back, so one that contains the prefix of API keys is not taken: somebody mixed the headers up.
    """
    if client_id and _WELL_FORMED.fullmatch(client_id) and _KEY not in client_id:
        return RequestContext(client_id.decode("ascii"))
    return RequestContext()
