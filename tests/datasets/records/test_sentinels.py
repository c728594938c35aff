"""The state of a shared CPU by the day, from what its sentinels took."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kernelcast.datasets.records.sentinels import product_by_day, state_deviation
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

NAME = "amd-epyc-7003-vm-2c"
QUIET_S, BUSY_S = 1e-3, 1.5e-3
"""What the product takes."""


def stored(folder: Path, *days: tuple[str, float | None]) -> pa.Table:
    """A hot and a cold row of 1 s for every day, in a block each, with what the sentinels around it took."""
    store = Store(folder, lower_bounds=lambda specs, devices: np.zeros(len(specs)))
    for i, (day, product_s) in enumerate(days):
        rows = [
            Measurement(
                KernelSpec.of("softmax", "fp32", impl="torch", rows=64 + i, cols=64, threads=1, cache_state=state),
                NAME, "ok", f"b{i}", latency_s=1.0, measured_at=f"{day}T10:00:00+00:00",
            )
            for state in ("hot", "cold")
        ]  # fmt: skip
        reading = {"copy[rows=2048]:fp32": 4e-3, "gemm[batch=1,m=384]:fp32": product_s}
        store.append(rows, Provenance(f"b{i}", {"sentinel_before_s": reading, "sentinel_after_s": reading}))
    return store.read("softmax")


def test_days_have_the_medians_of_their_blocks(tmp_path: Path) -> None:
    table = stored(
        tmp_path, ("2026-11-25", BUSY_S), ("2026-11-25", QUIET_S), ("2026-11-26", None), ("2026-11-27", QUIET_S)
    )
    assert product_by_day([table]) == {"2026-11-25": pytest.approx(1.25e-3), "2026-11-27": QUIET_S}


def test_days_deviate_by_the_logarithms_of_the_product(tmp_path: Path) -> None:
    table = stored(tmp_path, ("2026-11-25", BUSY_S), ("2026-11-27", QUIET_S))
    deviation, days = state_deviation([table, table]) or (0.0, 0)
    assert deviation == pytest.approx(math.log(1.5) / math.sqrt(2))
    assert days == 2
    assert state_deviation([stored(tmp_path / "one", ("2026-11-27", QUIET_S))]) is None
    assert state_deviation([]) is None


def test_rows_of_gpus_tell_nothing() -> None:
    table = read_shipped("copy")
    assert not product_by_day([table.filter(pc.starts_with(table["device"], "nvidia-"))])
