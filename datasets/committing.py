"""Files that are either complete or not there, and what the operating system says when they cannot be, in one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why and what to do. Rows stored before are untouched."""


class UnreachableError(StoreError):
    """The place cannot be reached or does not let us in: that says nothing about the files in it."""


class VanishedError(StoreError):
    """A file that was listed is gone: the store was compacted meanwhile."""


class StoreWarning(UserWarning):
    """A file of the store could not be read and was skipped; it is never deleted."""


def commit_files(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write every file under a temporary name beside its own, flush all to disk, then rename them.

    Raises:
        StoreError: the disk is full or not writable; the temporary files are removed.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for path, content in files:
            # Hidden and not ending in .parquet, so that no reader ever takes it for a stored file.
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            written.append((temporary, path))
            with clear_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_flushed(temporary, content)
        for temporary, path in written:
            with clear_os_errors(path):
                temporary.rename(path)
    except BaseException:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise
    for folder in sorted({parent for path, _ in files for parent in list(path.parents)[:3]}):
        # A rename is on disk only once its folder is, and so is a folder that was just made.
        with clear_os_errors(folder):
            flush_folder(folder)


@contextlib.contextmanager
def clear_os_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn what the operating system says about `path` into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"no space left to write {path}; nothing of this was stored, earlier rows are safe. Free some space, or "
                "name another place (KERNELCAST_HOME or the command's own option), then run again"
            ) from error
        able = "readable" if doing == "read" else "writable"
        raise StoreError(f"cannot {doing} {path}: {error.strerror or error}; check that it is {able}") from error


def _write_flushed(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Put the folder's list of files on disk: a rename is there only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
