"""Chains of element-by-element operators in compiled modules are one pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernelcast.workloads.torch_program.captured import capture
from kernelcast.workloads.torch_program.kernels.fusion import CHAIN, fused
from kernelcast.workloads.torch_program.run import Run
from torch import nn

Recorded = Callable[..., Run]


class Gate(nn.Module):
    """A product, then a chain of four."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The gate."""
        up = self.up(x)
        return torch.sigmoid(up) * up * 2.0 + y


def test_a_chain_reads_and_writes_what_it_does_from_outside(recorded: Recorded) -> None:
    gate, x, y = Gate(), torch.ones(32, 64), torch.ones(32, 256)

    def program() -> torch.Tensor:
        with torch.no_grad():
            return gate(x, y)

    run = recorded(program, compiled=True)
    after = fused(run.recording, run.recording.operations, everything=True)
    assert [item.name for item in after.operations] == ["aten.addmm", CHAIN]
    assert (after.chained, after.passes) == (4, 1)
    chain = after.operations[1]
    assert chain.bytes_in == 2 * 32 * 256 * 4
    assert chain.bytes_out == 32 * 256 * 4
    (compiled,), (eager,) = run.totals.values(), recorded(program).totals.values()
    assert compiled.launches == 2
    assert eager.launches == 5
    assert compiled.kernels_s < eager.kernels_s
    assert "4 element-by-element operators in one pass" in compiled.notes[0]


def test_an_operator_moves_to_its_reader_but_not_past_what_writes_its_operand(recorded: Recorded) -> None:
    a, b = torch.ones(64, 64), torch.ones(64, 64)

    def moves() -> torch.Tensor:
        gate = torch.sigmoid(a)
        return (b @ b) * gate

    def stays() -> torch.Tensor:
        x = torch.empty(64, 64)
        gate = torch.sigmoid(x)
        torch.mm(b, b, out=x)
        return x * gate

    for program, names in ((moves, ["aten.mm", CHAIN]), (stays, ["aten.sigmoid", "aten.mm", "aten.mul"])):
        run = recorded(program)
        after = fused(run.recording, run.recording.operations, everything=True)
        assert [item.name for item in after.operations] == names


def compiled_in_place() -> nn.Module:
    module = Gate()
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize("build", [lambda: torch.compile(Gate(), backend="eager"), compiled_in_place])
def test_modules_that_were_compiled_are_found_and_others_are_not(
    recorded: Recorded, build: Callable[[], nn.Module]
) -> None:
    plain, compiled = Gate(), build()
    x, y = torch.ones(32, 64), torch.ones(32, 256)

    def program() -> None:
        (plain(x, y).sum() + compiled(x, y).sum()).backward()

    run = recorded(program)
    (answer,) = run.totals.values()
    inside = [item for item in run.recording.operations if item.compiled]
    assert {item.phase for item in inside} == {"forward", "backward"}
    assert len(inside) < len(run.recording.operations)
    assert sum(share.calls for share in answer.by_operator if share.name == CHAIN) >= 2
    assert any(share.name == "aten.sigmoid" for share in answer.by_operator)


def test_a_compiled_optimiser_is_one_pass_over_what_it_reads_and_keeps(recorded: Recorded) -> None:
    module = torch.nn.Linear(512, 512, bias=False)
    module.weight.grad = torch.ones(512, 512)
    step = torch.optim.AdamW(module.parameters()).step
    (answer,) = recorded(torch.compile(step, backend="eager")).totals.values()
    (operation,) = (call.operation for call in capture(recorded(torch.compile(step, backend="eager")).recording).calls)
    size_b = module.weight.nbytes
    assert operation.bytes_in == pytest.approx(4 * size_b, rel=1e-3), "the weight, its gradient, two moments"
    assert operation.bytes_out == pytest.approx(3 * size_b, rel=1e-3)
    assert answer.launches == 1
    (eager,) = recorded(step, compiled=True).totals.values()
    assert eager.launches > 5, "what was not compiled is not taken as such"


def test_dropout_is_fused_into_what_it_follows(recorded: Recorded) -> None:
    module = torch.compile(nn.Sequential(nn.GELU(), nn.Dropout()), backend="eager")
    run = recorded(lambda: module(torch.ones(1024, 1024, requires_grad=True)).sum().backward())
    (answer,) = run.totals.values()
    assert [share.calls for share in answer.by_operator if share.name == CHAIN] == [2], "forwards and backwards"
