"""Opening a night: a new folder, or that of a night that did not end, with all its stages need; or only what it would do."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..datasets.rows.checks import catalogue_bounds
from ..datasets.store.store import Store
from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..files import home_dir, write_whole
from ..process import core_count
from .context import LOCKED, Budget, Night, Progress, reserve_s
from .gate.model_ledger import serving_model, serving_version
from .measuring.protocol import Measurer
from .record.folders import (
    CHALLENGERS,
    PLAN_JSON,
    STATE,
    earlier_nights,
    new_night,
    night_folders,
    nights_dir,
    records,
    unfinished,
)
from .record.plan import Plan, differences, without_password
from .record.record import STAGES, Finding, NightRecord, StageRecord
from .stages.choose import cases_for
from .stages.device import descriptor_file
from .stages.report import reserve_report_space
from .stages.train import regressor_by_name

LAST = "last"
"""What `--resume` calls the plan's newest night."""

_CPU_IMPLS = ("torch",)


@dataclass(frozen=True, slots=True)
class NightSetup:
    """What a night works with besides its folder.

    Attributes:
        plan: What it follows.
        measurer: What measures.
        devices: The catalogue.
        device_files: Files that devices of the catalogue were read from.
        spent_s: Seconds of the night that setting it up took, such as characterising a new machine.
    """

    plan: Plan
    measurer: Measurer
    devices: Catalogue
    device_files: tuple[Path, ...] = ()
    spent_s: float = 0.0

    @property
    def store_place(self) -> str | None:
        """Where rows go; None for the default. A rehearsal never writes where real rows are unless told to."""
        if self.plan.store is None:
            return str(home_dir() / "rehearsals") if self.plan.rehearsal else None
        return self.plan.store if "://" in self.plan.store else str(Path(self.plan.store).expanduser())


def open_night(
    setup: NightSetup, tell: Progress, *, resume: str | None = None, from_stage: str | None = None, fresh: bool = False
) -> Night:
    """The night to run: the one named by `resume` (an id or `last`), else an unfinished one of the same plan, else a new one.

    `from_stage` opens a stage and all after it again, of the last night unless `resume` names one. `fresh` begins a new night
    even if one is unfinished. The lock of nights must be held.

    Raises:
        SpecError: no such night or stage, or the night to go on with followed another plan.
        OSError: the folder of nights cannot be written.
    """
    if from_stage is not None and from_stage not in STAGES:
        raise SpecError(f"there is no stage {from_stage!r}; stages: {listed(STAGES)}", field="from")
    store = ready_store(setup)
    findings: tuple[Finding, ...] = ()
    if resume is not None or from_stage is not None:
        folder = _named(setup.plan, resume or LAST)
        if changed := plan_changes(folder, setup.plan):
            raise SpecError(
                f"the plan is not that of night {folder.name} any more ({'; '.join(changed[:3])}); give that plan, or begin a "
                "new night without --resume and --from", field="plan",
            )  # fmt: skip
    else:
        going_on = None if fresh else unfinished(nights_dir(), setup.plan.name, datetime.now(UTC))
        if going_on is not None and (changed := plan_changes(going_on, setup.plan)):
            message = (
                f"Night {going_on.name} did not finish, and the plan has changed since ({'; '.join(changed[:3])}). A new night "
                "begins. The unfinished one stays as it is; its rows stay in the store."
            )
            findings = (Finding("stage", "warning", going_on.name, message),)
            going_on = None
        folder = going_on or _new(setup)
    record = NightRecord.read(folder / STATE)
    if from_stage is not None and STAGES.index(from_stage) <= STAGES.index("train"):
        # They were judged beside the model that served then.
        shutil.rmtree(folder / CHALLENGERS, ignore_errors=True)
    night = _night(setup, store, folder, _reopened(record, from_stage), tell)
    night.opening = findings
    return night


def ready_store(setup: NightSetup) -> Store:
    """The store rows go to, with what a night would trip over hours later looked at now.

    Raises:
        SpecError: the store or further rows to learn from are not what the plan can mean.
        StoreError: the store's address has an unknown protocol, or holds a password.
    """
    for name in setup.plan.train.data:
        if not Path(name).expanduser().is_file():
            raise SpecError(f"train.data: there is no file {name}; name files of measured rows", field="train.data")
    _refuse_nothing(setup)
    place = setup.store_place
    if place is not None and place.startswith("memory://"):
        raise SpecError(f"store: {place} is gone when a process ends, and training is one of its own; name a folder or an "
                        "address that stays", field="store")  # fmt: skip
    return Store(place, lower_bounds=partial(catalogue_bounds, known=setup.devices))


