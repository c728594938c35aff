"""`kernelcast data export`: measured rows as files for others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from .console import Json, need_extra, note, print_json, progress_bar
from .data_query import Memory
from .out_place import check_file, check_folder
from .store_option import StoreRoot, store_errors


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
    from ..datasets.row_files import SUFFIXES
    from ..datasets.store import Store

    if re.match(r"[a-z0-9]+:/", str(out)):
        raise SpecError(
            f"--out {out} is a URL; rows are exported to files of this machine, copy them from there", field="out"
        )
    try:
        from ..datasets.exporting import export as export_rows

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
