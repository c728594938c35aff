"""One night at a time on a machine: a lock that names its holder and that the operating system lets go of."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ..features.errors import SpecError

_MOMENT_S = 0.1


class NightRunningError(Exception):
    """Another night is running on this machine; the message names it."""


@contextlib.contextmanager
def night_lock(nights: Path, plan: str) -> Iterator[None]:
    """Hold the folder of nights for one night of the plan called `plan`.

    Raises:
        NightRunningError: another night holds it.
        SpecError: the folder cannot be written.
    """
    path = nights / ".lock"
    try:
        nights.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise SpecError(
            f"cannot write {path}: {error.strerror or error}; set KERNELCAST_HOME to another folder"
        ) from error
    try:
        try:
            _taken(handle)
        except BlockingIOError:
            raise NightRunningError(f"{_holder(os.read(handle, 1000))}; wait for it or stop it ({path})") from None
        # The file stays when the lock is released: removing it would let two nights lock two different files.
        with contextlib.suppress(OSError):  # a full disk must not keep a night from saying so
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "plan": plan,
                                         "since": datetime.now(UTC).isoformat(timespec="seconds")}).encode())  # fmt: skip
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> None:
    """Lock the file, once more after a moment: `is_held` holds it for an instant.

    Raises:
        BlockingIOError: another night holds it.
    """
    # Unix only, as everything that measures.
    import fcntl

    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    time.sleep(_MOMENT_S)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(nights: Path) -> bool:
    """Whether a night holds the folder: one whose record says `running` while nobody does was killed."""
    import fcntl

    try:
        handle = os.open(nights / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock for an instant, as asking must not keep a second who asks from an answer.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _holder(written: bytes) -> str:
    try:
        held = json.loads(written)
        return (f"a night of plan {held['plan']} has been running since {held['since']} "
                f"(process {held['pid']} on {held['host']})")  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return "another night is running"
