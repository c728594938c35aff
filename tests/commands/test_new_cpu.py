"""A CPU that no device file is of: its file is made of what could be measured, and every command knows it then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kernelcast import cli
from kernelcast.collectors.cpu import characterize as measuring
from kernelcast.commands.measure.characterize import cpu_entry, measured_entry, new_cpu
from kernelcast.features import device as devices
from kernelcast.features.device import Catalogue, known_machine, local_devices_dir, parse_device
from kernelcast.features.errors import SpecError

MEASURED: dict[str, dict[str, Any]] = {
    name: {"value": value, "source": "measured here"}
    for name, value in {
        "matrix_fp32_flops_per_s": 2e11, "matrix_bf16_flops_per_s_1t": 2e11, "bandwidth_dram_b_per_s_1t": 2e10,
        "bandwidth_l2_b_per_s_1t": 1e11, "launch_torch_s": 2e-6,
    }.items()
}  # fmt: skip
MEASURED |= {name: {"value": None, "source": "no clean sample"}
             for name in ("bandwidth_dram_b_per_s", "matrix_bf16_flops_per_s", "latency_l1_s")}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    told = {"vendor_id": "nobody", "cpu family": "1", "model": "2", "model name": "A CPU of nobody", "cpu MHz": "3000"}
    monkeypatch.setattr(devices, "cpu_info", lambda: told)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(measuring, "characterize", lambda device: MEASURED)
    return tmp_path / "home"


def test_what_a_busy_machine_did_not_let_measure_is_bounded_by_what_it_did(home: Path) -> None:
    entry = cpu_entry("x", MEASURED)
    bandwidth = entry["facts"]["memory_bandwidth_b_per_s"]
    assert bandwidth["value"] == 2.0 * 4 * 2e10
    assert "since bandwidth_dram_b_per_s could not be measured" in bandwidth["source"]
    assert entry["peak_flops_per_s"]["matrix"]["bf16"]["value"] == 2.0 * 4 * 2e11
    assert entry["peak_flops_per_s"]["matrix"]["fp32"]["value"] == 2.0 * 2e11
    assert entry["peak_flops_per_s"]["vector"]["fp64"]["value"] == 2e11
    nothing = {name: {"value": None, "source": "no clean sample"} for name in MEASURED}
    with pytest.raises(SpecError, match="could not be measured"):
        cpu_entry("x", nothing)


def test_cores_that_were_slower_together_bound_nothing(home: Path) -> None:
    measured = MEASURED | {"matrix_fp32_flops_per_s_1t": {"value": 1.5e11, "source": "x"}}
    peak = cpu_entry("x", measured)["peak_flops_per_s"]["matrix"]["fp32"]
    assert peak["value"] == 2.0 * 4 * 1.5e11
    assert "4 times matrix_fp32_flops_per_s_1t" in peak["source"]
    assert "since matrix_fp32_flops_per_s was less" in peak["source"]


@pytest.mark.parametrize(
    ("fact", "value"),
    [("vector_bf16_flops_per_s_1t", 9e11), ("matrix_bf16_flops_per_s", 1e9), ("bandwidth_dram_b_per_s_1t", 9e10)],
)
def test_no_limit_lies_below_what_was_measured(home: Path, fact: str, value: float) -> None:
    measured = MEASURED | {
        "bandwidth_dram_b_per_s": {"value": 5e10, "source": "x"},
        fact: {"value": value, "source": "x"},
    }
    entry = cpu_entry("x", measured) | {"measured": measured_entry(measured)}
    parsed = parse_device(yaml.safe_dump(entry), origin="x")
    assert parsed.matrix_flops_per_s["bf16"].value >= 2.0 * 2e11
    assert parsed.fact("memory_bandwidth_b_per_s") == 2.0 * max(5e10, value if "dram" in fact else 0.0)


def test_its_file_is_known_from_then_on(home: Path) -> None:
    known = Catalogue()
    assert known_machine(known) is None
    path, _ = new_cpu()
    assert path.parent == local_devices_dir()
    machine = known_machine(known)
    assert machine is not None
    assert machine.name == "cpuid-nobody-1-2-4c"
    assert machine.measured["launch_torch_s"].value == 2e-6
    assert machine.name in known.names()
    path.rename(path.with_name("another-name.yaml"))
    assert machine in list(known)
    (local_devices_dir() / "another-name.yaml").unlink()
    assert known_machine(known) is None


def test_a_damaged_file_keeps_no_other_device_from_being_known(home: Path, caplog: Any) -> None:
    local_devices_dir().mkdir(parents=True)
    (local_devices_dir() / "bad.yaml").write_text("name: [")
    known = Catalogue()
    assert "nvidia-h200-sxm-141gb" in known.names()
    assert known_machine(known) is None
    assert caplog.text.count("the device file is left out") == 1


def test_a_plan_that_cannot_run_is_refused_before_measuring(home: Path, tmp_path: Path, capsys: Any) -> None:
    plan = tmp_path / "tonight.yaml"
    plan.write_text("minutes: 1\nthreads: [4096]\n")
    assert cli.main(["nightly", str(plan)]) == 2
    assert "4096" in capsys.readouterr().err
    assert not local_devices_dir().exists()


def test_a_dry_run_writes_nothing_and_says_what_comes_first(home: Path, tmp_path: Path, capsys: Any) -> None:
    plan = tmp_path / "tonight.yaml"
    plan.write_text("minutes: 1\n")
    assert cli.main(["nightly", str(plan), "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "first characterises it" in captured.err
    assert "cpuid-nobody-1-2-4c" in captured.out
    assert not local_devices_dir().exists()
