"""`kernelcast models`: which models there are, and which of them serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Json, note, out, print_json

app = typer.Typer(help="List models and choose the one that serves.", no_args_is_help=True)


@app.command("list")
def list_models(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="More model directories.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the model that serves by default, and any others named."""
    from ..models.artifact import default_model_dir, read_manifest

    serving = default_model_dir()
    found: list[dict[str, Any]] = []
    for path in [serving, *(directories or [])]:
        manifest = read_manifest(path)
        families = manifest.get("families", {})
        found.append({
            "path": str(path), "serves": path == serving, "regressor": manifest.get("regressor"),
            "created": manifest.get("created"), "families": {name: one.get("n_rows") for name, one in families.items()},
            "devices": sorted({device for one in families.values() for device in one.get("devices", ())}),
        })  # fmt: skip
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("model", "serves", "regressor", "made", "families", "devices", "rows"):
        table.add_column(title, overflow="fold")
    for one in found:
        rows = sum(count or 0 for count in one["families"].values())
        table.add_row(one["path"], "yes" if one["serves"] else "", one["regressor"], one["created"],
                      ", ".join(one["families"]), str(len(one["devices"])), str(rows))  # fmt: skip
    out().print(table)


@app.command("promote")
def promote(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The model directory that is to serve.")],
    as_json: Json = False,
) -> None:
    """Make a model the one that serves: it is checked whole and copied, then the champion pointer moves to the copy."""
    from ..models.registry import promote_directory

    promoted = promote_directory(directory)
    if as_json:
        print_json({"champion": promoted.artifact, "version": promoted.version})
    note(f"{directory} serves from now on, as the copy {promoted.artifact}; a running server takes it within seconds")
