"""Stage 6: make the models that challenge the one that serves, as many as time allows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...models.family_model.artifact_files import ArtifactError
from ..challenger_process import ADAPTATIONS, ADAPTED, RETRAINED, read_challenger, write_challenger
from ..context import Night, StageResult, after_training_s
from ..gate.challengers import Challenger, past
from ..gate.model_ledger import Ledger, ModelEntry, past_models, serving_model, serving_version
from ..record.folders import CHALLENGERS, earlier_nights
from ..record.plan import Plan
from ..record.record import Finding
from ..rows import night_software

_HEADROOM = 1.25

_RETRAIN_GROWTH = 1.5
"""It is retrained again once its devices have so many times the rows."""


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
    seconds: dict[str, float] = {}
    took = _seconds_before(night)
    reserve = after_training_s(night.budget.total_s, earlier_nights(night.plan.name, night.folder))
    processes, why_not = challenger_processes(night)
    for step, (process, names) in enumerate(processes.items()):
        night.progress(f"making the challenger {process}", step, len(processes))
        if read_challenger(night.folder, names[-1]) is None:
            # What follows may have been slow once; half of what is left is training's all the same.
            left = max(night.budget.left_s - reserve, night.budget.left_s / 2)
            before = took.get(process, 0.0)
            began = time.monotonic()
            if left < _HEADROOM * before or left <= 0:
                findings.append(_no_time(process, f"{left:.0f} s are left, and it took {before:.0f} s before"))
                continue
            _run_process(night, process, names, left)
            seconds[process] = round(time.monotonic() - began, 3)
        for name in names:
            done = read_challenger(night.folder, name)
            if done is None:
                findings.append(_no_time(name, "it was ended when its time was over"))
            elif isinstance(done, str):
                findings.append(Finding("gate", "info", name, f"No challenger {name} was made: {done}"))
            else:
                challengers.append(done)
    entries = _past_entries(night)
    challengers += [challenger for entry in entries for challenger in _past(night, entry)]
    facts = {
        "champion": serving_version(),
        "challengers": [{**challenger.facts(), "left": dict(challenger.left)} for challenger in challengers],
        "seconds": seconds,
        "past": next((entry.version for entry in entries), None),
        "not_retrained": why_not,
        "rows_retrained_by": _rows(night) if any(each.kind == RETRAINED for each in challengers) else 0,
    }
    if not challengers:
        return StageResult("No challenger could be made.", facts, tuple(findings), "failed" if findings else "skipped")
    words = [f"{challenger.name} ({challenger.seconds:.0f} s, {challenger.rows} rows)" for challenger in challengers]
    return StageResult(f"Challengers: {', '.join(words)}.", facts, tuple(findings))


def challenger_processes(night: Night) -> tuple[dict[str, list[str]], str | None]:
    """By process to start, the quick one first, the challengers that it makes; and why nothing is retrained, if so."""
    wanted, why_not = night.plan.train.challengers, None
    processes = {ADAPTED: list(ADAPTATIONS)} if ADAPTED in wanted else {}
    if RETRAINED in wanted:
        rows = _rows(night)
        before = max((int(record.stage("train").facts.get("rows_retrained_by", 0))
                      for record in earlier_nights(night.plan.name, night.folder)), default=0)  # fmt: skip
        least = max(night.plan.train.retrain_rows, _RETRAIN_GROWTH * before)
        if rows >= least:
            processes |= {name: [name] for name in regressor_by_name(night.plan.train.regressors)}
        else:
            why_not = f"{rows} rows of its devices are stored; from {least:.0f} on it is retrained"
    return processes, why_not


def challenger_count(plan: Plan) -> int:
    """Challengers that a plan's nights may judge: so many share the probability of a promotion by chance."""
    counts = {ADAPTED: len(ADAPTATIONS), RETRAINED: len(plan.train.regressors)}
    return sum(counts.get(name, 1) for name in plan.train.challengers)


def _rows(night: Night) -> int:
    return sum(len(night.store.case_ids(device)) for device in night.measurer.devices)


def regressor_by_name(regressors: Iterable[str]) -> dict[str, str]:
    """Names of retrained challengers and what trains them."""
    every = list(regressors)
    return {RETRAINED if len(every) == 1 else f"{RETRAINED}-{regressor}": regressor for regressor in every}


def _run_process(night: Night, process: str, names: Sequence[str], seconds: float) -> None:
    """Have a process make its challengers within some seconds; of one that fails each says why."""
    log = night.folder / CHALLENGERS / f"{process}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        command = _command(night.folder, process)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603 - our own module
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        finally:
            child.kill()
            child.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    why = f"its process ended with {child.returncode}: {lines[-1][:200] if lines else 'no output'} (see {log})"
    for name in names:
        if read_challenger(night.folder, name) is None:
            write_challenger(night.folder, name, why)


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


def _past_entries(night: Night) -> list[ModelEntry]:
    """The kept models that challenge again; none where the plan asks for none."""
    if "past" not in night.plan.train.challengers:
        return []
    entries = [entry for entry in Ledger().entries() if entry.night != night.record.id]
    return past_models(entries, serving_version(), night_software(night.record, night.measurer.devices))


def _no_time(name: str, why: str) -> Finding:
    message = f"The challenger {name} was not made in time: {why}. Increase `minutes`, or use fewer rows or a faster regressor."
    return Finding("budget", "warning", name, message)


def _seconds_before(night: Night) -> dict[str, float]:
    """What each process took in the newest earlier night of the plan that ran it."""
    seconds: dict[str, float] = {}
    for record in earlier_nights(night.plan.name, night.folder):
        seconds = record.stage("train").facts.get("seconds", {}) | seconds
    return seconds
