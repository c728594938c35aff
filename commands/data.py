"""`kernelcast data`: list, check, query in SQL, write out and import measured rows."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from . import console
from .lazy_group import NamedGroup

if TYPE_CHECKING:
    import pyarrow as pa

    from ..datasets.store.sql import Answer

app = typer.Typer(
    cls=NamedGroup,
    help="List, verify, query, import and export measured rows.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
def list_data(store: console.StoreRoot = None, as_json: console.Json = False) -> None:
    """Count the stored rows by family, device and status."""
    from ..datasets.form.export import SHIPPED_HINT
    from ..datasets.store.store import Store

    counts: Counter[tuple[str, str, str]] = Counter()
    with console.plain_errors():
        measured = Store(store)
        for family in measured.families():
            for batch in measured.scan(family, columns=["device", "status"]):
                pairs = zip(batch["device"].to_pylist(), batch["status"].to_pylist(), strict=True)
                counts.update((family, device, status) for device, status in pairs)
    groups = [{"family": f, "device": d, "status": s, "rows": n} for (f, d, s), n in sorted(counts.items())]
    if as_json:
        console.print_json(groups)
    elif groups:
        console.show_table(list(groups[0]), [list(map(str, row.values())) for row in groups], numbers=("rows",))
    else:
        console.note(f"no rows in {measured.location.name}; measure some with `kernelcast measure cpu`{SHIPPED_HINT}")


@app.command("compact")
def compact(
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Write one table per family there; the store stays as it is.")
    ],
    store: console.StoreRoot = None,
    with_shipped: Annotated[
        bool,
        typer.Option("--with-shipped", help="Add the rows that come with kernelcast; rows in both are written once."),
    ] = False,
    as_json: console.Json = False,
) -> None:
    """Write the stored rows, with their provenance, as one sorted table per family."""
    from ..datasets.shipped import read_shipped, shipped_families
    from ..datasets.store.store import Store

    with console.plain_errors():
        beside = {family: read_shipped(family) for family in shipped_families()} if with_shipped else {}
        measured = Store(store)
        if not measured.families() and not beside:
            raise SpecError(f"no rows in {measured.location.name}; add --with-shipped for those shipped", field="store")
        written = measured.compact(out_dir, beside=beside)
    if as_json:
        console.print_json(written)
    console.note(f"{len(written)} tables written to {out_dir}")


Memory = Annotated[float, typer.Option(metavar="GB", help="Memory a query may use; beyond it, it writes to disk.")]


@app.command()
def export(
    out: Annotated[
        Path, typer.Option(metavar="FILE|DIR", help="A .parquet or .csv file for one family, or a folder for several.")
    ],
    store: console.StoreRoot = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this family; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device; may be given again.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows for which this holds: \"dtype = 'bf16' AND m > 64\".")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="parquet, csv, or form, which `kernelcast data import` takes.")
    ] = None,
    memory: Memory = 4.0,
    as_json: console.Json = False,
) -> None:
    """Write stored rows to files: kernelcast data export --family gemm --out gemm.parquet."""
    from ..datasets.form.export import SUFFIXES
    from ..datasets.form.export import export as export_rows
    from ..datasets.store.store import Store

    if re.match(r"[a-z0-9]+:/", str(out)):
        raise SpecError(
            f"--out {out} is a URL; rows are exported to files of this machine, copy them from there", field="out"
        )
    (console.check_file if out.suffix.lower() in SUFFIXES else console.check_folder)(out)
    with console.plain_errors("data export --where", "storage"), console.progress_bar() as progress:
        done = export_rows(
            Store(store), out, fmt=form, families=family or [], devices=device or [], where=where, memory_b=memory * 1e9,
            progress=progress,
        )  # fmt: skip
    if as_json:
        console.print_json({"files": done.files, "rows": done.rows, "families": done.families})
    for path in done.files:
        console.note(f"wrote {path}")
    console.note(f"{done.rows} rows of {len(done.families)} {'family' if len(done.families) == 1 else 'families'}")


_SHOWN = 20
HAS_FINDINGS = 2
"""Exit code when something was found: `cli.py`'s for what the user can correct."""


