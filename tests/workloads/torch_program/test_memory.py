"""Peak memory: by hand on a small recording, and beside PyTorch's own tracker of a second step; reuse of memory by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from kernelcast.workloads.torch_program.memory import Memory, peak_memory, relief, reuse_distances
from kernelcast.workloads.torch_program.operation import OPTIMIZER_STATE, WEIGHTS, Operation, Recording, TensorInfo
from kernelcast.workloads.torch_program.run import Run
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch")


def test_the_peak_is_where_most_lives_and_what_is_kept_is_there_from_the_start() -> None:
    operations = [Operation(f"aten.op{i}", {}, (), (), module="Net" if i == 1 else "") for i in range(4)]
    lifetimes = {0: (100, 0, None), 1: (10, 0, 2), 2: (20, 1, 2), 3: (5, 2, None), 4: (40, 3, None)}
    memory = peak_memory(Recording(operations, lifetimes=lifetimes, roles={0: WEIGHTS, 4: OPTIMIZER_STATE}))
    assert (memory.weights_b, memory.optimizer_state_b, memory.activations_b, memory.peak_b) == (100, 40, 30, 170)
    assert memory.at == "aten.op1 in Net"


def test_what_does_not_fit_says_what_to_do() -> None:
    small, large = (Memory(int(2e11), int(states), 0, 0, int(1e11), 0, "") for states in (1e10, 2e11))
    assert "smaller batch" in relief(small, 8e10)
    assert "need 3 such devices" in relief(large, 8e10)


def of(storage: int, elements: int) -> TensorInfo:
    return TensorInfo((elements,), (1,), "float32", 4, storage)


def test_a_tensor_is_as_far_back_as_what_was_touched_since() -> None:
    # Weights 0 and 1 stay; 2 and 3 are made and dropped, so that each takes the block that the one before it left.
    operations = [
        Operation("aten.mm", {}, (of(0, 100),), (of(2, 10),)),
        Operation("aten.mm", {}, (of(1, 200), of(2, 10)), (of(3, 10),)),
        Operation("aten.relu", {}, (of(3, 10),), (of(4, 10),)),
    ]
    lifetimes = {0: (400, 0, None), 1: (800, 0, None), 2: (40, 1, 2), 3: (40, 2, 3), 4: (40, 3, None)}
    first, second, third = reuse_distances(Recording(operations, lifetimes=lifetimes), operations)
    step_b = 400 + 800 + 40 + 40
    assert first[0] == (step_b, 400)
    assert second == [(step_b, 800), (40, 40), (40 + 400 + 40, 40)]
    assert third == [(40, 40), (40 + 40, 40)]


def test_a_gather_reads_no_more_of_a_table_than_it_writes() -> None:
    gather = Operation("aten.embedding", {}, (of(0, 10**6), of(1, 5)), (of(2, 50),))
    lifetimes = {0: (4 * 10**6, 0, None), 1: (20, 0, None), 2: (200, 0, None)}
    ((table, *_),) = reuse_distances(Recording([gather], lifetimes=lifetimes), [gather])
    assert table == (200 + 20 + 200, 200)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5)
    )


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, dim_feedforward=256, dropout=0.0, batch_first=True)


@pytest.mark.parametrize(("build", "shape"), [(convolutions, (32, 3, 16, 16)), (layer, (8, 64, 64))])
def test_the_peak_is_that_of_pytorchs_tracker(
    build: Callable[[], nn.Module], shape: tuple[int, ...], recorded: Callable[..., Run]
) -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    def step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with FakeTensorMode():
        model, x = build(), torch.ones(*shape)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, x)
        with tracker:
            step(model, optimizer, x)
            tracker.reset_mod_stats()
            step(model, optimizer, x)
        peak_b = sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
    model, x = build(), torch.ones(*shape)
    optimizer = torch.optim.AdamW(model.parameters())
    run = recorded(lambda: step(model, optimizer, x), "amd-epyc-9005-vm-2c", threads=1)
    assert run.memory.peak_b == pytest.approx(peak_b, rel=1e-3)


def test_compiled_code_drops_what_it_has_read_and_writes_in_place(recorded: Callable[..., Run]) -> None:
    class Held(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = x @ x
            return (made.relu().exp() @ x).sum()

    x = torch.ones(256, 256)
    eager, compiled = (
        recorded(torch.no_grad()(lambda each=each: each(x))).memory.activations_b
        for each in (Held(), torch.compile(Held(), backend="eager"))
    )
    assert (eager, compiled) == (3 * x.nbytes, 2 * x.nbytes)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "size", "workspace_b"),
    [
        (1000, 4, 64, 4 * 2 * 4 * 1024 * (64 + 1)),
        (1024, 4, 160, 4 * 2 * 4 * 1024 * (192 + 1)),
        (1024, 2, 64, 4 * 2 * 4 * 1024 * (64 + 1) + 2 * 2 * 2 * 1024 * 4 * 64),
    ],
)
def test_the_backward_of_attention_adds_up_in_fp32(
    recorded: Callable[..., Run], rows: int, kv_heads: int, size: int, workspace_b: int
) -> None:
    q, k = (torch.empty(2, heads, rows, size, dtype=torch.bfloat16, requires_grad=True) for heads in (4, kv_heads))
    attention = partial(functional.scaled_dot_product_attention, enable_gqa=kv_heads < 4)
    run = recorded(lambda: attention(q, k, k).sum().backward())
    assert run.memory.workspace_b == workspace_b
    assert "workspace" in str(run)


def test_what_grows_with_the_batch_is_its_most_before_the_optimiser(recorded: Callable[..., Run]) -> None:
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(module.parameters())

    def memory(rows: int) -> Memory:
        def step() -> None:
            module(torch.ones(rows, 64)).sum().backward()
            optimizer.step()

        return recorded(step).memory

    small, large = memory(64), memory(4096)
    parameters_b = sum(parameter.nbytes for parameter in module.parameters())
    assert small.states_b == large.states_b == pytest.approx(4 * parameters_b, rel=0.01), (
        "weights, gradients, two moments"
    )
    assert large.of_batch_b == pytest.approx(64 * small.of_batch_b, rel=0.05)
