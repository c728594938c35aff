"""Tables of steps: rows that are refused, plans and formats of rows, and how near public steps are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.serving.step_rows import NEEDED, OPTIONAL, plan_of, predict_rows, row_formats

MEASURED = Path(__file__).parents[4] / "shared/benchmarks/serving/forward_steps.parquet"
ROW: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "device": "h100-sxm", "engine": "vllm", "engine_version": "0.20.1", "tp": 2, "pp": None,
    "ep": None, "dp": 1, "num_gpus": 2, "precision": "bfloat16", "prefill_tokens": 512, "prefill_requests": 2,
    "prefill_kv_tokens": 0, "decode_requests": 8, "decode_kv_tokens": 8000,
}  # fmt: skip


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def table(*rows: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [(ROW | row)[name] for row in rows] for name in ROW}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "nobody/none"}, "no model 'nobody/none' ships"),
        ({"model": None}, "model is empty"),
        ({"device": "h1000"}, "h1000"),
        ({"engine": "tgi"}, "no engine 'tgi'"),
        ({"tp": 3, "num_gpus": 3}, "tp 3"),
        ({"num_gpus": 3}, "num_gpus is 3; give 2 or 4"),
        ({"precision": "int7"}, "int7"),
        ({"prefill_requests": 0}, "without prefill_requests"),
        ({"prefill_requests": 600}, "fewer than the 600"),
        ({"prefill_tokens": 0, "prefill_requests": 0, "decode_requests": 0, "decode_kv_tokens": 0}, "no sequences"),
        ({"decode_requests": 2.5}, "whole number"),
        ({"decode_kv_tokens": None}, "decode_kv_tokens is empty"),
        ({"decode_requests": None}, "without decode_requests"),
        ({"decode_requests": "many"}, "whole number"),
        ({"decode_requests": 10**12, "decode_kv_tokens": 10**13}, "whole number between"),
        ({"decode_kv_tokens": 3}, "decode_kv_tokens 3 are fewer"),
        ({"prefill_tokens": math.inf}, "whole number"),
        ({"tp": math.inf}, "whole number"),
        ({"tp": 0}, "tp must be at least 1"),
        ({"device": "rtx-2080", "precision": "float16", "tp": 4, "num_gpus": 4}, "linked"),
        ({"device": "rtx-2080", "precision": "bfloat16"}, "computes no bf16"),
        ({"device": "mi300x", "engine": "trtllm"}, "does not run on devices of amd"),
        ({"decode_kv_tokens": 900_000}, "longer than the"),
        ({"model": "meta-llama/Llama-3.1-405B"}, "do not fit"),
    ],
)
def test_a_row_is_refused_with_its_reason_and_the_others_are_answered(
    predictor: ArtifactPredictor, change: dict[str, Any], words: str
) -> None:
    times = predict_rows(predictor, table({}, change))
    assert times.refused[0] is None
    assert words in str(times.refused[1])
    assert np.isfinite(times.value_s[0])
    assert np.isnan([times.value_s[1], times.lower_s[1], times.upper_s[1]]).all()


def test_a_model_that_does_not_ship_is_described_by_columns(predictor: ArtifactPredictor) -> None:
    shape = {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 12288, "vocab": 151936}
    columns = table({}, {"model": "someone/else"}) | {name: [size, size] for name, size in shape.items()}
    times = predict_rows(predictor, columns)
    assert times.refused == [None, None]
    assert times.value_s[1] == pytest.approx(times.value_s[0], rel=0.05)


def test_rows_keep_their_order(predictor: ArtifactPredictor) -> None:
    rows = [{}, {"tp": 1, "num_gpus": 1}, {"prefill_tokens": 4096}, {}]
    value = predict_rows(predictor, table(*rows)).value_s
    assert value[0] == value[3] < value[1]
    assert value[2] > value[0]


def test_a_missing_column_is_named(predictor: ArtifactPredictor) -> None:
    columns = table({})
    del columns["decode_requests"]
    with pytest.raises(SpecError, match="decode_requests"):
        predict_rows(predictor, columns)


def test_a_column_of_lists_is_refused(predictor: ArtifactPredictor) -> None:
    with pytest.raises(SpecError, match="engine_version holds lists"):
        predict_rows(predictor, table({"engine_version": ["0.20.1"]}))


def test_without_tp_the_devices_split_each_layer() -> None:
    empty = dict.fromkeys(OPTIONAL)
    assert plan_of(empty) == ParallelPlan()
    assert plan_of({**empty, "num_gpus": 8, "pp": 2}) == ParallelPlan(tp=4, pp=2)


@pytest.mark.parametrize(
    ("model", "precision", "weights", "experts"),
    [
        ("Qwen/Qwen3-8B", "bfloat16", "bf16", "bf16"), ("Qwen/Qwen3-8B", "fp8", "fp8", "fp8"),
        ("Qwen/Qwen3-8B", "FP4", "nvfp4", "nvfp4"), ("openai/gpt-oss-120b", "fp4", "bf16", "mxfp4"),
        ("openai/gpt-oss-120b", None, "bf16", "mxfp4"),
    ],
)  # fmt: skip
def test_formats_are_those_of_the_row_or_the_model(
    model: str, precision: str | None, weights: str, experts: str
) -> None:
    setting = {**dict.fromkeys(OPTIONAL), "precision": precision}
    formats = row_formats(model_facts(model), setting)
    assert (formats.weights, formats.experts) == (weights, experts)


@pytest.mark.skipif(not MEASURED.is_file(), reason="the public table of steps is not here")
def test_public_steps_are_near(predictor: ArtifactPredictor) -> None:
    rows = [row for row in pq.read_table(MEASURED).to_pylist() if row["tp"] == 4][::4]
    times = predict_rows(
        predictor, {name: [row[name] for row in rows] for name in (*NEEDED, *OPTIONAL) if name in rows[0]}
    )
    label = np.array([row["step_p50_s"] for row in rows])
    decode = np.array([row["phase"] == "decode" for row in rows])
    errors = np.abs(times.value_s / label - 1)
    assert np.median(errors[decode]) < 0.05
    assert np.median(errors[~decode]) < 0.06
    assert np.mean((times.lower_s <= label) & (label <= times.upper_s)) > 0.85
