"""What an importer of someone else's measurements is, and how it gathers rows of the form and what it left out.

An importer turns files as another project or profiler writes them into tables of the bring-your-own form, in SI units. It
judges only what the files themselves tell; sizes, dtypes, devices and physics are judged once for all sources where the
tables are taken over (`import_source`).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ...features.batch.cases import Floats, Strings
from ...features.device import catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import discover
from ..rows.table_columns import MAX_COLUMNS, numbers, text

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""

MS = 1e-3
"""Seconds in a millisecond."""

US = 1e-6
"""Seconds in a microsecond."""

SHORT_KERNEL_S = 333e-6
"""Power of shorter kernels does not reproduce where a sensor is read every 100 ms: what aiconfigurator's tables give for one
case in two frameworks is 40 to 53 % apart below 30 µs."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know about an import.

    Attributes:
        rows: How many rows it is about.
        reason: What was done, and why.
        included: False where the rows were left out or refused; True where they are in, but part of them is missing or
            doubtful.
    """

    rows: int
    reason: str
    included: bool = False

    def __str__(self) -> str:
        return f"{self.rows} rows {'kept' if self.included else 'left out'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportedTables:
    """What an importer read.

    Attributes:
        tables: A table of the form per family.
        notes: What was left out, and what to know of the rest.
        files: How many files were read.
    """

    tables: Mapping[str, pa.Table]
    notes: tuple[Note, ...]
    files: int


@dataclass(frozen=True, slots=True)
class Importer:
    """A source of measurements in a form of its own; one file in `importers/` each.

    Attributes:
        name: What `--from` calls it.
        title: What the source is, in a few words.
        looks_like: Whether a path is one, judged quickly by names and first lines.
        read: Reads a file or folder: `read(path, device, progress)`, `device` as the user named it or None.
        names_devices: Whether the files name their devices, so that naming another is an error.
        origin: Where the source is published; empty for a tool's own output.
    """

    name: str
    title: str
    looks_like: Callable[[Path], bool]
    read: Callable[[Path, str | None, Progress], ImportedTables]
    names_devices: bool = True
    origin: str = ""


def table_importer(
    name: str,
    title: str,
    is_table: Callable[[Path], bool],
    take: Callable[[Sheet, str | None, ImportBuilder], None],
    *,
    looks_like: Callable[[Path], bool] | None = None,
    names_devices: bool = True,
    origin: str = "",
) -> Importer:
    """An importer of CSV or Parquet tables.

    Args:
        name: see `Importer`.
        title: see `Importer`.
        is_table: whether a file is a table to read.
        take: puts the rows of one table into the builder: `take(sheet, device, builder)`.
        looks_like: whether a file tells that a path is of this source; `is_table` by default.
        names_devices: see `Importer`.
        origin: see `Importer`.
    """

    def read(path: Path, device: str | None, progress: Progress) -> ImportedTables:
        builder = ImportBuilder()
        files = list(find_files(path, is_table))
        for done, file in enumerate(files):
            progress("reading tables", done, len(files))
            sheet = read_sheet(file)
            builder.files += 1
            builder.leave_out(sheet.ragged, "lines with more or fewer cells than the header")
            take(sheet, device, builder)
        progress("reading tables", len(files), len(files))
        return builder.done()

    wanted = looks_like or is_table
    return Importer(name, title, lambda path: any_file(path, wanted), read, names_devices, origin)


@cache
def importers() -> Mapping[str, Importer]:
    """Every importer by name."""
    from .. import importers as package

    return MappingProxyType(discover(package, "IMPORTER"))


def get_importer(name: str) -> Importer:
    """The importer called `name`.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    known = importers()
    if name not in known:
        raise SpecError(f"no importer {name!r}; importers: {listed(known)}", field="from")
    return known[name]


def guess_importer(path: Path) -> str | None:
    """The name of the importer a path looks like one of, None where there is none or more than one."""
    names = [name for name, importer in importers().items() if importer.looks_like(path)]
    return names[0] if len(names) == 1 else None


def agreed_device(in_file: str, named: str | None, origin: str) -> str:
    """The device a file says, or the one the user names for a file that says none or a name the catalogue does not know.

    Raises:
        SpecError: neither, or both and they are different devices.
    """
    if not in_file and not named:
        raise SpecError(f"{origin} does not say which device it is from; name it with --device", field="device")
    if not in_file or not named:
        return in_file or named or ""
    try:
        known = catalogue().get(in_file).name
    except SpecError:
        return named
    if known != catalogue().get(named).name:
        raise SpecError(f"{origin} is from {in_file}, not from {named}; leave --device out", field="device")
    return in_file


class ImportBuilder:
    """Gathers rows of the form by family, and notes by reason.

    Attributes:
        files: How many files were read.
        seen: How often rows stood in the tables read before, for sources that repeat theirs.
    """

    def __init__(self) -> None:
        self.files = 0
        self.seen: Counter[tuple[object, ...]] = Counter()
        self._parts: dict[str, list[pa.Table]] = {}
        self._notes: Counter[tuple[str, bool]] = Counter()

    def leave_out(self, rows: int, reason: str) -> None:
        """Say that rows were left out, and why; equal reasons add up."""
        self._notes[reason, False] += int(rows)

    def remark(self, rows: int, reason: str) -> None:
        """Say something of rows that are kept."""
        self._notes[reason, True] += int(rows)

    def add(self, family: str, rows: int, /, **columns: Any) -> None:
        """Add rows of one family: every column an array of shape `(rows,)`, or one value for all of them.

        Numbers are missing where NaN, texts where empty.
        """
        if not rows:
            return
        table = pa.table({name: _arrow(values, rows) for name, values in {"family": family, **columns}.items()})
        self._parts.setdefault(family, []).append(table)

    def done(self) -> ImportedTables:
        """What was gathered."""
        tables = {
            family: pa.concat_tables(parts, promote_options="permissive")
            for family, parts in sorted(self._parts.items())
        }
        notes = tuple(Note(rows, reason, included) for (reason, included), rows in self._notes.items() if rows)
        return ImportedTables(tables, notes, self.files)


