"""`kernelcast data`: the rows measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from .console import Json, note, out, print_json

app = typer.Typer(help="Look at and pack up measured rows.", no_args_is_help=True)
StoreDir = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Measured rows; default: KERNELCAST_HOME/measurements.")
]


@app.command("list")
def list_data(store: StoreDir = None, as_json: Json = False) -> None:
    """Count the stored rows by family, device and status."""
    from collections import Counter

    from ..datasets.store import Store

    measured = Store(store)
    counts: Counter[tuple[str, str, str]] = Counter()
    for family in measured.families():
        rows = measured.read(family, columns=["device", "status"])
        pairs = zip(rows["device"].to_pylist(), rows["status"].to_pylist(), strict=True)
        counts.update((family, device, status) for device, status in pairs)
    found = [{"family": f, "device": d, "status": s, "rows": n} for (f, d, s), n in sorted(counts.items())]
    if as_json:
        print_json(found)
        return
    if not found:
        note(f"no rows in {measured.root}; measure some with `kernelcast collect`")
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
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the tables go.")],
    store: StoreDir = None,
    with_shipped: Annotated[
        bool,
        typer.Option("--with-shipped", help="Add the rows that come with kernelcast; rows in both are written once."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the stored rows as one sorted Parquet table per family, with their provenance."""
    from ..datasets.shipped import read_shipped, shipped_families
    from ..datasets.store import Store, StoreError

    try:
        beside = {family: read_shipped(family) for family in shipped_families()} if with_shipped else {}
        measured = Store(store)
        if not measured.families() and not beside:
            raise SpecError(f"no rows in {measured.root}; measure some with `kernelcast collect`", field="store")
        written = measured.compact(out_dir, beside=beside)
    except StoreError as error:
        raise SpecError(str(error)) from error
    if as_json:
        print_json([str(path) for path in written])
    note(f"{len(written)} tables written to {out_dir}")
