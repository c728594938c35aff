"""The parent and a real child process: no case may stop a campaign, and each loss has its one guilty case."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kernelcast.collectors.gpu.process import GpuCollector, gpu_worker_command
from kernelcast.collectors.gpu.worker import GpuWorkerOptions
from kernelcast.collectors.pipe import WorkerStartError
from kernelcast.features.kernel import KernelSpec

PLAYED = Path(__file__).parent / "played_worker.py"


def case(rows: int, cols: int = 8) -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="played", rows=rows, cols=cols)


@pytest.fixture
def collector():
    made = GpuCollector(
        GpuWorkerOptions("a-gpu"),
        silence_s=1.5,
        command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
    )
    yield made
    made.close()


def test_rows_come_in_order_and_name_the_device(collector: GpuCollector) -> None:
    specs = [case(1, cols) for cols in (8, 16, 24)]
    rows = collector.collect(specs)
    assert [row.spec for row in rows] == specs
    assert {(row.status, row.device) for row in rows} == {("ok", "a-gpu")}
    assert collector.facts() == {"gpu": "played", "workers_lost": 0}


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [(2, "crashed", "segmentation fault"), (3, "timeout", "no sign of life"), (4, "crashed", "illegal memory access")],
)
def test_a_lost_worker_costs_exactly_the_guilty_case(
    collector: GpuCollector, bad: int, status: str, words: str
) -> None:
    rows = collector.collect([case(1, 8), case(bad), case(1, 16), case(1, 24)])
    assert [row.status for row in rows] == ["ok", status, "ok", "ok"]
    assert words in str(rows[1].message)
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
    with pytest.raises(WorkerStartError, match=words):
        collector.collect([case(1)])


def test_the_real_worker_says_in_one_sentence_that_there_is_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    collector = GpuCollector(GpuWorkerOptions("a-gpu"), command=gpu_worker_command)
    with pytest.raises(WorkerStartError, match="torch sees no CUDA device") as raised:
        collector.start()
    assert "Traceback" not in str(raised.value)
