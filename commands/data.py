"""`kernelcast data`: the rows measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from . import data_export, data_query, data_verify
from .console import Json, note, out, print_json, progress_bar
from .store_option import StoreRoot, store_errors

app = typer.Typer(help="Look at, check and pack measured rows.", no_args_is_help=True)
app.command("query")(data_query.query)
app.command("export")(data_export.export)
app.command("verify")(data_verify.verify_data)


@app.command("list")
def list_data(store: StoreRoot = None, as_json: Json = False) -> None:
    """Count the stored rows by family, device and status."""
    from collections import Counter

    from ..datasets.store import Store

    counts: Counter[tuple[str, str, str]] = Counter()
    with store_errors():
        measured = Store(store)
        for family in measured.families():
            for batch in measured.scan(family, columns=["device", "status"]):
                pairs = zip(batch["device"].to_pylist(), batch["status"].to_pylist(), strict=True)
                counts.update((family, device, status) for device, status in pairs)
    found = [{"family": f, "device": d, "status": s, "rows": n} for (f, d, s), n in sorted(counts.items())]
    if as_json:
        print_json(found)
        return
    if not found:
        note(f"no rows in {measured.root_name}; measure some with `kernelcast collect`")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("family", "device", "status", "rows"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for row in found:
        table.add_row(*(str(value) for value in row.values()))
    out().print(table)


@app.command("compact")
def compact(
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write one table per family there; the store stays as it is."),
    ] = None,
    store: StoreRoot = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Make few large files of many small ones, in the store itself.")
    ] = False,
    keep_minutes: Annotated[
        float,
        typer.Option(min=0, help="With --in-place: how long replaced files stay for readers; 0 if nothing reads now."),
    ] = 60.0,
    with_shipped: Annotated[
        bool,
        typer.Option(
            "--with-shipped", help="With --out: add the rows that come with kernelcast; rows in both are written once."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Pack the stored rows, with their provenance: as tables elsewhere (--out) or in the store itself (--in-place)."""
    if (out_dir is None) is not in_place:
        raise SpecError("give --out DIR or --in-place, one of them", field="out")
    if in_place and with_shipped:
        raise SpecError("--with-shipped goes with --out: the shipped rows are no part of a store", field="with_shipped")
    with store_errors():
        if out_dir is None:
            _compact_in_place(store, keep_minutes, as_json)
        else:
            _write_tables(out_dir, store, with_shipped, as_json)


def _compact_in_place(store: str | None, keep_minutes: float, as_json: bool) -> None:
    from ..datasets.compaction import compact_in_place
    from ..datasets.store import Store

    measured = Store(store)
    with progress_bar() as progress:
        done = compact_in_place(measured, keep_s=60 * keep_minutes, progress=progress)
    if as_json:
        print_json(done)
    note(
        f"{measured.root_name}: {done.read} files became {done.written} with {done.rows} rows; {done.removed} files that "
        "were replaced earlier or left over are removed"
    )
    for name, reason in done.damaged:
        note(f"left alone, damaged: {name}: {reason}")


def _write_tables(out_dir: Path, store: str | None, with_shipped: bool, as_json: bool) -> None:
    from ..datasets.shipped import read_shipped, shipped_families
    from ..datasets.store import Store

    beside = {family: read_shipped(family) for family in shipped_families()} if with_shipped else {}
    measured = Store(store)
    if not measured.families() and not beside:
        raise SpecError(f"no rows in {measured.root_name}; measure some with `kernelcast collect`", field="store")
    written = measured.compact(out_dir, beside=beside)
    if as_json:
        print_json([str(path) for path in written])
    note(f"{len(written)} tables written to {out_dir}")
