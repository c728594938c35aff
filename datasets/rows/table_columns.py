"""Reading a user's CSV or Parquet table, and its columns as numpy arrays.

Columns are taken through dlpack and Python lists: pyarrow's own `to_numpy` would import pandas where it is installed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ...features.batch.cases import Floats, Strings
from ...features.errors import MAX_REMARK, SpecError, is_plain

SUFFIXES = (".csv", ".parquet")

MAX_COLUMNS = 1000
"""Most columns of a table; the store's own have some sixty."""

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric column.

    Attributes:
        values: The numbers, shape `(n,)`; NaN where a cell is empty or no number.
        not_a_number: Cells that are neither empty nor a number, shape `(n,)`.
    """

    values: Floats
    not_a_number: npt.NDArray[np.bool_]


def read_table(path: Path, text_columns: frozenset[str]) -> pa.Table:
    """A CSV or Parquet file as an Arrow table with unique column names and at least one row.

    In a CSV the columns named in `text_columns` stay text whatever they look like; an empty cell is missing.

    Raises:
        SpecError: no such file, a folder, another suffix, not what the suffix says, no rows, or a column name twice.
    """
    path = Path(path)
    if path.is_dir():
        raise SpecError(f"{path} is a folder; give one {' or '.join(SUFFIXES)} file", field="data")
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"{path} does not end in {' or '.join(SUFFIXES)}; other formats are not read", field="data")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}", field="data") from error
    if not raw.strip():
        raise SpecError(f"{path} is empty", field="data")
    table = _parse_csv(raw, path, text_columns) if path.suffix.lower() == ".csv" else _parse_parquet(raw, path)
    names = table.column_names
    if len(names) > MAX_COLUMNS:
        raise SpecError(f"{path} has {len(names)} columns; at most {MAX_COLUMNS} are read", field="data")
    if odd := [name for name in names if not is_plain(name)]:
        raise SpecError(
            f"{path}: the name of a column is {odd[0][:60]!r}; it has at most {MAX_REMARK} characters, all of which can be "
            "printed", field="data",
        )  # fmt: skip
    if repeated := sorted(name for name, times in Counter(names).items() if times > 1):
        raise SpecError(f"{path} has the column {repeated[0]!r} more than once; keep one", field=repeated[0])
    if table.num_rows == 0:
        raise SpecError(f"{path} has columns but no rows", field="data")
    return table


def _parse_parquet(raw: bytes, path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(raw)) as file:
            return file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SpecError(f"{path} is not a readable Parquet file: {_first_line(error)}", field="data") from error


def _parse_csv(raw: bytes, path: Path, text_columns: frozenset[str]) -> pa.Table:
    try:
        header = raw.decode("utf-8-sig").lstrip("\n\r").split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8", field="data") from error
    if "," not in header and (other := next((sep for sep in (";", "\t", "|") if sep in header), None)):
        raise SpecError(
            f"{path} separates its columns with {other!r}; separate with ',' and write decimals with '.'", field="data"
        )
    if not raw.endswith(b"\n"):
        # A header alone, without an end of line, is no CSV to pyarrow.
        raw += b"\n"
    names = [name.strip().strip('"').strip() for name in header.split(",")]
    if len(names) > MAX_COLUMNS:
        raise SpecError(f"{path} has {len(names)} columns; at most {MAX_COLUMNS} are read", field="data")
    try:
        # One block: types are then inferred from all rows, not from the first megabyte.
        table = pa_csv.read_csv(
            pa.BufferReader(raw),
            read_options=pa_csv.ReadOptions(block_size=min(len(raw) + 1, 2**31 - 1), use_threads=False),
            convert_options=pa_csv.ConvertOptions(
                # Keyed by the name as written, spaces included.
                column_types={name: pa.string() for name in _as_written(header) if name.strip() in text_columns},
                null_values=["", "NaN", "nan", "NA", "null", "None"],
                strings_can_be_null=True,
            ),
        )
    except (pa.ArrowException, ValueError) as error:
        raise SpecError(f"{path} is not a readable CSV file: {_first_line(error)}", field="data") from error
    return table.rename_columns(names) if len(names) == table.num_columns else table


def _as_written(header: str) -> list[str]:
    return [name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name for name in header.split(",")]


def text(table: pa.Table, name: str) -> Strings:
    """A column as text without surrounding spaces, shape `(n,)`; empty where missing or where there is no such column.

    Raises:
        SpecError: the column holds lists or mappings.
    """
    if name not in table.column_names or table.num_rows == 0:
        return np.zeros(table.num_rows, dtype="<U1")
    codes, words = text_codes(table, name)
    return np.array([*words, ""], dtype=np.str_)[codes]


def text_codes(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A text column as codes into its distinct words; missing is -1."""
    column = _cast(table, name, pa.large_string())
    flat = pc.utf8_trim_whitespace(column).combine_chunks()
    encoded = flat.dictionary_encode()
    codes = np.full(len(flat), -1, dtype=np.int64)
    codes[_flags(flat.is_valid())] = _no_nulls(encoded.indices.drop_null())
    return codes, [str(word) for word in encoded.dictionary.to_pylist()]


def numbers(table: pa.Table, name: str) -> Numbers:
    """A column as float64; all missing where there is no such column.

    Raises:
        SpecError: the column holds lists or mappings.
    """
    n = table.num_rows
    nothing = np.zeros(n, dtype=np.bool_)
    if name not in table.column_names:
        return Numbers(np.full(n, np.nan), nothing)
    kind = table.schema.field(name).type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return Numbers(_floats(_cast(table, name, pa.float64())), nothing)
    # One bad cell made the column text: read the cells that are numbers, name the others. Flags and dates are none.
    column = _cast(table, name, pa.large_string())
    good = pc.match_substring_regex(column, _NUMBER)
    values = np.full(n, np.nan)
    is_number, filled = _flags(good), _flags(column.is_valid())
    cells = pc.utf8_ltrim(pc.utf8_trim_whitespace(column.filter(good)), "+")
    values[is_number] = _floats(cells.cast(pa.float64()))
    return Numbers(values, filled & ~is_number)


def cell(table: pa.Table, name: str, row: int) -> object:
    """One cell as a Python value, for messages."""
    return table[name][row].as_py()


def _floats(column: Any) -> Floats:
    values = np.full(len(column), np.nan)
    values[_flags(column.is_valid())] = _no_nulls(column.drop_null())
    return values


def _flags(column: Any) -> npt.NDArray[np.bool_]:
    """A boolean column as a mask; missing is False."""
    mask = np.zeros(len(column), dtype=np.bool_)
    if column.null_count == 0:
        mask[:] = _no_nulls(column.cast(pa.uint8()))
    else:
        mask[_flags(column.is_valid())] = _no_nulls(column.drop_null().cast(pa.uint8()))
    return mask


def _no_nulls(column: Any) -> npt.NDArray[Any]:
    if len(column) == 0:
        return np.empty(0)
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def _cast(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    column = table[name]
    try:
        return column.cast(kind, safe=kind != pa.float64())
    except (pa.ArrowException, ValueError) as error:
        raise SpecError(f"column {name} holds {column.type}, which is neither numbers nor text", field=name) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
