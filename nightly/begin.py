"""Opening a night: a new folder, or the one of a night that was not ended, with everything its stages work with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..datasets.checks import catalogue_bounds
from ..datasets.store import Store
from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..home import home_dir
from .budget import Budget, reserve_s
from .context import Night, Tell
from .folders import PLAN_JSON, STATE, earlier_nights, new_night, night_folders, nights_dir, records, unfinished
from .measuring.protocol import Measurer
from .outcome import serving_version
from .plan import Plan, differences
from .record import STAGES, Finding, NightRecord, StageRecord, write_whole
from .report import set_ballast

LAST = "last"
"""What `--resume` calls the plan's newest night."""

_CPU_IMPLS = ("torch",)
LOCKED = ("cpu", "gpu")
"""Collectors that measure devices of this machine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a night is made of besides its folder: the plan, what measures, the catalogue and the files it was read from."""

    plan: Plan
    measurer: Measurer
    devices: Catalogue
    device_files: tuple[Path, ...] = ()

    @property
    def rehearsal(self) -> bool:
        """Whether rows are replayed."""
        return self.plan.collector == "replay"

    @property
    def store_place(self) -> str | None:
        """Where rows go; None for the default. A rehearsal never writes where real rows are unless told to."""
        if self.plan.store is None:
            return str(home_dir() / "rehearsals") if self.rehearsal else None
        return self.plan.store if "://" in self.plan.store else str(Path(self.plan.store).expanduser())


def open_night(
    setting: Setting, tell: Tell, *, resume: str | None = None, from_stage: str | None = None, fresh: bool = False
) -> Night:
    """The night to run: the one named by `resume` (an id or `last`), else an unfinished one of the same plan, else a new one.

    `from_stage` opens a stage and all after it again, of the last night unless `resume` names one. `fresh` begins a new night
    whatever is unfinished. The lock of nights must be held.

    Raises:
        SpecError: no such night or stage, or the night to go on with followed another plan.
        OSError: the folder of nights cannot be written.
    """
    if from_stage is not None and from_stage not in STAGES:
        raise SpecError(f"there is no stage {from_stage!r}; stages: {listed(STAGES)}", field="from")
    store = ready_store(setting)
    findings: tuple[Finding, ...] = ()
    if resume is not None or from_stage is not None:
        folder = _named(setting.plan, resume or LAST)
        if not (before := _plan_of(folder)):
            raise SpecError(
                f"{folder / PLAN_JSON} cannot be read, so nothing says what night {folder.name} was to do; begin a new night "
                "without --resume and --from", field="resume",
            )  # fmt: skip
        if changed := differences(before, setting.plan.to_json()):
            raise SpecError(
                f"the plan is not that of night {folder.name} any more ({'; '.join(changed[:3])}); give that plan, or begin a "
                "new night without --resume and --from", field="plan",
            )  # fmt: skip
    else:
        found = None if fresh else unfinished(nights_dir(), setting.plan.name, datetime.now(UTC))
        if found is not None and (changed := plan_changes(found, setting.plan)):
            findings = (_other_plan(found, changed),)
            found = None
        folder = found or _new(setting)
    record = NightRecord.read(folder / STATE)
    return _night(setting, store, folder, _reopened(record, from_stage), tell, findings)


def ready_store(setting: Setting) -> Store:
    """The store rows go to, with what a night would trip over hours later looked at now.

    Raises:
        SpecError: the store or further rows to learn from are not what the plan can mean.
        StoreError: the store's address is of a protocol nobody knows, or holds a password.
    """
    for name in setting.plan.train.data:
        if not Path(name).expanduser().is_file():
            raise SpecError(f"train.data: there is no file {name}; name files of measured rows", field="train.data")
    _refuse_nothing(setting)
    place = setting.store_place
    if place is not None and place.startswith("memory://"):
        raise SpecError(f"store: {place} is gone when a process ends, and training is one of its own; name a folder or an "
                        "address that stays", field="store")  # fmt: skip
    return Store(place, lower_bounds=partial(catalogue_bounds, known=setting.devices))


