"""The state of a shared CPU by the day, from what its sentinels took."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kernelcast.datasets.records.sentinels import in_one_state, sentinels_by_day, slowdowns, state_deviation
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

NAME = "amd-epyc-7003-vm-2c"
QUIET, BUSY = (1e-3, 4e-3), (1.5e-3, 5e-3)
"""What the product and the copy take, in seconds."""


def stored(folder: Path, *days: tuple[str, tuple[float, float] | None]) -> pa.Table:
    """A hot and a cold row of 1 s for every day, in a block each, with what the sentinels around it took."""
    store = Store(folder, lower_bounds=lambda specs, devices: np.zeros(len(specs)))
    for i, (day, times) in enumerate(days):
        rows = [
            Measurement(
                KernelSpec.of("softmax", "fp32", impl="torch", rows=64 + i, cols=64, threads=1, cache_state=state),
                NAME, "ok", f"b{i}", latency_s=1.0, measured_at=f"{day}T10:00:00+00:00",
            )
            for state in ("hot", "cold")
        ]  # fmt: skip
        reading = {} if times is None else {"gemm[batch=1,m=384]:fp32": times[0], "copy[rows=2048]:fp32": times[1]}
        store.append(rows, Provenance(f"b{i}", {"sentinel_before_s": reading, "sentinel_after_s": reading}))
    return store.read("softmax")


def test_rows_are_as_on_the_day_that_left_the_machine_the_most_alone(tmp_path: Path) -> None:
    table = stored(tmp_path, ("2026-11-25", BUSY), ("2026-11-26", None), ("2026-11-27", QUIET))
    assert slowdowns(sentinels_by_day([table])) == {
        (NAME, "2026-11-25"): pytest.approx((1.5, 1.25)), (NAME, "2026-11-27"): (1.0, 1.0),
    }  # fmt: skip
    after = in_one_state(table)
    assert after.schema == table.schema
    latencies = {
        (str(row["measured_at"])[:10], row["cache_state"]): pytest.approx(row["latency_s"]) for row in after.to_pylist()
    }
    assert latencies == {
        ("2026-11-25", "hot"): 1 / 1.5, ("2026-11-25", "cold"): 0.8, ("2026-11-26", "hot"): 1.0,
        ("2026-11-26", "cold"): 1.0, ("2026-11-27", "hot"): 1.0, ("2026-11-27", "cold"): 1.0,
    }  # fmt: skip


def test_days_deviate_by_the_mean_square_of_their_logarithms(tmp_path: Path) -> None:
    table = stored(tmp_path, ("2026-11-25", BUSY), ("2026-11-27", QUIET))
    deviation, days = state_deviation([table, table]) or (0.0, 0)
    assert deviation == pytest.approx(math.log(1.5) / math.sqrt(2))
    assert days == 2
    assert state_deviation([stored(tmp_path / "one", ("2026-11-27", QUIET))]) is None
    assert state_deviation([]) is None


def test_rows_of_gpus_stay_as_they_are() -> None:
    table = read_shipped("copy")
    on_gpu = pc.starts_with(table["device"], "nvidia-")
    assert in_one_state(table).filter(on_gpu).equals(table.filter(on_gpu))
