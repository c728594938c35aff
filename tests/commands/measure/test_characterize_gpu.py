"""`kernelcast measure machine` on a GPU that is played, and predicting for the device file it writes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.gpu.characterize import characterize as measuring
from kernelcast.collectors.gpu.characterize.characterize import Characterised
from kernelcast.collectors.gpu.profiling import launch_trace
from kernelcast.collectors.gpu.profiling.launch_trace import LaunchTraceError, Traced
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.protocol import GpuIdentity
from kernelcast.commands.measure.characterize import gpu_entry, slug
from kernelcast.datasets.records.launch_traces import KernelLaunch, LaunchSummary
from kernelcast.features.device import catalogue, load_device_file
from kernelcast.features.errors import SpecError
from kernelcast.process import ChildStartError

ATTRIBUTES = {
    "compute_units": 48.0, "boost_clock_hz": 1.56e9, "memory_clock_hz": 8.0e9, "memory_bus_b": 32.0, "l2_b": 4194304.0,
    "shared_memory_per_unit_b": 102400.0, "registers_per_unit_b": 262144.0, "memory_b": 1.6e10,
}  # fmt: skip


def fact(value: float | None) -> dict[str, Any]:
    return {"value": value, "source": "measured" if value is not None else "not measured: unsupported"}


FACTS = {
    "matrix_bf16_torch_flops_per_s": fact(6e13), "matrix_bf16_triton_flops_per_s": fact(7e13),
    "matrix_fp32_torch_flops_per_s": fact(1.5e13), "matrix_fp8_torch_flops_per_s": fact(None),
    "vector_fp32_cupy_flops_per_s": fact(1.6e13), "vector_bf16_cupy_flops_per_s": fact(1.6e13),
    "bandwidth_dram_b_per_s": fact(4e11), "bandwidth_l2_b_per_s": fact(1.2e12), "power_idle_w": fact(20.0),
    "launch_graph_torch_bf16_s": fact(2e-6),
}  # fmt: skip


class Reader:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def identity(self) -> GpuIdentity:
        return GpuIdentity(self._name)

    def power_limit_w(self) -> float | None:
        return 140.0


@pytest.fixture
def measured(monkeypatch):
    """Plays the GPU of that name."""

    def play(name: str | None, facts: dict[str, Any] = FACTS) -> None:
        monkeypatch.setattr(find, "open_gpu_reader", lambda index, **_: name and Reader(name))
        done = Characterised(
            facts, {"gpu": name or "NVIDIA Played 1", "compute_capability": "8.0", "attributes": ATTRIBUTES}
        )
        monkeypatch.setattr(measuring, "characterize", lambda **_: done)

    return play


def test_a_gpu_of_the_catalogue_keeps_its_datasheet_and_gains_facts(run, tmp_path, measured):
    measured("NVIDIA H200")
    done = run("characterize", "--out", tmp_path / "my.yaml", "--no-launches")
    assert done.code == 0, done.err
    assert "matrix_fp8_torch_flops_per_s: not measured: unsupported" in done.err
    result, known = load_device_file(tmp_path / "my.yaml"), catalogue().get("h200")
    assert (result.name, result.facts, result.matrix_flops_per_s) == (known.name, known.facts, known.matrix_flops_per_s)
    assert (result.aliases, result.compute_capability) == (known.aliases, "9.0")
    assert result.measured["launch_graph_torch_bf16_s"].value == 2e-6
    assert "matrix_fp8_torch_flops_per_s" not in result.measured


def test_a_gpu_no_one_knows_can_be_predicted_for_at_once(run, tmp_path, measured):
    measured("NVIDIA Played 1")
    path = tmp_path / "my.yaml"
    done = run("characterize", "--out", path, "--no-launches")
    assert done.code == 0, done.err
    assert "--device nvidia-played-1" in done.err
    result = load_device_file(path)
    assert result.matrix_flops_per_s["bf16"].value == pytest.approx(1.5 * 7e13)
    assert result.vector_flops_per_s["fp32"].value == pytest.approx(1.25 * 1.6e13)
    assert "fp8" not in result.matrix_flops_per_s
    assert result.required("memory_bandwidth_b_per_s") == pytest.approx(2 * 8e9 * 32)
    assert result.fact("tdp_w") == 140.0
    assert result.compute_capability == "8.0"
    for name in ("nvidia-played-1", "NVIDIA Played 1"):
        message = run("predict", "gemm", "m=2048", "n=2048", "k=2048", "dtype=bf16", "--device", name, "--device-file", path,
                   "--json")  # fmt: skip
        assert message.code == 0, message.err
        latency = json.loads(message.out)["latency_s"]
        assert latency["lower"] <= latency["value"] <= latency["upper"]
        assert latency["value"] >= 2 * 2048**3 / (1.5 * 7e13)


def test_launch_facts_join_the_device_file_and_their_absence_is_told(run, tmp_path, measured, monkeypatch):
    measured("NVIDIA H200")
    summary = LaunchSummary("", 1, 100, 4e-4, 1e-4, 5e-4, 8e-4, 1e-3, 0, "host")
    later = LaunchSummary("", 64, 100, 4e-4, 9e-3, 9.4e-3, 1e-2, 1.1e-2, 0, "gpu")
    monkeypatch.setattr(launch_trace, "trace_launches", lambda **_: Traced([], [summary, later], {}, {}))
    done = run("characterize", "--out", tmp_path / "my.yaml")
    assert done.code == 0, done.err
    result = load_device_file(tmp_path / "my.yaml").measured
    assert (result["tklqt_batch1_s"].value, result["cpu_to_gpu_bound_batch"].value) == (5e-4, 64)
    assert result["launch_mean_s"].value == pytest.approx(4e-6)

    def no_cupti(**_: Any) -> None:
        raise LaunchTraceError("the trace holds no kernels")

    monkeypatch.setattr(launch_trace, "trace_launches", no_cupti)
    done = run("characterize", "--out", tmp_path / "my.yaml")
    assert done.code == 0, done.err
    assert "tklqt_batch1_s: not measured: the trace holds no kernels" in done.err
    assert "tklqt_batch1_s" not in load_device_file(tmp_path / "my.yaml").measured


def test_tracing_writes_rows_and_says_where_the_gpu_takes_over(run, tmp_path, measured, monkeypatch):
    monkeypatch.setattr(find, "nvml_reader", lambda index, **_: Reader("NVIDIA H200"))
    rows = [
        LaunchSummary("h", batch, 10, 1e-4, tklqt, 1e-4 + tklqt, 1e-3, 2e-3, 0, "host")
        for batch, tklqt in ((1, 0.0), (2, 1e-3))
    ]
    kernels = [KernelLaunch("h", 1, 0, "aten::linear", "aten::addmm", "gemm", 1e-6, 2e-6, 3e-6, 4e-6)]
    monkeypatch.setattr(
        launch_trace, "trace_launches", lambda device, **_: Traced(kernels, rows, {4: "out of memory"}, {"gpu": device})
    )
    done = run("trace-launches", "--out", tmp_path / "traces")
    assert done.code == 0, done.err
    assert "the GPU limits from batch 2 on" in done.err
    assert "batch 4: out of memory" in done.err
    table = pq.read_table(tmp_path / "traces" / "launches.parquet")
    assert [KernelLaunch(**row) for row in table.to_pylist()] == kernels
    assert json.loads(table.schema.metadata[b"kernelcast.facts"])["gpu"] == "nvidia-h200-sxm-141gb"
    assert json.loads(run("trace-launches", "--out", tmp_path / "traces", "--json").out)["gpu_bound_from"] == 2


def test_without_nvml_the_gpu_is_asked_for_by_name(run, tmp_path, measured):
    measured(None)
    done = run("characterize", "--gpu", "--out", tmp_path / "my.yaml", "--no-launches")
    assert done.code == 0, done.err
    result = load_device_file(tmp_path / "my.yaml")
    assert result.name == "nvidia-played-1"
    assert result.fact("tdp_w") is None


def test_what_hinders_characterising_a_gpu_is_one_sentence(run, tmp_path, measured, monkeypatch):
    measured(
        "NVIDIA Played 1",
        {**FACTS, "vector_fp32_cupy_flops_per_s": fact(None), "matrix_fp32_torch_flops_per_s": fact(None)},
    )
    assert "neither its vector nor its matrix fp32 rate" in run("characterize", "--out", tmp_path / "m.yaml").error

    def no_device(**_: Any) -> None:
        raise ChildStartError("the GPU worker did not start: torch sees no CUDA device")

    monkeypatch.setattr(measuring, "characterize", no_device)
    assert (
        "torch sees no CUDA device; `kernelcast measure machine --gpu` needs"
        in run("characterize", "--gpu", "--out", tmp_path / "m.yaml").error
    )
    assert (
        "is a cpu"
        in run("characterize", "--gpu", "--out", tmp_path / "m.yaml", "--device", "amd-epyc-9005-vm-2c").error
    )


def test_an_entry_needs_what_the_driver_tells():
    faster = {**FACTS, "bandwidth_dram_read_b_per_s": fact(6e11)}
    entry = gpu_entry("NVIDIA Played 1", {"attributes": ATTRIBUTES}, faster, None)
    assert entry["facts"]["memory_bandwidth_b_per_s"]["value"] == 1.25 * 4e11
    with pytest.raises(SpecError, match="its driver does not report compute_units, boost_clock_hz, l2_b"):
        gpu_entry("NVIDIA Played 1", {"attributes": {}}, FACTS, None)
    assert slug("NVIDIA RTX A4000") == "nvidia-rtx-a4000"
    assert slug("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