def _refuse_nothing(setup: NightSetup) -> None:
    """Raises SpecError: this machine's CPU, or a recording, has none of the cases the plan allows."""
    plan = setup.plan
    if plan.collector == "cpu":
        if other := sorted(set(plan.impls) - set(_CPU_IMPLS)):
            raise SpecError(f"impls: a CPU's nights measure {listed(_CPU_IMPLS)}, and the plan asks for {listed(other)}",
                            field="impls")  # fmt: skip
        cores = core_count()
        if plan.threads and max(plan.threads) > cores:
            raise SpecError(f"threads: {max(plan.threads)} are more than the {cores} cores this process may use",
                            field="threads")  # fmt: skip
    elif plan.collector == "replay" and not setup.measurer.candidates(setup.measurer.devices[0], 1, 0, ()):
        raise SpecError("replay.rows: no recorded row is of the plan's families, dtypes, threads and impls; leave some of "
                        "these keys out", field="replay.rows")  # fmt: skip


def _new(setup: NightSetup) -> Path:
    """A folder with its plan and an empty record."""
    now = datetime.now(UTC)
    folder = new_night(nights_dir(), setup.plan.name, now)
    content = {
        "plan": setup.plan.to_json(), "hash": setup.plan.hash, "devices": list(setup.measurer.devices),
        "device_files": [str(path.absolute()) for path in setup.device_files], "store": setup.store_place,
    }  # fmt: skip
    try:
        write_whole(folder / PLAN_JSON, json.dumps(content, indent=1) + "\n")
        reserve_report_space(folder)
        _new_record(setup, folder, now).write(folder / STATE)
    except BaseException:
        # A night that cannot be written down leaves nothing behind that a disk gets fuller of.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _new_record(setup: NightSetup, folder: Path, now: datetime) -> NightRecord:
    devices, began = ", ".join(setup.measurer.devices), now.isoformat(timespec="seconds")
    return NightRecord(folder.name, setup.plan.name, devices, "running", began, None, setup.plan.budget_s, serving_version(),
                       None)  # fmt: skip


def _night(setup: NightSetup, store: Store, folder: Path, record: NightRecord, tell: Progress) -> Night:
    earlier = earlier_nights(setup.plan.name, folder)
    total = setup.plan.budget_s
    used = sum(stage.seconds for stage in record.stages if stage.status in ("done", "failed", "skipped"))
    budget = Budget(total, min(used + setup.spent_s, total), reserve_s(total, earlier))
    return Night(setup.plan, folder, record, setup.devices, setup.measurer, store, budget, tell)


def _reopened(record: NightRecord, from_stage: str | None) -> NightRecord:
    """The record with stages opened again: all from `from_stage` on, else from the first that failed or was never reached."""
    opened = [stage.name for stage in record.stages if stage.status in ("failed", "not-reached")]
    first = from_stage or (opened[0] if opened else STAGES[-1])
    again = STAGES[STAGES.index(first) :]
    if record.stage("promote").facts.get("version") and "promote" in again:
        # What was promoted then is what serves now, and what this round begins with.
        record = replace(record, champion_before=serving_version())
    for name in again:
        record = record.with_stage(StageRecord(name))
    return record


def _named(plan: Plan, name: str) -> Path:
    known = night_folders(nights_dir())
    if name == LAST:
        newest = next((folder for folder, _ in records(nights_dir(), plan.name)), None)
        if newest is None:
            raise SpecError(f"plan {plan.name} has no night yet; begin one without --resume and --from", field="resume")
        return newest
    if name not in [folder.name for folder in known]:
        shown = listed(folder.name for folder in known[-5:]) or "none"
        raise SpecError(f"there is no night {name!r}; the last ones: {shown}", field="resume")
    return nights_dir() / name


