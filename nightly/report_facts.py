"""Facts of stages as the report takes them: a night may have failed anywhere, so nothing is there for sure, nor of its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .record.record import NightRecord, StageRecord

_MOST = 1e15
"""No count, time or percentage of a night is larger; a number beyond is damage."""


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
