"""The state of a shared CPU by the day: what the sentinels of campaigns, a fixed product and a fixed copy between blocks, took.

What others on the host leave to a virtual machine changes by the day, for all kernels alike: hot ones follow the product, cold
ones the copy (docs/decisions/018-neighbours.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def slowdowns(days: Mapping[Day, tuple[float, float]]) -> dict[Day, tuple[float, float]]:
    """How many times as long product and copy took on each day as on the one when the CPU's product was fastest."""
    best = {name: min(times for (other, _), times in days.items() if other == name) for name, _ in days}
    return {day: (times[0] / best[day[0]][0], times[1] / best[day[0]][1]) for day, times in days.items()}


def in_one_state(table: pa.Table) -> pa.Table:
    """Stored rows with the latencies of CPUs as on the day that left each the most alone.

    Hot rows are divided by what the product took longer on their day, cold ones by what the copy did; rows of GPUs and of days
    without readings stay as they are.
    """
    longer = slowdowns(sentinels_by_day([table]))
    ratios = np.array([longer.get(day, (1.0, 1.0)) for day in _days(table)]).reshape(-1, 2)
    is_cold = np.asarray(pc.fill_null(pc.equal(table["cache_state"], "cold"), pa.scalar(value=False)))
    latency_s = pc.divide(table["latency_s"], pa.array(np.where(is_cold, ratios[:, 1], ratios[:, 0])))
    return table.set_column(table.column_names.index("latency_s"), table.field("latency_s"), latency_s)


def state_deviation(tables: Iterable[pa.Table]) -> tuple[float, int] | None:
    """Root mean square of the ln by which the product took longer than on the best day, and the number of days.

    None of less than two days. `tables` hold the rows of one CPU.
    """
    longer = [product for product, _ in slowdowns(sentinels_by_day(tables)).values()]
    return (float(np.sqrt(np.mean(np.log(longer) ** 2))), len(longer)) if len(longer) > 1 else None


def _days(table: pa.Table) -> list[Day]:
    devices, times = (table[name].to_pylist() for name in ("device", "measured_at"))
    return [(device, str(time)[:10]) for device, time in zip(devices, times, strict=True)]
