"""Files that are whole or not there, lines that survive a crash, locks between processes, and the folder of a user's own files.

Everything here raises plain `OSError`s; callers say what they mean for the user. `filename` of such an
error is the file that was to be written, never the temporary one beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TEMPORARY = ".tmp"
"""End of a temporary name. The name also starts with a dot, so that no reader takes the file for a finished one."""

_POLL_S = 0.05

HOME_ENV = "KERNELCAST_HOME"


def home_dir() -> Path:
    """Where a user's own measurements and models live, `~` understood; default `~/.local/share/kernelcast`."""
    folder = os.environ.get(HOME_ENV)
    return Path(folder).expanduser() if folder else Path.home() / ".local" / "share" / "kernelcast"


class LockedError(BlockingIOError):
    """Another process holds the lock.

    Attributes:
        path: The lock file.
        holder: What the holder wrote into it; empty where it wrote nothing.
    """

    def __init__(self, path: Path, holder: str) -> None:
        """Raised by `lock`."""
        super().__init__(f"{path} is locked by {holder or 'another process'}")
        self.path, self.holder = path, holder


def write_whole(path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file so that a reader, or a machine that loses power, has the old content or the new one, never a part.

    Args:
        path: The file. Folders that are missing are made.
        content: Text is written as UTF-8.
        mode: Permissions of the file, less those that the umask takes away.
        durable: False leaves out waiting for the disk, for content that is of no use after a restart.

    Raises:
        OSError: the folder is full or not writable; what was there before is as it was.
    """
    with _naming(path), _temporary(path, mode) as temporary:
        _fill(temporary, content, durable)
        _publish([(temporary, path)], durable)


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file to write with anything that takes a path; it becomes `path` where the body succeeds.

    Raises:
        OSError: as `write_whole`; errors of the body pass unchanged.
    """
    with contextlib.ExitStack() as stack:
        with _naming(path):
            temporary = stack.enter_context(_temporary(path, mode))
        yield temporary
        with _naming(path):
            move_into_place(temporary, path)


def write_together(files: Iterable[tuple[Path, bytes | str]]) -> None:
    """Write several files: all are on disk before the first gets its name.

    Raises:
        OSError: as `write_whole`; nothing is left of files that have no name yet.
    """
    with contextlib.ExitStack() as stack:
        moves = []
        for path, content in files:
            with _naming(path):
                temporary = stack.enter_context(_temporary(path, 0o666))
                _fill(temporary, content, durable=True)
            moves.append((temporary, path))
        _publish(moves, durable=True)


def move_into_place(temporary: Path, path: Path) -> None:
    """Flush a finished file of the same file system to disk and rename it to `path`."""
    handle = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    _publish([(temporary, path)], durable=True)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` (that need not be there) where the body succeeds.

    Raises:
        OSError: the place is not writable; `folder` is as it was. Errors of the body pass unchanged.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = _beside(folder), _beside(folder)
    new.mkdir()
    try:
        yield new
        # A folder can be renamed only to a name that is free, so the old one is moved aside first.
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        _flush_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and wait until it is on disk. A line that a crash cut short before does not swallow it.

    Raises:
        OSError: the folder is full or not writable.
    """
    # Locked, so that a line another process is writing now does not look like a torn one.
    with _naming(path), lock(path, wait_s=None) as handle:
        size = os.lseek(handle, 0, os.SEEK_END)
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        _write(handle, f"{chr(10) if torn else ''}{line}\n".encode())
        os.fsync(handle)


def read_lines(path: Path, read: Callable[[str], T]) -> tuple[list[T], int]:
    """What `read` makes of each line of a file, and how many lines it refused; none where there is no file.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    entries, damaged = [], 0
    for line in filter(None, text.split("\n")):
        try:
            entries.append(read(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
    return entries, damaged


@contextlib.contextmanager
def lock(path: Path, *, holder: str | None = None, wait_s: float | None = 0.0, shared: bool = False,
         create: bool = True) -> Iterator[int]:  # fmt: skip
    """Hold a lock that the operating system releases when the process ends; gives the file's descriptor, to append by.

    On Windows nothing is locked: what needs a lock (measuring, several workers) does not run there.

    Args:
        path: The lock file, or a folder that is there. The file stays afterwards: were it removed, two processes could
            lock two different files.
        holder: What others are told while the lock is held; replaces the content of the file. None leaves it alone.
        wait_s: How long to wait for another holder; None waits for ever.
        shared: Others may hold a shared lock at the same time.
        create: False refuses a file that is not there.

    Raises:
        LockedError: another process holds the lock.
        OSError: the file cannot be opened.
    """
    if folder := path.is_dir():
        handle = os.open(path, os.O_RDONLY)
    else:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(
            path, (os.O_RDONLY if shared else os.O_RDWR | os.O_APPEND) | (os.O_CREAT if create else 0), 0o666
        )
    try:
        if not _acquire(handle, wait_s, shared):
            raise LockedError(path, "" if folder else os.pread(handle, 1000, 0).decode(errors="replace").strip())
        if holder is not None:
            with contextlib.suppress(OSError):  # a full disk takes the name of the holder, not the lock
                os.ftruncate(handle, 0)
                os.write(handle, holder.encode())
        yield handle
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file now; a file that is missing or not readable is not locked."""
    try:
        # A shared lock for an instant, so that two who look at once do not see each other.
        with lock(path, shared=True, create=False):
            return False
    except LockedError:
        return True
    except OSError:
        return False


def _acquire(handle: int, wait_s: float | None, shared: bool) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if wait_s is None:
        fcntl.flock(handle, kind)
        return True
    until = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(min(_POLL_S, wait_s))


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}")


@contextlib.contextmanager
def _temporary(path: Path, mode: int) -> Iterator[Path]:
    """An empty file beside `path`, removed at the end where it is still there; new folders are on disk."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)
    temporary = _beside(path)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _fill(path: Path, content: bytes | str, durable: bool) -> None:
    with path.open("wb", buffering=0) as file:
        _write(file.fileno(), content.encode() if isinstance(content, str) else content)
        if durable:
            os.fsync(file.fileno())


def _write(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def _publish(moves: Iterable[tuple[Path, Path]], durable: bool) -> None:
    folders = set()
    for temporary, path in moves:
        with _naming(path):
            temporary.replace(path)
        folders.add(path.parent)
    if durable:
        # A rename is on disk only once its folder is.
        for folder in sorted(folders):
            _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    if sys.platform == "win32":  # it cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have an `OSError` name the file that was to be written."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
