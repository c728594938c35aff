"""Train, look at, evaluate and ask a model, all by the command line, on a few made-up rows."""

from __future__ import annotations

import json
from pathlib import Path

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
    sizes = [tuple(int(size) for size in 2 ** rng.uniform(4, 11, 2)) for _ in range(80)]
    device = "nvidia-t4"
    specs = [KernelSpec.of("softmax", "fp32", rows=rows, cols=cols) for rows, cols in sizes]
    bound = work(Cases.from_specs(specs, [device] * len(specs)), catalogue()).lower_bound_s
    table = pa.table({
        "family": ["softmax"] * 80, "device": [device] * 80, "dtype": ["fp32"] * 80, "rows": [s[0] for s in sizes],
        "cols": [s[1] for s in sizes], "latency_s": 1.5 * bound, "split": ["train"] * 60 + ["val"] * 20,
    })  # fmt: skip
    pq.write_table(table, tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


def test_from_rows_to_a_prediction(run, data, tmp_path):
    pytest.importorskip("xgboost")
    model = tmp_path / "model"
    trained = run("train", "--data", data, "--split", "train", "--out", model, "--regressor", "roofline", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["families"]["softmax"]["rows"] == 60
    done = run(
        "predict", "softmax", "rows=100", "cols=1000", "dtype=fp32", "--device", "t4", "--model", model, "--json"
    )
    assert json.loads(done.out)["latency_s"]["value"] > 0
    out = tmp_path / "out.parquet"
    assert run("predict", "--model", model, "--table", data, "--out", out).code == 0
    assert pq.read_table(out)["pred_latency_s"].null_count == 0
    judged = run("evaluate", "--model", model, "--data", data, "--split", "val")
    assert judged.code == 0, judged.err
    assert "softmax" in judged.out
    assert run("models", "promote", model).code == 0
    (champion,) = json.loads(run("models", "list", "--json").out)
    assert champion["serves"]
    assert (Path(champion["path"]) / "manifest.json").read_bytes() == (model / "manifest.json").read_bytes()
