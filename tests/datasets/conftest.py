from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.datasets.schema import Measurement, Provenance
from kernelcast.datasets.store import Store
from kernelcast.features.kernel import KernelSpec

Make = Callable[..., Measurement]


def make_measurement(m: int = 64, **changes: Any) -> Measurement:
    """A plausible row: a small fp32 gemm on a device the catalogue does not know, 1 ms."""
    spec = changes.pop("spec", None) or KernelSpec.of("gemm", changes.pop("dtype", "fp32"), m=m, n=64, k=64)
    given: dict[str, Any] = {"device": "my-machine", "status": "ok", "block": "b1", "latency_s": 1e-3}
    return Measurement(spec=spec, **given | changes)


@pytest.fixture
def make() -> Make:
    return make_measurement


@pytest.fixture
def provenance() -> Provenance:
    return Provenance("b1", {"host": "test", "driver": "1.0"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "measurements", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
