"""The parent and a real child process: no case may stop a campaign, and each loss has its one guilty case."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.gpu.measure.worker import GpuCollector, GpuWorkerOptions, gpu_worker_command
from kernelcast.collectors.kernel_campaign import run_campaign
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import ChildStartError

PLAYED = Path(__file__).parents[1] / "played_worker.py"


def case(rows: int, cols: int = 8) -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="played", rows=rows, cols=cols)


@pytest.fixture
def collector():
    made = GpuCollector(
        GpuWorkerOptions("a-gpu"),
        silence_s=4.0,
        command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
    )
    yield made
    made.close()


def test_rows_come_in_order_and_name_the_device(collector: GpuCollector) -> None:
    specs = [case(1, cols) for cols in (8, 16, 24)]
    rows = collector.collect(specs)
    assert [row.spec for row in rows] == specs
    assert {(row.status, row.device) for row in rows} == {("ok", "a-gpu")}
    assert collector.facts()["gpu"] == "played"
    assert collector.facts()["workers_lost"] == 0


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [
        (2, "crashed", "the worker ended with status 139: segmentation fault"),
        (3, "timeout", "the worker took longer than 4 s"),
        (4, "crashed", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_lost_worker_costs_exactly_the_guilty_case(
    collector: GpuCollector, bad: int, status: str, words: str
) -> None:
    rows = collector.collect([case(1, 8), case(bad), case(1, 16), case(1, 24)])
    assert [row.status for row in rows] == ["ok", status, "ok", "ok"]
    assert rows[1].message == words
    assert collector.facts()["workers_lost"] == 1


def test_running_out_of_memory_costs_no_worker(collector: GpuCollector) -> None:
    rows = collector.collect([case(5), case(1)])
    assert [row.status for row in rows] == ["out_of_memory", "ok"]
    assert collector.facts()["workers_lost"] == 0


def test_a_worker_that_cannot_start_says_why() -> None:
    words = "torch sees no CUDA device"
    collector = GpuCollector(
        GpuWorkerOptions("a-gpu"), command=lambda options: [sys.executable, "-c", f"import sys; sys.exit({words!r})"]
    )
    with pytest.raises(ChildStartError, match=words):
        collector.collect([case(1)])


ONCE = """
import os, sys
if os.path.exists(sys.argv[1]):
    sys.exit("the driver is gone")
