"""Stage 6: make the models that challenge the one that serves, as many as time allows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ...models.family_model.artifact_files import ArtifactError
from ..challenger_process import ADAPTED_PAST, RETRAINED, read_challenger, write_challenger
from ..context import Night, StageResult, after_training_s
from ..gate.challengers import Challenger, past
from ..gate.model_ledger import Ledger, ModelEntry, ranked, serving_model, serving_version
from ..record.folders import CHALLENGERS, earlier_nights
from ..record.record import Finding
from ..rows import night_software

_HEADROOM = 1.25


def train(night: Night) -> StageResult:
    """Make the challengers the plan asks for, the quick ones first.

    Raises:
        OSError: the night's folder is full or not writable.
        SpecError: the ledger of models cannot be read.
    """
    fresh = int(night.facts("collect").get("rows", {}).get("ok", 0))
    if not fresh:
        return StageResult("There are no new rows, so there is nothing new to learn.", status="skipped")
    _, problem = serving_model()
    if problem is not None:
        return StageResult(f"Nothing was trained: the serving model cannot be loaded ({problem}).", status="skipped")
    challengers: list[Challenger] = []
    findings: list[Finding] = []
    took = _seconds_before(night)
    reserve = after_training_s(night.budget.total_s, earlier_nights(night.plan.name, night.folder))
    names = challenger_names(night)
    for step, name in enumerate(names):
        night.progress(f"making the challenger {name}", step, len(names))
        done = read_challenger(night.folder, name)
        if done is None:
            left = max(0.0, night.budget.left_s - reserve)
            before = took.get(_kind(name), 0.0)
            if left < _HEADROOM * before or left <= 0:
                findings.append(_no_time(name, f"{left:.0f} s are left, and it took {before:.0f} s before"))
                continue
            done = _run_process(night, name, left)
        if done is None:
            findings.append(_no_time(name, "it was ended when its time was over"))
        elif isinstance(done, str):
            findings.append(Finding("gate", "info", name, f"No challenger {name} was made: {done}"))
        else:
            challengers.append(done)
    past_entry = past_model(night)
    if past_entry is not None:
        challengers += _past(night, past_entry)
    facts = {
        "challengers": [{**challenger.facts(), "left": dict(challenger.left)} for challenger in challengers],
        "past": None if past_entry is None else past_entry.version,
    }
    if not challengers:
        return StageResult("No challenger could be made.", facts, tuple(findings), "failed" if findings else "skipped")
    words = [f"{challenger.name} ({challenger.seconds:.0f} s, {challenger.rows} rows)" for challenger in challengers]
    return StageResult(f"Challengers: {', '.join(words)}.", facts, tuple(findings))


def challenger_names(night: Night) -> list[str]:
    """Names of the challengers to make, the quick ones first."""
    wanted, regressors = night.plan.train.challengers, night.plan.train.regressors
    names = ["adapted"] if "adapted" in wanted else []
    if (entry := past_model(night)) is not None:
        names.append(f"{ADAPTED_PAST}{entry.version}")
    return names + (list(regressor_by_name(regressors)) if RETRAINED in wanted else [])


def regressor_by_name(regressors: Iterable[str]) -> dict[str, str]:
    """Names of retrained challengers and what trains them."""
    every = list(regressors)
    return {RETRAINED if len(every) == 1 else f"{RETRAINED}-{regressor}": regressor for regressor in every}


def _run_process(night: Night, name: str, seconds: float) -> Challenger | str | None:
    """The challenger from a process of its own; why there is none; None where its time was over."""
    log = night.folder / CHALLENGERS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(_command(night.folder, name), stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603 - our own module
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
    done = read_challenger(night.folder, name)
    if done is not None:
        return done
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    why = f"its process ended with {process.returncode}: {lines[-1][:200] if lines else 'no output'} (see {log})"
    write_challenger(night.folder, name, why)
    return why


def _command(folder: Path, name: str) -> list[str]:
    """What makes a challenger; -P keeps the working directory's folders from shadowing packages."""
    module = "kernelcast.nightly.challenger_process"
    return [sys.executable, "-P", "-m", module, str(folder), name, str(os.getpid())]


def _past(night: Night, entry: ModelEntry) -> list[Challenger]:
    """The kept model that challenges as it is; none where it no longer loads."""
    try:
        challenger = past(Path(entry.path), f"past-{entry.version}", devices=night.devices)
    except ArtifactError:
        return []
    write_challenger(night.folder, challenger.name, challenger)
    return [challenger]


def past_model(night: Night) -> ModelEntry | None:
    """The kept model that challenges again, as it is and adapted; None where the plan asks for none or none is kept."""
    if "past" not in night.plan.train.challengers:
        return None
    serving = serving_version()
    entries = [entry for entry in Ledger().entries() if entry.version != serving and entry.night != night.record.id]
    software = night_software(night.record, night.measurer.devices)
    return next(iter(ranked(entries, night.record.id, software)), None)


def _no_time(name: str, why: str) -> Finding:
    message = f"The challenger {name} was not made in time: {why}. Increase `minutes`, or use fewer rows or a faster regressor."
    return Finding("budget", "warning", name, message)


def _kind(name: str) -> str:
    """What of a challenger's name is the same every night: another past model takes as long to adapt."""
    return ADAPTED_PAST if name.startswith(ADAPTED_PAST) else name


def _seconds_before(night: Night) -> dict[str, float]:
    """What each kind of challenger took in the newest earlier night of the plan that made it."""
    seconds: dict[str, float] = {}
    for record in earlier_nights(night.plan.name, night.folder):
        for entry in record.stage("train").facts.get("challengers", ()):
            seconds.setdefault(_kind(str(entry.get("name"))), float(entry.get("seconds") or 0.0))
    return seconds
