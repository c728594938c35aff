"""`kernelcast models history` and `rollback`: which models were kept, and having an earlier one serve again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import Json, need_extra, note, out, print_json

if TYPE_CHECKING:
    from ..nightly.gate.ledger import Ledger, ModelEntry


def history(as_json: Json = False) -> None:
    """List the models kept by nights and promotions, oldest first, and which of them serves."""
    try:
        from ..models.registry import pointer
        from ..nightly.gate.ledger import SHIPPED, Ledger
    except ImportError as error:
        raise need_extra("models history", "train", error) from error
    ledger = Ledger()
    serving = pointer().version or SHIPPED
    found = [_shown(entry, serving) for entry in ledger.entries()]
    _tell_damage(ledger)
    if as_json:
        print_json(found)
        return
    if not found:
        note(f"no model was kept yet; {serving} serves. `kernelcast nightly` keeps what it promotes")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in (
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
    ):
        table.add_column(title, overflow="fold")
    for one in found:
        recent = one["recent_error_pct"]
        software = "; ".join(sorted(set(one["software"].values())))
        table.add_row(one["version"], "yes" if one["serves"] else "", one["kind"], one["night"], one["promoted_at"] or "",
                      one["rolled_back"] or "", one["previous"] or "", str(one["rows"]), software,
                      "" if recent is None else f"{recent:.1f} %")  # fmt: skip
    out().print(table)


def rollback(
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]", help="A version of `models history`, or `shipped`; default: the one before."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Have an earlier model serve again; a running server takes it within seconds."""
    try:
        from ..nightly.gate.promotion import roll_back
    except ImportError as error:
        raise need_extra("models rollback", "train", error) from error
    done = roll_back(version, why="asked for on the command line")
    if as_json:
        print_json(done.facts())
    note(done.said)
    for finding in done.findings:
        note(f"warning: {finding.said}")


def _shown(entry: ModelEntry, serving: str) -> dict[str, Any]:
    last = max((one.night for one in entry.errors), default=None)
    recent = [one for one in entry.errors if one.night == last]
    rows = sum(one.n for one in recent)
    return {
        "version": entry.version, "serves": entry.version == serving, "kind": entry.kind, "night": entry.night,
        "path": entry.path, "promoted_at": entry.promoted_at, "rolled_back": entry.rolled_back,
        "previous": entry.previous, "rows": entry.rows, "families": list(entry.families), "software": dict(entry.software),
        "regime": dict(entry.regime), "first_row": entry.first_row, "last_row": entry.last_row,
        "recent_error_pct": sum(one.n * one.mean_ape_pct for one in recent) / rows if rows else None,
    }  # fmt: skip


def _tell_damage(ledger: Ledger) -> None:
    if ledger.damaged:
        note(f"warning: {ledger.damaged} damaged lines of {ledger.path} were passed over")