def _refuse_nothing(setting: Setting) -> None:
    """Raises SpecError: this machine's CPU, or a recording, has none of the cases the plan allows."""
    plan = setting.plan
    if plan.collector == "cpu":
        if other := sorted(set(plan.impls) - set(_CPU_IMPLS)):
            raise SpecError(f"impls: a CPU's nights measure {listed(_CPU_IMPLS)}, and the plan asks for {listed(other)}",
                            field="impls")  # fmt: skip
        cores = len(os.sched_getaffinity(0))
        if plan.threads and max(plan.threads) > cores:
            raise SpecError(f"threads: {max(plan.threads)} are more than the {cores} cores this process may use",
                            field="threads")  # fmt: skip
    elif plan.collector == "replay" and not setting.measurer.candidates(setting.measurer.devices[0], 1, 0, ()):
        raise SpecError("replay.rows: no recorded row is of the plan's families, dtypes, threads and impls; leave some of "
                        "these keys out", field="replay.rows")  # fmt: skip


def _new(setting: Setting) -> Path:
    """A folder with its plan and an empty record."""
    now = datetime.now(UTC)
    folder = new_night(nights_dir(), setting.plan.name, now)
    try:
        _furnish(setting, folder, now)
    except BaseException:
        # A night that cannot be written down leaves nothing behind that a disk gets fuller of.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _furnish(setting: Setting, folder: Path, now: datetime) -> None:
    content = {
        "plan": setting.plan.to_json(), "hash": setting.plan.hash, "devices": list(setting.measurer.devices),
        "device_files": [str(path.absolute()) for path in setting.device_files], "store": setting.store_place,
    }  # fmt: skip
    write_whole(folder / PLAN_JSON, json.dumps(content, indent=1) + "\n")
    set_ballast(folder)
    NightRecord(
        folder.name, setting.plan.name, ", ".join(setting.measurer.devices), "running", now.isoformat(timespec="seconds"),
        None, setting.plan.budget_s, serving_version(), None,
    ).write(folder / STATE)  # fmt: skip


def _night(
    setting: Setting, store: Store, folder: Path, record: NightRecord, tell: Tell, findings: tuple[Finding, ...]
) -> Night:
    earlier = earlier_nights(setting.plan.name, folder)
    total = setting.plan.budget_s
    used = sum(stage.seconds for stage in record.stages if stage.status in ("done", "failed", "skipped"))
    budget = Budget(total, min(used, total), reserve_s(total, earlier))
    return Night(
        setting.plan, folder, record, setting.devices, setting.measurer, store, budget, tell,
        device_lock(setting, store), setting.rehearsal, findings,
    )  # fmt: skip


def device_lock(setting: Setting, store: Store) -> Callable[[], AbstractContextManager[None]]:
    """Holds this machine's devices while they are measured; a fleet's are held by those who measure there."""

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for device in setting.measurer.devices if setting.plan.collector in LOCKED else ():
                held.enter_context(store.lock(device))
            yield

    return lock


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
        own = next((folder for folder, _ in records(nights_dir(), plan.name)), None)
        if own is None:
            raise SpecError(f"plan {plan.name} has no night yet; begin one without --resume and --from", field="resume")
        return own
    if name not in [folder.name for folder in known]:
        shown = listed(folder.name for folder in known[-5:]) or "none"
        raise SpecError(f"there is no night {name!r}; the last ones: {shown}", field="resume")
    return nights_dir() / name


def _plan_of(folder: Path) -> dict[str, Any]:
    """The plan a night followed; empty where that cannot be read, which differs from every plan."""
    try:
        return dict(json.loads((folder / PLAN_JSON).read_text(encoding="utf-8"))["plan"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def plan_changes(folder: Path, plan: Plan) -> list[str]:
    """What of the plan differs from that of a night."""
    before = _plan_of(folder)
    return differences(before, plan.to_json()) if before else [f"its {PLAN_JSON} cannot be read"]


def _other_plan(folder: Path, changed: list[str]) -> Finding:
    said = (f"The night {folder.name} was not ended, and the plan has changed since ({'; '.join(changed[:3])}). This is a new "
            "night; that one stays as it is, with its rows in the store.")  # fmt: skip
    return Finding("stage", "warning", folder.name, said)
