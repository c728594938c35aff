"""Where a store lies: a folder of this machine, or whatever fsspec reaches by a URL (`s3://bucket/prefix`, `memory://name`).

Files are named by their path below the location, with slashes. Both kinds list, read whole files or parts of them, and write
files that are either complete or not there: a folder by temporary name, flush and rename; an object store by one atomic PUT.

What a store holds is read from the names of its files; no file is opened to list them:

    family=gemm/device=nvidia-h200/20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.parquet

A name says when the file was written and carries a digest of its content, so that damage shows without a list beside the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...files import TEMPORARY, home_dir, write_together
from .errors import (
    FormatError,
    MissingFileError,
    StoreError,
    clear_os_errors,
    clear_url_errors,
    os_error,
    plain_url,
    refuse_secrets,
)

WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"})
"""Protocols that show an object only when all of it is there. On others a file is written beside and then moved."""

_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def location_of(root: str | Path | None) -> Location:
    """The location a person names: a folder, a URL, or None for `KERNELCAST_HOME/measurements`.

    Raises:
        StoreError: an unknown protocol, a missing package, a password in the URL, or a file where a folder should be.
    """
    if root is None:
        return LocalLocation(home_dir() / "measurements")
    if isinstance(root, str) and "://" in root:
        protocol, _, path = root.partition("://")
        if protocol != "file":
            return UrlLocation(root)
        if not path.startswith("/"):
            raise StoreError(f"{root!r} names no folder: give file:// and a path that starts with /")
        root = path
    if any(str(root).startswith(f"{protocol}:/") for protocol in WHOLE_OBJECTS):
        raise StoreError(f"{root} is a URL that was made a path, which takes a slash out of it; give it as text")
    if not str(root) or "\0" in str(root):
        raise StoreError(f"{str(root)!r} names no folder; give the path of one, or a URL")
    try:
        folder = Path(root).expanduser()
    except RuntimeError as error:
        raise StoreError(f"{root} names no folder: this machine has no such user") from error
    if folder.is_file():
        raise StoreError(f"{folder} is a file; a store is a folder or a URL")
    return LocalLocation(folder)


def commit_files(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write files of this machine: all are on disk before the first gets its name.

    Raises:
        StoreError: the disk is full or not writable; nothing is left of files that have no name yet.
    """
    try:
        write_together(files)
    except OSError as error:
        raise os_error(error.filename or files[0][0], error) from error


class LocalLocation:
    """A folder of this machine; needs no fsspec."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not be there yet."""
        self.folder = folder

    @property
    def name(self) -> str:
        """The place as messages show it."""
        return str(self.folder)

    def folders(self) -> list[str]:
        """Names of the folders right in it, hidden ones left out; empty where nothing is there."""
        with clear_os_errors(self.folder, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(
                entry.name for entry in os.scandir(self.folder) if entry.is_dir() and not entry.name.startswith(".")
            )
        return []

    def find(self, folder: str) -> list[str]:
        """Names of all files in a folder and below it, hidden and temporary ones too; nothing else that has a name there."""
        names: list[str] = []
        with clear_os_errors(self.folder / folder, "read"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.folder / folder):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    names.extend(self.find(name))
                # A link that leads nowhere could not be read, a pipe would be waited for.
                elif entry.is_file():
                    names.append(name)
        return names

    def open(self, name: str) -> pa.NativeFile:
        """A file to read at random places.

        Raises:
            MissingFileError: there is no such file.
        """
        try:
            return pa.OSFile(str(self.folder / name))
        except FileNotFoundError as error:
            raise MissingFileError(f"{self.folder / name} is not there any more") from error
        except OSError as error:
            raise StoreError(f"cannot read {self.folder / name}: {error.strerror or error}") from error

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write whole files: all on disk before the first gets its name."""
        commit_files([(self.folder / name, content) for name, content in files])

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        with clear_os_errors(self.folder / name, "move"):
            (self.folder / to).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).rename(self.folder / to)

    def lock_file(self, name: str) -> Path:
        """A file below `.locks`, so that all who use the folder meet."""
        return self.folder / ".locks" / f"{name}.lock"


class UrlLocation:
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
            entries = self._listed(lambda: self._fs.ls(self._base, detail=True))
        names = (str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")
        return sorted(name for name in names if not name.startswith("."))

    def find(self, folder: str) -> list[str]:
        """Names of all objects below a prefix."""
        with clear_url_errors(self.name, "list"):
            paths = self._listed(lambda: self._fs.find(self._path(folder)))
        start = len(self._fs._strip_protocol(self._base).rstrip("/")) + 1
        return [str(path)[start:] for path in paths]

    def open(self, name: str) -> pa.NativeFile:
        """An object to read at random places."""
        shown = f"{self.name}/{name}"
        with clear_url_errors(shown, "read", missing=MissingFileError):
            return pa.PythonFile(_ClearErrors(self._fs.open(self._path(name), "rb"), shown), mode="r")

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write whole objects, one after the other."""
        for name, content in files:
            with clear_url_errors(f"{self.name}/{name}", "write"):
                path = self._path(name)
                if self.protocol in WHOLE_OBJECTS:
                    self._fs.pipe_file(path, content)
                    continue
                folder, _, last = path.rpartition("/")
                beside = f"{folder}/.{last}.{os.urandom(4).hex()}{TEMPORARY}"
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.pipe_file(beside, content)
                self._fs.mv(beside, path)

    def move(self, name: str, to: str) -> None:
        """Copy an object to its new name, then remove the old one."""
        with clear_url_errors(f"{self.name}/{name}", "move"):
            # Object stores cannot rename; a copy that is complete and the removal of the first come to the same.
            self._fs.cp_file(self._path(name), self._path(to))
            self._fs.rm_file(self._path(name))

    def lock_file(self, name: str) -> Path:
        """A file below `KERNELCAST_HOME/locks`, named after the root."""
        place = re.sub(r"[^A-Za-z0-9._+-]+", "-", self.name)[:80]
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:12]
        return home_dir() / "locks" / f"{place}-{digest}" / f"{name}.lock"

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _listed(self, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except FileNotFoundError:
            # A prefix nobody wrote to yet has no rows; a bucket that does not exist is a mistake of whoever named it.
            self._fs.invalidate_cache()
            bucket = self._base.partition("/")[0]
            if self.protocol in WHOLE_OBJECTS - {"memory"} and not self._fs.exists(bucket):
                raise
            return []


class _ClearErrors:
    """An open file of fsspec whose reads fail as the store's errors do: Parquet must not take a lost network for damage."""

    def __init__(self, file: Any, shown: str) -> None:
        self._file, self._shown = file, shown

    def read(self, count: int = -1) -> Any:
        with clear_url_errors(self._shown, "read", missing=MissingFileError):
            return self._file.read(count)

    def seek(self, offset: int, whence: int = 0) -> Any:
        with clear_url_errors(self._shown, "read", missing=MissingFileError):
            return self._file.seek(offset, whence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


Location = LocalLocation | UrlLocation
"""Where a store lies. Every method raises a `StoreError` where the place cannot be reached."""

ROWS = ".parquet"
DIGEST_DIGITS = 32
"""128 bits of SHA-256: no two files meet by accident, and a name stays short enough for every filesystem."""

_NAME = re.compile(rf"\d{{8}}T\d{{6}}\.\d{{6}}Z-(?P<digest>[0-9a-f]{{{DIGEST_DIGITS}}})-[0-9a-f]{{8}}{re.escape(ROWS)}")
_PACKED = (".packed.parquet", ".blocks.parquet", ".replaces.json")
"""Ends of names that an earlier kernelcast gave to files it packed in place; they stand for other files of the folder."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one family on one device.

    Attributes:
        name: The folder's name below the location.
        family: Name of the kernel family.
        device: Name of the device.
        files: Names of the files below the location, in the order they were stored.
    """

    name: str
    family: str
    device: str
    files: tuple[str, ...]


def folder_name(family: str, device: str) -> str:
    """Where rows of a family on a device lie below the location."""
    return f"family={family}/device={device}"


def digest_of(chunks: Iterable[bytes]) -> str:
    """The digest of a file's content, as names carry it."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:DIGEST_DIGITS]


def new_name(digest: str, *, stamp: str | None = None) -> str:
    """A name no other file has, of now or as old as `stamp` says; later ones sort after earlier ones.

    Two collectors that store equal rows in the same microsecond still get two.
    """
    return f"{stamp or datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}-{digest}-{os.urandom(4).hex()}{ROWS}"


def digest_in(name: str) -> str | None:
    """The digest that the last part of `name` carries; None for names without one."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return match["digest"] if match else None


def list_families(location: Location) -> list[str]:
    """Families that have a folder, sorted."""
    return [name.removeprefix("family=") for name in location.folders() if name.startswith("family=")]


def list_folders(location: Location, family: str = "*", device: str = "*") -> list[Folder]:
    """Folders with files of rows, sorted by family and device; `*` stands for all.

    Raises:
        FormatError: a folder was packed in place by an earlier kernelcast, so that its files must not be read one by one.
    """
    folders = []
    for name in list_families(location) if family == "*" else [family]:
        for folder, files in _files_by_folder(location, name, device).items():
            packed = next((file for file in files if file.endswith(_PACKED)), None)
            if packed is not None:
                raise FormatError(
                    f"{location.name}/{folder}/{packed} was packed in place by an earlier kernelcast, which this one does not "
                    "read; write the rows with the one that packed them (`kernelcast data export --format form --out DIR`) "
                    "and bring them into a new store with `kernelcast data import DIR/*`"
                )
            rows = sorted(f"{folder}/{file}" for file in files if file.endswith(ROWS) and not file.startswith("."))
            if rows:
                folders.append(Folder(folder, name, folder.rpartition("device=")[2], tuple(rows)))
    return folders


def list_leftovers(location: Location) -> list[str]:
    """Names of files that writers left unfinished when they were killed."""
    return sorted(
        f"{folder}/{file}"
        for family in list_families(location)
        for folder, files in _files_by_folder(location, family, "*").items()
        for file in files
        if file.endswith(TEMPORARY)
    )


def _files_by_folder(location: Location, family: str, device: str) -> dict[str, list[str]]:
    """Names of all files right in each folder of a family, by folder; folders inside them are none of the store's."""
    below = f"family={family}" if device == "*" else folder_name(family, device)
    files: dict[str, list[str]] = {}
    for path in location.find(below):
        folder, _, name = path.rpartition("/")
        if folder.count("/") == 1 and folder.partition("/")[2].startswith("device="):
            files.setdefault(folder, []).append(name)
    return dict(sorted(files.items()))
