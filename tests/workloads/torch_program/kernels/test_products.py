"""Products of whole numbers and of groups, and convolutions of steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernelcast.workloads.torch_program.kernels.kernel_use import UNKNOWN
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.operation import Operation

Operations = Callable[..., list[Operation]]


@pytest.mark.parametrize(("dtype", "like", "scale"), [(torch.int64, "fp64", 31.0), (torch.int32, "fp32", 1.0)])
def test_products_of_whole_numbers_take_their_arithmetic_and_longer(
    dtype: torch.dtype, like: str, scale: float, operations: Operations
) -> None:
    """They once took the time of their bytes."""
    a = torch.ones(64, 64, dtype=dtype)
    (plain,) = operations(lambda: a @ a)
    (batched,) = operations(lambda: torch.bmm(a.expand(3, 64, 64).clone(), a[:, :8].expand(3, 64, 8)))[-1:]
    for operation, sizes in ((plain, (1, 64, 64, 64)), (batched, (1, 192, 8, 64))):
        (use,) = kernels_of(operation, "cpu")
        assert tuple(use.spec[name] for name in ("batch", "m", "n", "k")) == sizes
        assert (use.spec.family, use.spec.dtype, use.scale, use.widening) == ("gemm", like, scale, UNKNOWN)
        assert "on CPUs alone" in use.stand_in
    assert plain.flops == 2 * 64**3


def test_a_convolution_of_steps_has_the_arithmetic_of_a_convolution(operations: Operations) -> None:
    x, weight = torch.ones(20, 3, 8), torch.ones(5, 8, 16)
    (operation,) = (
        each for each in operations(lambda: torch.conv_tbc(x, weight, x[0, 0, :1].expand(16))) if "tbc" in each.name
    )
    assert operation.flops == 2 * 16 * 3 * 16 * 5 * 8


def test_groups_that_no_row_falls_into_are_not_read(operations: Operations) -> None:
    def groups(rows: int) -> tuple[int, int]:
        (product,) = kernels_of(grouped(operations, rows), "cpu")
        return product.spec["batch"], product.spec["m"]

    assert groups(8) == (8, 1)
    assert groups(4096) == (128, 32)


def grouped(operations: Operations, rows: int) -> Operation:
    experts = torch.empty(128, 64, 32, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(128, dtype=torch.int32, device="meta")
    x = torch.empty(rows, 64, dtype=torch.bfloat16, device="meta")
    (operation,) = operations(lambda: torch._grouped_mm(x, experts, offs=ends))
    return operation


def test_few_rows_of_groups_on_a_gpu_are_part_of_a_mixture_of_experts(operations: Operations) -> None:
    (mixture,) = kernels_of(grouped(operations, 512), "gpu")
    assert (mixture.spec.family, mixture.spec.impl, mixture.scale) == ("moe", "torch-grouped", 2 / 3)
    assert [mixture.spec[name] for name in ("tokens", "hidden", "inter", "experts")] == [512, 64, 16, 128]
    product, *setup = kernels_of(grouped(operations, 1024), "gpu")
    assert len(setup) == 1
    assert [use.spec for use in kernels_of(grouped(operations, 1024), "cpu")] == [product.spec]
