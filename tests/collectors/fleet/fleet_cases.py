"""Devices, cases and short deadlines for fleets in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.collectors.collector import Pace
from kernelcast.collectors.fleet.actor_proxy import Patience
from kernelcast.collectors.fleet.driver import FleetSummary, Method, run_fleet
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import CATALOGUE_DIR, Catalogue, parse_device
from kernelcast.features.kernel import KernelSpec

NAMES = ("left", "right", "twin", "spare", "doomed", "always-hangs", "mislabelled", "nobody-has")
_CPU = next(text for path in sorted(CATALOGUE_DIR.glob("*.yaml")) if "kind: cpu" in (text := path.read_text()))


def device_file(name: str) -> str:
    lines = [f"name: {name}" if line.startswith("name:") else line for line in _CPU.splitlines()]
    return "\n".join("aliases: []" if line.startswith("aliases:") else line for line in lines)


KNOWN = Catalogue(extra=tuple(parse_device(device_file(name), origin=name) for name in NAMES))
SENTINEL = KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=9, cols=1)
METHODS = {"cpu": Method(Pace(chunk_cases=4, block_cases=8, calibration=2, drift=10.0), (SENTINEL,))}
PATIENCE = Patience(start_s=60.0, busy_s=30.0, lock_s=2.0, chunk_s=10.0, case_s=0.1, losses=3, cluster_s=10.0)


def case(rows: int, threads: int = 1) -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="torch", threads=threads, rows=rows, cols=64)


def cases(first: int, last: int) -> list[KernelSpec]:
    return [case(rows) for rows in range(first, last)]


def slow_cases(first: int, last: int) -> list[KernelSpec]:
    return cases(2000 + first, 2000 + last)


def drive(address: str, root: Path, wanted: Mapping[str, Sequence[KernelSpec]], **more: Any) -> FleetSummary:
    store = Store(root, lower_bounds=lambda specs, devices: np.zeros(len(specs)))
    raw = {"store": store, "patience": PATIENCE, "maker": "fake_device:open_fake", **more}
    return run_fleet(wanted, address=address, known=KNOWN, methods=METHODS, **raw)
