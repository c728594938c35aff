"""What GPUs run as one kernel is one operator: dropout, attention of every shape, FlexAttention, recurrent layers, masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernelcast.workloads.torch_program.operation import Operation
from kernelcast.workloads.torch_program.run import Run
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

Operations = Callable[..., list[Operation]]
CPU = "amd-epyc-9005-vm-2c"


def names(operations: list[Operation]) -> Counter[str]:
    return Counter(item.name.split(".")[1] for item in operations)


def test_dropout_is_one_kernel_on_gpus_and_three_operators_on_cpus(operations: Operations) -> None:
    x = torch.ones(8, 64, requires_grad=True)

    def step() -> None:
        F.dropout(x, 0.1).sum().backward()

    on_gpu = names(operations(step))
    assert (on_gpu["native_dropout"], on_gpu["native_dropout_backward"], on_gpu["bernoulli_"]) == (1, 1, 0)
    on_cpu = names(operations(step, CPU))
    assert (on_cpu["native_dropout"], on_cpu["bernoulli_"]) == (0, 1)
    assert names(operations(lambda: F.dropout(x, 0.1, training=False) + 1)) == {"add": 1}


@pytest.mark.parametrize("inside", [True, False])
def test_attention_with_a_learned_mask_or_other_values_is_one_kernel(inside: bool, operations: Operations) -> None:
    def step() -> None:
        query = torch.ones(2, 8, 128, 96, dtype=torch.bfloat16, requires_grad=True)
        value = torch.ones(2, 8, 128, 96 if inside else 64, dtype=torch.bfloat16, requires_grad=True)
        bias = torch.zeros(1, 8, 128, 128, dtype=torch.bfloat16, requires_grad=True) if inside else None
        result = F.scaled_dot_product_attention(query, query, value, attn_mask=bias, is_causal=not inside)
        assert result.shape == value.shape
        result.sum().backward()
        assert bias is None or (bias.grad is not None and bias.grad.shape == bias.shape)

    seen = names(operations(step))
    assert (
        seen["_scaled_dot_product_efficient_attention"],
        seen["_scaled_dot_product_efficient_attention_backward"],
    ) == (1, 1)
    assert seen["bmm"] == 0


def test_values_of_another_size_cost_between_both(recorded: Callable[..., Run]) -> None:
    def latency_s(keys: int, values: int) -> float:
        query = torch.ones(2, 8, 2048, keys, dtype=torch.bfloat16)
        value = torch.ones(2, 8, 2048, values, dtype=torch.bfloat16)
        run = recorded(lambda: F.scaled_dot_product_attention(query, query, value))
        return run.totals["nvidia-h200-sxm-141gb"].kernels_s

    assert latency_s(64, 64) < latency_s(128, 64) < latency_s(128, 128)


def test_flex_attention_takes_the_share_of_blocks_that_its_mask_leaves(recorded: Callable[..., Run]) -> None:
    query = torch.ones(1, 2, 1024, 64, dtype=torch.bfloat16, requires_grad=True)

    def is_before(_: Any, __: Any, row: Any, column: Any) -> Any:
        return row >= column

    known = create_block_mask(is_before, None, None, 1024, 1024, device="cpu")

    def shares(mask: Callable[[], Any]) -> list[float]:
        run = recorded(lambda: flex_attention(query, query, query, block_mask=mask()).sum().backward())
        return [item.arguments["share"] for item in run.recording.operations if "flex_attention" in item.name]

    # 8 x 8 blocks of 128, of which 36 are left; values of a mask made inside are not known.
    assert shares(lambda: known) == [36 / 64] * 2
    assert shares(lambda: create_block_mask(is_before, None, None, 1024, 1024, device="cpu")) == [1.0] * 2


@pytest.mark.parametrize("build", [nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True, "bias": False, "dropout": 0.1}])
def test_recurrent_layers_are_one_operator_a_layer_and_direction(
    build: Callable[..., nn.Module], options: dict[str, Any], operations: Operations
) -> None:
    model = build(32, 64, 2, **options)
    ways = 2 if options else 1

    def step() -> None:
        output, end = model(torch.ones(5, 7, 32))
        assert output.shape == (5, 7, 64 * ways)
        assert end.shape == (2 * ways, 5 if options else 7, 64)
        output.sum().backward()
        assert all(weight.grad is not None and weight.grad.shape == weight.shape for weight in model.parameters())

    seen = names(operations(step))
    assert (seen["recurrent_layer"], seen["recurrent_layer_backward"]) == (2 * ways, 2 * ways)
    assert names(operations(step, CPU))["recurrent_layer"] == 0


def test_transformers_take_pytorchs_causal_mask_for_what_it_is(recorded: Callable[..., Run]) -> None:
    model = nn.Transformer(64, 4, 1, 1, batch_first=True)
    x = torch.ones(2, 16, 64)
    before = nn.Transformer.generate_square_subsequent_mask(16)

    def is_causal(mask: Callable[[], torch.Tensor]) -> list[bool]:
        run = recorded(lambda: model(x, x, tgt_mask=mask()))
        return [item.arguments.get("is_causal", False) for item in run.recording.operations if "attention" in item.name]

    assert is_causal(lambda: before) == [False, True, False]
    assert is_causal(lambda: nn.Transformer.generate_square_subsequent_mask(16)) == [False, True, False]
    assert is_causal(lambda: torch.zeros(16, 16)) == [False, False, False]