class RowFilter:
    """Which rows of a table stay; a row is left out for the first reason that fits it.

    Attributes:
        out: Rows that do not stay, shape `(n,)`.
    """

    def __init__(self, builder: ImportBuilder, rows: int) -> None:
        self.out = np.zeros(rows, dtype=np.bool_)
        self._builder = builder

    def leave_out(self, mask: npt.NDArray[np.bool_], reason: str) -> None:
        """Leave out the rows of `mask`, shape `(n,)`."""
        self._builder.leave_out(int((mask & ~self.out).sum()), reason)
        self.out |= mask

    def only(self, words: Strings, known: Iterable[str], reason: Callable[[str], str]) -> None:
        """Leave out the rows whose word, of `words` of shape `(n,)`, is none of `known`."""
        for word in sorted(set(words.tolist()) - set(known)):
            self.leave_out(words == word, reason(word))


def _arrow(cells: Any, rows: int) -> pa.Array:
    values: npt.NDArray[Any] = np.broadcast_to(np.asarray(cells), (rows,))
    if values.dtype.kind in "US":
        return pa.array([word or None for word in values.tolist()], pa.string())
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        whole = bool(np.all(missing | (np.floor(values) == values) & (np.abs(values) < 2**53)))
        kind = pa.int64() if whole and not missing.all() else pa.float64()
        return pa.array(values.astype(np.float64), mask=missing).cast(kind)
    return pa.array(values.tolist(), pa.int64())


_LFS = "version https://git-lfs.github.com"
_HEADER_B = 65536


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of another project: rows by position, columns by name.

    Attributes:
        path: The file.
        table: The cells.
        ragged: Lines left out because they have more or fewer cells than the header.
    """

    path: Path
    table: pa.Table
    ragged: int = 0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        """Column names; a name that comes again has `.2`, `.3` … behind it."""
        return list(self.table.column_names)

    def text(self, name: str) -> Strings:
        """A column as text, shape `(n,)`; empty where missing or where there is no such column."""
        return text(self.table, name)

    def numbers(self, name: str) -> Floats:
        """A column as float64, shape `(n,)`; NaN where a cell is missing or no number, or where there is no such column."""
        return numbers(self.table, name).values

    def at(self, rows: npt.NDArray[Any]) -> Sheet:
        """The sheet at `rows` (positions or a mask), in that order."""
        positions = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Sheet(self.path, self.table.take(pa.array(positions.tolist(), pa.int64())))


def header_of(path: Path) -> list[str]:
    """Column names of a CSV or Parquet file, unread otherwise; empty where it is neither.

    Raises:
        SpecError: the file is a Git LFS pointer, left there by a clone without LFS.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_HEADER_B)
    except OSError:
        return []
    if raw.startswith(_LFS.encode()):
        raise SpecError(f"{path} is a Git LFS pointer, not the table; run `git lfs pull` in the clone", field="path")
    if raw.startswith(b"PAR1"):
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError):
            return []
    line = raw.decode("utf-8-sig", errors="replace").lstrip("\r\n").split("\n", 1)[0].rstrip("\r")
    return [name.strip() for name in next(csv.reader([line]), [])]


def read_sheet(path: Path) -> Sheet:
    """A CSV (whatever its suffix) or Parquet file.

    Lines with more or fewer cells than the header are left out and counted.

    Raises:
        SpecError: the file cannot be read as what it begins as.
    """
    names = _unique(header_of(path))
    if len(names) > MAX_COLUMNS:
        raise SpecError(f"{path} has {len(names)} columns; at most {MAX_COLUMNS} are read", field="path")
    ragged = 0

    def skip(_: Any) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    try:
        if path.suffix.lower() == ".parquet":
            return Sheet(path, pq.read_table(path).rename_columns(names))
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        body = raw.partition(b"\n")[2]
        if not body.strip():
            return Sheet(path, pa.table({name: pa.array([], pa.string()) for name in names}))
        table = pa_csv.read_csv(
            pa.BufferReader(body),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=min(len(body) + 1, 2**31 - 1), use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True,
                null_values=["", "NaN", "nan", "NA", "N/A", "[N/A]", "None", "null"],
            ),
        )  # fmt: skip
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SpecError(f"cannot read {path}: {str(error).splitlines()[0]}", field="path") from error
    return Sheet(path, table, ragged)


def find_files(path: Path, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """The file itself, or every file below a folder that `wanted` says yes to, in the order of their names."""
    if path.is_file():
        if wanted(path):
            yield path
        return
    yield from (
        file for file in sorted(path.rglob("*")) if ".git" not in file.parts and wanted(file) and file.is_file()
    )


def any_file(path: Path, wanted: Callable[[Path], bool]) -> bool:
    """Whether there is such a file at or below a path."""
    return next(find_files(path, wanted), None) is not None


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique
