"""Autocast on the meta device: the operators and dtypes of a model there are those of the same model on the host."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.workloads.torch_program.operation import Operation
from kernelcast.workloads.torch_program.run import Run
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 5))


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, self.weight) @ torch.ones(64, 64, device=x.device), self.weight)


def kinds(operations: list[Operation]) -> Counter[tuple[str, str]]:
    """Operators with the dtype of their first input; the order of gradients that do not wait for each other is free."""
    return Counter((item.name, item.inputs[0].dtype if item.inputs else "") for item in operations)


@pytest.mark.parametrize(
    ("build", "shape"), [(attention, (2, 16, 64)), (convolutions, (2, 64, 3, 3)), (Tied, (2, 16, 64))]
)
def test_a_step_is_that_of_the_host(
    build: Callable[[], nn.Module], shape: tuple[int, ...], recorded: Callable[..., Run]
) -> None:
    seen = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model, x = build(), torch.ones(*shape)

        def step(model: nn.Module = model, x: torch.Tensor = x) -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), torch.zeros_like(model(x)))
            loss.backward()

        run = recorded(step)
        assert all(each.grad is None and each.dtype == torch.float32 for each in model.parameters())
        seen.append(run)
    here, there = (run.recording.operations for run in seen)
    assert kinds(there) == kinds(here)
    kernels_s = [run.totals["nvidia-h200-sxm-141gb"].kernels_s for run in seen]
    assert kernels_s[1] == pytest.approx(kernels_s[0], rel=0.01)


def test_without_autocast_nothing_is_cast(recorded: Callable[..., Run]) -> None:
    with torch.device("meta"):
        model, x = nn.Linear(64, 64), torch.ones(8, 64)
    assert {dtype for _, dtype in kinds(recorded(lambda: model(x)).recording.operations)} == {"float32"}


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (SDPBackend.CUDNN_ATTENTION, "aten._scaled_dot_product_flash_attention_for_cpu"),
        (SDPBackend.EFFICIENT_ATTENTION, "aten._scaled_dot_product_flash_attention_for_cpu"),
        (SDPBackend.MATH, "aten._softmax"),
    ],
)
def test_attention_is_fused_unless_the_program_asks_for_the_plain_one(
    backend: SDPBackend, name: str, recorded: Callable[..., Run]
) -> None:
    x = torch.ones(2, 4, 16, 64)

    def step() -> None:
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(x, x, x)

    names = {item.name.replace("_safe_softmax", "_softmax") for item in recorded(step).recording.operations}
    assert name in names


def test_numbers_of_tensors_are_printed_and_added_up(recorded: Callable[..., Run]) -> None:
    texts: list[str] = []

    def log() -> None:
        loss = torch.ones(4, 4, requires_grad=True).square().mean()
        loss.backward()
        assert math.isfinite(loss.item())
        texts.append(f"loss {loss:.3f}, mean {(0.0 + loss.item()) / 2:.3f}, scale {torch.tensor(2.0).item()}")

    recorded(log)
    assert texts == ["loss unknown, mean unknown, scale 2.0"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adafactor", {}), ("ASGD", {}), ("AdamW", {"capturable": True}), ("Rprop", {"capturable": True})],
)
def test_optimisers_that_read_numbers_or_stay_on_the_device_are_recorded(
    name: str, options: dict[str, bool], recorded: Callable[..., Run]
) -> None:
    model = nn.Linear(64, 64)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)

    def step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()

    run = recorded(step)
    assert {item.phase for item in run.recording.operations} == {"forward", "backward", "optimizer"}
    assert run.totals["nvidia-h200-sxm-141gb"].latency_s is not None
    assert not optimizer.state


def test_an_optimiser_whose_steps_depend_on_values_is_refused_with_its_line(recorded: Callable[..., Run]) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        return loss

    with pytest.raises(SpecError, match=r"test_substitutes.py, line \d+, needs the values of a tensor"):
        recorded(lambda: optimizer.step(closure))


def test_copies_between_host_and_device_in_place_go_over_the_link(recorded: Callable[..., Run]) -> None:
    def step() -> None:
        on_device, on_host = torch.empty(1024, device="cuda"), torch.ones(1024).pin_memory()
        on_device.copy_(on_host, non_blocking=True)
        on_host.copy_(on_device)
        on_device.copy_(on_device * 2)

    names = Counter(item.name for item in recorded(step).recording.operations)
    assert (names["host.copy"], names["aten.copy_"]) == (2, 1)
