"""Facts of stages as the report takes them: a night may have failed anywhere, so nothing is there for sure, nor of its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .record.record import NightRecord, StageRecord

LAST_NIGHT = "last night"
"""What the gate calls the rows measured in the night itself."""

_MOST = 1e15
"""No count, time or percentage of a night is larger; a number beyond is damage, and would break an axis."""


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> Sequence[Mapping[str, Any]]:
    """The mappings of a list; nothing where it is none."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def number(value: object) -> float | None:
    """The value where it is a number that can be meant, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST <= value <= _MOST:
        return None
    return float(value)


def counts(value: object) -> dict[str, float]:
    """The entries of a mapping that are numbers."""
    return {str(name): count for name, entry in mapping(value).items() if (count := number(entry)) is not None}


def facts(record: NightRecord, stage: str) -> Mapping[str, Any]:
    """The facts of a stage."""
    return mapping(record.stage(stage).facts)


def failed_stage(record: NightRecord) -> StageRecord | None:
    """The first stage that failed."""
    return next((stage for stage in record.stages if stage.status == "failed"), None)


def last_begun(record: NightRecord) -> StageRecord | None:
    """The last stage that was begun."""
    begun = [stage for stage in record.stages if stage.status != "not-reached" or stage.began]
    return begun[-1] if begun else None


def seconds_taken(record: NightRecord) -> float:
    """Seconds from begin to end; of a night without an end, those of its stages."""
    try:
        if record.ended is not None:
            return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.began)).total_seconds()
    except (ValueError, TypeError):
        pass  # a time that is none, or one of the two without its offset: the sum of the stages' seconds stands for it
    return sum(number(stage.seconds) or 0.0 for stage in record.stages)


@dataclass(frozen=True, slots=True)
class ErrorSlice:
    """The served model on a slice of the night's rows.

    Attributes:
        name: The slice.
        n: Number of rows.
        mean_ape_pct: Mean absolute percentage error of latency.
        coverage_pct: Share of rows in their interval, in percent; None where unknown.
        expected_pct: The share that intervals were made for, in percent; None where unknown.
    """

    name: str
    n: float
    mean_ape_pct: float
    coverage_pct: float | None
    expected_pct: float | None


def served_slices(record: NightRecord) -> list[ErrorSlice]:
    """What the model that served was off by on the night's rows, slice by slice, as the check found it."""
    slices = []
    for name, entry in mapping(facts(record, "check").get("model_drift")).items():
        values = mapping(entry)
        n, error = number(values.get("n")), number(values.get("mean_ape_pct"))
        if n and n > 0 and error is not None:
            expected = number(values.get("expected_coverage_pct"))
            slices.append(ErrorSlice(str(name), n, error, number(values.get("coverage_pct")), expected))
    return slices


def champion_error_pct(record: NightRecord) -> float | None:
    """Mean error of the model that served, on the night's own rows: the check's slices by their rows, else the gate's.

    A slice `all` goes first. Of the gate's, those of a whole family on a device count, as the others are parts of them.
    """
    judged = [(part.name, part.n, part.mean_ape_pct) for part in served_slices(record)]
    if not judged:
        # The champion is the same in every verdict.
        for verdict in rows(facts(record, "gate").get("verdicts"))[:1]:
            judged = list(_judged(verdict))
    judged = [entry for entry in judged if entry[0] == "all"] or judged
    total = sum(n for _, n, _ in judged)
    return sum(n * pct for _, n, pct in judged) / total if total else None


def _judged(verdict: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    for row in rows(verdict.get("slices")):
        name = str(row.get("slice"))
        n, pct = number(row.get("n")), number(row.get("champion_mean_ape_pct"))
        is_whole = ", " not in name or name.endswith(f", origin {LAST_NIGHT}")
        if str(row.get("rows")).replace("_", " ") == LAST_NIGHT and is_whole and n and n > 0 and pct is not None:
            yield name, n, pct


def sentinel_ratios(record: NightRecord) -> dict[str, float]:
    """Each sentinel's reading over what was expected of it; of several devices, with the device's name before it."""
    sentinels = facts(record, "sentinels")
    several = mapping(sentinels.get("devices"))
    parts = {f"{device}: ": mapping(device_facts) for device, device_facts in several.items()} or {"": sentinels}
    ratios = {}
    for prefix, part in parts.items():
        expected = counts(part.get("expected"))
        for case, reading in counts(part.get("readings")).items():
            if reading > 0 and expected.get(case, 0) > 0:
                ratios[f"{prefix}{case}"] = reading / expected[case]
    return ratios


def rows_measured(record: NightRecord) -> dict[str, float]:
    """Rows measured, by status."""
    return counts(facts(record, "collect").get("rows"))


def begun_times(records: Sequence[NightRecord]) -> list[str]:
    """What nights are called on an axis: month and day of their begin."""
    return [record.began[5:10] or record.id[:8] for record in records]
