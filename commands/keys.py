"""`kernelcast keys`: who may ask a service that is reached by others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from ..home import home_dir
from .console import Json, note, out, print_json

FILE_ENV = "KERNELCAST_API_KEYS_FILE"

app = typer.Typer(help="Make, list and revoke the API keys of a service.", no_args_is_help=True)

File = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"Key file; default: ${FILE_ENV}, else api-keys in KERNELCAST_HOME."),
]


@app.command("new")
def new(
    name: Annotated[str, typer.Option(help="Name it is listed and revoked by.")],
    scope: Annotated[str, typer.Option(help="read: every question; admin: also what changes the service.")] = "read",
    file: File = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once; the file keeps only its hash."""
    from ..api.keys import add_key, new_key

    path = _file(file)
    token, key = new_key(name, scope)
    add_key(path, key)
    if as_json:
        print_json({"key": token, "name": key.name, "scope": key.scope, "made": key.made, "file": path})
        return
    out().print(token, soft_wrap=True)
    note(
        f"key {key.name} ({key.scope}) is in {path} as its hash; it is not shown again. A service that runs on this file takes "
        f"it within seconds; start one with: kernelcast serve --keys {path}"
    )


@app.command("list")
def list_keys(file: File = None, as_json: Json = False) -> None:
    """Show the names and scopes of a file's keys."""
    from ..api.keys import read_key_file

    found = [
        {"name": key.name, "scope": key.scope, "made": key.made or None, "hash": key.digest.hex()}
        for key in read_key_file(_file(file))
    ]
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "scope", "made", "hash"):
        table.add_column(title, overflow="fold")
    for one in found:
        table.add_row(one["name"], one["scope"], one["made"], (one["hash"] or "")[:12])
    out().print(table)


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")],
    file: File = None,
    as_json: Json = False,
) -> None:
    """Take a key out of the file; a service that runs on it stops taking the key within seconds."""
    from ..api.keys import revoke_key

    path = _file(file)
    key = revoke_key(path, name)
    if as_json:
        print_json({"revoked": key.name, "scope": key.scope, "file": path})
    else:
        out().print(f"revoked {key.name} ({key.scope}) in {path}", soft_wrap=True)


def _file(given: Path | None) -> Path:
    path = given or Path(os.environ.get(FILE_ENV, "").strip() or home_dir() / "api-keys")
    if path.is_dir():
        raise SpecError(f"{path} is a folder; --file is the key file itself", field="file")
    return path
