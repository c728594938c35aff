"""Answers about models, services and programs in Python: each is read in a line, and asked of the model that is loaded."""

from __future__ import annotations

import math

import kernelcast
import pandas
import pytest

LLAMA = "meta-llama/Llama-3.1-8B"
ADD = """\
func.func @main(%x: tensor<64x256xf32>) -> tensor<64x256xf32> {
  %y = stablehlo.add %x, %x : tensor<64x256xf32>
  return %y : tensor<64x256xf32>
}
"""


def test_a_step_of_a_model_is_read_in_a_line():
    answer = kernelcast.estimate_model(LLAMA, "h100-sxm", batch=8, decode=True, context=2048)
    line, text = repr(answer), str(answer)
    assert line.startswith(f"{LLAMA}, ")
    assert " on nvidia-h100-sxm-80gb: " in line
    assert " ms to " in line
    assert "\n" not in line
    assert text.startswith(line.partition(": ")[0])
    assert all(f"\n  {name} " in text for name in ("a step", "tokens/s", "power", "a token", "memory", "time"))


def test_a_service_is_read_in_a_line():
    line = repr(kernelcast.llm_predict(LLAMA, "h100-sxm", input_tokens=128, output_tokens=16, concurrency=2))
    assert " on 1 × nvidia-h100-sxm-80gb: first token " in line
    assert "\n" not in line


def test_a_program_is_read_in_a_line():
    answer = kernelcast.predict_mlir(ADD, "amd-epyc-9005-vm-2c", threads=1)
    assert repr(answer).startswith("@main on amd-epyc-9005-vm-2c: ")
    assert len(repr(answer)) < 90
    assert "90 % intervals, " in str(answer)
    assert f"{answer.groups[0].title}, bound by" in str(answer)


def test_plans_are_read_in_a_line_and_printed_one_for_each_aim():
    question = {"gpus": 2, "input_tokens": 128, "output_tokens": 16, "concurrency": 4}
    answer = kernelcast.llm_plan(LLAMA, ["h100-sxm"], **question)
    assert repr(answer).startswith(f"{LLAMA} on up to 2 GPUs: ")
    assert "\n" not in repr(answer)
    assert str(answer).count("\n") == len(answer.choices)


SIZES = [
    {"input_tokens": 200, "output_tokens": 50, "weight": 3},
    {"input_tokens": 4000, "output_tokens": 400},
]


def test_a_fleet_is_chosen_for_a_frame_of_sizes():
    frame = pandas.DataFrame(SIZES)
    question = {"gpus": 8, "rate": 4.0, "engines": ["vllm"], "weights": ["fp8"], "prices": {"h100-sxm": 3, "l40s": 1}}
    answer = kernelcast.llm_fleet(LLAMA, ["h100-sxm", "l40s"], sizes=frame, **question)
    assert sum(kind.gpus for kind in answer.kinds) == answer.gpus <= 8
    assert [round(bucket.share, 2) for bucket in answer.buckets] == [0.75, 0.25]
    assert repr(answer).startswith(f"{answer.kinds[0].replicas} × ")
    # An empty cell of the frame is a weight of 1, as in a list.
    same = kernelcast.llm_fleet(LLAMA, ["h100-sxm", "l40s"], sizes=SIZES, **question)
    assert same.cost_per_hour == answer.cost_per_hour


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (3, "got int"),
        ([], "1 to"),
        ([{"input_tokens": 1}], r"sizes\[0\]: output_tokens must be a number, got None"),
        ([{"input_tokens": 1, "output_tokens": 1, "weigth": 1}], "has 'weigth'"),
        ([{"input_tokens": 1, "output_tokens": math.nan}], "output_tokens must be a number"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: object, message: str):
    with pytest.raises(kernelcast.SpecError, match=message):
        kernelcast.llm_fleet(LLAMA, ["h100-sxm"], gpus=1, rate=1.0, sizes=sizes)


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        (["h100-sxm"], {"prefill": 16}, "device is the name of one"),
        ("h100-sxm", {"prefill": "16"}, "prefill must be a number, got '16'"),
        ("h100-sxm", {"decode": True, "context": "16"}, "context must be a number"),
        ("h100-sxm", {"prefill": 16, "batch": True}, "batch must be a number"),
    ],
)
def test_steps_that_are_none_are_refused_by_the_names_that_were_given(
    device: object, settings: dict[str, object], message: str
):
    with pytest.raises(kernelcast.SpecError, match=message):
        kernelcast.estimate_model(LLAMA, device, **settings)


def test_a_model_that_guesses_is_given_like_the_model():
    question = {"gpus": 1, "input_tokens": 128, "output_tokens": 16, "concurrency": 4, "engines": ["vllm"]}
    guesses = {"speculate": 3, "acceptance": 0.7, "draft": "meta-llama/Llama-3.2-1B"}
    answer = kernelcast.llm_plan(LLAMA, ["h100-sxm"], **question, **guesses)
    assert answer.question.speculation is not None


def test_a_whole_model_is_a_total_that_computes():
    kernels = [{"family": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096, "count": 3}]
    total = kernelcast.predict_model(kernels, "h200")
    assert isinstance(total, kernelcast.Total)
    assert repr(total).startswith("3 runs of 1 kernel on nvidia-h200-sxm-141gb\n")
    assert (total / total).latency.value == 1


def test_a_whole_model_may_run_on_boards_under_a_limit():
    kernels = [{"family": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "count": 4}]
    usual, same, limited = (
        kernelcast.predict_model(kernels, "h200", power_limit_w=limit_w) for limit_w in (None, 700, 400)
    )
    assert same == usual
    assert limited.latency_s.value > 1.1 * usual.latency_s.value
    with pytest.raises(kernelcast.SpecError, match="give 123 to 700 W"):
        kernelcast.predict_model(kernels, "h200", power_limit_w=7)