open(sys.argv[1], "w").close()
os.execv(sys.executable, [sys.executable, "-P", *sys.argv[2:]])
"""


@pytest.fixture
def starts_once(tmp_path: Path) -> Iterator[GpuCollector]:
    """Its second worker does not start."""
    made = GpuCollector(
        GpuWorkerOptions("a-gpu"),
        command=lambda given: [sys.executable, "-c", ONCE, str(tmp_path / "began"), str(PLAYED), given.to_json()],
    )
    yield made
    made.close()


def test_a_worker_that_never_starts_again_leaves_the_rows_it_measured(starts_once: GpuCollector) -> None:
    specs = [case(1, 8), case(1, 16), case(2), case(1, 24)]
    with pytest.raises(ChildStartError, match="the driver is gone") as raised:
        starts_once.collect(specs)
    assert [(row.spec, row.status) for row in raised.value.rows] == [
        (specs[0], "ok"), (specs[1], "ok"), (specs[2], "crashed"),
    ]  # fmt: skip


def test_a_campaign_stores_what_the_last_worker_measured(starts_once: GpuCollector) -> None:
    stored: list[Measurement] = []
    with pytest.raises(CampaignError, match=r"the driver is gone\. What was measured is stored"):
        run_campaign(
            [case(1, 8), case(2), case(1, 16)], device="a-gpu", sink=lambda rows, _: stored.extend(rows),
            collector_for=starts_once, sentinels=(), key_of=lambda spec: ("gpu", 0),
        )  # fmt: skip
    assert [row.status for row in stored] == ["ok", "crashed"]


def test_hangs_do_not_overrun_the_time_there_is() -> None:
    def until(seconds: float) -> GpuCollector:
        return GpuCollector(
            GpuWorkerOptions("a-gpu"), silence_s=4.0, until=time.monotonic() + seconds,
            command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
        )  # fmt: skip

    over, plenty = until(0.0), until(600.0)
    try:
        assert [row.status for row in over.collect([case(1, 8), case(1, 16)])] == ["ok", "ok"]
        assert [row.status for row in over.collect([case(1, 8), case(3), case(1, 16)])] == ["ok", "timeout"]
        assert [row.status for row in plenty.collect([case(2), case(1)])] == ["crashed", "ok"]
    finally:
        over.close()
        plenty.close()


def test_the_real_worker_says_in_one_sentence_that_there_is_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("this machine has a GPU")
    collector = GpuCollector(GpuWorkerOptions("a-gpu"), command=gpu_worker_command)
    with pytest.raises(CampaignError, match=r"torch \S+ sees no GPU; install the build for its maker") as raised:
        collector.start(catalogue().get("h100-sxm"))
    assert "Traceback" not in str(raised.value)


GEMM = {"m": 64, "n": 64, "k": 64}
TILES = {"tile_m": 16, "tile_n": 16, "tile_k": 16}
TILED = {**TILES, "warps": 4, "stages": 2, "group_m": 1, "split_k": 1}
NO_CUDA = {
    "copy": KernelSpec.of("copy", "fp32", impl="torch", rows=8, cols=8),
    "cold": KernelSpec.of("copy", "fp32", impl="torch", cache_state="cold", rows=8, cols=8),
    "fp8": KernelSpec.of("copy", "fp8", impl="torch", rows=8, cols=8),
    "tf32": KernelSpec.of("gemm", "tf32", impl="torch", **GEMM),
    "triton": KernelSpec.of("gemm", "fp8", impl="triton", config=TILED | {"tile_k": 32}, **GEMM),
    "cupy": KernelSpec.of("gemm", "fp32", impl="cupy-tiled", config=TILES, **GEMM),
    "cutlass": KernelSpec.of("gemm", "bf16", impl="cutlass", **GEMM),
}


def rows_of(build: str) -> tuple[dict[str, tuple[str, str]], dict[str, Any]]:
    """Status and message by the word of a case, and the worker's facts, on a GPU of another maker that is played."""
    device = catalogue().get("mi300x" if build == "hip" else "arc-b580")
    options = GpuWorkerOptions(device.name, energy=build != "hip", l3_b=device.fact("l3_b") or 0.0)
    script = str(PLAYED.with_name("played_build.py"))
    collector = GpuCollector(options, command=lambda given: [sys.executable, "-P", script, build, given.to_json()])
    try:
        collector.start(device)
        rows = collector.collect(list(NO_CUDA.values()))
        return {word: (row.status, str(row.message)) for word, row in zip(NO_CUDA, rows, strict=True)}, {
            **collector.facts(), "row": rows[0],
        }  # fmt: skip
    finally:
        collector.close()


def test_an_amd_gpu_measures_what_torch_runs_there_and_refuses_the_rest() -> None:
    rows, facts = rows_of("hip")
    assert [rows[word][0] for word in ("copy", "cold", "fp8")] == ["ok"] * 3
    assert {rows[word][0] for word in ("tf32", "triton", "cupy", "cutlass")} == {"unsupported"}
    assert "on this device, not tf32" in rows["tf32"][1]
    # What its matrix units multiply is another format than Triton's kernels are compiled for.
    assert "the Triton gemm multiplies float8_e4m3fn" in rows["triton"][1]
    assert "no runner on this GPU for impl 'cupy-tiled'; there are torch, " in rows["cupy"][1]
    assert (facts["gpu"], facts["compute_capability"], facts["library"]) == ("AMD Instinct MI300X", "gfx942", "hip")
    assert (facts["fp8"], facts["last_level_cache_b"]) == ("float8_e4m3fnuz", 2**28)
    assert facts["versions"]["torch"] | {"torch": ""} == {"torch": "", "hip": "7.0", "miopen": "3005000"}
    assert set(facts["versions"]) == {"torch", "triton"}
    assert (facts["row"].sm_clock_hz, facts["row"].power_limit_w) == (2.1e9, 750.0)


@pytest.mark.parametrize("build", ["xpu", "xpu-without-graphs"])
def test_an_intel_gpu_measures_latency_with_graphs_and_without(build: str) -> None:
    rows, facts = rows_of(build)
    assert [rows[word][0] for word in ("copy", "cold")] == ["ok"] * 2
    assert {rows[word][0] for word in ("fp8", "tf32", "triton", "cupy", "cutlass")} == {"unsupported"}
    assert "on this device, not fp8" in rows["fp8"][1]
    assert facts["graphs"] == (build == "xpu")
    assert (facts["library"], facts["compute_units"], facts["energy_source"]) == ("xpu", 20, "none")
    assert "no library reads power, clocks or temperature of an Intel GPU" in facts["energy_source_reason"]
    assert facts["row"].sm_clock_hz is None
