"""`kernelcast evaluate` and `kernelcast evaluate curve`: splits by name and pattern, reports, JSON, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [tuple(int(size) for size in 2 ** rng.uniform(4, 11, 2)) for _ in range(120)]
    devices = ["nvidia-t4"] * 110 + ["nvidia-l4"] * 10
    specs = [KernelSpec.of("softmax", "fp32", rows=rows, cols=cols) for rows, cols in sizes]
    bound = work(Cases.from_specs(specs, devices), catalogue()).lower_bound_s
    table = pa.table({
        "family": ["softmax"] * 120, "device": devices, "dtype": ["fp32"] * 120, "rows": [s[0] for s in sizes],
        "cols": [s[1] for s in sizes], "latency_s": 1.5 * bound, "source": ["neusight"] * 120,
        "split": ["train"] * 80 + ["val_shapes"] * 30 + ["val_device"] * 10,
    })  # fmt: skip
    pq.write_table(table, tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


@pytest.fixture
def model(run, data, tmp_path):
    pytest.importorskip("xgboost")
    done = run("train", "--data", data, "--split", "train", "--out", tmp_path / "model", "--regressor", "roofline")
    assert done.code == 0, done.err
    return tmp_path / "model"


def test_splits_by_name_and_by_pattern(run, data, model, tmp_path):
    html = tmp_path / "report.html"
    done = run("evaluate", "--model", model, "--data", data, "--split", "val_*", "--html", html, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    slices = {(item["by"], item["name"]): item["metrics"]["n"] for item in result["slices"]}
    assert slices["split", "val_shapes"] == 30
    assert slices["split", "val_device"] == 10
    assert slices["device", "nvidia-l4 (unseen)"] == 10
    assert slices["device seen in training", "no"] == 10
    assert result["notes"] == []
    assert {item["seen"] for item in result["intervals"]} == {True, False}
    assert {item["peer"]["held_out"] for item in result["beside"]} == {"shapes", "device"}
    assert "val_device, val_shapes" in html.read_text(encoding="utf-8")
    twice = run(
        "evaluate", "--model", model, "--data", data, "--split", "val_shapes", "--split", "val_device", "--json"
    )
    assert json.loads(twice.out)["slices"] == result["slices"]


def test_all_rows_are_told_by_split_and_training_rows_owned_up_to(run, data, model):
    done = run("evaluate", "--model", model, "--data", data)
    assert "val_shapes" in done.out
    assert "their errors are flattered" in done.err


def test_a_split_that_is_not_there_is_one_sentence(run, data, model):
    message = run("evaluate", "--model", model, "--data", data, "--split", "val_*", "--split", "test").error
    assert "has split 'test'; splits there: train, val_device, val_shapes" in message
    messages = run("evaluate", "--data", data, "--compare", "hash", "--split", "a", "--split", "b").error
    assert "one --split at most" in messages


def test_a_learning_curve(run, data, tmp_path):
    pytest.importorskip("xgboost")
    html = tmp_path / "curve.html"
    args = (
        "learning-curve",
        "--data",
        data,
        "--split",
        "val_*",
        "--regressor",
        "roofline",
        "--rows",
        "30,100",
        "--seeds",
        2,
    )
    done = run(*args, "--out", html, "--json")
    assert done.code == 0, done.err
    (curve,) = json.loads(done.out)["curves"]
    assert [(item["rows"], item["seeds"], item["judged"]) for item in curve["points"]] == [(30, 2, 40), (80, 1, 40)]
    assert "seconds of measuring" in html.read_text(encoding="utf-8")
    assert "softmax" in run(*args).out
    assert "give whole numbers" in run("learning-curve", "--data", data, "--rows", "many").error
    assert "no order 'best'" in run(*args, "--order", "best").error