@app.command("verify")
def verify_data(
    store: console.StoreRoot = None,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Move damaged files to .quarantine below the store, each with the reason."),
    ] = False,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Read every file and judge every row; ends with 0 when all is well, with 2 when something was found."""
    from ..datasets.store.store import Store
    from ..datasets.store.verify import quarantine as move_away
    from ..datasets.store.verify import verify

    known = console.read_catalogue(device_file)
    with console.plain_errors():
        measured = Store(store)
        with console.progress_bar() as progress:
            report = verify(measured, devices=known, progress=progress)
        moved = move_away(measured, report.damaged) if quarantine and report.damaged else []
    if as_json:
        console.print_json(
            {"store": measured.location.name, "clean": report.clean, "found": report, "quarantined": moved}
        )
    console.note(
        f"{measured.location.name}: {report.files} files, {report.rows} rows, {report.content_b / 1e6:.1f} MB read; every "
        "row's case_id worked out anew"
    )
    if report.unnamed:
        console.note(
            f"{report.unnamed} files carry no digest of their content in their names; they were read, which flipped bits may "
            "escape"
        )
    for what, cases in (
        ("damaged", report.damaged),
        ("of another format", report.other_format),
        ("with rows that cannot be true", report.refused),
        ("with rows that are there twice", [(name, f"{count} rows") for name, count in report.twice]),
        ("of a family this kernelcast does not know", [(name, "not judged") for name in report.unknown_families]),
    ):
        if cases:
            console.note(f"{len(cases)} {what}:")
            _note_some([f"{name}: {reason}" for name, reason in cases], _SHOWN)
    if report.leftovers:
        console.note(
            f"{len(report.leftovers)} files of killed writers hold no stored rows; delete them when nothing is being measured: "
            f"{', '.join(report.leftovers[:_SHOWN])}"
        )
    if moved:
        console.note(f"{len(moved)} files moved to .quarantine in {measured.location.name}")
    elif report.damaged:
        console.note("add --quarantine to move damaged files away; reading leaves them out only where it notices")
    if not report.clean:
        raise typer.Exit(HAS_FINDINGS)
    console.note("clean")


SHOWN_ROWS, SHOWN_CHARACTERS, LONG_ROWS = 40, 200, 3
JSON_ROWS, _WIDEST = 100_000, 100_000


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT; views: the families, and measurements over all of them.")
    ],
    store: console.StoreRoot = None,
    memory: Memory = 4.0,
    spill: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for what does not fit in memory; default: the system's temporary folder."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .csv file.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the answer to a .parquet file.")] = None,
    as_json: console.Json = False,
) -> None:
    """Ask the stored rows in SQL: kernelcast data query "SELECT device, count(*) FROM measurements GROUP BY device"."""
    from ..datasets.form.export import check_suffix, write_answer
    from ..datasets.store.store import Store

    if csv is not None and parquet is not None:
        raise SpecError("give --csv or --parquet, not both", field="csv")
    file, option = csv or parquet, "csv" if csv is not None else "parquet"
    if file is not None:
        check_suffix(file)
        if file.suffix.lower() != f".{option}":
            raise SpecError(f"--{option} {file} has the other format's name", field=option)
        console.check_file(file)
    with console.plain_errors("data query", "storage"):
        from ..datasets.store.sql import open_query

        measured = Store(store)
        if file is not None:
            measured.check_outside(file)
        with open_query(measured, memory_b=memory * 1e9, spill=spill) as rows_query:
            answer = rows_query.ask(sql)
            if file is not None:
                console.note(f"{write_answer(answer.batches, answer.schema, file)} rows written to {file}")
            elif as_json:
                console.print_json(_rows(answer))
            else:
                _show(answer)


def _rows(answer: Answer) -> list[dict[str, Any]]:
    """The rows as objects.

    Raises:
        SpecError: too many for one JSON document.
    """
    rows: list[dict[str, Any]] = []
    for batch in answer.batches:
        rows += _objects(batch)
        if len(rows) > JSON_ROWS:
            raise SpecError(
                f"the answer has more than {JSON_ROWS} rows, too many for JSON; add LIMIT, or write them to a file with "
                "--csv or --parquet", field="json",
            )  # fmt: skip
    return rows


def _objects(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows with values that JSON has a form for: sums of whole numbers as such, dates and intervals as text.

    Raises:
        SpecError: a time that Python has no form for.
    """
    try:
        rows = batch.to_pylist()
    except (OverflowError, ValueError) as error:
        raise SpecError(
            f"the answer holds times that only SQL has a form for ({error}); make text of them: CAST(… AS VARCHAR)",
            field="sql",
        ) from error
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
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
    names = answer.schema.names
    numbers = [f.name for f in answer.schema if str(f.type).startswith(("int", "uint", "double", "float", "decimal"))]
    # One more than is shown says whether there are more; further ones are never computed.
    rows = list(islice((row for batch in answer.batches for row in _objects(batch)), SHOWN_ROWS + 1))
    shown = [[_shown(value) for value in row.values()] for row in rows[:SHOWN_ROWS]]
    table = console.new_table(*names, numbers=numbers)
    for values in shown:
        table.add_row(*values)
    screen, most = console.out(), SHOWN_ROWS
    wide = screen.measure(table, options=screen.options.update(width=_WIDEST)).maximum > screen.width
    if wide and shown and len(names) > 1:
        # Columns that do not fit beside each other would be cut to nothing; they fit below each other.
        table, most = console.new_table("column", *("" for _ in shown[:LONG_ROWS])), LONG_ROWS
        for column in zip(names, *shown[:LONG_ROWS], strict=True):
            table.add_row(*column)
    screen.print(table)
    if len(rows) > most:
        console.note(f"the first {most} rows; --json, --csv or --parquet give all of them")
    elif not rows:
        console.note("no rows")


