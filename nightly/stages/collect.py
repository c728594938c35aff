"""Stage 4: measure what was chosen until the time kept for the rest begins; every block is stored as soon as it is whole."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...collectors.campaign import CampaignError, store_sink
from ...collectors.gpu.bench import NO_ENERGY
from ...collectors.pipe import WorkerStartError
from ...datasets.schema import Measurement, Provenance
from ...datasets.software import software_of
from ...datasets.store import StoreError
from ..context import ChosenCase, Did, Night
from ..fresh import fresh_rows
from ..measuring.protocol import Ended
from ..record import Finding
from ..watching import looked_at, note
from ..written import note_block

_LOST = ("crashed", "timeout", "failed")
_SENSOR_ROWS = 5
"""So many hot rows in a row without power, after some with it, are a sensor that is gone and not a case it cannot read."""


def collect(night: Night) -> Did:
    """Measure the chosen cases that this night has not stored yet.

    Raises:
        KeyboardInterrupt: someone stopped it; what was measured is stored.
        SpecError: what was chosen cannot be read.
        StoreError: the device is being measured by something else.
    """
    chosen = night.chosen()
    if not chosen:
        return Did("Nothing was chosen, so nothing was measured.", status="skipped")
    before = fresh_rows(night)
    done = {(row["device"], row["case_id"]) for row in before}
    left = [case for case in chosen if (case.device, case.spec.case_id) not in done]
    if left and night.budget.measuring_s <= 0:
        said = (f"{len(left)} of {len(chosen)} cases were not measured: no time was left beside what training needs. "
                "Give the plan more minutes.")  # fmt: skip
        return Did(said, _facts(before, 0.0, len(left)), (Finding("budget", "warning", night.record.device, said),),
                   "done" if before else "skipped")  # fmt: skip
    journal = _Journal(night, store_sink(night.store))
    began = time.monotonic()
    ended, problem = _measured(night, left, journal)
    kept = journal.note_sentinels()
    if ended.interrupted:
        raise KeyboardInterrupt
    rows = [*before, *journal.rows]
    remaining = len(chosen) - len({(row["device"], row["case_id"]) for row in rows})
    findings = [*ended.findings, *kept, *journal.findings(night.record.device)]
    facts = _facts(rows, time.monotonic() - began, remaining)
    counts = Counter(row["status"] for row in rows)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no rows"
    if problem is not None:
        kind = "storage" if "disk is full" in problem or "cannot store" in problem else "device"
        said = f"Measuring ended early: {problem} Stored tonight: {told}."
        return Did(said, facts, (*findings, Finding(kind, "needs-person", night.record.device, said)), "failed")
    said = f"Stored: {told}."
    if remaining > 0:
        said += f" {remaining} of {len(chosen)} cases were left when the time for measuring was over."
    lost = sum(counts[status] for status in _LOST)
    if rows and lost > len(rows) / 2:
        lines = f"{lost} of {len(rows)} cases gave no time ({told}): the device, or what measures it, is not well. See to it."
        findings.append(
            Finding("device", "needs-person", night.record.device, lines, {"lost": lost, "rows": len(rows)})
        )
        return Did(said, facts, tuple(findings), "done" if counts["ok"] else "failed")
    return Did(said, facts, tuple(findings))


def _measured(night: Night, left: Sequence[ChosenCase], journal: _Journal) -> tuple[Ended, str | None]:
    """How measuring ended, and what went wrong, as a sentence."""
    by_device: dict[str, list[Any]] = {}
    for case in left:
        by_device.setdefault(case.device, []).append(case.spec)
    note = {"night": night.record.id, "plan": night.plan.name}
    with night.lock():
        try:
            return night.measurer.collect(
                by_device, sink=journal, until=night.budget.measuring_until, note=note,
                progress=lambda steps, total: night.tell("measuring", steps, total),
            ), None  # fmt: skip
        except (CampaignError, StoreError, WorkerStartError) as error:
            words = str(error)
            return Ended(), words if words.endswith(".") else f"{words}."


def _facts(rows: Sequence[dict[str, Any]], seconds: float, left: int) -> dict[str, Any]:
    return {
        "rows": dict(Counter(row["status"] for row in rows)),
        "families": dict(Counter(row["family"] for row in rows if row["status"] == "ok")),
        "seconds": round(seconds, 3), "interrupted": False, "left": left,
    }  # fmt: skip


@dataclass(slots=True)
class _Journal:
    """A sink that writes down each block's name before the block is stored, so that no crash makes a case measured twice."""

    night: Night
    sink: Any
    rows: list[dict[str, Any]] = field(default_factory=list)
    without_power: int = 0
    with_power: int = 0
    refused_energy: int = 0
    sentinels: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)

    def __call__(self, rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement]:
        note_block(self.night.folder, provenance.block)
        kept: Sequence[Measurement] = self.sink(rows, provenance)
        if kept:
            self._watch_sentinels(kept[0].device, provenance.facts)
        for row in kept:
            self.rows.append(
                {"family": row.spec.family, "device": row.device, "case_id": row.case_id, "status": row.status}
            )
            self._watch_sensor(row)
        return kept

    def _watch_sentinels(self, device: str, facts: Mapping[str, Any]) -> None:
        """Keep what the sentinels around a block took and its software; of devices looked at before, more is known."""
        if "readings" in looked_at(self.night, device):
            return
        self.software[device] = software_of(facts)
        own = self.sentinels.setdefault(device, {})
        for when in ("sentinel_before_s", "sentinel_after_s"):
            for name, value in (facts.get(when) or {}).items():
                if value:
                    own.setdefault(name, []).append(float(value))

    def note_sentinels(self) -> list[Finding]:
        """Note the medians of what the sentinels took for the nights to come, whatever ended this one."""
        findings = []
        for device, software in self.software.items():
            readings = {name: statistics.median(seen) for name, seen in self.sentinels[device].items()}
            findings += note(self.night, device, software, readings=readings)
        return findings

    def _watch_sensor(self, row: Measurement) -> None:
        if row.status != "ok" or row.spec.cache_state != "hot":
            return
        if row.message is not None and row.message.startswith(NO_ENERGY):
            self.refused_energy += 1
        if row.power_w is not None:
            self.with_power, self.without_power = self.with_power + 1, 0
        else:
            self.without_power += 1

    def findings(self, device: str) -> list[Finding]:
        """What there is to say of the energy sensor."""
        every = self.night.plan.collector in ("cpu", "replay")  # a GPU's plan measures the energy of a share only
        if not (every and self.with_power and self.without_power >= _SENSOR_ROWS):
            return []
        said = (
            f"The energy sensor gave {self.with_power} readings and then none for the last {self.without_power} rows: it is "
            "gone. Their latency is stored, without energy. See to the sensor (its driver, or who may read it)."
        )
        return [Finding("sensor", "needs-person", device, said,
                        {"with_power": self.with_power, "without_power": self.without_power})]  # fmt: skip
