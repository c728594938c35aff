"""`kernelcast train calibrate` as a user types it: from a table of a few rows to a model that knows the device."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from kernelcast.features.cost.bounds import lower_bound_s
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec

DEVICE = "nvidia-rtx-4090"


def _table(path: Path, factor: float = 3.0, rows: int = 12) -> Path:
    """Softmax rows that take `factor` times their bound and a launch."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["family", "device", "dtype", "impl", "rows", "cols", "latency_s"])
        for i in range(rows):
            spec = KernelSpec.of("softmax", "fp32", impl="torch", rows=512 * (i + 1), cols=1024)
            latency_s = 10e-6 + factor * lower_bound_s(spec, catalogue().get(DEVICE))
            out.writerow(["softmax", DEVICE, "fp32", "torch", 512 * (i + 1), 1024, latency_s])
    return path


def test_a_table_becomes_a_model_that_knows_the_device(run, tmp_path):
    table = _table(tmp_path / "few.csv")
    done = run("calibrate", "--data", table, "--out", tmp_path / "model", "--json")
    assert done.code == 0, done.err
    (report,) = json.loads(done.out)
    assert (report["family"], report["device"], report["rows"]) == ("softmax", DEVICE, 12)
    assert report["after"]["latency"]["mean_ape_pct"] < report["before"]["latency"]["mean_ape_pct"]
    query = ("softmax", "rows=3000", "cols=1024", "dtype=fp32", "impl=torch", "--device", DEVICE, "--json")
    before, after = (json.loads(run("predict", *query, *more).out) for more in ((), ("--model", tmp_path / "model")))
    assert "carried over" in before["method"]
    assert "calibrated" in after["method"]
    assert after["in_domain"]
    judged = run("evaluate", "--model", tmp_path / "model", "--data", table)
    assert "calibrated with rows of few.csv" in judged.out + judged.err


def test_without_json_it_is_a_table(run, tmp_path):
    done = run("calibrate", "--data", _table(tmp_path / "few.csv"), "--out", tmp_path / "model")
    assert done.code == 0, done.err
    assert DEVICE in done.out
    assert "the adapted model is in" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--data", "nothing.csv"), "nothing.csv"),
        (("--data", "few.csv", "--split", "val"), "no row of"),
        (("--data", "few.csv", "--model", "nowhere"), "is no model"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(run, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    _table(tmp_path / "few.csv")
    done = run("calibrate", *arguments, "--out", "model")
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "model").exists()
