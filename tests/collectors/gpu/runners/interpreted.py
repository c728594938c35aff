"""Run Triton cases in Triton's interpreter: specs as JSON rows on stdin, their relative errors on stdout.

A program of its own, because TRITON_INTERPRET must be set before the kernels are first imported.
"""

import json
import sys

import torch
from kernelcast.collectors.gpu.measure.bench import expected_attention, expected_product
from kernelcast.collectors.gpu.runners.triton import bound, kernel_function, outputs, triton_steps
from kernelcast.features.kernel import View, get_family
from kernelcast.features.spec_io.rows import spec_from_row
from triton.runtime import interpreter

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "fp8": torch.float8_e4m3fn, "int8": torch.int8}  # fmt: skip

_patch = interpreter._patch_lang_tensor


def patched(tensor, scope):
    """Triton 3.6 calls int() on arrays of shape (1,) for loop bounds, which numpy 2.4 refuses."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = patched


def relative_error(spec):
    torch.manual_seed(0)
    operands = []
    for array in get_family(spec.family).inputs(View.of(spec)):
        values = torch.randn(array.shape)
        operands.append((values * 40 if spec.dtype == "int8" else values).to(DTYPES[array.dtype]))
    written = outputs(spec, "cpu")
    for tensor in written.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 12345)
    names = ("a", "b") if spec.family == "gemm" else ("q", "k", "v")
    tensors = dict(zip(names, operands, strict=True)) | written
    for call in bound(triton_steps(spec), tensors, lambda binary: kernel_function(binary.kernel)):
        call()
    expected = (expected_product if spec.family == "gemm" else expected_attention)(spec, *operands)().double()
    return float((written["out"].double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    print(json.dumps([relative_error(spec_from_row(row)) for row in json.load(sys.stdin)]))
