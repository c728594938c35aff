"""`kernelcast models`: which models there are, and which of them serves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..features.errors import SpecError
from .console import Json, need_extra, note, out, print_json
from .models_history import history, rollback

app = typer.Typer(help="List models and choose the one that serves.", no_args_is_help=True)
app.command("history")(history)
app.command("rollback")(rollback)


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


@app.command("register")
def register(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A model directory.")], as_json: Json = False
) -> None:
    """Log a trained model in the registry and print its version; the same model keeps the version it has."""
    with _registry("register") as registry:
        version = registry.register(directory)
    if as_json:
        print_json({"version": version})
    else:
        out().print(f"version {version}")


@app.command("versions")
def list_versions(as_json: Json = False) -> None:
    """List the registry's versions; the alias champion marks the one that serves."""
    with _registry("versions") as registry:
        found = registry.versions()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("version", "alias", "regressor", "made", "families"):
        table.add_column(title, overflow="fold")
    for one in found:
        table.add_row(str(one.version), ", ".join(one.aliases), one.regressor, one.created_at, ", ".join(one.families))
    out().print(table)


@app.command("promote")
def promote(
    what: Annotated[
        str, typer.Argument(metavar="DIR|VERSION", help="The model directory or registry version that is to serve.")
    ],
    as_json: Json = False,
) -> None:
    """Make a model the one that serves: it is checked whole and copied, then the champion pointer moves to the copy.

    A version is promoted in the registry, which then calls it champion; a directory needs no registry.
    """
    if what.isdecimal() and not Path(what).exists():
        with _registry("promote") as registry:
            promoted = registry.promote(int(what))
    else:
        from ..models.registry import promote_directory

        promoted = promote_directory(Path(what))
    if as_json:
        print_json({"champion": promoted.artifact, "version": promoted.version})
    note(f"{what} serves from now on, as the copy {promoted.artifact}; a running server takes it within seconds")


@contextlib.contextmanager
def _registry(command: str) -> Iterator[Any]:
    """The registry module; what it cannot do, and a missing MLflow, become one sentence.

    Raises:
        SpecError: the registry cannot be used.
    """
    from ..models import registry
    from ..models.tracking import RegistryError

    try:
        yield registry
    except RegistryError as error:
        raise SpecError(str(error), field="registry") from error
    except ImportError as error:
        raise need_extra(f"models {command}", "train", error) from error
