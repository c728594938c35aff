"""Every program in examples/ runs as its first lines say, against a real server, and prints what it is there to show."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWN = {
    "predict_one.py": r"^nvidia-h200-sxm-141gb: [\d.]+ µs \([\d.]+ to [\d.]+\), bound by \w+\n[\d.]+ mJ a run\n",
    "cheapest_device.py": r"(?:[a-z0-9-]+ +[\d.]+ a million calls \([\d.]+ to [\d.]+\), [\d.]+ ms a call.*\n){4}",
    "rank_tiles.py": r"^\d+ configurations by .*; the first \d+ cannot .*\n(?: +[\d.]+ µs  \+\d+%  .*tile_m=\d.*\n){5}",
    "whole_model.py": r"(?:nvidia-\S+: [\d.]+ ms a token .*\n(?: +\d+%  .*: 28 runs of [\d.]+ µs\n){5}){2}",
    "predict_mlir.py": r"^nvidia-h200-sxm-141gb: \d+ µs \(.*\n(?: +\d+%  .*, bound by .*\n)+amd-epyc-9005-vm-2c: \d+ µs",
    "triton_infer.py": r"^(?:m=\d+: [\d.]+ µs, bound by \w+\n){4}$",
    "many_at_once.py": r"^200 predictions in [\d.]+ s, 8 at a time\nhalf took at most [\d.]+ ms, 99 % at most [\d.]+ ms\n$",
}
# The client of Triton Inference Server warns when it is imported; the others must not.
WARNINGS = {"triton_infer.py": "ignore"}


def run(name: str, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    path = EXAMPLES / name
    env = {variable: value for variable, value in os.environ.items() if not variable.startswith("KERNELCAST_")}
    start = [sys.executable, "-W", WARNINGS.get(name, "error")] if path.suffix == ".py" else []
    return subprocess.run([*start, str(path), *args], input=text, capture_output=True, text=True, timeout=240, cwd="/",
                          env=env | {"PYTHONUTF8": "1"})  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_it_prints_what_it_is_there_to_show(address, name):
    done = run(name, address)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(SHOWN[name], done.stdout), done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there")
def test_the_shell_script_prints_answers(address):
    done = run("predict.sh", address)
    assert (done.returncode, done.stderr) == (0, "")
    item, many = map(json.loads, done.stdout.splitlines())
    assert item["device"] == "nvidia-h200-sxm-141gb"
    assert [answer["coverage"] for answer in many["predictions"]] == [0.8, 0.8]


def test_a_csv_gets_its_costs_and_a_bad_line_is_named(address):
    text = (EXAMPLES / "kernels.csv").read_text()
    done = run("predict_csv.py", address, text=text)
    assert (done.returncode, done.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["family"] for row in rows] == ["gemm", "gemm", "softmax"]
    assert all(
        0 < float(row["latency_s_lower"]) <= float(row["latency_s"]) <= float(row["latency_s_upper"]) for row in rows
    )
    bad = run("predict_csv.py", address, text=text.replace("l40s", "l400"))
    assert bad.returncode == 1
    assert bad.stderr.startswith("line 3: no device 'l400' (close: l40")


def test_a_service_that_is_not_there_is_one_sentence():
    done = run("predict_one.py", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("no prediction: no answer from http://127.0.0.1:1")
    assert "Traceback" not in done.stderr


def test_the_readme_lists_every_example():
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert set(SHOWN) | {"predict.sh", "predict_csv.py", "train.py"} == programs


@pytest.mark.slow
def test_the_training_step_is_estimated():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "kernelcast", "estimate", f"{EXAMPLES / 'train.py'}:step", "--device", "h100-sxm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd="/")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^latency +[\d.]+ ms \[.*\n(?:.*\n)+peak memory .*optimiser state", done.stdout, re.MULTILINE)
