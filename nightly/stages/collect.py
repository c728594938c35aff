"""Stage 4: measure what was chosen until the time kept for the rest begins; every block is stored as soon as it is whole."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...collectors.campaign import CampaignError
from ...collectors.kernel_campaign import store_sink
from ...datasets.rows.schema import Measurement, Provenance, software_of
from ...datasets.store.store import StoreError
from ...process import ChildStartError
from ..checks.device_check import device_facts, record_readings
from ..context import ChosenCase, Night, StageResult, kind_of_error
from ..measuring.protocol import CollectingEnd
from ..record.folders import note_block
from ..record.record import Finding
from ..rows import SHORT_COLUMNS, night_tables, short_rows

_LOST = ("crashed", "timeout", "failed")
_SENSOR_ROWS = 5
"""So many hot rows in a row without power, after some with it, mean that the sensor is gone."""


def collect(night: Night) -> StageResult:
    """Measure the chosen cases that this night has not stored yet.

    Raises:
        KeyboardInterrupt: someone stopped it; what was measured is stored.
        SpecError: what was chosen cannot be read.
        StoreError: the device is being measured by something else.
    """
    chosen = night.chosen()
    if not chosen:
        return StageResult("Nothing was chosen, so nothing was measured.", status="skipped")
    before = short_rows(night_tables(night, SHORT_COLUMNS))
    done = {(row["device"], row["case_id"]) for row in before}
    left = [case for case in chosen if (case.device, case.spec.case_id) not in done]
    if left and night.budget.measuring_s <= 0:
        summary = (f"{len(left)} of {len(chosen)} cases were not measured: no time was left beside what training needs. "
                "Give the plan more minutes.")  # fmt: skip
        finding = Finding("budget", "warning", night.record.device, summary)
        return StageResult(summary, _facts(before, 0.0, len(left)), (finding,), "done" if before else "skipped")
    journal = _Journal(night, store_sink(night.store))
    began = time.monotonic()
    end, problem = _measured(night, left, journal)
    sentinel_findings = journal.record_sentinels()
    if end.interrupted:
        raise KeyboardInterrupt
    rows = [*before, *journal.rows]
    remaining = len(chosen) - len({(row["device"], row["case_id"]) for row in rows})
    findings = [*end.findings, *sentinel_findings, *journal.findings(night.record.device)]
    facts = _facts(rows, time.monotonic() - began, remaining)
    counts = Counter(row["status"] for row in rows)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no rows"
    if problem is not None:
        kind = kind_of_error(problem, "storage" if isinstance(problem, StoreError) else "device")
        summary = f"Measuring ended early: {str(problem).rstrip('.')}. Stored tonight: {statuses}."
        findings.append(Finding(kind, "needs-person", night.record.device, summary))
        return StageResult(summary, facts, tuple(findings), "failed")
    summary = f"Stored: {statuses}."
    if remaining > 0:
        summary += f" {remaining} of {len(chosen)} cases were left when the time for measuring was over."
    lost = sum(counts[status] for status in _LOST)
    if rows and lost > len(rows) / 2:
        message = f"{lost} of {len(rows)} cases gave no time ({statuses}). Look at the device and at what measures it."
        numbers = {"lost": lost, "rows": len(rows)}
        findings.append(Finding("device", "needs-person", night.record.device, message, numbers))
    failed = rows and lost > len(rows) / 2 and not counts["ok"]
    return StageResult(summary, facts, tuple(findings), "failed" if failed else "done")


def _measured(night: Night, left: Sequence[ChosenCase], journal: _Journal) -> tuple[CollectingEnd, Exception | None]:
    """How measuring ended, and what went wrong."""
    by_device: dict[str, list[Any]] = {}
    for case in left:
        by_device.setdefault(case.device, []).append(case.spec)
    note = {"night": night.record.id, "plan": night.plan.name}
    with night.lock():
        try:
            return night.measurer.collect(
                by_device, sink=journal, until=night.budget.measuring_until, note=note,
                progress=lambda steps, total: night.progress("measuring", steps, total),
            ), None  # fmt: skip
        except (CampaignError, StoreError, ChildStartError) as error:
            return CollectingEnd(), error


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
    sentinels: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)

    def __call__(self, rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement]:
        note_block(self.night.folder, provenance.block)
        stored: Sequence[Measurement] = self.sink(rows, provenance)
        if stored:
            self._watch_sentinels(stored[0].device, provenance.facts)
        for row in stored:
            self.rows.append(
                {"family": row.spec.family, "device": row.device, "case_id": row.case_id, "status": row.status}
            )
            self._watch_sensor(row)
        return stored

    def _watch_sentinels(self, device: str, facts: Mapping[str, Any]) -> None:
        """Keep what the sentinels around a block took and its software; of devices looked at before, more is known."""
        if "readings" in device_facts(self.night, device):
            return
        self.software[device] = software_of(facts)
        times = self.sentinels.setdefault(device, {})
        for when in ("sentinel_before_s", "sentinel_after_s"):
            for name, value in (facts.get(when) or {}).items():
                if value:
                    times.setdefault(name, []).append(float(value))

    def record_sentinels(self) -> list[Finding]:
        """Record the median times of the sentinels for the nights to come, however this one ends."""
        findings = []
        for device, software in self.software.items():
            readings = {name: statistics.median(seen) for name, seen in self.sentinels[device].items()}
            findings += record_readings(self.night, device, software, readings)
        return findings

    def _watch_sensor(self, row: Measurement) -> None:
        if row.status != "ok" or row.spec.cache_state != "hot":
            return
        if row.power_w is not None:
            self.with_power, self.without_power = self.with_power + 1, 0
        else:
            self.without_power += 1

    def findings(self, device: str) -> list[Finding]:
        """What there is to say of the energy sensor."""
        every = self.night.plan.collector in ("cpu", "replay")  # a GPU's plan measures the energy of a share only
        if not (every and self.with_power and self.without_power >= _SENSOR_ROWS):
            return []
        message = (
            f"The energy sensor gave {self.with_power} readings and then none for the last {self.without_power} rows: it is "
            "gone. Their latency is stored, without energy. Check the sensor: its driver, and the right to read it."
        )
        return [Finding("sensor", "needs-person", device, message,
                        {"with_power": self.with_power, "without_power": self.without_power})]  # fmt: skip
