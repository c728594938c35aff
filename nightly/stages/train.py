"""Stage 6: make the models that challenge the one that serves, as many as there is time for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...models.artifact import ArtifactError
from ..budget import after_training_s
from ..context import Did, Night
from ..folders import CHALLENGERS, earlier_nights
from ..gate.challengers import Challenger, past
from ..gate.ledger import Ledger
from ..gate.selection import POLICIES, Now
from ..making import ADAPTED_PAST, RETRAINED, read_made, write_made
from ..outcome import serving_model, serving_version
from ..record import Finding

_HEADROOM = 1.25

ADAPTS = "both"
"""The way that chooses the kept model which challenges adapted with tonight's rows, as in `docs/gate.md`."""

_PAST = ("adjacency", "error")
"""The ways (`gate.selection`) of choosing the kept models that challenge again as they are: each pays where another fails."""


def train(night: Night) -> Did:
    """Make the challengers the plan asks for, the quick ones first.

    Raises:
        OSError: the night's folder is full or not writable.
        SpecError: the ledger of models cannot be read.
    """
    fresh = int(night.facts("collect").get("rows", {}).get("ok", 0))
    if not fresh:
        return Did("There are no new rows, so there is nothing new to learn.", status="skipped")
    _, problem = serving_model()
    if problem is not None:
        return Did(f"Nothing was trained: the serving model cannot be loaded ({problem}).", status="skipped")
    made: list[Challenger] = []
    findings: list[Finding] = []
    took = _seconds_before(night)
    reserve = after_training_s(night.budget.total_s, earlier_nights(night.plan.name, night.folder))
    names = challenger_names(night)
    for step, name in enumerate(names):
        night.tell(f"making the challenger {name}", step, len(names))
        done = read_made(night.folder, name)
        if done is None:
            left = max(0.0, night.budget.left_s - reserve)
            if left < _HEADROOM * took.get(_kind(name), 0.0) or left <= 0:
                findings.append(
                    _no_time(name, f"{left:.0f} s are left, and it took {took.get(_kind(name), 0.0):.0f} s before")
                )
                continue
            done = _made(night, name, left)
        if done is None:
            findings.append(_no_time(name, "it was ended when its time was over"))
        elif isinstance(done, str):
            findings.append(Finding("gate", "info", name, f"No challenger {name} was made: {done}"))
        else:
            made.append(done)
    if "past" in night.plan.train.challengers:
        made += _past(night)
    facts = {
        "challengers": [{**one.facts(), "left": dict(one.left)} for one in made], "past": _chosen_past(night),
    }  # fmt: skip
    told = ", ".join(f"{one.name} ({one.seconds:.0f} s, {one.rows} rows)" for one in made)
    if not made:
        return Did("No challenger could be made.", facts, tuple(findings), "failed" if findings else "skipped")
    return Did(f"Challengers: {told}.", facts, tuple(findings))


def challenger_names(night: Night) -> list[str]:
    """Names of the challengers to make, the quick ones first."""
    wanted, regressors = night.plan.train.challengers, night.plan.train.regressors
    found = ["adapted"] if "adapted" in wanted else []
    chosen = _chosen_past(night)
    if ADAPTS in chosen and "past" in wanted:
        found.append(f"{ADAPTED_PAST}{chosen[ADAPTS]}")
    return found + (list(regressor_by_name(regressors)) if RETRAINED in wanted else [])


def regressor_by_name(regressors: Iterable[str]) -> dict[str, str]:
    """Names of retrained challengers and what trains them."""
    every = list(regressors)
    return {RETRAINED if len(every) == 1 else f"{RETRAINED}-{one}": one for one in every}


def _made(night: Night, name: str, seconds: float) -> Challenger | str | None:
    """The challenger from a process of its own; why there is none; None where its time was over."""
    log = night.folder / CHALLENGERS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as said:
        process = subprocess.Popen(_command(night.folder, name), stdin=subprocess.DEVNULL, stdout=said, stderr=said)  # noqa: S603 - our own module
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
    done = read_made(night.folder, name)
    if done is not None:
        return done
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    why = f"its process ended with {process.returncode}: {lines[-1][:200] if lines else 'without a word'} (see {log})"
    write_made(night.folder, name, why)
    return why


def _command(folder: Path, name: str) -> list[str]:
    """What makes a challenger; -P keeps the working directory's folders from shadowing packages."""
    return [sys.executable, "-P", "-m", "kernelcast.nightly.making", str(folder), name, str(os.getpid())]


def _past(night: Night) -> list[Challenger]:
    """The kept models chosen to challenge as they are; one that no longer loads is passed over."""
    chosen = _chosen_past(night)
    paths = {entry.version: entry.path for entry in Ledger().entries()}
    found: list[Challenger] = []
    for version in dict.fromkeys(chosen[policy] for policy in _PAST if policy in chosen):
        try:
            found.append(past(Path(paths[version]), f"past-{version}", devices=night.devices))
        except ArtifactError:
            continue
    for one in found:
        write_made(night.folder, one.name, one)
    return found


def _chosen_past(night: Night) -> dict[str, str]:
    """The version that each way of choosing takes of the kept models, but for the one that serves; empty for none."""
    if "past" not in night.plan.train.challengers:
        return {}
    facts, checked = night.facts("sentinels"), night.facts("check")
    software = {device: str(_of(facts, device).get("software") or "") for device in night.measurer.devices}
    # What was decided of tonight's rows, where they decided it; else what was known before.
    regime = {
        device: str(checked.get("regimes", {}).get(device, {}).get("regime") or _of(facts, device).get("regime") or "")
        for device in night.measurer.devices
    }
    serving = serving_version()
    entries = [entry for entry in Ledger().entries() if entry.version != serving and entry.night != night.record.id]
    now = Now(night.record.id, software, regime)
    return {policy: POLICIES[policy](entries, now)[0].version for policy in (*_PAST, ADAPTS)} if entries else {}


def _of(facts: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = facts.get("devices", {}).get(device, facts)
    return found


def _no_time(name: str, why: str) -> Finding:
    said = f"The challenger {name} was not made in time: {why}. Give the plan more minutes, fewer rows or a quicker regressor."
    return Finding("budget", "warning", name, said)


def _kind(name: str) -> str:
    """What of a challenger's name is the same every night: another past model takes as long to adapt."""
    return ADAPTED_PAST if name.startswith(ADAPTED_PAST) else name


def _seconds_before(night: Night) -> dict[str, float]:
    """What each kind of challenger took in the newest earlier night of the plan that made it."""
    found: dict[str, float] = {}
    for record in earlier_nights(night.plan.name, night.folder):
        for one in record.stage("train").facts.get("challengers", ()):
            found.setdefault(_kind(str(one.get("name"))), float(one.get("seconds") or 0.0))
    return found
