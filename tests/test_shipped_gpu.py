"""What ships of GPUs: measured rows and their quality, compiler labels, launch traces, counters, the characterised board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.records.compiled_code import compiled_schema
from kernelcast.datasets.shipped import SHIPPED_DIR, read_shipped, shipped_families
from kernelcast.datasets.store.parquet_files import provenance_of, read_file
from kernelcast.features.device import catalogue

H200 = "nvidia-h200-sxm-141gb"
GPU_FAMILIES = set(shipped_families())


SINCE = {
    "causal_conv1d",
    "cross_entropy",
    "embedding",
    "latent_attention",
    "linear_attention",
    "optimizer",
    "quantize",
    "rope",
}
"""Measured after the counters were read."""

TILED = {"triton", "cutlass", "cupy-tiled"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    result = [row for family in shipped_families() for row in read_shipped(family, [H200]).to_pylist()]
    return [row for row in result if row["status"] == "ok"]


def test_there_are_as_many_gpu_rows_as_promised(rows: list[dict[str, Any]]) -> None:
    assert len(rows) >= 8_000
    assert sum(row["impl"] in TILED for row in rows) >= 1_500
    assert sum(row["energy_j"] is not None for row in rows) >= 300
    assert {row["family"] for row in rows} == GPU_FAMILIES
    assert {row["dtype"] for row in rows} == {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"}
    assert {row["family"] for row in rows if row["energy_j"] is not None} == GPU_FAMILIES


def test_gpu_rows_converged_and_repeat(rows: list[dict[str, Any]]) -> None:
    assert np.mean([row["converged"] for row in rows]) > 0.99
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(row["case_id"], []).append(row["latency_s"])
    apart = [max(seen) / min(seen) - 1 for seen in times.values() if len(seen) > 1]
    assert len(apart) >= 100
    assert np.median(apart) < 0.02


def test_energy_agrees_with_power_readings_and_itself(rows: list[dict[str, Any]]) -> None:
    measured = [row for row in rows if row["energy_j"] is not None]
    assert all(abs(row["power_w"] / row["power_integrated_w"] - 1) < 0.05 for row in measured)
    assert all(row["energy_j"] == pytest.approx(row["power_w"] * row["steady_latency_s"], rel=1e-6) for row in measured)
    assert all(0 < row["net_energy_j"] < row["energy_j"] for row in measured)
    spreads = [row["energy_spread"] for row in measured if row["energy_spread"] is not None]
    assert len(spreads) >= 0.08 * len(measured)
    assert max(spreads) < 0.04


def test_tiled_rows_say_what_the_compiler_said(rows: list[dict[str, Any]]) -> None:
    tiled = [row for row in rows if row["impl"] in TILED]
    assert all(row["registers"] and row["registers"] <= 255 for row in tiled)
    by_tile = {row["tile_m"]: row["shared_b"] for row in tiled if row["impl"] == "cupy-tiled"}
    assert {1, 16, 32} <= set(by_tile)
    assert all(shared == 2 * 4 * tile * tile for tile, shared in by_tile.items())


def test_every_block_says_board_driver_and_clocks(rows: list[dict[str, Any]]) -> None:
    facts = provenance_of(read_shipped("gemm", [H200]))
    for block in {row["block"] for row in rows if row["family"] == "gemm"}:
        assert facts[block]["gpu"]["driver"]
        assert facts[block]["before"]["sm_clock_hz"] > 0
        assert facts[block]["workers"]["gpu/0"]["versions"]["torch"]["cuda"]


def test_compiler_labels_cover_two_targets() -> None:
    folder = Path(SHIPPED_DIR).parent / "compiled"
    tables = [
        read_file(folder / f"{name}.parquet", compiled_schema(name)).to_pylist() for name in ("gemm", "attention")
    ]
    result = [row for table in tables for row in table if row["status"] == "ok"]
    assert len(result) >= 2_000
    for target in ("sm_80", "sm_90"):
        assert sum(row["target"] == target for row in result) >= 1_000
    assert all(0 < row["registers"] <= 255 for row in result)
    assert all(0 <= row["occupancy"] <= 1 for row in result)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2e6


def test_launch_traces_and_counters_are_there() -> None:
    folder = Path(SHIPPED_DIR) / "traces"
    launches, summaries, counted = (
        pq.read_table(folder / f"{H200}-{name}.parquet") for name in ("launches", "launch-summaries", "traffic")
    )
    assert json.loads(launches.schema.metadata[b"kernelcast.facts"])["gpu"] == "NVIDIA H200"
    assert all(set(table["device"].to_pylist()) == {H200} for table in (launches, summaries, counted))
    assert launches.num_rows > 500
    assert summaries.num_rows == 9
    assert set(counted["family"].to_pylist()) == GPU_FAMILIES - SINCE


def test_the_device_is_characterised_within_its_datasheet() -> None:
    device = catalogue().get(H200)
    measured = {name: fact.value for name, fact in device.measured.items()}
    for dtype in ("bf16", "fp16", "tf32", "fp32", "fp8", "int8"):
        peak, _ = device.peak_flops_per_s(dtype, "matrix")
        assert 0.4 * peak < measured[f"matrix_{dtype}_torch_flops_per_s"] < peak
    assert 0.8 < measured["bandwidth_dram_b_per_s"] / device.required("memory_bandwidth_b_per_s") < 1
    assert (
        measured["latency_shared_s"] < measured["latency_l1_s"] < measured["latency_l2_s"] < measured["latency_dram_s"]
    )
    assert measured["power_idle_w"] < measured["power_compute_w"] < 1.05 * device.required("tdp_w")
