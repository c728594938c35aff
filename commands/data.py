"""`kernelcast data`: list, check, query in SQL and write out measured rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import (
    DeviceFiles,
    Json,
    StoreRoot,
    check_file,
    check_folder,
    need_extra,
    new_table,
    note,
    out,
    print_json,
    progress_bar,
    read_catalogue,
    store_errors,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ..datasets.store.sql import Answer


app = typer.Typer(help="Look at, check and write out measured rows.", no_args_is_help=True)


@app.command("list")
def list_data(store: StoreRoot = None, as_json: Json = False) -> None:
    """Count the stored rows by family, device and status."""
    from collections import Counter

    from ..datasets.store.store import Store

    counts: Counter[tuple[str, str, str]] = Counter()
    with store_errors():
        measured = Store(store)
        for family in measured.families():
            for batch in measured.scan(family, columns=["device", "status"]):
                pairs = zip(batch["device"].to_pylist(), batch["status"].to_pylist(), strict=True)
                counts.update((family, device, status) for device, status in pairs)
    groups = [{"family": f, "device": d, "status": s, "rows": n} for (f, d, s), n in sorted(counts.items())]
    if as_json:
        print_json(groups)
        return
    if not groups:
        note(f"no rows in {measured.location.name}; measure some with `kernelcast collect`")
        return
    table = new_table("family", "device", "status", "rows", numbers=("rows",))
    for row in groups:
        table.add_row(*(str(value) for value in row.values()))
    out().print(table)


@app.command("compact")
def compact(
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Write one table per family there; the store stays as it is.")
    ],
    store: StoreRoot = None,
    with_shipped: Annotated[
        bool,
        typer.Option("--with-shipped", help="Add the rows that come with kernelcast; rows in both are written once."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the stored rows, with their provenance, as one sorted table per family."""
    from ..datasets.shipped import read_shipped, shipped_families
    from ..datasets.store.store import Store

    with store_errors():
        beside = {family: read_shipped(family) for family in shipped_families()} if with_shipped else {}
        measured = Store(store)
        if not measured.families() and not beside:
            raise SpecError(
                f"no rows in {measured.location.name}; measure some with `kernelcast collect`", field="store"
            )
        written = measured.compact(out_dir, beside=beside)
    if as_json:
        print_json([str(path) for path in written])
    note(f"{len(written)} tables written to {out_dir}")


