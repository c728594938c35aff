"""Real worker processes with a fake library in them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelcast.collectors.collector import WorkerLostError
from kernelcast.collectors.cpu.worker import WorkerOptions, WorkerProcess, worker_command
from kernelcast.collectors.kernel_campaign import run_campaign
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_from_row, spec_row
from kernelcast.process import ChildStartError

_SCRIPT = Path(__file__).with_name("fake_worker.py")
_found = importlib.util.spec_from_file_location("fake_worker", _SCRIPT)
assert _found is not None
assert _found.loader is not None
fake = importlib.util.module_from_spec(_found)
_found.loader.exec_module(fake)

OPTIONS = WorkerOptions(runner="fake", threads=1, device="test", llc_b=2**16)


def case(rows: int, cache_state: str = "hot") -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="fake", threads=1, rows=rows, cols=3, cache_state=cache_state)


def command(options: WorkerOptions) -> list[str]:
    return [sys.executable, "-P", str(_SCRIPT), options.to_json()]


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(OPTIONS, silence_s=4.0, command=command)
    yield process
    process.close()


def test_cases_come_back_in_order_measured(worker: WorkerProcess) -> None:
    specs = [case(5), case(6, "cold"), case(6), case(fake.CHATTY)]
    rows = worker.collect(specs)
    assert [row.spec for row in rows] == specs
    assert {row.status for row in rows} == {"ok"}
    assert all(row.latency_s and row.n_samples and row.device == "test" for row in rows)
    assert rows[1].first_call_s is None
    assert rows[2].first_call_s is not None
    assert worker.facts()["versions"] == {"fake": "1.0"}


def test_what_a_library_refuses_is_a_row_and_spoils_nothing_else(worker: WorkerProcess) -> None:
    numbers = (5, fake.NO_MEMORY, fake.UNSUPPORTED, fake.NATIVE_NO_MEMORY, fake.BROKEN, 6)
    rows = worker.collect([case(number) for number in numbers])
    expected = ["ok", "out_of_memory", "unsupported", "out_of_memory", "failed", "ok"]
    assert [row.status for row in rows] == expected
    assert rows[4].message == "ValueError: first line"
    assert rows[4].latency_s is None


def test_a_crash_names_the_case_and_the_last_line_of_stderr_and_the_next_request_respawns(
    worker: WorkerProcess,
) -> None:
    with pytest.raises(WorkerLostError, match=r"signal 11 \(SIGSEGV\): something went badly wrong") as lost:
        worker.collect([case(5), case(fake.CRASH)])
    assert (lost.value.status, lost.value.case_id) == ("crashed", case(fake.CRASH).case_id)
    assert worker.collect([case(5)])[0].status == "ok"


def test_a_hang_is_killed_after_the_deadline(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerLostError, match=r"took longer than 4 s") as lost:
        worker.collect([case(fake.HANG)])
    assert (lost.value.status, lost.value.case_id) == ("timeout", case(fake.HANG).case_id)


def test_in_a_campaign_only_the_guilty_cases_lose_their_result() -> None:
    stored: list[Measurement] = []
    specs = [case(number) for number in (5, fake.HANG, 6, fake.CRASH, 7)]
    workers: list[WorkerProcess] = []

    def collector_for(impl: str, threads: int) -> WorkerProcess:
        workers.append(WorkerProcess(OPTIONS, silence_s=4.0, command=command))
        return workers[-1]

    summary = run_campaign(
        specs,
        device="test",
        sink=lambda rows, provenance: stored.extend(rows),
        collector_for=collector_for,
        sentinels=(),
    )
    assert [row.status for row in stored] == ["ok", "timeout", "ok", "crashed", "ok"]
    assert dict(summary.stored) == dict(Counter(row.status for row in stored))
    assert len(workers) == 1


def test_a_worker_that_cannot_start_says_why() -> None:
    broken = WorkerProcess(
        OPTIONS, command=lambda options: [sys.executable, "-c", "raise SystemExit('no library here')"]
    )
    with pytest.raises(ChildStartError, match="no library here"):
        broken.collect([case(5)])


def test_memory_beyond_the_cap_is_a_row_not_a_dead_machine() -> None:
    pytest.importorskip("torch")
    options = WorkerOptions(runner="torch", threads=1, device="test", llc_b=2**20, memory_cap_b=8 * 2**30)
    worker = WorkerProcess(options)
    try:
        huge = KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=2**20, cols=2**14)
        assert worker.collect([huge])[0].status == "out_of_memory"
    finally:
        worker.close()


def test_one_tiny_torch_case_for_real() -> None:
    pytest.importorskip("torch")
    worker = WorkerProcess(WorkerOptions(runner="torch", threads=1, device="test", llc_b=2**20))
    specs = [
        KernelSpec.of("gemm", "fp32", impl="torch", threads=1, m=16, n=16, k=16),
        KernelSpec.of("gemm", "bf16", impl="torch", threads=1, m=16, n=16, k=16, cache_state="cold"),
        KernelSpec.of("gemm", "fp16", impl="torch", threads=1, m=16, n=16, k=16),
        KernelSpec.of("moe", "fp32", variant="balanced", impl="torch", threads=1, tokens=3, hidden=32, inter=16, topk=2,
                      experts=4),
    ]  # fmt: skip
    try:
        rows = worker.collect(specs)
    finally:
        worker.close()
    for row in (rows[0], rows[1], rows[3]):
        # A very busy machine may leave no clean sample; then the row says so.
        assert row.status == "ok" or "too busy" in (row.message or ""), row
    assert rows[2].status == "unsupported"
    assert "not fp16" in (rows[2].message or "")


def test_specs_survive_the_pipe() -> None:
    spec = KernelSpec.of(
        "gemm", "bf16", variant="nt", impl="iree", threads=2, config={"tile_m": 8}, cache_state="cold", m=3, n=5, k=7
    )
    assert spec_from_row(spec_row(spec)) == spec
    options = WorkerOptions("torch", 2, "x", cores=(0, 1), flush_cores=(1,), memory_cap_b=5)
    assert WorkerOptions.from_json(options.to_json()) == options
    assert worker_command(options)[1] == "-P"


def test_the_parent_of_workers_never_imports_torch() -> None:
    code = (
        "import sys, kernelcast.collectors.kernel_campaign, kernelcast.collectors.cpu.plans.shapes\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
