"""SQL over a store, by DuckDB: one view per family, and `measurements` over the columns all families share.

with open_query(Store()) as query:
    for batch in query.ask("SELECT device, median(latency_s) FROM gemm GROUP BY device").batches:
        ...

What a person's SQL may do is bounded four times: only a single SELECT is taken; DuckDB may open no file but those of the store,
listed one by one; no extension is loaded; the configuration is locked. Memory is bounded too: beyond it DuckDB spills to a
temporary folder.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..features.errors import SpecError, listed
from ..features.kernel import families
from .committing import StoreError, StoreWarning
from .files import provenance_in, reading, version_in
from .roots import LocalRoot
from .schema import arrow_schema
from .software import software_of
from .store import Store

if TYPE_CHECKING:
    import duckdb

PROTOCOL = "kernelcast"
"""Of addresses that DuckDB reads through the store's root, see `store_filesystem`."""
SHARED = "measurements"
"""The view over all families."""
MEMORY_B = 4e9
LEAST_MEMORY_B, MOST_MEMORY_B = 100e6, 1e15
BATCH_ROWS = 2**16

_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
_CLOSED = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""DuckDB loads nothing by itself and does not look at variables of this program."""
_READERS = 8
"""Footers read at once: on an object store each waits for the network."""
_PATIENCE_S = 0.1
_NOTHING_WRITTEN = "a query only reads: give one SELECT (also WITH, FROM, DESCRIBE, SUMMARIZE)"


def shared_columns() -> list[str]:
    """Columns that the tables of all families have, in order."""
    schemas = [arrow_schema(name).names for name in families()]
    return [name for name in schemas[0] if all(name in names for names in schemas)]


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as they are computed, batch by batch; taking the next one raises what `StoreQuery.ask` does."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def table(self) -> pa.Table:
        """All of it in memory."""
        return pa.Table.from_batches(self.batches, self.schema)


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A store open for questions; `views` are the columns of every view."""

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
        if not self.views:
            raise SpecError(f"no rows in {self.root_name}; measure some with `kernelcast collect`", field="store")
        with self.clear_errors(sql):
            self._check(sql)
            reader = self._interruptible(lambda: self._connection.sql(sql).to_arrow_reader(batch_rows))
        names = _told_apart(reader.schema.names)
        schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
        return Answer(schema, self._guarded(reader, schema, sql))

    def _check(self, sql: str) -> None:
        import duckdb

        statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            given = "no statement was" if not statements else f"{len(statements)} statements were"
            raise SpecError(f"{given} given; {_NOTHING_WRITTEN}", field="sql")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = str(statements[0].type).rpartition(".")[2].replace("_", " ")
            raise SpecError(f"{kind} is not possible here; {_NOTHING_WRITTEN}", field="sql")

    def _guarded(self, reader: pa.RecordBatchReader, schema: pa.Schema, sql: str) -> Iterator[pa.RecordBatch]:
        with self.clear_errors(sql):
            while (batch := self._interruptible(lambda: next(reader, None))) is not None:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _interruptible(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, done in a thread beside: DuckDB does not look for Ctrl-C, so the thread that waits does."""
        future = self._thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            # Again and again: one that comes before DuckDB has begun is lost.
            while wait([future], timeout=_PATIENCE_S).not_done:
                self._connection.interrupt()
            raise

    @contextlib.contextmanager
    def clear_errors(self, sql: str) -> Iterator[None]:
        """Turn what DuckDB says into one sentence: what is wrong with `sql`, and what there is."""
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException) as error:
            raise SpecError(_said(error, sql, self), field="sql") from error


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
        yield StoreQuery(views, store.root_name, addresses, connection, stack.enter_context(ThreadPoolExecutor(1)))


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file says of itself: where DuckDB finds it, its columns, and its blocks' software where rows do not say it."""

    address: str
    columns: frozenset[str]
    software: Mapping[str, str]


def _footers(store: Store, family: str) -> list[_Footer]:
    """Of every file of a family that can be read; a `StoreWarning` names the others."""

    def footer(name: str) -> _Footer | StoreError:
        shown = f"{store.root_name}/{name}"
        try:
            with store.place.open(name) as source, reading(shown), pq.ParquetFile(source) as file:
                schema = file.schema_arrow
                version_in(schema.metadata, shown)
        except StoreError as error:
            return error
        known = {} if "software" in schema.names else provenance_in(schema.metadata)
        of_block = {block: software_of(facts) for block, facts in known.items()}
        return _Footer(
            _address(store, name), frozenset(schema.names), {b: word for b, word in of_block.items() if word}
        )

    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(footer, store.names(family)))
    for error in found:
        if isinstance(error, StoreError):
            warnings.warn(f"skipped a file, the others are read: {error}", StoreWarning, stacklevel=4)
    return [one for one in found if isinstance(one, _Footer)]


