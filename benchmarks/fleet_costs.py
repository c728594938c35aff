"""What a fleet's driver pays, measured with the real code: rows, files, blocks, actor calls, reading what is stored."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from kernelcast.collectors.host import machine_facts, state_facts
from kernelcast.datasets.rows.schema import Measurement, Provenance, from_row, to_row
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.store.store import Store

if TYPE_CHECKING:
    from fleet_scale import Costs

DEVICE = "nvidia-h200-sxm-141gb"
_REPEATS = 12


def measured_costs(costs: Costs, ray_address: str | None = None) -> Costs:
    """`costs` with the driver's own ones measured here: least squares over blocks of several shapes, processor time."""
    rows = _rows()
    shapes = [(size, files) for size in (10, 55, 200) for files in (1, 4, 8)]
    with tempfile.TemporaryDirectory() as folder:
        taken = [(1, size, files, _block_s(Store(Path(folder) / f"{size}-{files}"), rows, size, files))
                 for size, files in shapes]  # fmt: skip
        store = Store(Path(folder) / "55-8")
        count = len(store.files())
        begun = time.process_time()
        store.case_ids(DEVICE)
        read_file_s = (time.process_time() - begun) / count
    design = np.array([shape[:3] for shape in taken], float)
    seconds = np.array([shape[3] for shape in taken])
    # Relative errors count: the smallest block matters as much as the largest.
    result, *_ = np.linalg.lstsq(design / seconds[:, None], np.ones(len(seconds)), rcond=None)
    block_s, row_s, file_s = (max(0.0, float(value)) for value in result)
    call_s = costs.call_s if ray_address is None else _call_s(ray_address, rows["gemm"][:10])
    return replace(costs, row_s=row_s, file_s=file_s, block_s=block_s, read_file_s=read_file_s, call_s=call_s)


def _rows() -> dict[str, list[dict[str, Any]]]:
    """Shipped rows of each family, as an actor sends them."""
    tables = {family: read_shipped(family, [DEVICE]) for family in shipped_families()}
    result = {family: table.slice(0, 200).to_pylist() for family, table in tables.items()}
    return {family: rows for family, rows in result.items() if len(rows) >= 25}


def _block_s(store: Store, rows: dict[str, list[dict[str, Any]]], size: int, files: int) -> float:
    """Processor time of the driver for one block of `size` rows of so many families, the median of several."""
    names = list(rows)[:files]
    sent = [rows[names[i % len(names)]][(i // len(names)) % len(rows[names[i % len(names)]])] for i in range(size)]
    facts = machine_facts(DEVICE) | {"before": state_facts(), "after": state_facts()}
    taken = []
    for number in range(_REPEATS):
        begun = time.process_time()
        name = f"block-{number}"
        measured: list[Measurement] = [replace(from_row(row), block=name) for row in sent]
        store.append(measured, Provenance(name, facts))
        taken.append(time.process_time() - begun)
    return float(np.median(taken))


class _Echo:
    def measure(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows


def _call_s(address: str, rows: list[dict[str, Any]]) -> float:
    """Processor time of the driver for one actor call that brings ten rows."""
    from kernelcast.collectors.fleet.cluster import connect

    ray = connect(address)
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    actor = ray.remote(_Echo).options(num_cpus=0).remote()
    sent = [to_row(from_row(row)) for row in rows]
    for _ in range(50):
        ray.get(actor.measure.remote(sent))
    begun, wall = time.process_time(), time.perf_counter()
    for _ in range(500):
        ray.wait([ref := actor.measure.remote(sent)], timeout=1.0)
        ray.get(ref)
    taken = (time.process_time() - begun) / 500
    print(f"an actor call: {1e3 * (time.perf_counter() - wall) / 500:.2f} ms, {1e3 * taken:.2f} ms of processor time")
    ray.kill(actor)
    return taken
