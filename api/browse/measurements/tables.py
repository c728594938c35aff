"""The measured rows a server answers from, in memory as Arrow: the shipped tables and the user's own store.

Runs in the child process only (`reader_child.py`): the server itself never imports pyarrow. Shipped tables are read once; the
store is looked at before every question, and only files that are new are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ....datasets.shipped import SHIPPED_DIR, TILES_DIR, dataset_card, shipped_families
from ....datasets.store.errors import StoreError
from ....datasets.store.parquet_files import family_schema, file_metadata, provenance_of, read_file
from ....datasets.store.store import Store
from ....features.kernel import families
from .answer import NONE_WORD, SHIPPED, STORE, TILES, MeasuredCard, MeasuredSet

TITLES: Mapping[str, str] = {
    SHIPPED: "Kernels measured by kernelcast",
    TILES: "Tile configurations measured by kernelcast",
    STORE: "Your own measurements",
}
CODED = ("family", "device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "status", "energy_source", "energy_mode",
         "throttle", "source", "split", "block", "software")  # fmt: skip
"""Text columns with few distinct values, held as codes into a dictionary."""

_EMPTY = "No rows yet: `kernelcast collect` measures this machine, `kernelcast import` takes measurements you have."
_Signature = tuple[str, int, int]


@dataclass(slots=True)
class RowSet:
    """One set of measured rows.

    Attributes:
        name: Its name, one of `answer.SETS`.
        tables: A table per family, with the columns of `datasets.schema.arrow_schema`.
        cards: Its cards.
        notes: Files that could not be read, and why.
    """

    name: str
    tables: dict[str, pa.Table] = field(default_factory=dict)
    cards: list[MeasuredCard] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> MeasuredSet:
        """What is in it. The store's card is written when it is first asked for: counting a million rows takes seconds."""
        if self.name == STORE and self.tables and not self.cards:
            text = dataset_card(
                TITLES[STORE], self.tables, what="Rows of the store this server was started with.",
                licence="Whatever you decide: these rows are yours.", gaps=[f"Not read: {note}" for note in self.notes],
            )  # fmt: skip
            self.cards.append(MeasuredCard(TITLES[STORE], text))
        rows = sum(table.num_rows for table in self.tables.values())
        column = partial(distinct, self.tables.values())
        notes = self.notes if rows or self.notes else [_EMPTY]
        return MeasuredSet(
            self.name, TITLES[self.name], rows, sorted(self.tables), column("device"), column("dtype"), column("impl"),
            column("variant"), column("status"), self.cards, notes,
        )  # fmt: skip


class MeasuredTables:
    """All sets by name, the store's as it is now."""

    def __init__(self, store: Path | None = None) -> None:
        """`store` is the folder of the store, default the user's."""
        self._store = Store(store)
        self._shipped = [_folder(SHIPPED, SHIPPED_DIR), _folder(TILES, TILES_DIR)]
        self._files: dict[_Signature, pa.Table | str] = {}
        self._user_rows = RowSet(STORE)
        self._listed: list[_Signature] | None = None

    def sets(self) -> list[RowSet]:
        """Every set, in the order they are listed."""
        files = list(_signatures(self._store.files()))
        if files != self._listed:
            self._user_rows = self._read(files)
            self._listed = files
        return [*self._shipped, self._user_rows]

    def _read(self, files: list[_Signature]) -> RowSet:
        rows = RowSet(STORE)
        parts: dict[str, list[pa.Table]] = {}
        # Tables of files that were compacted or removed are dropped.
        self._files = {file: self._files[file] if file in self._files else self._table(file[0]) for file in files}
        for (path, _, _), table in self._files.items():
            if isinstance(table, str):
                rows.notes.append(table)
            else:
                parts.setdefault(_family_of(Path(path)), []).append(table)
        for family, tables in sorted(parts.items()):
            facts = {block: about for table in tables for block, about in provenance_of(table).items()}
            plain = [table.replace_schema_metadata(None) for table in tables]
            joined = pa.concat_tables(plain).unify_dictionaries().combine_chunks()
            rows.tables[family] = joined.replace_schema_metadata(file_metadata(facts))
        return rows

    def _table(self, path: str) -> pa.Table | str:
        family = _family_of(Path(path))
        if family not in families():
            return f"{self._shown(path)} is of the family {family!r}, which this kernelcast does not know"
        try:
            return _coded(Path(path), family)
        except StoreError as error:
            return self._shown(str(error))

    def _shown(self, text: str) -> str:
        """The text with files named as they lie in the store; where the store is on this machine is not for a client."""
        return text.replace(f"{self._store.root}/", "")


def distinct(tables: Iterable[pa.Table], column: str) -> list[str]:
    """Every value of a text column, sorted; `none` stands for the empty one and for null."""
    return sorted({value or NONE_WORD for table in tables for value in pc.unique(table[column]).to_pylist()})


def columns_of(family: str) -> list[str]:
    """Columns of one family's rows, in order.

    Raises:
        SpecError: unknown family.
    """
    return list(family_schema(family).names)


def _folder(name: str, folder: Path) -> RowSet:
    rows = RowSet(name)
    for family in shipped_families(folder):
        try:
            rows.tables[family] = _coded(folder / f"{family}.parquet", family)
        except StoreError as error:
            rows.notes.append(str(error).replace(f"{folder}/", ""))
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        rows.cards.append(MeasuredCard(text.partition("\n")[0].removeprefix("# "), text))
    return rows


def _coded(path: Path, family: str) -> pa.Table:
    """A file's rows, `CODED` columns as dictionaries.

    Raises:
        StoreError: it is damaged.
    """
    table = read_file(path, family_schema(family))
    try:
        # Text that is not UTF-8 would only be found when somebody asks for its row.
        table.validate(full=True)
        for place, name in enumerate(table.column_names):
            if name in CODED:
                table = table.set_column(place, name, table[name].combine_chunks().dictionary_encode())
    except pa.ArrowException as error:
        raise StoreError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    return table.combine_chunks()


def _family_of(path: Path) -> str:
    return path.parent.parent.name.removeprefix("family=")


def _signatures(paths: Iterable[Path]) -> Iterable[_Signature]:
    for path in paths:
        try:
            state = path.stat()
        except FileNotFoundError:  # removed since the folder was listed
            continue
        yield str(path), state.st_mtime_ns, state.st_size
