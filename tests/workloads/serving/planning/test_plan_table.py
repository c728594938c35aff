"""Plans for the rows of a table: services, batch jobs, samples of one question, and rows that have no answer."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.workloads.serving.planning.plan_table import MEASURES, plan_rows
from kernelcast.workloads.serving.predict import ServingPredictor

ROW: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "devices": "h100-sxm", "gpus": 1, "input_tokens": 512, "output_tokens": 64,
    "engines": "vllm", "weights": "bf16",
}  # fmt: skip


def test_rows_are_jobs_services_and_questions_answered_several_times(service: ServingPredictor) -> None:
    rows = [
        ROW | {"requests": 10_000}, ROW | {"samples": 4, "accuracy": 0.7}, ROW | {"samples": 1, "accuracy": 0.6},
        ROW | {"samples": 4, "accuracy": 0.65}, ROW | {"rate": 1.0, "aim": "latency", "tpot_s": 0.05},
    ]  # fmt: skip
    columns = plan_rows(rows, service, {"h100-sxm": 2.5})
    assert columns["refused"] == [None] * 5
    assert set(columns["plan_device"]) == {"nvidia-h100-sxm-80gb"}
    rate = columns["pred_throughput_tok_s"][0]
    assert columns["pred_job_s"][0] == pytest.approx(10_000 * 64 / rate)
    assert columns["pred_job_cost"][0] == pytest.approx(2.5 * columns["pred_job_s"][0] / 3600)
    assert columns["pred_job_s"][1] is None
    # Four answers share a prompt, and so cost less than four questions.
    costs = columns["pred_question_cost"]
    assert costs[2] < costs[1] < 4 * costs[2]
    assert columns["best"] == [None, True, True, False, None]
    assert 0 < columns["pred_attention_share"][0] < 1
    assert 16e9 < columns["pred_memory_b"][0] < 80e9
    for word, unit in MEASURES[:3]:
        name = f"pred_{word}{{}}_{unit}"
        assert columns[name.format("_lo")][4] < columns[name.format("")][4] < columns[name.format("_hi")][4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "nobody/nothing"}, "nobody/nothing"), ({"devices": ""}, "devices"), ({"gpus": None}, "gpus"),
        ({"gpus": 1.5}, "whole"), ({"requests": 10, "rate": 1.0}, "no rate"), ({"aim": "joy"}, "aim"),
        ({"aim": "gpus"}, "do not differ"), ({"samples": 0.5}, "samples"), ({"tpot_s": 1e-5}, "tpot"),
        ({"input_tokens": 200_000}, "longer"), ({"model": "meta-llama/Llama-3.1-70B"}, "memory"),
    ],
)  # fmt: skip
def test_rows_without_an_answer_say_why(service: ServingPredictor, change: dict[str, Any], words: str) -> None:
    columns = plan_rows([ROW | change], service)
    assert words in columns["refused"][0]
    assert columns["plan_device"] == [None]
