"""One request and its answer, as everything that tells about it knows them: the log, the traces, the problems."""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from dataclasses import dataclass

from .keys import KEY_PREFIX

MAX_ID = 128
"""Longest request id that is taken over from a client, characters."""

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:@=+/-]{1,%d}" % MAX_ID)
_KEY = KEY_PREFIX.encode()
_ID_B = 16


@dataclass(slots=True)
class Exchange:
    """What is known about the request that is being answered.

    `request_id` is safe to print anywhere. `predictions`, `families` and `devices` count what was predicted for it;
    `trace_id` is that of its span in hex, empty where it is not traced.
    """

    request_id: str
    predictions: int = 0
    families: int = 0
    devices: int = 0
    trace_id: str = ""


CURRENT: ContextVar[Exchange | None] = ContextVar("kernelcast_exchange", default=None)
"""The exchange that the running code works for; None outside of one. Threads that work for a request see it too."""


def new_exchange(given_id: bytes) -> Exchange:
    """An exchange with the client's id (header X-Request-Id) where it is well-formed, else with a new random one.

    An id is logged and sent back, so one that holds what a key begins with is not taken: somebody mixed the headers up.
    """
    if given_id and _WELL_FORMED.fullmatch(given_id) and _KEY not in given_id:
        return Exchange(given_id.decode("ascii"))
    return Exchange(os.urandom(_ID_B).hex())
