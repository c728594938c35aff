"""Where a store lies: a folder of this machine, or whatever fsspec reaches by a URL (`s3://bucket/prefix`, `memory://name`).

Files are named by their path below the root, with slashes. Both kinds list, read whole files or parts of them, and write files
that are either complete or not there: a folder by temporary name, flush and rename; an object store by one atomic PUT.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ..home import home_dir
from .committing import StoreError, VanishedError, clear_os_errors, commit_files, flush_folder
from .naming import new_stamp
from .url_errors import clear_url_errors, plain_url, refuse_secrets

CHUNK_B = 4 * 2**20
WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"})
"""Protocols that show an object only when all of it is there. On others a file is written beside and then moved."""

TEMPORARY = ".tmp"
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


class Root(Protocol):
    """What the store asks of the place it lies in. Every method raises `StoreError` where the place cannot be reached."""

    @property
    def name(self) -> str:
        """The place as messages show it, without secrets."""

    def folders(self) -> list[str]:
        """Names of the folders right below the root, hidden ones left out; empty where nothing is there."""

    def find(self, folder: str) -> list[str]:
        """Names of all files in a folder and below it, hidden and temporary ones too."""

    def open(self, name: str) -> pa.NativeFile:
        """A file to read at random places.

        Raises:
            VanishedError: there is no such file.
        """

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write whole files. In a folder all get their names only when all are on disk; elsewhere one after the other."""

    def scratch(self, folder: str) -> contextlib.AbstractContextManager[Path]:
        """A file of this machine to write what `publish` will put in `folder`; removed at the end if it is still there."""

    def publish(self, scratch: Path, name: str) -> None:
        """Give a complete scratch file its name in the store."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    def move(self, name: str, to: str) -> None:
        """Give a file another name in the store."""

    def lock_file(self, word: str) -> Path:
        """A file of this machine to lock."""


def root_of(given: str | Path | None) -> Root:
    """The root a person names: a folder, a URL, or None for `KERNELCAST_HOME/measurements`.

    Raises:
        StoreError: a protocol nobody knows, a missing package, a password in the URL, or a file where a folder should be.
    """
    if given is None:
        return LocalRoot(home_dir() / "measurements")
    if isinstance(given, str) and "://" in given:
        protocol, _, path = given.partition("://")
        if protocol != "file":
            return UrlRoot(given)
        if not path.startswith("/"):
            raise StoreError(f"{given!r} names no folder: give file:// and a path that starts with /")
        given = path
    if any(str(given).startswith(f"{protocol}:/") for protocol in WHOLE_OBJECTS):
        raise StoreError(f"{given} is a URL that was made a path, which takes a slash out of it; give it as text")
    if not str(given) or "\0" in str(given):
        raise StoreError(f"{str(given)!r} names no folder; give the path of one, or a URL")
    try:
        folder = Path(given).expanduser()
    except RuntimeError as error:
        raise StoreError(f"{given} names no folder: this machine has no such user") from error
    if folder.is_file():
        raise StoreError(f"{folder} is a file; a store is a folder or a URL")
    return LocalRoot(folder)


class LocalRoot:
    """A folder of this machine; needs no fsspec."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not be there yet."""
        self.folder = folder

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def folders(self) -> list[str]:
        """Names of the folders in it."""
        with clear_os_errors(self.folder, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(one.name for one in os.scandir(self.folder) if one.is_dir() and not one.name.startswith("."))
        return []

    def find(self, folder: str) -> list[str]:
        """Names of all files in a folder and below it; nothing else that has a name there."""
        found: list[str] = []
        with clear_os_errors(self.folder / folder, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for one in os.scandir(self.folder / folder):
                name = f"{folder}/{one.name}" if folder else one.name
                if one.is_dir(follow_symlinks=False):
                    found.extend(self.find(name))
                # A link that leads nowhere would look like a file that a compaction removed, a pipe would be waited for.
                elif one.is_file():
                    found.append(name)
        return found

    def open(self, name: str) -> pa.NativeFile:
        """A file to read at random places."""
        try:
            return pa.OSFile(str(self.folder / name))
        except FileNotFoundError as error:
            raise VanishedError(f"{self.folder / name} is not there any more") from error
        except OSError as error:
            raise StoreError(f"cannot read {self.folder / name}: {error.strerror or error}") from error

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write whole files: all on disk before the first gets its name."""
        commit_files([(self.folder / name, content) for name, content in files])

    @contextlib.contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        """A hidden file beside what it will become."""
        # Beside its final name, so that publishing it is a rename.
        path = self.folder / folder / f".{new_stamp()}-{os.getpid()}-{os.urandom(6).hex()}{TEMPORARY}"
        with clear_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with clear_os_errors(path):
                yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(self, scratch: Path, name: str) -> None:
        """Flush the scratch file and rename it."""
        path = self.folder / name
        with clear_os_errors(path):
            handle = os.open(scratch, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            scratch.rename(path)
            flush_folder(path.parent)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with clear_os_errors(self.folder / name, "remove"):
            (self.folder / name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        with clear_os_errors(self.folder / name, "move"):
            (self.folder / to).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).rename(self.folder / to)

    def lock_file(self, word: str) -> Path:
        """A file below `.locks`, so that all who use the folder meet."""
        return self.folder / ".locks" / f"{word}.lock"


class UrlRoot:
    """A place that fsspec reaches. Credentials and endpoints are those its package finds in the environment."""

    def __init__(self, url: str) -> None:
        """`url` as fsspec reads it; nothing is asked of the place yet.

        Raises:
            StoreError: the protocol is unknown, its package is missing, or the URL holds a password.
        """
        refuse_secrets(url)
        self.name = plain_url(url)
        self.protocol, _, place = self.name.partition("://")
        # Filesystems over others (`simplecache::s3://…`) answer from copies of their own, which do not see other writers.
        named = place.strip("/") if self.protocol == "local" else place.partition("/")[0]
        if not _PROTOCOL.fullmatch(self.protocol) or not named:
            raise StoreError(
                f"{self.name} names no place for a store; give s3://bucket/prefix, say, or a folder's path"
            )
        # What is no place of files (`dir://`, `data://`) fails in any way when a place is made of it.
        with clear_url_errors(self.name, "reach", also=(TypeError, AttributeError)):
            import fsspec

            # Listings must show what other writers did since the last one.
            self._fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._base = path.rstrip("/")

    def folders(self) -> list[str]:
        """Names of the prefixes below it."""
        with clear_url_errors(self.name, "list"):
            found = self._list(lambda: self._fs.ls(self._base, detail=True))
        names = (str(one["name"]).rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory")
        return sorted(name for name in names if not name.startswith("."))

    def find(self, folder: str) -> list[str]:
        """Names of all objects below a prefix."""
        with clear_url_errors(self.name, "list"):
            found = self._list(lambda: self._fs.find(self._path(folder)))
        start = len(self._fs._strip_protocol(self._base).rstrip("/")) + 1
        return [str(path)[start:] for path in found]

    def open(self, name: str) -> pa.NativeFile:
        """An object to read at random places."""
        shown = f"{self.name}/{name}"
        with clear_url_errors(shown, "read", missing=VanishedError):
            return pa.PythonFile(_Told(self._fs.open(self._path(name), "rb"), shown), mode="r")

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write whole objects, one after the other."""
        for name, content in files:
            self._put(name, partial(self._write_object, content))

    @contextlib.contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:  # noqa: ARG002 - where it will lie matters to folders only
        """A file in a temporary folder of this machine."""
        with clear_os_errors(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="kernelcast-") as made:
            yield Path(made) / "scratch"

    def publish(self, scratch: Path, name: str) -> None:
        """Upload the scratch file as one object."""
        # A large file goes up in parts, which show as one object when the last is acknowledged.
        self._put(name, partial(self._fs.put_file, str(scratch)))

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""
        with clear_url_errors(f"{self.name}/{name}", "remove"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def move(self, name: str, to: str) -> None:
        """Copy an object to its new name, then remove the old one."""
        with clear_url_errors(f"{self.name}/{name}", "move"):
            # Object stores cannot rename; a copy that is complete and the removal of the first come to the same.
            self._fs.cp_file(self._path(name), self._path(to))
            self._fs.rm_file(self._path(name))

    def lock_file(self, word: str) -> Path:
        """A file below `KERNELCAST_HOME/locks`, named after the root."""
        place = re.sub(r"[^A-Za-z0-9._+-]+", "-", self.name)[:80]
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:12]
        return home_dir() / "locks" / f"{place}-{digest}" / f"{word}.lock"

    def _write_object(self, content: bytes, path: str) -> None:
        self._fs.pipe_file(path, content)

    def _put(self, name: str, put: Callable[[str], Any]) -> None:
        """Have `put` write a file where it is whole or not there."""
        with clear_url_errors(f"{self.name}/{name}", "write"):
            path = self._path(name)
            if self.protocol in WHOLE_OBJECTS:
                put(path)
                return
            folder, _, last = path.rpartition("/")
            beside = f"{folder}/.{last}.{os.urandom(4).hex()}{TEMPORARY}"
            self._fs.makedirs(folder, exist_ok=True)
            put(beside)
            self._fs.mv(beside, path)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _list(self, ask: Any) -> Any:
        try:
            return ask()
        except FileNotFoundError:
            # A prefix nobody wrote to yet has no rows; a bucket that does not exist is a mistake of whoever named it.
            self._fs.invalidate_cache()
            bucket = self._base.partition("/")[0]
            if self.protocol in WHOLE_OBJECTS - {"memory"} and not self._fs.exists(bucket):
                raise
            return []


class _Told:
    """An open file of fsspec whose reads fail as the store's errors do: Parquet must not take a lost network for damage."""

    def __init__(self, file: Any, shown: str) -> None:
        self._file, self._shown = file, shown

    def read(self, count: int = -1) -> Any:
        with clear_url_errors(self._shown, "read", missing=VanishedError):
            return self._file.read(count)

    def seek(self, place: int, whence: int = 0) -> Any:
        with clear_url_errors(self._shown, "read", missing=VanishedError):
            return self._file.seek(place, whence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
