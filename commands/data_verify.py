"""`kernelcast data verify`: whether the stored rows are still what was written, and can be true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from .console import DeviceFiles, Json, note, print_json, progress_bar, read_catalogue
from .store_option import StoreRoot, store_errors

FOUND = 2
"""Exit code when something was found: `cli.py`'s for what the user can correct."""

_SHOWN = 20


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
    from ..datasets.store import Store
    from ..datasets.verifying import quarantine as move_away
    from ..datasets.verifying import verify

    known = read_catalogue(device_file)
    with store_errors():
        measured = Store(store)
        with progress_bar() as progress:
            found = verify(measured, devices=known, progress=progress)
        moved = move_away(measured, found.damaged) if quarantine and found.damaged else []
    if as_json:
        print_json({"store": measured.root_name, "clean": found.clean, "found": found, "quarantined": moved})
    note(
        f"{measured.root_name}: {found.files} files, {found.rows} rows, {found.content_b / 1e6:.1f} MB read; every row's "
        "case_id worked out anew"
    )
    if found.unnamed:
        note(
            f"{found.unnamed} files were named before names carried digests; they were read, and flipped bits may escape that"
        )
    _tell("damaged", found.damaged)
    _tell("missing, a record names it", [(name, "its rows are not read") for name in found.missing])
    _tell("of a newer format", found.newer)
    _tell("with rows that cannot be true", found.refused)
    _tell("with rows that are there twice", [(name, f"{count} rows") for name, count in found.twice])
    _tell("of a family this kernelcast does not know", [(one, "not judged") for one in found.unknown_families])
    if found.leftovers:
        note(
            f"{len(found.leftovers)} files of killed writers hold no stored rows; `kernelcast data compact --in-place` "
            "removes them after a day"
        )
    if moved:
        note(f"{len(moved)} files moved to .quarantine in {measured.root_name}")
    elif found.damaged:
        note("add --quarantine to move damaged files away; reading leaves them out only where it notices")
    if not found.clean:
        raise typer.Exit(FOUND)
    note("clean")


def _tell(what: str, found: Sequence[tuple[str, str]]) -> None:
    if not found:
        return
    note(f"{len(found)} {what}:")
    for name, reason in found[:_SHOWN]:
        note(f"  {name}: {reason}")
    if len(found) > _SHOWN:
        note(f"  and {len(found) - _SHOWN} more")
