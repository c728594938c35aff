"""`kernelcast import`: take a table of someone's own measurements into the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from .console import Json, note, print_json

_SHOWN = 10


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Tables of measured rows (.parquet, .csv).")],
    source: Annotated[str, typer.Option(help="Who measured the rows, in a word or a link.")],
    licence: Annotated[str | None, typer.Option(help="What the rows may be used for.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: Annotated[
        bool, typer.Option("--keep-good", help="Store the good rows when others are refused.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where rows go; default: KERNELCAST_HOME/measurements.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check measured rows against the form, row by row, and store them; rows stored before are left out."""
    from ..datasets.importing import import_form
    from ..datasets.store import Store, StoreError

    target = Store(store)
    reports = {}
    for path in files:
        try:
            done = import_form(path, target, source, family=family, licence=licence, keep_good=keep_good)
        except StoreError as error:
            raise SpecError(f"{path}: {error}") from error
        reports[str(path)] = done
        note(f"{path}: {done}")
        for one in done.refused[:_SHOWN]:
            note(f"  {one}")
        if len(done.refused) > _SHOWN:
            note(f"  and {len(done.refused) - _SHOWN} more")
    if as_json:
        print_json(reports)
