"""The state of a shared CPU by the day: what the sentinel product between the blocks of its campaigns took.

What others on the host leave to a virtual machine changes by the day; how far the product tells what other kernels take is in
docs/decisions/018-neighbours.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from math import log

import pyarrow as pa
import pyarrow.compute as pc

from ..store.parquet_files import provenance_of

_READINGS = ("sentinel_before_s", "sentinel_after_s")


def product_by_day(tables: Iterable[pa.Table]) -> dict[str, float]:
    """The median seconds of the product on each day in UTC (`2026-11-27`), from the provenance of one device's stored rows.

    Every CPU campaign times the same product. Days without readings, and rows of GPUs, which have no threads, are left out.
    """
    readings: dict[str, dict[tuple[str, str], float]] = {}
    for table in tables:
        on_cpu = table.filter(pc.is_valid(table["threads"]))
        facts = provenance_of(table)
        days = (str(time)[:10] for time in on_cpu["measured_at"].to_pylist())
        for day, block in set(zip(days, on_cpu["block"].to_pylist(), strict=True)):
            for when in _READINGS:
                if product_s := _product_s(facts.get(block, {}).get(when) or {}):
                    # By block, since a block has rows in several tables.
                    readings.setdefault(day, {})[block, when] = product_s
    return {day: statistics.median(by_block.values()) for day, by_block in readings.items()}


def state_deviation(tables: Iterable[pa.Table]) -> tuple[float, int] | None:
    """Standard deviation between days of the ln of what the product takes, and the number of days; None of less than two.

    `tables` hold the rows of one CPU.
    """
    logs = [log(product_s) for product_s in product_by_day(tables).values()]
    return (statistics.stdev(logs), len(logs)) if len(logs) > 1 else None


def _product_s(reading: Mapping[str, float | None]) -> float | None:
    return next((time_s for case, time_s in reading.items() if case.startswith("gemm[") and time_s), None)
