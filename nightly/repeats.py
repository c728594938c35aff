"""Cases measured before and again tonight: by how much two measurements of one case differ."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.store import StoreWarning
from .context import Night
from .fresh import in_short
from .record import Finding
from .rows import tonight

_MOST_PCT = 10.0
"""Repeats that differ by more than this in the median say that tonight's rows are worth little; a quiet CPU gives 1 to 3 %."""

_FEWEST = 5


def repeats(night: Night, fresh: Mapping[str, pa.Table]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """The median difference of tonight's repeats and bridges from their medians of before, in percent of ln latency.

    Raises:
        StoreError: the store cannot be read.
    """
    again = {case.spec.case_id for case in night.chosen() if case.why in ("repeat", "bridge")}
    now = {
        (row["device"], row["case_id"]): row
        for row in in_short(fresh)
        if row["status"] == "ok" and row["case_id"] in again
    }
    before: dict[tuple[str, str], list[float]] = {}
    where = pc.field("case_id").isin(pa.array(sorted(again), pa.string())) & (pc.field("status") == "ok")
    for family in sorted({row["family"] for row in now.values()}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            batches = night.store.scan(
                family, night.measurer.devices, ["device", "case_id", "latency_s"], where & ~tonight(night.blocks())
            )
            for row in (one for batch in batches for one in batch.to_pylist()):
                before.setdefault((row["device"], row["case_id"]), []).append(row["latency_s"])
    moved = [math.log(row["latency_s"] / statistics.median(before[key])) for key, row in now.items() if key in before]
    if not moved:
        return {"repeats": 0}, ()
    typical = 100 * statistics.median(map(abs, moved))
    facts = {"repeats": len(moved), "repeat_median_pct": round(typical, 3),
             "repeat_bias_pct": round(100 * statistics.median(moved), 3)}  # fmt: skip
    if len(moved) < _FEWEST or typical <= _MOST_PCT:
        return facts, ()
    said = (f"{len(moved)} cases measured again differ from before by {typical:.0f} % in the median. Something else used the "
            "device tonight, or it has changed; do not trust this night's rows before that is known.")  # fmt: skip
    return facts, (Finding("rows", "warning", night.record.device, said, {"repeat_median_pct": typical}),)
