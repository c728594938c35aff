"""What a model was measured on, counted from its manifest."""

from __future__ import annotations

from kernelcast.models.family_model.artifact import MeasuredKernel, measured_kernels
from kernelcast.models.family_model.artifact_files import write_manifest


def test_rows_are_counted_by_family_device_dtype_and_impl(tmp_path):
    latency = {
        "nvidia-t4 gpu  fp32/fp32 torch hot ": 3,
        "nvidia-t4 gpu bias fp32/fp32 torch cold@call ": 2,
        "nvidia-t4 gpu  bf16/bf16 triton hot tile_m,tile_n": 5,
    }
    families = {
        "gemm": {"measured": {"latency": latency, "power": {"nvidia-t4 gpu  fp32/fp32 torch hot ": 1}}},
        "copy": {},
    }
    write_manifest(
        tmp_path, {"format_version": 2, "regressor": "x", "created": "now", "families": families, "files": {}}
    )
    assert measured_kernels(tmp_path) == [
        MeasuredKernel("gemm", "nvidia-t4", "bf16", "triton", 5),
        MeasuredKernel("gemm", "nvidia-t4", "fp32", "torch", 5),
    ]
