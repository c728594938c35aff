"""Loops of a CPU over single numbers beside passes of vectors over as many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernelcast.workloads.torch_program.kernels import loops
from kernelcast.workloads.torch_program.kernels.loops import loop_of
from kernelcast.workloads.torch_program.kernels.table import OPERATORS, kernels_of
from kernelcast.workloads.torch_program.operation import Operation
from kernelcast.workloads.torch_program.run import Run
from torch.nn import functional

CPU = "amd-epyc-7003-vm-2c"


def test_every_loop_is_an_operator_of_pytorch() -> None:
    for name in loops._LOOPS:
        assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, f"{name}_"), name


@pytest.mark.parametrize(
    ("program", "is_loop"),
    [
        (lambda x: x.norm(), False),
        (lambda x: x.norm(3), True),
        (lambda x: torch.linalg.vector_norm(x, float("inf")), False),
        (lambda x: x.cumsum(1), False),
        (lambda x: x.cumsum(0), True),
        (lambda x: x.t().cumsum(1), True),
        (lambda x: x / 0.3, False),
        (lambda x: torch.div(x, 0.3, rounding_mode="floor"), True),
        (lambda x: x.masked_fill(x > 0, 0.0), True),
        (lambda x: x.relu(), False),
    ],
)
def test_arguments_say_what_is_a_loop(
    operations: Callable[..., list[Operation]], program: Callable[[torch.Tensor], torch.Tensor], is_loop: bool
) -> None:
    operation = operations(lambda: program(torch.empty(64, 64)), CPU)[-1]
    assert (loop_of(operation) is not None) == is_loop
    (use, *_) = kernels_of(operation, "cpu")
    (beside, *_) = kernels_of(operation, "gpu")
    assert ("loop" in use.stand_in) == is_loop
    assert "loop" not in beside.stand_in


def test_dropout_on_a_cpu_takes_mostly_its_random_numbers(recorded: Callable[..., Run]) -> None:
    """On one core of a Zen 3 a million numbers took 20 ms, of which the products are one."""
    x = torch.empty(1024, 1024)
    (answer,) = recorded(lambda: functional.dropout(x), CPU, threads=1).totals.values()
    assert 8e-3 < answer.latency_s.value < 40e-3
    assert answer.by_operator[0].name == "aten.bernoulli_"


def test_what_is_faster_than_its_stand_in_has_no_faster_gradient(operations: Callable[..., list[Operation]]) -> None:
    x = torch.empty(64, 64, requires_grad=True)
    done = {item.name: loop_of(item) for item in operations(lambda: functional.elu(x).sum().backward(), CPU)}
    assert done["aten.elu"].times < 1
    assert done["aten.elu_backward"] is None
    assert "aten.elu" not in OPERATORS
