"""Facts of stages as the report takes them: a night may have failed anywhere, so nothing is there for sure, nor of its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .record import NightRecord, StageRecord

LAST_NIGHT = "last night"
"""What the gate calls the rows measured in the night itself."""

_MOST = 1e15
"""No count, time or percentage of a night is larger; a number beyond is damage, and would break an axis."""


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> Sequence[Mapping[str, Any]]:
    """The mappings of a list; nothing where it is none."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def number(value: object) -> float | None:
    """The value where it is a number that can be meant, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST <= value <= _MOST:
        return None
    return float(value)


def counts(value: object) -> dict[str, float]:
    """The entries of a mapping that are numbers."""
    return {str(name): found for name, one in mapping(value).items() if (found := number(one)) is not None}


def facts(record: NightRecord, stage: str) -> Mapping[str, Any]:
    """The facts of a stage."""
    return mapping(record.stage(stage).facts)


def failed_stage(record: NightRecord) -> StageRecord | None:
    """The first stage that failed."""
    return next((one for one in record.stages if one.status == "failed"), None)


def last_begun(record: NightRecord) -> StageRecord | None:
    """The last stage that was begun."""
    begun = [one for one in record.stages if one.status != "not-reached" or one.began]
    return begun[-1] if begun else None


def seconds_taken(record: NightRecord) -> float:
    """Seconds from begin to end; of a night without an end, those of its stages."""
    try:
        if record.ended is not None:
            return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.began)).total_seconds()
    except (ValueError, TypeError):
        pass  # a time that is none, or one of the two without its offset: the stages' own seconds are told
    return sum(number(stage.seconds) or 0.0 for stage in record.stages)


@dataclass(frozen=True, slots=True)
class ErrorSlice:
    """The served model on a slice of the night's rows; percentages, None where unknown."""

    name: str
    n: float
    mean_ape_pct: float
    coverage_pct: float | None
    expected_pct: float | None


def served_slices(record: NightRecord) -> list[ErrorSlice]:
    """What the model that served was off by on the night's rows, slice by slice, as the check found it."""
    found = []
    for name, one in mapping(facts(record, "check").get("model_drift")).items():
        values = mapping(one)
        n, error = number(values.get("n")), number(values.get("mean_ape_pct"))
        if n and n > 0 and error is not None:
            asked = number(values.get("expected_coverage_pct"))
            found.append(ErrorSlice(str(name), n, error, number(values.get("coverage_pct")), asked))
    return found


def champion_error_pct(record: NightRecord) -> float | None:
    """Mean error of the model that served, on the night's own rows: the check's slices by their rows, else the gate's.

    A slice `all` goes first. Of the gate's, those of a whole family on a device count, as the others are parts of them.
    """
    found = [(one.name, one.n, one.mean_ape_pct) for one in served_slices(record)]
    if not found:
        # The champion is the same in every verdict.
        for verdict in rows(facts(record, "gate").get("verdicts"))[:1]:
            found = list(_judged(verdict))
    found = [one for one in found if one[0] == "all"] or found
    total = sum(n for _, n, _ in found)
    return sum(n * pct for _, n, pct in found) / total if total else None


def _judged(verdict: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    for one in rows(verdict.get("slices")):
        name = str(one.get("slice"))
        n, pct = number(one.get("n")), number(one.get("champion_mean_ape_pct"))
        is_whole = ", " not in name or name.endswith(f", origin {LAST_NIGHT}")
        if str(one.get("rows")).replace("_", " ") == LAST_NIGHT and is_whole and n and n > 0 and pct is not None:
            yield name, n, pct


def sentinel_ratios(record: NightRecord) -> dict[str, float]:
    """Each sentinel's reading over what was expected of it; of several devices, with the device's name before it."""
    said = facts(record, "sentinels")
    several = mapping(said.get("devices"))
    parts = {f"{device}: ": mapping(one) for device, one in several.items()} or {"": said}
    found = {}
    for prefix, one in parts.items():
        expected = counts(one.get("expected"))
        for case, reading in counts(one.get("readings")).items():
            if reading > 0 and expected.get(case, 0) > 0:
                found[f"{prefix}{case}"] = reading / expected[case]
    return found


def rows_measured(record: NightRecord) -> dict[str, float]:
    """Rows measured, by status."""
    return counts(facts(record, "collect").get("rows"))


def begun_times(records: Sequence[NightRecord]) -> list[str]:
    """What nights are called on an axis: month and day of their begin."""
    return [record.began[5:10] or record.id[:8] for record in records]
