"""`kernelcast serve models`: which models there are, and which of them serves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from . import console

if TYPE_CHECKING:
    from ..nightly.gate.model_ledger import ModelEntry


app = typer.Typer(help="List models and choose the one that serves.", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_models(
    directories: Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="More model directories.")] = None,
    as_json: console.Json = False,
) -> None:
    """Show the model that serves by default, and any others named."""
    from ..models.family_model.artifact import default_model_dir, read_manifest

    serving = default_model_dir()
    listed: list[dict[str, Any]] = []
    for path in [serving, *(directories or [])]:
        manifest = read_manifest(path)
        families = manifest.get("families", {})
        listed.append({
            "path": str(path), "serves": path == serving, "regressor": manifest.get("regressor"),
            "created": manifest.get("created"), "families": {name: family.get("n_rows") for name, family in families.items()},
            "devices": sorted({device for family in families.values() for device in family.get("devices", ())}),
        })  # fmt: skip
    if as_json:
        console.print_json(listed)
        return
    rows = (
        (model["path"], "yes" if model["serves"] else "", model["regressor"], model["created"], ", ".join(model["families"]),
         str(len(model["devices"])), str(sum(count or 0 for count in model["families"].values())))
        for model in listed
    )  # fmt: skip
    console.show_table(("model", "serves", "regressor", "made", "families", "devices", "rows"), rows)


@app.command("register")
def register(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A model directory.")], as_json: console.Json = False
) -> None:
    """Log a trained model in the registry and print its version; the same model keeps the version it has."""
    with _registry("register") as registry:
        version = registry.register(directory)
    if as_json:
        console.print_json({"version": version})
    else:
        console.out().print(f"version {version}")


@app.command("versions")
def list_versions(as_json: console.Json = False) -> None:
    """List the registry's versions; the alias champion marks the one that serves."""
    with _registry("versions") as registry:
        versions = registry.versions()
    if as_json:
        console.print_json([asdict(version) for version in versions])
        return
    rows = (
        (str(item.version), ", ".join(item.aliases), item.regressor, item.created_at, ", ".join(item.families))
        for item in versions
    )
    console.show_table(("version", "alias", "regressor", "made", "families"), rows)


@app.command("promote")
def promote(
    what: Annotated[
        str, typer.Argument(metavar="DIR|VERSION", help="The model directory or registry version that is to serve.")
    ],
    as_json: console.Json = False,
) -> None:
    """Make a model the one that serves: it is checked whole and copied, then the champion pointer moves to the copy.

    A version is promoted in the registry, which then calls it champion; a directory needs no registry. `serve models rollback`
    goes back.
    """
    with console.plain_errors("serve models promote", "train"):
        from ..nightly.gate.promotion import readable_pointer, record_promotion
    before = readable_pointer()
    if what.isdecimal() and not Path(what).exists():
        with _registry("promote") as registry:
            promoted = registry.promote(int(what))
    else:
        from ..models.registry.registry import promote_directory

        promoted = promote_directory(Path(what))
    record_promotion(promoted, before)
    if as_json:
        console.print_json({"champion": promoted.artifact, "version": promoted.version})
    console.note(
        f"{what} serves from now on, as the copy {promoted.artifact}; a running server takes it within seconds"
    )


@contextlib.contextmanager
def _registry(command: str) -> Iterator[Any]:
    """The registry module; what it cannot do, and a missing MLflow, become one sentence.

    Raises:
        SpecError: the registry cannot be used.
    """
    with console.plain_errors(f"serve models {command}", "train"):
        from ..models.registry import registry
        from ..models.registry.mlflow_tracking import RegistryError

        try:
            yield registry
        except RegistryError as error:
            raise SpecError(str(error), field="registry") from error


@app.command()
def history(as_json: console.Json = False) -> None:
    """List the models kept by nights and promotions, oldest first, and which of them serves."""
    with console.plain_errors("serve models history", "train"):
        from ..models.family_model.artifact import pointer
        from ..nightly.gate.model_ledger import SHIPPED, Ledger
    ledger = Ledger()
    serving = pointer().version or SHIPPED
    listed = [_shown(entry, serving) for entry in ledger.entries()]
    if ledger.damaged:
        console.note(f"warning: {ledger.damaged} damaged lines of {ledger.path} were passed over")
    if as_json:
        console.print_json(listed)
        return
    if not listed:
        console.note(f"no model was kept yet; {serving} serves. `kernelcast measure nightly` keeps what it promotes")
        return
    heads = (
        "version",
        "serves",
        "kind",
        "night",
        "promoted",
        "rolled back",
        "in place of",
        "rows",
        "software",
        "error",
    )
    rows = []
    for model in listed:
        recent = model["recent_error_pct"]
        software = "; ".join(sorted(set(model["software"].values())))
        rows.append((model["version"], "yes" if model["serves"] else "", model["kind"], model["night"],
                     model["promoted_at"] or "", model["rolled_back"] or "", model["previous"] or "", str(model["rows"]),
                     software, "" if recent is None else f"{recent:.1f} %"))  # fmt: skip
    console.show_table(heads, rows)


@app.command()
def rollback(
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION", help="A version of `serve models history`, or `shipped`; default: the one before."
        ),
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Have an earlier model serve again; a running server takes it within seconds."""
    with console.plain_errors("serve models rollback", "train"):
        from ..nightly.gate.promotion import roll_back
    done = roll_back(version, why="asked for on the command line")
    if as_json:
        console.print_json(done.facts())
    console.note(done.summary)
    for finding in done.findings:
        console.note(f"warning: {finding.message}")


def _shown(entry: ModelEntry, serving: str) -> dict[str, Any]:
    last = max((error.night for error in entry.errors), default=None)
    recent = [error for error in entry.errors if error.night == last]
    rows = sum(error.n for error in recent)
    return {
        "version": entry.version, "serves": entry.version == serving, "kind": entry.kind, "night": entry.night,
        "path": entry.path, "promoted_at": entry.promoted_at, "rolled_back": entry.rolled_back,
        "previous": entry.previous, "rows": entry.rows, "families": list(entry.families), "software": dict(entry.software),
        "first_row": entry.first_row, "last_row": entry.last_row,
        "recent_error_pct": sum(error.n * error.mean_ape_pct for error in recent) / rows if rows else None,
    }  # fmt: skip
