"""SQL over a store, by DuckDB: one view per family, and `measurements` over the columns all families share.

with open_query(Store()) as query:
    for batch in query.ask("SELECT device, median(latency_s) FROM gemm GROUP BY device").batches:
        ...

Only a single SELECT is taken, DuckDB may open no file but those of the store, and its configuration is locked. Beyond its
memory limit it writes to a temporary folder.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...features.errors import SpecError, listed
from ...features.kernel import families
from ..rows.schema import arrow_schema
from .errors import StoreError, StoreWarning
from .location import LocalLocation, Location
from .parquet_files import BATCH_ROWS, check_format, reading
from .store import Store

if TYPE_CHECKING:
    import duckdb

PROTOCOL = "kernelcast"
"""Of addresses that DuckDB reads through the store's location, see `_store_filesystem`."""
SHARED = "measurements"
"""The view over all families."""
MEMORY_B = 4e9
LEAST_MEMORY_B, MOST_MEMORY_B = 100e6, 1e15

_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
_CLOSED = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""DuckDB loads nothing by itself and does not look at variables of this program."""
_READERS = 8
"""Footers read at once: on an object store each waits for the network."""
_INTERRUPT_EVERY_S = 0.1
_ONE_SELECT = "a query only reads: give one SELECT (also WITH, FROM, DESCRIBE, SUMMARIZE)"


def shared_columns() -> list[str]:
    """Columns that the tables of all families have, in order."""
    schemas = [arrow_schema(name).names for name in families()]
    return [name for name in schemas[0] if all(name in names for names in schemas)]


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as they are computed; taking the next batch raises what `StoreQuery.ask` does.

    Attributes:
        schema: Columns and types.
        batches: The rows, batch by batch.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def table(self) -> pa.Table:
        """All of it in memory."""
        return pa.Table.from_batches(self.batches, self.schema)


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A store open for questions.

    Attributes:
        views: Columns by view.
        root_name: The store as messages show it.
        _addresses: Where DuckDB finds the files.
        _connection: The DuckDB that answers.
        _thread: The thread DuckDB works in.
    """

    views: Mapping[str, tuple[str, ...]]
    root_name: str
    _addresses: tuple[str, ...]
    _connection: duckdb.DuckDBPyConnection
    _thread: ThreadPoolExecutor

    def ask(self, sql: str, batch_rows: int = BATCH_ROWS) -> Answer:
        """The answer to one SELECT. Ask the next one when it was read to its end.

        Raises:
            SpecError: it is no single SELECT, names what is not there, reads anything but the store, or needs more memory.
        """
        import duckdb

        if not self.views:
            raise SpecError(f"no rows in {self.root_name}; measure some with `kernelcast measure cpu`", field="store")
        with self._clear_errors(sql):
            statements = self._connection.extract_statements(sql)
            if len(statements) != 1:
                count = "no statement was" if not statements else f"{len(statements)} statements were"
                raise SpecError(f"{count} given; {_ONE_SELECT}", field="sql")
            if statements[0].type != duckdb.StatementType.SELECT:
                kind = str(statements[0].type).rpartition(".")[2].replace("_", " ")
                raise SpecError(f"{kind} is not possible here; {_ONE_SELECT}", field="sql")
            reader = self._interruptible(lambda: self._connection.sql(sql).to_arrow_reader(batch_rows))
        names = _distinct_names(reader.schema.names)
        schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
        return Answer(schema, self._batches(reader, schema, sql))

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema, sql: str) -> Iterator[pa.RecordBatch]:
        with self._clear_errors(sql):
            while (batch := self._interruptible(lambda: next(reader, None))) is not None:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _interruptible(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, done in a thread beside: DuckDB does not look for Ctrl-C, so the thread that waits does."""
        future = self._thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            # Again and again: an interrupt that comes before DuckDB has begun is lost.
            while wait([future], timeout=_INTERRUPT_EVERY_S).not_done:
                self._connection.interrupt()
            raise

    @contextlib.contextmanager
    def _clear_errors(self, sql: str) -> Iterator[None]:
        """Turn what DuckDB says into one sentence: what is wrong with `sql`, and what there is."""
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException) as error:
            raise SpecError(_message(error, sql, self), field="sql") from error


@contextlib.contextmanager
def open_query(store: Store, *, memory_b: float = MEMORY_B, spill: Path | None = None) -> Iterator[StoreQuery]:
    """The store's views in a DuckDB of this process, which is gone afterwards.

    Args:
        store: what to read; files committed later are not seen.
        memory_b: bytes DuckDB may hold; beyond them it writes to disk.
        spill: folder for what does not fit; default: the system's temporary folder.

    Raises:
        SpecError: too little memory for any query, or no such folder.
        ImportError: DuckDB is not installed.
    """
    import duckdb

    if not memory_b >= LEAST_MEMORY_B:
        raise SpecError(f"{memory_b / 1e9:g} GB is too little memory for a query; give 0.1 or more", field="memory")
    if memory_b > MOST_MEMORY_B:
        raise SpecError(f"{memory_b / 1e9:g} GB is more memory than any machine has", field="memory")
    if spill is not None and not spill.is_dir():
        raise SpecError(f"{spill} is no folder; name one with room for what does not fit in memory", field="spill")
    with contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="kernelcast-query-", dir=spill, ignore_cleanup_errors=True)
        options: dict[str, Any] = {"memory_limit": f"{int(memory_b)}B", "temp_directory": stack.enter_context(scratch)}
        connection = stack.enter_context(duckdb.connect(":memory:", config=options | _CLOSED))
        # A question that was not read to its end may never end by itself, and closing waits for it.
        stack.callback(connection.interrupt)
        views, addresses = _make_views(connection, store)
        yield StoreQuery(views, store.location.name, addresses, connection, stack.enter_context(ThreadPoolExecutor(1)))


def _make_views(
    connection: duckdb.DuckDBPyConnection, store: Store
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """A view per family that has files, and one over all: the columns of each view, and the addresses of the files."""
    columns = {family: _columns_by_address(store, family) for family in store.families()}
    columns = {family: files for family, files in columns.items() if files}
    addresses = tuple(address for files in columns.values() for address in files)
    if any(address.startswith(f"{PROTOCOL}://") for address in addresses):
        connection.register_filesystem(_store_filesystem(store.location))
    # Stored files never change; without this every query reads every footer anew.
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET allowed_paths = $paths", {"paths": list(addresses)})
    connection.execute("SET enable_external_access = false")
    views = {}
    for family, files in columns.items():
        connection.execute(f"CREATE VIEW {_quoted(family)} AS {_family_select(family, files)}")
        views[family] = tuple(arrow_schema(family).names)
    if views:
        shared = ", ".join(map(_quoted, shared_columns()))
        every = " UNION ALL ".join(f"SELECT {shared} FROM {_quoted(family)}" for family in views)  # noqa: S608 - names of ours
        connection.execute(f"CREATE VIEW {SHARED} AS {every}")
        views[SHARED] = tuple(shared_columns())
    connection.execute("SET lock_configuration = true")
    return views, addresses


def _columns_by_address(store: Store, family: str) -> dict[str, frozenset[str]]:
    """Where DuckDB finds each file of a family that can be read, and its columns; a `StoreWarning` names the others."""

    def columns(name: str) -> frozenset[str] | StoreError:
        shown = f"{store.location.name}/{name}"
        try:
            with store.location.open(name) as source, reading(shown), pq.ParquetFile(source) as file:
                check_format(file.schema_arrow.metadata, shown)
                return frozenset(file.schema_arrow.names)
        except StoreError as error:
            return error

    names = store.names(family)
    with ThreadPoolExecutor(_READERS) as pool:
        footers = dict(zip(names, pool.map(columns, names), strict=True))
    for footer in footers.values():
        if isinstance(footer, StoreError):
            warnings.warn(f"skipped a file, the others are read: {footer}", StoreWarning, stacklevel=4)
    return {_address(store, name): footer for name, footer in footers.items() if not isinstance(footer, StoreError)}


def _address(store: Store, name: str) -> str:
    """Where DuckDB finds a file: in a folder of this machine by itself, which is fastest; else through the location."""
    if isinstance(store.location, LocalLocation):
        path = str((store.location.folder / name).absolute())
        # DuckDB would take these for a pattern.
        if not set("*?[") & set(path):
            return path
    return f"{PROTOCOL}://{name}"


def _family_select(family: str, files: Mapping[str, frozenset[str]]) -> str:
    """Rows with all columns of the family, null where files lack one."""
    present = frozenset[str]().union(*files.values())
    columns = [
        f"CAST({_quoted(field.name) if field.name in present else 'NULL'} AS {_TYPES[field.type]}) AS {_quoted(field.name)}"
        for field in arrow_schema(family)
    ]
    addresses = ", ".join("'" + address.replace("'", "''") + "'" for address in files)
    source = f"read_parquet([{addresses}], union_by_name = true, hive_partitioning = false)"
    return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 - names of ours, addresses quoted


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Columns of a join can have one name twice: the second `m` becomes `m_1`, as objects and files need distinct names."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in distinct or (number and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _message(error: Exception, sql: str, query: StoreQuery) -> str:
    """DuckDB's first line without its own words for kinds of errors, and what is possible."""
    import duckdb

    views = query.views
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    reason = re.sub(r"^(?:[A-Z][A-Za-z]* )+Error: ", "", first).rstrip(".!")
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more memory than it may use ({reason}); raise --memory, or aggregate or LIMIT earlier"
    if isinstance(error, duckdb.IOException) or any(address in reason for address in query._addresses):
        return f"the store changed or cannot be read ({reason}); ask again, or see `kernelcast data verify`"
    if isinstance(error, duckdb.PermissionException):
        return f"a query sees the store and nothing else ({reason}); views: {listed(views)}"
    mentioned = [view for view in views if re.search(rf"\b{view}\b", sql)]
    if isinstance(error, duckdb.BinderException) and mentioned:
        return f"{reason}; " + "; ".join(f"columns of {view}: {listed(views[view])}" for view in mentioned)
    return f"{reason}; views: {listed(views)}"


def _store_filesystem(location: Location) -> Any:
    """The files of a store as a read-only filesystem of fsspec, by their name: `kernelcast://family=gemm/device=…`."""
    from fsspec import AbstractFileSystem

    sizes: dict[str, int] = {}

    class StoreFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = PROTOCOL
        # One per store and query: instances are not to be shared by their arguments.
        cachable = False

        def _open(self, path: str, mode: str = "rb", **_: Any) -> SharedFile:
            if mode != "rb":
                raise PermissionError(f"{path}: a query only reads")
            return SharedFile(lambda: location.open(path), self.info(path)["size"])

        def modified(self, path: str) -> datetime:  # noqa: ARG002 - stored files never change
            return datetime.fromtimestamp(0, UTC)

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            name = self._strip_protocol(path)
            if name not in sizes:
                with location.open(name) as file:
                    sizes[name] = file.size()
            return {"name": name, "size": sizes[name], "type": "file"}

    return StoreFiles()


class SharedFile(io.RawIOBase):
    """A file that several threads read at once, each with a position of its own.

    DuckDB gives all its threads one file and seeks before it reads: with one position for all, a thread would read where
    another has just gone. It opens many files only to ask for their size, so the file is opened by the first read.
    """

    def __init__(self, open_file: Callable[[], pa.NativeFile], size: int) -> None:
        """`size` in bytes."""
        super().__init__()
        self._open_file, self._size, self._thread = open_file, size, threading.local()
        self._file: pa.NativeFile | None = None
        self._lock = threading.Lock()

    def tell(self) -> int:
        """The position of the calling thread."""
        return getattr(self._thread, "position", 0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position of the calling thread."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._thread.position = max(0, start + offset)
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        """Bytes from there on: `size` of them, or all, unless the file ends before."""
        position, parts = self.tell(), []
        left = max(0, self._size - position)
        wanted = left if size < 0 else min(size, left)
        with self._lock:
            if self._file is None:
                self._file = self._open_file()
        while wanted and (part := self._file.read_at(wanted, position)):
            parts.append(part)
            position, wanted = position + len(part), wanted - len(part)
        self._thread.position = position
        return b"".join(parts)

    def close(self) -> None:
        """Close the file, for all threads."""
        if self._file is not None:
            self._file.close()
        super().close()
