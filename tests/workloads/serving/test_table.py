"""Rows become questions without their labels; what cannot be answered says why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.serving.predict import ServingPredictor
from kernelcast.workloads.serving.speculation import Speculation
from kernelcast.workloads.serving.table import COLUMNS, predict_rows, request_of, row_formats

TABLE = Path(__file__).parents[4] / "shared" / "benchmarks" / "serving" / "serving.parquet"
ROW: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "device": "nvidia-h100-sxm-80gb", "engine": "vllm", "engine_version": "0.17.0",
    "num_gpus": 2, "tp": 2, "pp": 1, "isl": 1024.0, "osl": 64.0, "concurrency": 8.0,
}  # fmt: skip
LABELS = (
    "ttft_s",
    "tpot_s",
    "itl_p50_s",
    "e2e_s",
    "throughput_tok_s",
    "total_tok_s",
    "power_w",
    "energy_per_request_j",
    "avg_batch",
)


def test_no_label_is_read() -> None:
    assert not set(COLUMNS) & set(LABELS)
    assert request_of(ROW) == request_of(ROW | dict.fromkeys(LABELS, 1e9))


def test_loads_of_rows() -> None:
    assert request_of(ROW).load.kind == "closed"
    assert request_of(ROW | {"concurrency": None, "request_rate": 4.0}).load.kind == "open"
    assert request_of(ROW | {"concurrency": None, "batch": 16.0, "load": "static batch"}).load.kind == "static"
    assert request_of(ROW | {"concurrency": None, "load": "offline (infinite rate)"}).load.kind == "queued"
    with pytest.raises(SpecError, match="needs a load"):
        request_of(ROW | {"concurrency": None})


def test_plans_of_rows() -> None:
    assert request_of(ROW | {"num_gpus": 8}).replicas == 4
    assert request_of(ROW | {"tp": None}).plan.tp == 2
    piped = request_of(ROW | {"tp": None, "note": "parallelism: PP"}).plan
    assert (piped.tp, piped.pp) == (1, 2)
    with pytest.raises(SpecError, match="whole number"):
        request_of(ROW | {"tp": 1.5})


def test_clients_whose_habits_are_known() -> None:
    apart = request_of(ROW | {"task": "nvidia-gap-analysis"})
    assert (apart.chunk, request_of(ROW).chunk) == (1032, None)
    assert request_of(ROW | {"task": "nvidia-gap-analysis", "engine": "sglang"}).chunk is None
    counted = request_of(ROW | {"task": "inference-perf shared_prefix multi-turn: codegen"})
    assert (counted.events, counted.load.cached) == (2.0, 0.9)
    old = ROW | {"task": "llm_text_generation/chat", "concurrency": None, "batch": 64.0, "engine_version": None,
                 "load": "saturating; server max batch set"}  # fmt: skip
    assert request_of(old).engine_version == "0.5"
    assert request_of(old).load.spread > 0.5


def test_guesses_of_rows() -> None:
    assert request_of(ROW).speculation is None
    assert request_of(ROW | {"spec_tokens": 0.0, "spec_acceptance": None, "draft_model": None}).speculation is None
    grams = request_of(ROW | {"spec_tokens": 4.0, "spec_acceptance": 0.7}).speculation
    assert grams is not None
    assert (grams.tokens, grams.acceptance, grams.draft) == (4, 0.7, None)
    draft = {"spec_tokens": 4, "spec_acceptance": 0.7, "draft_model": "llama-3.2-1b"}
    assert request_of(ROW | draft).speculation == Speculation(4, 0.7, model_facts("llama-3.2-1b"))
    for change, field in (({"spec_acceptance": None}, "acceptance"), ({"spec_tokens": None}, "speculate"),
                          ({"draft_model": "no-such"}, "model"), ({"spec_tokens": 4.5}, "spec_tokens")):  # fmt: skip
        with pytest.raises(SpecError) as refused:
            request_of(ROW | draft | change)
        assert refused.value.field == field


def test_formats_of_rows() -> None:
    dense, gpt_oss = model_facts("llama-3.1-70b"), model_facts("gpt-oss-120b")
    assert row_formats(ROW | {"weight_dtype": "nvfp4|nvfp4"}, dense).kv == "fp8"
    assert row_formats(ROW | {"weight_dtype": "fp8|fp8_block"}, dense).weights == "fp8"
    assert row_formats(ROW | {"precision": "fp4"}, gpt_oss).experts == "mxfp4"
    assert row_formats(ROW | {"precision": "fp16"}, dense).dtype == "fp16"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"isl": "abc"}, "isl"), ({"isl": [1]}, "isl"), ({"isl": 0.0}, "isl"), ({"osl": 0.0}, "osl"), ({"tp": math.inf}, "tp"),
        ({"num_requests": math.inf}, "num_requests"), ({"num_requests": 0.0}, "num_requests"),
        ({"spec_tokens": math.inf, "spec_acceptance": 0.5}, "spec_tokens"), ({"precision": "banana"}, "precision"),
        ({"weight_dtype": "fp6"}, "weight_dtype"), ({"kv_dtype": "banana"}, "kv_dtype"), ({"mode": "banana"}, "mode"),
        ({"num_gpus": 1, "tp": 4}, "num_gpus"), ({"num_gpus": 6, "tp": 4}, "num_gpus"), ({"num_gpus": 0}, "num_gpus"),
        ({"request_rate": 0.5}, "request_rate"), ({"engine": [1]}, "engine"),
        ({"engine_version": 0.1}, "engine_version"), ({"precision": "mxfp4"}, "precision"), ({"kv_dtype": "fp32"}, "kv_dtype"),
        ({"concurrency": None, "batch": math.inf, "load": "offline (infinite rate)"}, "batch"),
        ({"model": "a/b", "layers": math.inf, "hidden": 64, "heads": 8}, "layers"),
    ],
)  # fmt: skip
def test_what_a_row_cannot_mean_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        request_of(ROW | change)
    assert refused.value.field == field


def test_numbers_may_be_texts_and_formats_have_several_names() -> None:
    assert request_of(ROW | {"isl": "1024"}).load == request_of(ROW).load
    assert request_of(ROW | {"request_rate": math.inf}).load.kind == "closed"
    assert request_of(ROW | {"request_rate": math.inf, "concurrency": None}).load.kind == "queued"
    assert request_of(ROW | {"weight_dtype": "w4a16"}).formats.weights == "int4"
    assert request_of(ROW | {"kv_dtype": "fp8_e4m3"}).formats.kv == "fp8"


def test_rows_are_answered_in_order_and_refusals_give_reasons() -> None:
    service = ServingPredictor(load_predictor(default_model_dir()))
    rows = [ROW, ROW | {"engine": "sambaflow"}, ROW | {"concurrency": 16.0}, ROW | {"device": "unknown"}]
    columns = predict_rows(rows, service)
    assert [bool(reason) for reason in columns["refused"]] == [False, True, False, True]
    assert "sambaflow" in columns["refused"][1]
    assert columns["pred_tpot_s"][0] < columns["pred_tpot_s"][2]
    for name, values in columns.items():
        if name != "refused":
            assert values[0] is not None, name
            assert values[1] is None
    for word, unit in (("ttft", "s"), ("throughput", "tok_s"), ("energy_per_token", "j")):
        low, value, high = (columns[f"pred_{word}{end}_{unit}"][0] for end in ("_lo", "", "_hi"))
        assert low < value < high


@pytest.mark.skipif(not TABLE.exists(), reason="the public table of services is not on this machine")
def test_nearly_every_public_row_is_a_question() -> None:
    import pyarrow.parquet as pq

    refused = 0
    there = [name for name in COLUMNS if name in pq.read_schema(TABLE).names]
    rows = pq.read_table(TABLE, columns=there).to_pylist()
    for row in rows:
        try:
            request_of(row)
        except SpecError:
            refused += 1
    assert refused <= 0.03 * len(rows)


def test_groups_of_data_parallel_attention_may_have_no_sequence() -> None:
    row = ROW | {"model": "deepseek-ai/DeepSeek-V3", "device": "nvidia-b200-sxm-180gb", "engine": "trtllm",
                 "engine_version": "1.2", "num_gpus": 8, "tp": 1, "dp": 8, "ep": 8, "precision": "nvfp4",
                 "concurrency": 12.0}  # fmt: skip
    columns = predict_rows([row], ServingPredictor(load_predictor(default_model_dir())))
    assert columns["refused"] == [""]
    assert columns["pred_tpot_s"][0] > 0


def test_a_row_of_one_token_has_no_time_per_token() -> None:
    columns = predict_rows([ROW | {"osl": 1.0}], ServingPredictor(load_predictor(default_model_dir())))
    assert columns["refused"] == [""]
    assert columns["pred_tpot_s"] == columns["pred_itl_p50_s"] == [None]
    assert columns["pred_ttft_s"][0] > 0