def _address(store: Store, name: str) -> str:
    """Where DuckDB finds a file: itself in a folder of this machine, which is fastest; else through the store's own root."""
    if isinstance(store.place, LocalRoot):
        path = str((store.place.folder / name).absolute())
        # DuckDB would take these for a pattern.
        if not set("*?[") & set(path):
            return path
    return f"{PROTOCOL}://{name}"


def _make_views(
    connection: duckdb.DuckDBPyConnection, store: Store
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    found = {family: _footers(store, family) for family in store.families()}
    footers = {family: rows for family, rows in found.items() if rows}
    addresses = tuple(one.address for rows in footers.values() for one in rows)
    if any(address.startswith(f"{PROTOCOL}://") for address in addresses):
        from .store_filesystem import StoreFiles

        connection.register_filesystem(StoreFiles(store.place))
    # Stored files never change; without this every query reads every footer anew.
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET allowed_paths = $paths", {"paths": list(addresses)})
    connection.execute("SET enable_external_access = false")
    known = {block: word for rows in footers.values() for one in rows for block, word in one.software.items()}
    blocks = pa.table({"block": pa.array(known, pa.string()), "software": pa.array(known.values(), pa.string())})
    connection.register("given", blocks)
    connection.execute("CREATE TABLE software_of_block AS SELECT * FROM given")
    connection.unregister("given")
    views = {}
    for family, rows in footers.items():
        connection.execute(f"CREATE VIEW {_quoted(family)} AS {_family_select(family, rows)}")
        views[family] = tuple(arrow_schema(family).names)
    if views:
        shared = ", ".join(map(_quoted, shared_columns()))
        every = " UNION ALL ".join(f"SELECT {shared} FROM {_quoted(family)}" for family in views)  # noqa: S608 - names of ours
        connection.execute(f"CREATE VIEW {SHARED} AS {every}")
        views[SHARED] = tuple(shared_columns())
    connection.execute("SET lock_configuration = true")
    return views, addresses


def _family_select(family: str, footers: Sequence[_Footer]) -> str:
    """Rows as the newest format has them: what files lack is null, `software` of older ones comes from their blocks."""
    newer = [one for one in footers if "software" in one.columns]
    older = [one for one in footers if "software" not in one.columns]
    parts = [
        _files_select(family, part, software)
        for part, software in ((newer, "f.software"), (older, "b.software"))
        if part
    ]
    return " UNION ALL ".join(parts)


def _files_select(family: str, footers: Sequence[_Footer], software: str) -> str:
    present = frozenset[str]().union(*(one.columns for one in footers))
    columns = []
    for field in arrow_schema(family):
        given = f"f.{_quoted(field.name)}" if field.name in present else "NULL"
        value = software if field.name == "software" else given
        columns.append(f"CAST({value} AS {_TYPES[field.type]}) AS {_quoted(field.name)}")
    files = ", ".join("'" + one.address.replace("'", "''") + "'" for one in footers)
    source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false) AS f"
    join = " LEFT JOIN software_of_block AS b ON f.block = b.block" if software == "b.software" else ""
    return f"SELECT {', '.join(columns)} FROM {source}{join}"  # noqa: S608 - names of ours, addresses quoted


def _told_apart(names: Sequence[str]) -> list[str]:
    """Columns of a join can have one name twice: the second `m` becomes `m_1`, as objects and files need names of their own."""
    found: list[str] = []
    for name in names:
        one, number = name, 0
        while one in found or (number and one in names):
            number += 1
            one = f"{name}_{number}"
        found.append(one)
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _said(error: Exception, sql: str, query: StoreQuery) -> str:
    """DuckDB's first line without its own words for kinds of errors, and what is possible."""
    import duckdb

    views = query.views
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    said = re.sub(r"^(?:[A-Z][A-Za-z]* )+Error: ", "", first).rstrip(".!")
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more memory than it may use ({said}); raise --memory, or aggregate or LIMIT earlier"
    if isinstance(error, duckdb.IOException) or any(address in said for address in query._addresses):
        return f"the store changed or cannot be read ({said}); ask again, or see `kernelcast data verify`"
    if isinstance(error, duckdb.PermissionException):
        return f"a query sees the store and nothing else ({said}); views: {listed(views)}"
    named = [view for view in views if re.search(rf"\b{view}\b", sql)]
    if isinstance(error, duckdb.BinderException) and named:
        return f"{said}; " + "; ".join(f"columns of {view}: {listed(views[view])}" for view in named)
    return f"{said}; views: {listed(views)}"
