"""Stage 8: have the challenger that passed serve, look whether it does, and keep only so many models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ...models.tracking import URI_ENV
from ..context import Did, Night
from ..fresh import fresh_tables
from ..gate.challengers import Challenger
from ..gate.changes import probes
from ..gate.ledger import Ledger
from ..gate.promotion import promote_challenger
from ..making import read_made
from ..outcome import serving_model, serving_version
from ..record import Finding


def promote(night: Night) -> Did:
    """Promote the gate's winner, if there is one.

    Raises:
        ArtifactError: it cannot be loaded, pinned or pointed at; what served before goes on serving.
        SpecError: the ledger cannot be written; the model before serves.
    """
    winner = night.facts("gate").get("winner")
    if winner is None:
        return Did("There was nothing to promote.", {"version": None}, status="skipped")
    challenger = read_made(night.folder, str(winner))
    if not isinstance(challenger, Challenger):
        return Did(f"The challenger {winner} is gone from the night's folder.", {"version": None}, status="failed")
    serving, problem = serving_model()
    if problem is not None:
        return Did(
            f"Nothing was promoted: the serving model cannot be loaded ({problem}).", {"version": None}, (), "failed"
        )
    facts = night.facts("sentinels")
    devices = night.measurer.devices
    own = {device: facts.get("devices", {}).get(device, facts) for device in devices}
    with _registry(night.plan.registry):
        done = promote_challenger(
            challenger, night.record.id, registry=night.plan.registry is not None,
            probes=probes(serving, devices=night.devices),
            software={device: str(one.get("software") or "") for device, one in own.items()},
            regime={device: str(one.get("regime") or "") for device, one in own.items()},
            measured=_span(night), devices=night.devices,
        )  # fmt: skip
    told: dict[str, Any] = {**done.facts(), "name": challenger.name}
    # After a crash between the promotion and its being written down, the model before is no longer what serves.
    if done.version is not None and done.previous == done.version:
        told["previous"] = night.record.champion_before
    if done.version is None:
        back = any(one.kind == "rollback" for one in done.findings)
        return Did(_ended(done.said), {**told, "rolled_back": back}, done.findings, "failed" if back else "done")
    return Did(_ended(done.said), told, (*done.findings, *_pruned(night)))


@contextlib.contextmanager
def _registry(uri: str | None) -> Iterator[None]:
    """The plan's registry, for what reads its address from the environment."""
    before = os.environ.get(URI_ENV)
    if uri is not None:
        os.environ[URI_ENV] = uri
    try:
        yield
    finally:
        if uri is not None:
            os.environ.pop(URI_ENV)
            if before is not None:
                os.environ[URI_ENV] = before


def _span(night: Night) -> tuple[str | None, str | None]:
    """When the first and the last of tonight's rows were measured; None where rows do not say."""
    times = [
        time
        for table in fresh_tables(night, ("measured_at", "block")).values()
        for time in table["measured_at"].to_pylist()
    ]
    known = sorted(time for time in times if time)
    return (known[0], known[-1]) if known else (None, None)


def _pruned(night: Night) -> list[Finding]:
    """Remove models beyond those the plan keeps, but for the one that serves and the one before it."""
    ledger = Ledger()
    entries = {entry.version: entry for entry in ledger.entries()}
    serving = serving_version() or ""
    before = entries[serving].previous if serving in entries else None
    gone = ledger.prune(night.plan.keep.models, {serving, before or ""})
    if not gone:
        return []
    named = ", ".join(entry.version for entry in gone[:5])
    return [Finding("storage", "info", str(ledger.path), f"{len(gone)} old models were removed: {named}.")]


def _ended(said: str) -> str:
    sentence = said[:1].upper() + said[1:]
    return sentence if sentence.endswith(".") else f"{sentence}."