@app.command()
def export(
    out: Annotated[
        Path, typer.Option(metavar="FILE|DIR", help="A .parquet or .csv file for one family, or a folder for several.")
    ],
    store: StoreRoot = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this family; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device; may be given again.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows for which this holds: \"dtype = 'bf16' AND m > 64\".")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="parquet, csv, or form, which `kernelcast import` takes.")
    ] = None,
    memory: Memory = 4.0,
    as_json: Json = False,
) -> None:
    """Write stored rows to files: kernelcast data export --family gemm --out gemm.parquet."""
    from ..datasets.form.export import SUFFIXES
    from ..datasets.store.store import Store

    if re.match(r"[a-z0-9]+:/", str(out)):
        raise SpecError(
            f"--out {out} is a URL; rows are exported to files of this machine, copy them from there", field="out"
        )
    try:
        from ..datasets.form.export import export as export_rows

        (check_file if out.suffix.lower() in SUFFIXES else check_folder)(out)
        with store_errors(), progress_bar() as progress:
            done = export_rows(
                Store(store), out, fmt=form, families=family or [], devices=device or [], where=where, memory_b=memory * 1e9,
                progress=progress,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("data export --where", "storage", error) from error
    if as_json:
        print_json({"files": done.files, "rows": done.rows, "families": done.families})
    for path in done.files:
        note(f"wrote {path}")
    note(f"{done.rows} rows of {len(done.families)} {'family' if len(done.families) == 1 else 'families'}")


HAS_FINDINGS = 2
"""Exit code when something was found: `cli.py`'s for what the user can correct."""

_SHOWN = 20


@app.command("verify")
def verify_data(
    store: StoreRoot = None,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Move damaged files to .quarantine below the store, each with the reason."),
    ] = False,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Read every file and judge every row; ends with 0 when all is well, with 2 when something was found."""
    from ..datasets.store.store import Store
    from ..datasets.store.verify import quarantine as move_away
    from ..datasets.store.verify import verify

    known = read_catalogue(device_file)
    with store_errors():
        measured = Store(store)
        with progress_bar() as progress:
            report = verify(measured, devices=known, progress=progress)
        moved = move_away(measured, report.damaged) if quarantine and report.damaged else []
    if as_json:
        print_json({"store": measured.location.name, "clean": report.clean, "found": report, "quarantined": moved})
    note(
        f"{measured.location.name}: {report.files} files, {report.rows} rows, {report.content_b / 1e6:.1f} MB read; every "
        "row's case_id worked out anew"
    )
    if report.unnamed:
        note(
            f"{report.unnamed} files carry no digest of their content in their names; they were read, which flipped bits may "
            "escape"
        )
    _tell("damaged", report.damaged)
    _tell("of another format", report.other_format)
    _tell("with rows that cannot be true", report.refused)
    _tell("with rows that are there twice", [(name, f"{count} rows") for name, count in report.twice])
    _tell("of a family this kernelcast does not know", [(name, "not judged") for name in report.unknown_families])
    if report.leftovers:
        note(
            f"{len(report.leftovers)} files of killed writers hold no stored rows; delete them when nothing is being measured: "
            f"{', '.join(report.leftovers[:_SHOWN])}"
        )
    if moved:
        note(f"{len(moved)} files moved to .quarantine in {measured.location.name}")
    elif report.damaged:
        note("add --quarantine to move damaged files away; reading leaves them out only where it notices")
    if not report.clean:
        raise typer.Exit(HAS_FINDINGS)
    note("clean")


def _tell(what: str, cases: Sequence[tuple[str, str]]) -> None:
    if not cases:
        return
    note(f"{len(cases)} {what}:")
    for name, reason in cases[:_SHOWN]:
        note(f"  {name}: {reason}")
    if len(cases) > _SHOWN:
        note(f"  and {len(cases) - _SHOWN} more")


SHOWN_ROWS = 40
SHOWN_CHARACTERS = 200
LONG_ROWS = 3
_WIDEST = 100_000
JSON_ROWS = 100_000

Memory = Annotated[float, typer.Option(metavar="GB", help="Memory a query may use; beyond it, it writes to disk.")]


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT; views: the families, and measurements over all of them.")
    ],
    store: StoreRoot = None,
    memory: Memory = 4.0,
    spill: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for what does not fit in memory; default: the system's temporary folder."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .csv file.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .parquet file.")] = None,
    as_json: Json = False,
) -> None:
    """Ask the stored rows in SQL: kernelcast data query "SELECT device, count(*) FROM measurements GROUP BY device"."""
    from ..datasets.form.export import check_suffix, write_answer
    from ..datasets.store.store import Store

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
        from ..datasets.store.sql import open_query

        with store_errors():
            measured = Store(store)
            if file is not None:
                measured.check_outside(file)
        with store_errors(), open_query(measured, memory_b=memory * 1e9, spill=spill) as rows_query:
            answer = rows_query.ask(sql)
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
    rows: list[dict[str, Any]] = []
    for batch in answer.batches:
        rows.extend({name: _plain(value) for name, value in row.items()} for row in _objects(batch))
        if len(rows) > JSON_ROWS:
            raise SpecError(
                f"the answer has more than {JSON_ROWS} rows, too many for JSON; add LIMIT, or write them to a file with "
                "--csv or --parquet", field="json",
            )  # fmt: skip
    return rows


def _objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python has them.

    Raises:
        SpecError: a time that Python has no form for.
    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (OverflowError, ValueError) as error:
        raise SpecError(
            f"the answer holds times that only SQL has a form for ({error}); make text of them: CAST(… AS VARCHAR)",
            field="sql",
        ) from error
    return rows


def _plain(value: Any) -> Any:
    """What JSON has a form for: whole decimals (sums of whole numbers) as such, dates and intervals as text."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(item) for item in value]
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
