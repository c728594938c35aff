"""What a night would do, without measuring or writing anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .begin import LOCKED, Setting, device_lock, plan_changes, ready_store
from .budget import Budget, reserve_s
from .context import Night
from .folders import earlier_nights, nights_dir, unfinished
from .outcome import serving_model, serving_version
from .plan import without_password
from .record import STAGES, NightRecord
from .stages.characterise import descriptor_file
from .stages.choose import cases_for
from .stages.train import regressor_by_name


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a night would do: `stages` in words, the split of its seconds, and the cases it would choose by why and family."""

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


def outlook(setting: Setting, *, fresh: bool = False) -> Outlook:
    """What a night that began now would do; `fresh` for a new one whatever is unfinished.

    Raises:
        SpecError: the store's address or a device is not possible.
        StoreError: the store cannot be reached.
    """
    plan, now = setting.plan, datetime.now(UTC)
    store = ready_store(setting)
    going_on = None if fresh else unfinished(nights_dir(), plan.name, now)
    if going_on is not None and plan_changes(going_on, plan):
        going_on = None
    folder = going_on or nights_dir() / f"{now:%Y%m%dT%H%M%SZ}-{plan.name}"
    devices = setting.measurer.devices
    record = NightRecord(folder.name, plan.name, ", ".join(devices), "running", now.isoformat(timespec="seconds"), None,
                         plan.budget_s, serving_version(), None)  # fmt: skip
    earlier = earlier_nights(plan.name, folder)
    budget = Budget(plan.budget_s, 0.0, reserve_s(plan.budget_s, earlier))
    night = Night(plan, folder, record, setting.devices, setting.measurer, store, budget, lambda *_: None,
                  device_lock(setting, store), setting.rehearsal)  # fmt: skip
    chosen = night.chosen() if going_on else []
    candidates = len(chosen)
    if not chosen:
        chosen, candidates, _ = cases_for(night, budget.measuring_s - 60.0 * plan.energy_minutes)
    return Outlook(
        plan.name, devices, store.root_name, record.champion_before, going_on.name if going_on else None, plan.budget_s,
        round(plan.budget_s - budget.reserved_s, 1), round(budget.reserved_s, 1), len(chosen), candidates,
        round(sum(case.measuring_s for case in chosen), 1), dict(Counter(case.why for case in chosen)),
        dict(Counter(case.spec.family for case in chosen)), _stages(setting, len(earlier)),
    )  # fmt: skip


def _stages(setting: Setting, nights: int) -> dict[str, str]:
    plan = setting.plan
    _, problem = serving_model()
    made = [name for name in plan.train.challengers if name != "retrained"]
    made += list(regressor_by_name(plan.train.regressors)) if "retrained" in plan.train.challengers else []
    told: dict[str, Any] = {
        "characterise": _characterising(setting),
        "sentinels": f"anchor cases, held against {nights} earlier nights of this plan",
        "choose": "fills the space: the serving model cannot be loaded" if problem else "by the serving model and usage",
        "collect": f"{plan.collector}, rows into {setting.store_place or 'KERNELCAST_HOME/measurements'}",
        "check": "store, regimes, repeats, drift, the serving model beside its predecessor",
        "train": "nothing: the serving model cannot be loaded" if problem else ", ".join(made) or "nothing asked for",
        "gate": f"{plan.gate.hold_out:.0%} of shapes held out, confidence {plan.gate.confidence:g}",
        "promote": f"through {without_password(plan.registry)}" if plan.registry else "the champion pointer",
        "report": f"{nights_dir()}",
    }  # fmt: skip
    return {name: str(told[name]) for name in STAGES}


def _characterising(setting: Setting) -> str:
    """Whether the device itself would be measured."""
    every = setting.plan.characterise.every_days
    if not every:
        return "left out: the plan asks for none"
    if setting.plan.collector not in LOCKED:
        return "left out: what measures cannot be characterised from here"
    kept = descriptor_file(setting.measurer.devices[0]).exists()
    return f"every {every:g} days, {'there is one' if kept else 'none yet'}; not where it takes over a quarter of the night"
