"""`kernelcast train export-ops`: files that plug-ins load, and what went wrong in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelcast.models.tuning.flat_model import read_model

CPU = "amd-epyc-9005-vm-2c"
Run = Callable[..., Any]


def test_a_file_and_its_errors(run: Run, tmp_path: Path) -> None:
    done = run("export-ops", "--device", "epyc-9005-vm-2c", "--family", "copy", "--rows", "60", "--out", str(tmp_path / "new"),
               "--json")  # fmt: skip
    assert done.code == 0, done
    (item,) = json.loads(done.out)["exported"]
    file = tmp_path / "new" / "op-copy.kcm"
    assert item["kind"] == "op-copy"
    assert item["file"] == str(file)
    assert item["size_b"] == file.stat().st_size
    assert {(result["device"], result["dtype"]) for result in item["against_teacher"]} == {(CPU, "fp32"), (CPU, "bf16")}
    assert all(result["latency"]["n"] > 100 for result in item["against_rows"])
    assert item["asking_s"] > 0
    assert item["fitting_s"] > 0
    assert read_model(file, "op-copy").devices == (CPU,)
    assert "1 models of" in done.err
    assert "asking about copy" in done.err


def test_without_a_folder_it_goes_where_plug_ins_look_first(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelcast.plugins.cost_model import model_path

    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    done = run("export-ops", "--device", CPU, "--family", "softmax", "--rows", "60")
    assert done.code == 0, done
    assert "against measured rows" in done.out
    assert "op-softmax" in done.out
    assert model_path("op-softmax") == tmp_path / "tuning" / "op-softmax.kcm"


def test_what_a_user_gets_wrong(run: Run, tmp_path: Path) -> None:
    assert "no device 'h1000'" in run("export-ops", "--device", "h1000", "--out", str(tmp_path)).error
    unknown = run("export-ops", "--family", "attention", "--out", str(tmp_path)).error
    assert unknown.startswith("no models of single operations of 'attention'; families: gemm,")
    assert "make it first" in run("export-ops", "--out", str(tmp_path / "a" / "b")).error
    (tmp_path / "file").write_text("")
    assert "is a file; give a folder" in run("export-ops", "--out", str(tmp_path / "file")).error
    assert "--rows" in run("export-ops", "--rows", "6", "--out", str(tmp_path)).error
    broken = run("export-ops", "--model", str(tmp_path), "--family", "copy", "--out", str(tmp_path)).error
    assert str(tmp_path) in broken
