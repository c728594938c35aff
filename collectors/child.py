"""What every measuring child process does at its start: die with its parent, and keep the pipe to it clean."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Mapping
from typing import IO, Any

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def private_stdout() -> IO[str]:
    """The pipe to the parent; standard output itself now goes to standard error, where a library's chatter is safe."""
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return replies


def send(replies: IO[str], message: Mapping[str, Any]) -> None:
    """One message to the parent, at once: a JSON object on a line."""
    replies.write(json.dumps(message) + "\n")
    replies.flush()
