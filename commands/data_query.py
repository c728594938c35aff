"""`kernelcast data query`: SQL over the measured rows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import Json, need_extra, note, out, print_json
from .out_place import check_file
from .store_option import StoreRoot, store_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from ..datasets.queries import Answer

SHOWN_ROWS = 40
SHOWN_CHARACTERS = 200
LONG_ROWS = 3
_WIDEST = 100_000
JSON_ROWS = 100_000

Memory = Annotated[float, typer.Option(metavar="GB", help="Memory a query may take; beyond it, it writes to disk.")]


def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT; views: the families, and measurements over all of them.")
    ],
    store: StoreRoot = None,
    memory: Memory = 4.0,
    spill: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it writes to; default: the system's temporary folder.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .csv file.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .parquet file.")] = None,
    as_json: Json = False,
) -> None:
    """Ask the stored rows in SQL: kernelcast data query "SELECT device, count(*) FROM measurements GROUP BY device"."""
    from ..datasets.row_files import check_suffix, write_answer
    from ..datasets.store import Store

    if csv is not None and parquet is not None:
        raise SpecError("give --csv or --parquet, not both", field="csv")
    file = csv or parquet
    if file is not None:
        if file.suffix.lower() != (".csv" if csv is not None else ".parquet"):
            check_suffix(file)
            raise SpecError(
                f"--{'csv' if csv is not None else 'parquet'} {file} has the other format's name", field="csv"
            )
        check_file(file)
    try:
        from ..datasets.queries import open_query

        with store_errors():
            measured = Store(store)
            if file is not None:
                measured.check_outside(file)
        with store_errors(), open_query(measured, memory_b=memory * 1e9, spill=spill) as asked:
            answer = asked.ask(sql)
            if file is not None:
                note(f"{write_answer(answer.batches, answer.schema, file)} rows written to {file}")
            elif as_json:
                print_json(_rows(answer))
            else:
                _show(answer)
    except ImportError as error:
        raise need_extra("data query", "storage", error) from error


def _rows(answer: Answer) -> list[dict[str, Any]]:
    """The rows as objects of plain values.

    Raises:
        SpecError: too many for one JSON document.
    """
    found: list[dict[str, Any]] = []
    for batch in answer.batches:
        found.extend({name: _plain(value) for name, value in row.items()} for row in _objects(batch))
        if len(found) > JSON_ROWS:
            raise SpecError(
                f"the answer has more than {JSON_ROWS} rows, too many for JSON; add LIMIT, or write them to a file with "
                "--csv or --parquet", field="json",
            )  # fmt: skip
    return found


def _objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python has them.

    Raises:
        SpecError: a time that Python has no form for.
    """
    try:
        found: list[dict[str, Any]] = batch.to_pylist()
    except (OverflowError, ValueError) as error:
        raise SpecError(
            f"the answer holds times that only SQL has a form for ({error}); make text of them: CAST(… AS VARCHAR)",
            field="sql",
        ) from error
    return found


def _plain(value: Any) -> Any:
    """What JSON has a form for: whole decimals (sums of whole numbers) as such, dates and intervals as text."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _show(answer: Answer) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for field in answer.schema:
        number = str(field.type).startswith(("int", "uint", "double", "float", "decimal"))
        table.add_column(field.name, justify="right" if number else "left")
    # One more than is shown says whether there are more; further ones are never computed.
    rows = list(islice((row for batch in answer.batches for row in _objects(batch)), SHOWN_ROWS + 1))
    shown = [[_shown(value) for value in row.values()] for row in rows[:SHOWN_ROWS]]
    for values in shown:
        table.add_row(*values)
    console, most = out(), SHOWN_ROWS
    wide = console.measure(table, options=console.options.update(width=_WIDEST)).maximum > console.width
    if wide and shown and len(answer.schema) > 1:
        # Columns that do not fit beside each other would be cut to nothing; they fit below each other.
        table, most = Table("column", *("" for _ in shown[:LONG_ROWS]), box=None, pad_edge=False), LONG_ROWS
        for column in zip(answer.schema.names, *shown[:LONG_ROWS], strict=True):
            table.add_row(*column)
    console.print(table)
    if len(rows) > most:
        note(f"the first {most} rows; --json, --csv or --parquet give all of them")
    elif not rows:
        note("no rows")


def _shown(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    text = f"{plain:.6g}" if isinstance(plain, float) else str(plain)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
