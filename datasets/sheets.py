"""Reading tables that others wrote: found by their header, columns by name, and nothing but text and numbers taken out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ..features.cases import Floats, Strings
from ..features.errors import SpecError
from .tables import numbers, text

_LFS = "version https://git-lfs.github.com"
_HEADER_B = 65536


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of someone else's: rows by position, columns by name, and how many lines could not be told apart into cells."""

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
    yield from (one for one in sorted(path.rglob("*")) if ".git" not in one.parts and wanted(one) and one.is_file())


def any_file(path: Path, wanted: Callable[[Path], bool]) -> bool:
    """Whether there is such a file at or below a path."""
    return next(find_files(path, wanted), None) is not None


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return found
