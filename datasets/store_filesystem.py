"""The files of a store as a read-only filesystem of fsspec, for readers such as DuckDB that take one; imports fsspec."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from .queries import PROTOCOL
from .roots import Root


class StoreFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files by their name below the store's root: `kernelcast://family=gemm/device=…`. Nothing else can be reached by it."""

    protocol = PROTOCOL
    # One per store and query: instances are not to be shared by their arguments.
    cachable = False

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root
        self._sizes: dict[str, int] = {}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> SharedFile:
        if mode != "rb":
            raise PermissionError(f"{path}: a query only reads")
        return SharedFile(lambda: self._root.open(path), self.info(path)["size"])

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - all the same
        """When a file last changed: stored files never do."""
        return datetime.fromtimestamp(0, UTC)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size in bytes and kind of a file; asked often, and asked of the store once."""
        name = self._strip_protocol(path)
        if name not in self._sizes:
            with self._root.open(name) as file:
                self._sizes[name] = file.size()
        return {"name": name, "size": self._sizes[name], "type": "file"}


class SharedFile(io.RawIOBase):
    """A file that several threads read at once, each with a position of its own.

    DuckDB gives all its threads one file and seeks before it reads: with one position for all, a thread would read where
    another has just gone.
    """

    def __init__(self, open_file: Callable[[], pa.NativeFile], size: int) -> None:
        """`open_file` is called when something is read first: DuckDB opens many files only to ask for their size."""
        super().__init__()
        self._open_file, self._size, self._own = open_file, size, threading.local()
        self._file: pa.NativeFile | None = None
        self._lock = threading.Lock()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the thread that asks."""
        return getattr(self._own, "at", 0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position of the thread that asks."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._own.at = max(0, start + offset)
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        """Bytes from there on: as many as asked for unless the file ends before."""
        at = self.tell()
        wanted = max(0, self._size - at) if size < 0 else min(size, max(0, self._size - at))
        parts = []
        file = self._opened()
        while wanted and (part := file.read_at(wanted, at)):
            parts.append(part)
            at, wanted = at + len(part), wanted - len(part)
        self._own.at = at
        return b"".join(parts)

    def close(self) -> None:
        """Close the file, for all threads."""
        if self._file is not None:
            self._file.close()
        super().close()

    def _opened(self) -> pa.NativeFile:
        with self._lock:
            if self._file is None:
                self._file = self._open_file()
            return self._file