def plan_changes(folder: Path, plan: Plan) -> list[str]:
    """What of the plan differs from that of a night; a plan that cannot be read differs from every plan."""
    try:
        before = json.loads((folder / PLAN_JSON).read_text(encoding="utf-8"))["plan"]
        return differences(before, plan.to_json())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"its {PLAN_JSON} cannot be read"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a night would do if it began now.

    Attributes:
        plan: Name of the plan.
        devices: Devices it would measure.
        store: Where rows would go.
        serves: Version of the model that serves; None where that cannot be read.
        resumes: The unfinished night it would continue; None for a new night.
        budget_s: Seconds of the whole night.
        measuring_s: Seconds of them for measuring.
        kept_back_s: Seconds of them reserved for training and what follows.
        cases: Cases it would measure.
        candidates: Cases they are chosen from.
        predicted_s: Seconds that measuring them is predicted to take.
        why: Number of cases by the reason they were chosen.
        families: Number of cases by kernel family.
        stages: What each stage would do, in words.
    """

    plan: str
    devices: tuple[str, ...]
    store: str
    serves: str | None
    resumes: str | None
    budget_s: float
    measuring_s: float
    kept_back_s: float
    cases: int
    candidates: int
    predicted_s: float
    why: dict[str, int]
    families: dict[str, int]
    stages: dict[str, str]


def outlook(setup: NightSetup, *, fresh: bool = False) -> Outlook:
    """What a night that began now would do; `fresh` for a new one even if one is unfinished.

    Raises:
        SpecError: the store's address or a device is not possible.
        StoreError: the store cannot be reached.
    """
    plan, now = setup.plan, datetime.now(UTC)
    store = ready_store(setup)
    going_on = None if fresh else unfinished(nights_dir(), plan.name, now)
    if going_on is not None and plan_changes(going_on, plan):
        going_on = None
    folder = going_on or nights_dir() / f"{now:%Y%m%dT%H%M%SZ}-{plan.name}"
    night = _night(setup, store, folder, _new_record(setup, folder, now), lambda *_: None)
    chosen = night.chosen() if going_on else []
    candidates = len(chosen)
    if not chosen:
        chosen, candidates, _ = cases_for(night, night.budget.measuring_s - 60.0 * plan.energy_minutes)
    return Outlook(
        plan.name, setup.measurer.devices, store.location.name, night.record.champion_before,
        going_on.name if going_on else None, plan.budget_s,
        round(plan.budget_s - night.budget.reserved_s, 1), round(night.budget.reserved_s, 1), len(chosen), candidates,
        round(sum(case.measuring_s for case in chosen), 1), dict(Counter(case.why for case in chosen)),
        dict(Counter(case.spec.family for case in chosen)), _stages(setup, len(earlier_nights(plan.name, folder))),
    )  # fmt: skip


def _stages(setup: NightSetup, nights: int) -> dict[str, str]:
    plan = setup.plan
    _, problem = serving_model()
    names = [name for name in plan.train.challengers if name != "retrained"]
    names += list(regressor_by_name(plan.train.regressors)) if "retrained" in plan.train.challengers else []
    words: dict[str, Any] = {
        "characterise": _characterising(setup),
        "sentinels": f"anchor cases, compared with {nights} earlier nights of this plan",
        "choose": "cases the service is asked for, and cases that fill the space",
        "collect": f"{plan.collector}, rows into {setup.store_place or 'KERNELCAST_HOME/measurements'}",
        "check": "store, software, repeats, drift, whether the serving model loads",
        "train": "nothing: the serving model cannot be loaded" if problem else ", ".join(names) or "nothing asked for",
        "gate": f"every new shape judges once, confidence {plan.gate.confidence:g}",
        "promote": f"through {without_password(plan.registry)}" if plan.registry else "the champion pointer",
        "report": f"{nights_dir()}",
    }  # fmt: skip
    return {name: str(words[name]) for name in STAGES}


def _characterising(setup: NightSetup) -> str:
    """Whether the device itself would be measured."""
    every = setup.plan.characterise.every_days
    if not every:
        return "left out: the plan asks for none"
    if setup.plan.collector not in LOCKED:
        return "left out: what measures cannot be characterised from here"
    exists = descriptor_file(setup.measurer.devices[0]).exists()
    return f"every {every:g} days, {'there is one' if exists else 'none yet'}; not where it takes over a quarter of the night"
