"""The state of a shared CPU by the day: what the sentinels of campaigns, a fixed product and a fixed copy between blocks, took.

What others on the host leave to a virtual machine changes by the day, for all kernels alike: hot ones follow the product, cold
ones the copy (docs/decisions/018-neighbours.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..store.parquet_files import provenance_of

Day = tuple[str, str]
"""A CPU, as rows name it, and a day in UTC, `2026-11-27`."""

_READINGS = ("sentinel_before_s", "sentinel_after_s")


def sentinels_by_day(tables: Iterable[pa.Table]) -> dict[Day, tuple[float, float]]:
    """The median seconds of product and copy on every day, from the provenance of stored rows of CPUs.

    Days without readings are left out.
    """
    readings: dict[Day, dict[tuple[str, str], tuple[float, float]]] = {}
    for table in tables:
        on_cpu = table.filter(pc.is_valid(table["threads"]))
        facts = provenance_of(table)
        for day, block in set(zip(_days(on_cpu), on_cpu["block"].to_pylist(), strict=True)):
            for when in _READINGS:
                seen = facts.get(block, {}).get(when) or {}
                times = {case.partition("[")[0]: time_s for case, time_s in seen.items()}
                if times.get("gemm") and times.get("copy"):
                    # By block, since a block has rows in several tables.
                    readings.setdefault(day, {})[block, when] = (times["gemm"], times["copy"])
    medians = {day: np.median(list(by_block.values()), axis=0).tolist() for day, by_block in readings.items()}
    return {day: (product_s, copy_s) for day, (product_s, copy_s) in medians.items()}


def state_deviation(tables: Iterable[pa.Table]) -> tuple[float, int] | None:
    """Standard deviation between days of the ln of what the product takes, and the number of days.

    None of less than two days. `tables` hold the rows of one CPU.
    """
    products = [product_s for product_s, _ in sentinels_by_day(tables).values()]
    return (float(np.std(np.log(products), ddof=1)), len(products)) if len(products) > 1 else None


def _days(table: pa.Table) -> list[Day]:
    devices, times = (table[name].to_pylist() for name in ("device", "measured_at"))
    return [(device, str(time)[:10]) for device, time in zip(devices, times, strict=True)]
