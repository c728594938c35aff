"""Stored rows that are made up: cases of two families and impls under any software, with a shift where one is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.schema import Measurement, to_table
from kernelcast.features.kernel import KernelSpec

DEVICE = "nvidia-h200-sxm-141gb"
GROUPS = (("gemm", "torch"), ("gemm", "triton"), ("softmax", "torch"))


def _specs(per_group: int) -> list[KernelSpec]:
    found = []
    for i in range(per_group):
        m, n, k = 64 + 16 * i, 128 + 32 * (i * 7 % 23), 64 * (1 + i % 11)
        found += [KernelSpec.of("gemm", "fp16", impl=impl, m=m, n=n, k=k) for impl in ("torch", "triton")]
        found.append(KernelSpec.of("softmax", "fp16", impl="torch", rows=m, cols=n + i))
    return found


def _stored(
    software: str, when: str, *, shifts: Mapping[str, float] | None = None, per_group: int = 20, noise: float = 0.005,
    offset: float = 0.0, seed: int = 0, specs: list[KernelSpec] | None = None,
) -> dict[str, pa.Table]:  # fmt: skip
    """Rows by family, one of each case; `shifts` (ln) by `family/impl`."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Measurement]] = {}
    for spec in specs if specs is not None else _specs(per_group):
        size = 1.0
        for _, value in spec.dims:
            size *= value
        moved = (shifts or {}).get(f"{spec.family}/{spec.impl}", 0.0) + offset + noise * float(rng.standard_t(4))
        latency = (5e-6 + 1e-12 * size) * np.exp(moved)
        rows.setdefault(spec.family, []).append(
            Measurement(
                spec=spec,
                device=DEVICE,
                status="ok",
                block="b",
                latency_s=float(latency),
                noisy=False,
                measured_at=when,
            )
        )
    found = {}
    for family, some in rows.items():
        table = to_table(some, family)
        words = pa.array([software] * len(some), pa.string())
        if "software" in table.column_names:
            table = table.drop_columns(["software"])
        found[family] = table.append_column("software", words)
    return found


def _added(*parts: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    families = sorted({family for part in parts for family in part})
    return {family: pa.concat_tables([part[family] for part in parts if family in part]) for family in families}


@pytest.fixture(scope="session")
def stored() -> Callable[..., dict[str, pa.Table]]:
    """The function that makes stored rows up."""
    return _stored


@pytest.fixture(scope="session")
def added() -> Callable[..., Any]:
    """The function that puts tables of rows together."""
    return _added
