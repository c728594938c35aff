"""Operators whose arithmetic their bytes do not show, as products of as much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.torch_program.kernels.kernel_use import UNKNOWN
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.operation import Operation
from kernelcast.workloads.torch_program.run import Run
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it


@pytest.mark.parametrize(
    ("program", "name", "arithmetic", "times_and_widening"),
    [
        (
            lambda x: torch.linalg.lstsq(x[:, :16], x[:, :4]), "aten.linalg_lstsq",
            2 * 16**2 * (64 - 16 / 3) + 4 * 64 * 16 * 4, (4.0, 5.0),
        ),
        (
            lambda x: torch.linalg.lstsq(x[:, :16], x[:, :4], driver="gelsd"), "aten.linalg_lstsq",
            4 * 64 * 16**2 + 8 * 16**3 + 4 * 64 * 16 * 4, (4.0, 5.0),
        ),
        (lambda x: torch.ormqr(x[:, :16], x[0, :16], x[:, :4]), "aten.ormqr", 4 * 16 * (4 * 64 - 2 * 16), (4.0, 5.0)),
        (lambda x: F.pdist(x.requires_grad_()).sum().backward(), "aten._pdist_backward", 64**3, (1.0, UNKNOWN)),
    ],
)  # fmt: skip
def test_least_squares_reflections_and_distances(
    program: Callable[..., Any],
    name: str,
    arithmetic: float,
    times_and_widening: tuple[float, float],
    operations: Callable[..., list[Operation]],
) -> None:
    (operation,) = (each for each in operations(lambda: program(torch.ones(64, 64))) if each.name == name)
    (use,) = kernels_of(operation, "cpu")
    flops = float(get_family("gemm").flops(View.of(use.spec)))
    assert arithmetic <= flops <= 1.25 * arithmetic
    assert operation.flops == flops
    assert (use.scale, use.widening) == times_and_widening


def test_a_factorisation_takes_longer_than_a_product_of_as_many_operations(recorded: Callable[..., Run]) -> None:
    matrix = torch.ones(512, 512)

    def latency(program: Callable[[], Any], device: str) -> Any:
        return next(iter(recorded(program, device).totals.values())).latency_s

    for device in ("epyc-7003-vm-2c", "h100-sxm"):
        values = latency(lambda: torch.linalg.svd(matrix), device)
        product = latency(lambda: torch.empty(512, 11 * 512) @ torch.empty(11 * 512, 512), device)
        assert values.lower < product.value < values.value / 2
        assert values.upper > 4 * values.value
        assert values.value > 3 * product.value


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_layer_is_a_product(recorded: Callable[..., Any]) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(1024, 1024))
    quantised = torch.ao.quantization.quantize_dynamic(plain, {torch.nn.Linear}, dtype=torch.qint8)
    x = torch.ones(64, 1024)
    before, after = (
        recorded(torch.no_grad()(lambda each=each: each(x)), "epyc-7003-vm-2c") for each in (plain, quantised)
    )
    assert after.flops == before.flops == 2 * 64 * 1024**2
    latencies_s = [next(iter(run.totals.values())).latency_s for run in (before, after)]
    assert latencies_s[1].lower < 0.24 * latencies_s[0].value < latencies_s[1].value < latencies_s[0].value