def _shown(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Tables of measured rows (.parquet, .csv); with --from, files or folders."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Who measured the rows, in a word or a link; with --from, the source's own by default."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="What the rows may be used for.")] = None,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    store: console.RowsTo = None,
    source_form: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="Source format of the files; an unknown name lists all."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --from: the device, where the files do not name it.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="With --from: write the form there (a .parquet file or a folder); store nothing."
        ),
    ] = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Check measured rows, row by row, and store them; rows stored before are left out."""
    from ..datasets.form.import_form import import_form
    from ..datasets.form.import_source import import_source
    from ..datasets.form.importer import get_importer, guess_importer
    from ..datasets.rows.table_columns import SUFFIXES
    from ..datasets.store.store import Store, StoreError

    if source_form is None:
        for value, option in ((device, "--device"), (out, "--out"), (device_file, "--device-file")):
            if value is not None:
                raise SpecError(
                    f"{option} goes with --from; tables of the form name their devices", field=option.strip("-")
                )
        for path in files:
            if path.suffix.lower() not in SUFFIXES and (looks := guess_importer(path)):
                raise SpecError(f"{path} looks like {looks}; add --from {looks}", field="from")
        if source is None:
            raise SpecError("missing option '--source': say who measured the rows, in a word or a link", field="source")
    elif family is not None:
        raise SpecError("leave --family out: with --from, the source says of which family its rows are", field="family")
    elif out is not None and store is not None:
        raise SpecError("give --out or --store, not both", field="out")
    elif out is not None and len(files) > 1:
        raise SpecError("give one file or folder with --out", field="out")
    with console.plain_errors():
        target = Store(store)
    answers: dict[str, Any] = {}
    for path in files:
        try:
            if source_form is None:
                rows = import_form(
                    path, target, source or "", family=family, licence=licence, skip_bad_rows=skip_bad_rows
                )
                answers[str(path)] = {"kept": rows.stored, "duplicates": rows.duplicates, "unmeasured": rows.unmeasured,
                                      "refused": rows.refused, "files": rows.files}  # fmt: skip
                console.note(f"{path}: {rows}")
                _note_some(rows.refused, _SHOWN)
                continue
            with console.progress_bar() as progress:
                done = import_source(
                    get_importer(source_form), path, out or target, source=source or "", licence=licence, device=device,
                    devices=console.read_catalogue(device_file), progress=progress,
                )  # fmt: skip
        except StoreError as error:
            raise SpecError(f"{path}: {error}") from error
        notes = [{"rows": entry.rows, "reason": entry.reason, "kept": entry.included} for entry in done.notes]
        answers[str(path)] = {"kept": done.imported, "duplicates": done.duplicates, "notes": notes, "files": done.files}
        console.note(f"{path}: {done}")
        for remark in sorted(done.notes, key=lambda entry: entry.included):
            console.note(f"  {remark}")
        for file in done.files if out is not None else ():
            console.note(f"wrote {file}")
    if as_json:
        console.print_json(answers)


def _note_some(lines: list[Any] | tuple[Any, ...], most: int) -> None:
    """The first `most` lines on stderr, indented, and how many more there are."""
    for line in lines[:most]:
        console.note(f"  {line}")
    if len(lines) > most:
        console.note(f"  and {len(lines) - most} more")
