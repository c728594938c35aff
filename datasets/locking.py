"""One holder at a time on this machine: a lock that the operating system lets go of when its process ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .committing import StoreError, clear_os_errors


@contextlib.contextmanager
def held(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock at `path`.

    Raises:
        StoreError: somebody else does; `busy` begins the message, which goes on with the holder's process.
    """
    # Unix only, and only needed where something is measured.
    import fcntl

    with clear_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "an unknown process"
            raise StoreError(f"{busy} {holder}; wait for it or stop it ({path})") from None
        # The file stays when the lock is released: removing it would let two holders lock two different files.
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {os.uname().nodename}".encode())
        yield
    finally:
        os.close(handle)
