"""Operators whose arithmetic their bytes do not show, as products of as much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.torch_program.kernels.kernel_use import FACTORISATION, UNKNOWN
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.operation import Operation
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it


@pytest.mark.parametrize(
    ("program", "name", "arithmetic", "widening"),
    [
        (
            lambda x: torch.linalg.lstsq(x[:, :16], x[:, :4]), "aten.linalg_lstsq",
            2 * 16**2 * (64 - 16 / 3) + 4 * 64 * 16 * 4, FACTORISATION,
        ),
        (
            lambda x: torch.linalg.lstsq(x[:, :16], x[:, :4], driver="gelsd"), "aten.linalg_lstsq",
            4 * 64 * 16**2 + 8 * 16**3 + 4 * 64 * 16 * 4, FACTORISATION,
        ),
        (lambda x: torch.ormqr(x[:, :16], x[0, :16], x[:, :4]), "aten.ormqr", 4 * 16 * (4 * 64 - 2 * 16), FACTORISATION),
        (lambda x: F.pdist(x.requires_grad_()).sum().backward(), "aten._pdist_backward", 64**3, UNKNOWN),
    ],
)  # fmt: skip
def test_least_squares_reflections_and_distances(
    program: Callable[..., Any],
    name: str,
    arithmetic: float,
    widening: float,
    operations: Callable[..., list[Operation]],
) -> None:
    (operation,) = (each for each in operations(lambda: program(torch.ones(64, 64))) if each.name == name)
    (use,) = kernels_of(operation, "cpu")
    assert arithmetic <= use.scale * float(get_family("gemm").flops(View.of(use.spec))) <= 1.25 * arithmetic
    assert use.widening == widening
    assert operation.flops
