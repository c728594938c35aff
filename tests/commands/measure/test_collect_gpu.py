"""`kernelcast measure gpu` over a campaign that is played: what goes where when neither stream is a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.campaign import CampaignSummary
from kernelcast.collectors.gpu import campaign
from kernelcast.collectors.gpu.campaign import GpuCampaignSummary
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.protocol import GpuIdentity
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec


class Reader:
    def name(self) -> str:
        return "NVIDIA H200"

    def identity(self) -> GpuIdentity:
        return GpuIdentity(self.name())


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, progress: Any, **__: Any) -> GpuCampaignSummary:
        with progress("latency") as messages:
            for done in (1, 2):
                messages(done, 2)
        return GpuCampaignSummary(CampaignSummary("h200", {"ok": 2}, 0, 0, 1, 0, False, 1.5), None)

    monkeypatch.setattr(find, "nvml_reader", lambda index, uuid: Reader())
    monkeypatch.setattr(campaign, "run_gpu_campaign", run)


@pytest.mark.usefixtures("played")
def test_the_answer_is_one_line_of_json_and_the_rest_is_told_on_stderr(run) -> None:
    done = run("collect-gpu", "--minutes", "1", "--json")
    assert done.code == 0, done.err
    message = json.loads(done.out)
    assert (message["latency"]["stored"], message["energy"]) == ({"ok": 2}, None)
    assert done.out == json.dumps(message, separators=(",", ":")) + "\n"
    lines = done.err.splitlines()
    assert lines[0] == "latency on nvidia-h200-sxm-141gb (1/2)"
    assert lines[1].startswith("latency: h200: 2 rows measured (2 ok) in 1 block")
    assert lines[2].startswith("rows are in ")
    assert len(lines) == 3


@pytest.mark.usefixtures("played")
def test_rows_of_another_gpu_do_not_mix_with_this_one_s(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = KernelSpec.of("softmax", "fp32", impl="torch", rows=64, cols=64)
    facts = {"gpu": {"name": "NVIDIA H200 NVL", "memory_b": 1}}
    Store(tmp_path).append([Measurement(spec, "nvidia-h200-sxm-141gb", "unsupported", "b")], Provenance("b", facts))
    monkeypatch.setattr(find, "gpu_facts", lambda reader: {"name": reader.name(), "memory_b": 1})
    done = run("collect-gpu", "--minutes", "1", "--out", tmp_path)
    assert done.code == 2
    assert (
        "not the machine that was measured under this name (name NVIDIA H200 NVL before, NVIDIA H200 now)" in done.error
    )


def test_a_plan_is_one_line_of_json_too(run) -> None:
    done = run("collect-gpu", "--dry-run", "--device", "h100-sxm", "--minutes", "0.5", "--families", "copy", "--json")
    assert done.code == 0, done.err
    message = json.loads(done.out)
    assert {row["family"] for row in message} == {"copy"}
    assert done.out == json.dumps(message, separators=(",", ":")) + "\n"


def test_compacting_nothing_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "kernelcast", "data", "compact", "--store", str(tmp_path / "none")]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "no rows in" in done.stderr
    assert not (tmp_path / "out").exists()
