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
    line = repr(kernelcast.estimate_model(LLAMA, "h100-sxm", batch=8, decode=True, context=2048))
    assert line.startswith(f"{LLAMA}, ")
    assert " on nvidia-h100-sxm-80gb: " in line
    assert " ms to " in line
    assert " tokens/s, " in line
    assert line.endswith("90 % intervals")


def test_a_service_is_read_in_a_line():
    line = repr(kernelcast.llm_predict(LLAMA, "h100-sxm", input_tokens=128, output_tokens=16, concurrency=2))
    assert " on 1 × nvidia-h100-sxm-80gb: first token " in line
    assert "\n" not in line


def test_a_program_is_read_in_a_line():
    line = repr(kernelcast.predict_mlir(ADD, "amd-epyc-9005-vm-2c", threads=1))
    assert line.startswith("@main on amd-epyc-9005-vm-2c: ")
    assert "kernels; 90 % intervals, " in line


def test_a_whole_model_is_a_total_that_computes():
    kernels = [{"family": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096, "count": 3}]
    total = kernelcast.predict_model(kernels, "h200")
    assert isinstance(total, kernelcast.Total)
    assert repr(total).startswith("3 runs of 1 kernel on nvidia-h200-sxm-141gb\n")
    assert (total / total).latency.value == 1
