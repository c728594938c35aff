"""Answers about models, services and programs in Python: each is read in a line, and asked of the model that is loaded."""

from __future__ import annotations

import kernelcast

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


def test_a_whole_model_is_a_total_that_computes():
    kernels = [{"family": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096, "count": 3}]
    total = kernelcast.predict_model(kernels, "h200")
    assert isinstance(total, kernelcast.Total)
    assert repr(total).startswith("3 runs of 1 kernel on nvidia-h200-sxm-141gb\n")
    assert (total / total).latency.value == 1
