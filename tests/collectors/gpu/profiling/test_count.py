"""Counters as ncu prints them, and an ncu that plays every way of going wrong."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.gpu.measure import torch_gpu as cuda_start
from kernelcast.collectors.gpu.plan.sweeps import SWEEPS
from kernelcast.collectors.gpu.profiling import count
from kernelcast.collectors.gpu.profiling.count import (
    CountersUnavailableError,
    count_cases,
    counted_cases,
    ncu_command,
    run_command,
)
from kernelcast.collectors.gpu.profiling.ncu_output import METRICS, CounterOutputError, by_case, parse_kernels, summed
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.datasets.records.launch_traces import CountedCase, write_records
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_row

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"Section Name","Metric Name","Metric Unit","Metric Value"'
)
SPIN = "at::cuda::<unnamed>::spin_kernel(long)"


def kernel(number: int, name: str, *counts: tuple[str, str, str]) -> list[str]:
    """Rows of one kernel as ncu prints them: all quoted, commas between thousands."""
    head = f'"{number}","4242","python3.12","127.0.0.1","{name}","1","13","(128, 1, 1)","(132, 1, 1)","0","9.0"'
    return [f'{head},"Command line profiler metrics","{metric}","{unit}","{value}"' for metric, unit, value in counts]


GEMM = (
    ("dram__bytes_read.sum", "byte", "67,108,864"),
    ("dram__bytes_write.sum", "Mbyte", "33.55"),
    ("gpu__time_duration.sum", "ns", "190,112"),
    ("lts__t_bytes.sum", "Gbyte", "1.2"),
    ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", "137,438,953,472"),
    ("sm__ops_path_tensor_src_fp8_dst_fp32.sum", "", "n/a"),
    ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", "80.00"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "90.00"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "1,000"),
)
SPLIT = (
    ("dram__bytes_op_read.sum", "byte", "1,000"),
    ("dram__bytes_op_write.sum", "byte", "2,000"),
    ("gpu__time_duration.sum", "us", "9.888"),
    ("lts__t_bytes.sum", "byte", "4,000"),
    ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", "0"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "10.00"),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "500"),
)
OUTPUT = [
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)",
    '==PROF== Profiling "spin_kernel" - 0: 0%....50%....100% - 8 passes',
    HEADER,
    *kernel(0, "early"),
    *kernel(1, SPIN, ("gpu__time_duration.sum", "ns", "1,200")),
    *kernel(2, "nvjet_hsh_128x256", *GEMM),
    *kernel(3, "splitk_reduce<float, 4>", *SPLIT),
    *kernel(4, SPIN, ("gpu__time_duration.sum", "ns", "1,200")),
    *kernel(5, "copy", *GEMM[:4]),
    "==PROF== Disconnected from process 4242",
]


def test_numbers_units_and_kernels_are_read():
    kernels = parse_kernels(OUTPUT)
    assert [item.name for item in kernels] == [SPIN, "nvjet_hsh_128x256", "splitk_reduce<float, 4>", SPIN, "copy"]
    gemm = kernels[1]
    assert gemm.quantity("dram_read_b") == 67108864
    assert gemm.quantity("dram_write_b") == pytest.approx(33.55e6)
    assert gemm.quantity("time_s") == pytest.approx(190.112e-6)
    assert gemm.quantity("l2_b") == pytest.approx(1.2e9)
    assert gemm.quantity("tensor_utilisation") == pytest.approx(0.8)
    assert gemm.flops == 137438953472 + 2 * 1000
    assert kernels[2].quantity("dram_read_b") == 1000


def test_kernels_of_a_case_are_summed_and_shares_weighted_by_time():
    first, second = by_case(parse_kernels(OUTPUT))
    total = summed(first)
    assert total["dram_read_b"] == 67108864 + 1000
    assert total["time_s"] == pytest.approx(200e-6)
    assert total["tensor_utilisation"] == pytest.approx(0.8 * 190.112 / 200)
    assert total["sm_utilisation"] == pytest.approx((0.9 * 190.112 + 0.1 * 9.888) / 200)
    assert total["flops"] == 137438953472 + 2000 + 500
    total = summed(second)
    assert total["flops"] is None
    assert total["sm_utilisation"] is None
    assert total["l2_b"] == pytest.approx(1.2e9)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("dram__bytes_read.sum", "Kfurlong", "5"), "in 'Kfurlong', a unit that is not known"),
        (("dram__bytes_read.sum", "byte", "1.2.3"), "'1.2.3' for dram__bytes_read.sum, which is no number"),
    ],
)
def test_what_is_not_understood_is_never_guessed(row, said):
    with pytest.raises(CounterOutputError, match=said):
        parse_kernels([HEADER, *kernel(0, "k", row)])


def test_a_table_without_a_column_says_which():
    with pytest.raises(CounterOutputError, match="no column 'Metric Unit'"):
        parse_kernels(['"ID","Kernel Name","Metric Name","Metric Value"', '"0","k","m","1"'])
    assert parse_kernels(["==PROF== Connected", "==WARNING== No kernels were profiled."]) == []


GEMM_SPEC = KernelSpec.of("gemm", "bf16", impl="torch", m=4096, n=4096, k=4096)
COPY_SPEC = KernelSpec.of("copy", "bf16", impl="torch", rows=4096, cols=4096)
MOE_SPEC = KernelSpec.of("moe", "bf16", impl="torch", tokens=4096, hidden=2048, inter=1024, topk=4, experts=16)


class Ncu:
    """Writes what ncu and the worker would, or ends as it is told to."""

    def __init__(self, told: list[dict[str, object]], output: list[str], status: int = 0, said: str = "") -> None:
        self.told, self.output, self.status, self.said = told, output, status, said
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        self.commands.append(list(command))
        log, request, report = Path(command[command.index("--log-file") + 1]), Path(command[-2]), Path(command[-1])
        assert json.loads(request.read_text())["specs"]
        log.write_text("\n".join(self.output))
        report.write_text("".join(json.dumps(line) + "\n" for line in self.told))
        return self.status, self.said


def test_counts_stand_beside_the_paper(tmp_path):
    other = KernelSpec.of("gemm", "bf16", impl="torch", m=8, n=8, k=8)
    told = [
        {"at": other.case_id}, {"status": "unsupported", "message": "no"},
        {"at": GEMM_SPEC.case_id, "marked": True}, {"status": "ok", "message": None},
    ]  # fmt: skip
    small, result = count_cases([other, GEMM_SPEC], "h200", ncu="ncu", run=Ncu(told, OUTPUT[:-3] + OUTPUT[-1:]))
    assert (small.status, small.message, small.dram_b, small.kernels) == ("unsupported", "no", None, 0)
    assert (result.status, result.kernels, result.family) == ("ok", 2, "gemm")
    assert result.paper_b == 3 * 2 * 4096**2
    assert result.traffic_ratio == pytest.approx((67108864 + 1000 + 33.55e6 + 2000) / (3 * 2 * 4096**2))
    assert result.flops_ratio == pytest.approx(1.0, abs=1e-6)
    write_records([small, result], CountedCase, tmp_path / "c.parquet", {"device": "h200"})
    table = pq.read_table(tmp_path / "c.parquet")
    assert [CountedCase(**row) for row in table.to_pylist()] == [small, result]
    assert json.loads(table.schema.metadata[b"kernelcast.facts"]) == {"device": "h200"}


def test_a_case_at_which_the_process_ends_is_crashed_and_so_is_the_next():
    told = [{"at": COPY_SPEC.case_id, "marked": True}]
    further = KernelSpec.of("copy", "bf16", impl="torch", rows=8, cols=8)
    first, second = count_cases([COPY_SPEC, further], ncu="ncu", run=Ncu(told, OUTPUT, 1, "killed"))
    assert (first.status, second.status) == ("crashed", "crashed")
    assert second.message == "the process ended before it"
    assert first.dram_b is None


def test_families_have_an_ncu_each_and_a_timeout_costs_one():
    class Slow(Ncu):
        def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
            super().__call__(command, limit_s)
            if json.loads(Path(command[-2]).read_text())["specs"][0]["family"] == "copy":
                raise TimeoutError(f"ncu took longer than {limit_s:g} s")
            return 0, ""

    seen: list[tuple[str, int, int]] = []
    told = [{"at": GEMM_SPEC.case_id, "marked": True}, {"status": "ok", "message": None}]
    copied, multiplied = count_cases(
        [GEMM_SPEC, COPY_SPEC], ncu="ncu", run=Slow(told, OUTPUT), progress=lambda *step: seen.append(step)
    )
    assert (copied.status, copied.message) == ("timeout", "ncu took longer than 240 s")
    assert multiplied.status == "ok"
    assert seen == [("counting copy", 0, 2), ("counting gemm", 1, 2)]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            "this user may not read the GPU's counters \\(ERR_NVGPUCTRPERM\\); run as root",
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded",
            "counters: Failed to initialize the profiler: Lib",
        ),
        ("torch sees no CUDA device", "ncu ended with status 1: torch sees no CUDA device"),
    ],
)
def test_what_keeps_counters_away_is_one_sentence(said, message):
    with pytest.raises(CountersUnavailableError, match=message):
        count_cases([GEMM_SPEC], ncu="ncu", run=Ncu([], ["==PROF== Connected"], 1, said))


def test_without_ncu_one_is_told_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CountersUnavailableError, match=r"ncu .* is not on PATH"):
        count_cases([GEMM_SPEC])


def test_metrics_a_chip_does_not_know_are_left_out_and_the_rest_counted():
    class Older(Ncu):
        def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
            super().__call__(command, limit_s)
            unknown = "dram__bytes_op_read.sum"
            if unknown in command[command.index("--metrics") + 1]:
                Path(command[command.index("--log-file") + 1]).write_text(
                    f"==ERROR== Failed to find metric {unknown}\n"
                )
                return 1, ""
            return 0, ""

    ncu = Older([{"at": GEMM_SPEC.case_id, "marked": True}, {"status": "ok", "message": None}], OUTPUT)
    (result,) = count_cases([GEMM_SPEC], ncu="ncu", run=ncu)
    assert result.status == "ok"
    assert len(ncu.commands) == 2


def test_the_command_leaves_clocks_alone_and_profiles_marked_calls_only(tmp_path):
    command = ncu_command("ncu", METRICS, tmp_path / "l", tmp_path / "q", tmp_path / "r")
    line = " ".join(command)
    assert "--clock-control none --cache-control all --profile-from-start off" in line
    assert "dram__bytes_read.sum" in line
    assert line.endswith(f"-m kernelcast.collectors.gpu.profiling.count {tmp_path / 'q'} {tmp_path / 'r'}")


def test_a_command_that_takes_too_long_is_killed_with_all_it_started():
    assert run_command([sys.executable, "-c", "import os; print(os.environ['LC_ALL'])"], 20) == (0, "C\n")
    with pytest.raises(TimeoutError, match=r"longer than 0\.5 s"):
        run_command(["sh", "-c", "sleep 30 & wait"], 0.5)


def test_the_profiled_process_runs_cases_in_inference_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    def warm(torch: Any, spec: KernelSpec) -> None:
        gc.collect()
        raise UnsupportedCaseError(f"inference mode is {torch.is_inference_mode_enabled()}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(count, "die_with_parent", lambda: None)
    monkeypatch.setattr(count, "_warm", warm)
    monkeypatch.setattr(cuda_start, "_entered", entered := [])
    request, report = tmp_path / "request.json", tmp_path / "report.jsonl"
    request.write_text(json.dumps({"index": 0, "specs": [spec_row(GEMM_SPEC)]}))
    try:
        count.main(["count", str(request), str(report)])
    finally:
        for guard in entered:
            guard.__exit__(None, None, None)
    at, end = map(json.loads, report.read_text().splitlines())
    assert at == {"at": GEMM_SPEC.case_id}
    assert end["status"] == "unsupported"
    assert "inference mode is True" in end["message"]


def test_cases_are_counted_by_family():
    cases = counted_cases()
    assert {case.family for case in cases} == set(SWEEPS) - {
        "causal_conv1d", "cross_entropy", "embedding", "latent_attention", "linear_attention", "optimizer", "quantize", "rope",
    }  # fmt: skip
    assert len(cases) == len({case.case_id for case in cases}) == 27
    assert [case.family for case in counted_cases(["gemm"], 1)] == ["gemm"]
    assert counted_cases(["gemm"], 1)[0]["m"] == 8192
