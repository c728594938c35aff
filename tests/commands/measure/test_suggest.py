"""`kernelcast measure suggest`: a list for people, JSON for programs, and a form to fill in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.training import train

DEVICES = ("nvidia-t4", "nvidia-a100-sxm-80gb")


def rows(family: str, sizes: tuple[str, ...]) -> LabelledCases:
    rng = np.random.default_rng(0)
    drawn = (2 ** rng.uniform(4, 11, (60, len(sizes)))).astype(int).tolist()
    specs = [KernelSpec.of(family, "fp32", impl="torch", **dict(zip(sizes, row, strict=True))) for row in drawn]
    cases = Cases.from_specs(specs, [DEVICES[i % 2] for i in range(60)])
    return LabelledCases(cases, 2e-5 + 1.5 * work(cases, catalogue()).lower_bound_s, np.full(60, np.nan))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("xgboost")
    folder = tmp_path_factory.mktemp("suggest") / "model"
    tables = [rows("gemm", ("m", "n", "k")), rows("softmax", ("rows", "cols"))]
    save_artifact(train(tables, regressor="analytic"), folder)
    return folder


@pytest.fixture
def suggest(run, model):
    return lambda *words: run("suggest", "--model", model, "--device", "v100-sxm", *words)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_form_can_be_predicted_and_once_filled_in_calibrates(run, suggest, model, tmp_path, suffix):
    form, filled = tmp_path / f"cases{suffix}", tmp_path / "filled.parquet"
    done = suggest("--n", 8, "--out", form)
    assert done.code == 0, done.err
    assert "the most useful first" in done.out
    assert "measuring them takes about" in done.err
    assert "fill in latency_s" in done.err
    table = (pa_csv.read_csv if suffix == ".csv" else pq.read_table)(form)
    assert table.num_rows == 8
    assert table["latency_s"].null_count == 8
    assert set(table["device"].to_pylist()) == {"nvidia-v100-sxm-32gb"}
    assert set(table["family"].to_pylist()) == {"gemm", "softmax"}
    predicted = tmp_path / "predicted.parquet"
    assert run("predict", "--model", model, "--table", form, "--out", predicted).code == 0
    seconds = pq.read_table(predicted)["pred_latency_s"]
    assert seconds.null_count == 0
    at = table.column_names.index("latency_s")
    pq.write_table(table.set_column(at, "latency_s", pa.array([2 * item for item in seconds.to_pylist()])), filled)
    assert "latency_s: is missing" in run("calibrate", "--model", model, "--data", form, "--out", tmp_path / "no").error
    done = run("calibrate", "--model", model, "--data", filled, "--out", tmp_path / "calibrated")
    assert done.code == 0, done.err


def test_json_says_each_case_its_cost_and_its_use(suggest):
    done = suggest("--n", 3, "--family", "softmax", "--json")
    result = json.loads(done.out)
    assert result["device"] == "nvidia-v100-sxm-32gb"
    assert [item["family"] for item in result["cases"]] == ["softmax"] * 3
    assert result["measuring_s"] == pytest.approx(sum(item["measuring_s"] for item in result["cases"]))
    item = result["cases"][0]
    assert set(item["sizes"]) == {"rows", "cols"}
    assert item["latency_s"] > 0
    assert item["gain"] > 0


def test_candidates_are_the_rows_of_a_table_whatever_they_were_measured_on(suggest, tmp_path):
    table = pa.table({"family": ["softmax"] * 3, "device": ["nowhere", "t4", None], "dtype": ["fp32"] * 3,
                      "rows": [100, 200, 300], "cols": [64, 128, 256], "latency_s": ["?", "1", None]})  # fmt: skip
    pa_csv.write_csv(table, tmp_path / "pool.csv")
    done = suggest("--candidates", tmp_path / "pool.csv", "--json")
    assert {item["sizes"]["rows"] for item in json.loads(done.out)["cases"]} == {100, 200, 300}
    assert "all the candidates there are, 3 instead of 32" in done.err
    pa_csv.write_csv(table.drop_columns(["family", "device"]), tmp_path / "bare.csv")
    named = suggest("--candidates", tmp_path / "bare.csv", "--family", "softmax", "--json")
    assert json.loads(named.out)["cases"] == json.loads(done.out)["cases"]
    assert "lacks family" in suggest("--candidates", tmp_path / "bare.csv").error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--n", "0"), "must be 1 or more"),
        (("--n", "many"), "--n"),
        (("--family", "moe"), "not trained on moe; it knows gemm, softmax"),
        (("--impl", "iree"), "by iree runs on nvidia-v100-sxm-32gb"),
        (("--out", "cases.txt"), "must end in .csv or .parquet"),
        (("--out", "nowhere/cases.csv"), "does not exist"),
        (("--candidates", "none.csv"), "cannot read none.csv"),
        (("--device", "t5"), "this command answers for one device, and --device is there 2 times"),
        (("--model", "none"), "none is no model"),
    ],
)
def test_bad_input_is_one_clear_sentence(suggest, words, said):
    assert said in suggest(*words).error


def test_a_device_must_be_named(run):
    assert "--device" in run("suggest").error
    assert "no device 't5'" in run("suggest", "--device", "t5").error
