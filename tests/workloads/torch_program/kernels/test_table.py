"""Operators as kernels: the right family, sizes and bytes, and nothing for free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.torch_program.captured import as_data, read_program
from kernelcast.workloads.torch_program.kernels.kernel_use import UNKNOWN, KernelUse
from kernelcast.workloads.torch_program.kernels.table import OPERATORS, is_known, kernels_of
from kernelcast.workloads.torch_program.operation import Operation
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

Recorded = Callable[..., list[Operation]]


def uses(operations: list[Operation], name: str, kind: str = "gpu") -> list[KernelUse]:
    (operation,) = (item for item in operations if item.name == name)
    return kernels_of(operation, kind)


def flops(use: KernelUse) -> float:
    view = View.of(use.spec)
    return use.count * use.scale * float(get_family(use.spec.family).flops(view))


def moved_b(use: KernelUse) -> float:
    return use.count * use.scale * float(get_family(use.spec.family).bytes_moved(View.of(use.spec)))


def test_every_operator_of_the_table_is_one_of_pytorch() -> None:
    names = [name.removeprefix("aten.") for name in OPERATORS if name.startswith("aten.")]
    missing = [name for name in names if not hasattr(torch.ops.aten, name) and not hasattr(torch.ops.aten, name + "_")]
    assert missing == []


@pytest.mark.parametrize(
    ("program", "name", "kind", "text"),
    [
        (lambda: torch.ones(8, 16) @ torch.ones(16, 4), "aten.mm", "gpu", "gemm[batch=1,m=8,n=4,k=16]:fp32 device"),
        (lambda: torch.ones(8, 16) @ torch.ones(4, 16).t(), "aten.mm", "gpu", "gemm[batch=1,m=8,n=4,k=16]:fp32 nt device"),
        (
            lambda: F.linear(torch.ones(8, 16), torch.ones(4, 16), torch.ones(4)), "aten.addmm", "gpu",
            "gemm[batch=1,m=8,n=4,k=16]:fp32 bias device",
        ),
        (
            lambda: F.linear(torch.ones(8, 16), torch.ones(4, 16), torch.ones(4)), "aten.addmm", "cpu",
            "gemm[batch=1,m=8,n=4,k=16]:fp32 nt device",
        ),
        (
            lambda: torch.addmm(torch.ones(4), torch.ones(8, 16), torch.ones(16, 4)), "aten.addmm", "cpu",
            "gemm[batch=1,m=8,n=4,k=16]:fp32 bias device",
        ),
        (
            lambda: F.linear(*(torch.ones(*s, dtype=torch.bfloat16) for s in ((8, 16), (4, 16), (4,)))), "aten.addmm", "gpu",
            "gemm[batch=1,m=8,n=4,k=16]:bf16 device",
        ),
        (
            lambda: torch.bmm(torch.ones(3, 8, 16), torch.ones(3, 16, 4)), "aten.bmm", "gpu",
            "gemm[batch=3,m=8,n=4,k=16]:fp32 batched device",
        ),
        (
            lambda: F.conv2d(torch.ones(2, 3, 32, 32), torch.ones(8, 3, 3, 3), stride=2, padding=1), "aten.convolution", "gpu",
            "conv2d[batch=2,in_channels=3,out_channels=8,height=32,width=32,kernel=3,stride=2,padding=1]:fp32 device",
        ),
        (
            lambda: torch.ones(50, 16).index_select(-2, torch.zeros(8, dtype=torch.int64)), "aten.index_select", "cpu",
            "embedding[tokens=8,vocabulary=50,cols=16]:fp32 device",
        ),
        (lambda: torch.softmax(torch.ones(4, 6, 10), -1), "aten._softmax", "gpu", "softmax[rows=24,cols=10]:fp32 device"),
        (
            lambda: F.layer_norm(torch.ones(4, 6, 10), (10,)), "aten.native_layer_norm", "gpu",
            "layernorm[rows=24,cols=10]:fp32 layernorm device",
        ),
        (
            lambda: F.rms_norm(torch.ones(4, 10), (10,)), "kernelcast.rms_norm", "cpu",
            "layernorm[rows=4,cols=10]:fp32 rmsnorm device",
        ),
        (lambda: torch.ones(4, 10).sum(1), "aten.sum", "gpu", "reduction[rows=4,cols=10]:fp32 sum device"),
        (lambda: torch.ones(4, 10).mean(0), "aten.mean", "gpu", "reduction[rows=4,cols=10]:fp32 mean_rows device"),
        (lambda: torch.ones(4, 10).exp(), "aten.exp", "gpu", "elementwise[rows=4,cols=10]:fp32 exp device"),
        (lambda: torch.ones(4, 10) * 2, "aten.mul", "gpu", "elementwise[rows=4,cols=10]:fp32 mulu device"),
        (lambda: torch.ones(4, 10).add_(torch.ones(4, 10)), "aten.add_", "gpu", "elementwise[rows=4,cols=10]:fp32 add device"),
        (lambda: torch.ones(4, 10).clone(), "aten.clone", "gpu", "copy[rows=4,cols=10]:fp32 device"),
        (lambda: torch.ones(4, 10).t().contiguous(), "aten.clone", "gpu", "copy[rows=10,cols=4]:fp32 transpose device"),
    ],
)  # fmt: skip
def test_operators_with_a_kernel_of_their_own(
    program: Callable[[], Any], name: str, kind: str, text: str, operations: Recorded
) -> None:
    (use,) = uses(operations(program), name, kind)
    assert str(use.spec) == text
    assert (use.count, use.scale, use.widening, use.stand_in) == (1, 1.0, 1.0, "")


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (1, 64), (64, 77), (4096, 77), (100, 30), (129, 1000)])
def test_attention_without_a_causal_mask_has_the_arithmetic_of_all_pairs(
    queries: int, keys: int, operations: Recorded
) -> None:
    query, key = torch.ones(2, 4, queries, 32), torch.ones(2, 4, keys, 32)
    found = uses(operations(lambda: F.scaled_dot_product_attention(query, key, key)), ATTENTION)
    assert sum(map(flops, found)) == pytest.approx(4 * 2 * 4 * queries * keys * 32, rel=0.02)
    assert [use.spec.family for use in found] == ["attention"]


def test_causal_attention_is_the_familys_own_and_its_backward_three_times_as_long(
    operations: Recorded,
) -> None:
    query, key = torch.ones(2, 8, 64, 32, requires_grad=True), torch.ones(2, 2, 64, 32)

    def program() -> None:
        F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True).sum().backward()

    ran = operations(program)
    (forward,), (backward,) = uses(ran, ATTENTION, "cpu"), uses(ran, f"{ATTENTION}_backward", "cpu")
    sizes = "attention[batch=2,heads=8,kv_heads=2,q_len=64,kv_len=64,head_dim=32,window=0]"
    (causal,) = forward.otherwise
    assert [str(forward.spec), str(causal.spec)] == [f"{sizes}:fp32 full device", f"{sizes}:fp32 prefill device"]
    assert forward.at_most
    assert forward.stand_in == ""
    assert flops(backward) == 3.0 * flops(forward)
    assert uses(ran, f"{ATTENTION}_backward", "gpu")[0].scale == 2.5


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 0.5)])
def test_the_backward_of_attention_in_bf16_is_five_products_on_a_cpu(
    causal: bool, share: float, operations: Recorded
) -> None:
    query = torch.ones(2, 8, 64, 32, dtype=torch.bfloat16, requires_grad=True)
    ran = operations(lambda: F.scaled_dot_product_attention(query, query, query, is_causal=causal).sum().backward())
    products = uses(ran, f"{ATTENTION}_backward", "cpu")
    assert {use.spec.family for use in products} == {"gemm"}
    assert [use.spec.variant for use in products] == ["nt", "nt", "tn", "", "tn"]
    assert sum(use.count * 2 * use.spec["m"] * use.spec["n"] * use.spec["k"] for use in products) == pytest.approx(
        share * 5 * 2 * 2 * 8 * 64 * 64 * 32, rel=0.03
    )
    assert [use.spec.family for use in uses(ran, f"{ATTENTION}_backward", "gpu")] == ["attention"]


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


def test_a_mask_is_read_besides_and_dropout_stays_inside_the_kernel_of_a_gpu(operations: Recorded) -> None:
    query, mask = torch.ones(2, 4, 64, 32), torch.ones(64, 64)
    ran = operations(lambda: F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=0.5))
    assert [item.name for item in ran] == [ATTENTION]
    assert [use.spec.family for use in uses(ran, ATTENTION)] == ["attention", "elementwise"]
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    names = [item.name for item in operations(lambda: layer(torch.ones(2, 8, 32)))]
    assert ATTENTION in names
    assert "aten.bmm" not in names


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(8, 16, 3), (2, 8, 32)), (nn.Conv3d(4, 8, 3), (2, 4, 8, 8, 8)), (nn.Conv2d(8, 16, 3, groups=2), (2, 8, 9, 9)),
        (nn.Conv2d(8, 16, (3, 1), dilation=(2, 1)), (2, 8, 9, 9)), (nn.ConvTranspose2d(8, 4, 2, stride=2), (2, 8, 9, 9)),
        (nn.Conv2d(3, 6, 3, padding=1), (2, 3, 9, 9)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_convolutions_of_every_kind_have_their_arithmetic(
    layer: nn.Module, shape: tuple[int, ...], operations: Recorded
) -> None:
    x = torch.ones(*shape, requires_grad=True)
    ran = operations(lambda: layer(x).sum().backward())
    (forward,) = (item for item in ran if item.name == "aten.convolution")
    assert sum(map(flops, kernels_of(forward, "cpu"))) == pytest.approx(forward.flops)
    *_, bias = kernels_of(forward, "gpu")
    assert (bias.stand_in, moved_b(bias)) == (
        "the bias of a convolution",
        pytest.approx(2 * forward.outputs[0].nbytes, rel=0.02),
    )
    backward = [use for use in uses(ran, "aten.convolution_backward") if use.spec.family in ("gemm", "conv2d")]
    assert sum(map(flops, backward)) == pytest.approx(2 * forward.flops)


@pytest.mark.parametrize(
    ("program", "name", "bytes_"),
    [
        (
            lambda: F.embedding(torch.ones(5, 3, dtype=torch.int64), torch.ones(1000, 64)), "aten.embedding",
            2 * 15 * 64 * 4 + 15 * 8,
        ),
        (lambda: torch.ones(64, 10).index_select(1, torch.ones(9, dtype=torch.int64)), "aten.index_select", 2 * 9 * 256 + 72),
        (lambda: torch.cat([torch.ones(4, 8), torch.ones(2, 8)]), "aten.cat", 2 * 6 * 8 * 4),
        (lambda: torch.ones(64, 64).to(torch.bfloat16), "aten._to_copy", 64 * 64 * 6),
        (lambda: torch.ones(64, 64) > 0, "aten.gt", 64 * 64 * 5),
        (lambda: torch.addcmul(torch.ones(64), torch.ones(64), torch.ones(64)), "aten.addcmul", 64 * 4 * 4),
        (lambda: torch.ones(64, 1) + torch.ones(64, 64), "aten.add", 64 * 4 + 2 * 64 * 64 * 4),
        (lambda: torch.zeros(64, 64), "aten.zeros", 64 * 64 * 4),
    ],
)  # fmt: skip
def test_what_moves_data_is_priced_by_the_bytes_it_moves(
    program: Callable[[], Any], name: str, bytes_: int, operations: Recorded
) -> None:
    found = uses(operations(program), name)
    assert sum(map(moved_b, found)) == pytest.approx(bytes_, rel=0.05)


@pytest.mark.parametrize(
    ("options", "variant"), [({}, "sgd"), ({"momentum": 0.9}, "momentum"), (None, "adam")], ids=lambda item: str(item)
)
def test_fused_steps_of_optimisers(options: dict[str, float] | None, variant: str, operations: Recorded) -> None:
    layer = nn.Linear(64, 32)
    kinds = {"fused": True, "lr": 0.1}
    if options is None:
        made: torch.optim.Optimizer = torch.optim.AdamW(layer.parameters(), **kinds)
    else:
        made = torch.optim.SGD(layer.parameters(), **options, **kinds)

    def step() -> None:
        layer(torch.ones(2, 64)).sum().backward()
        made.step()

    (use,) = (
        use for item in operations(step) if item.name.startswith("aten._fused") for use in kernels_of(item, "cpu")
    )
    assert str(use.spec) == f"optimizer[tensors=2,elements=1040]:fp32 {variant} device"
    assert use.otherwise


def test_a_fused_step_reads_four_tensors_and_writes_three(operations: Recorded) -> None:
    """It once wrote weights alone, and took less than memory allows."""
    weight = nn.Parameter(torch.ones(1 << 20))
    weight.grad = torch.ones(1 << 20)
    (use,) = uses(operations(torch.optim.AdamW([weight], fused=True).step), "aten._fused_adamw_")
    assert sum(moved_b(other) * other.count for other in use.otherwise) == pytest.approx(28 * 2**20, rel=0.01)


@pytest.mark.parametrize(
    ("channels", "dtype", "layout", "passes"),
    [
        (256, torch.float32, torch.contiguous_format, [3, 5]), (60, torch.float32, torch.contiguous_format, [12, 20]),
        (60, torch.float32, torch.channels_last, [3, 5]), (240, torch.bfloat16, torch.contiguous_format, [12, 23]),
    ],
)  # fmt: skip
def test_statistics_of_a_batch_are_passes_of_a_block_for_each_channel_on_a_gpu(
    operations: Recorded, channels: int, dtype: torch.dtype, layout: torch.memory_format, passes: list[int]
) -> None:
    x = torch.ones(8, channels, 8, 8, dtype=dtype, requires_grad=True)
    norm = nn.BatchNorm2d(channels, dtype=dtype)
    ran = operations(lambda: norm(x.to(memory_format=layout)).sum().backward())
    moved = [sum(map(moved_b, uses(ran, f"aten.native_batch_norm{which}"))) for which in ("", "_backward")]
    assert moved == pytest.approx([number * x.nbytes for number in passes], rel=0.01)


def test_what_cuda_has_a_kernel_for_is_one_operator(operations: Recorded) -> None:
    x = torch.ones(8, 64, requires_grad=True)
    ran = operations(lambda: F.mish(F.silu(x)).sum().backward())
    assert [item.name for item in ran if item.phase == "backward"] == ["aten.mish_backward", "aten.silu_backward"]
    assert [use.spec.variant for use in uses(ran, "aten.mish_backward")] == ["silu"]


def test_convolutions_of_one_input_for_each_output_add_their_bias_themselves(operations: Recorded) -> None:
    ran = operations(lambda: nn.Conv2d(8, 8, 3, groups=8)(torch.ones(2, 8, 9, 9)))
    assert len(uses(ran, "aten.convolution")) == 1


def test_one_matrix_for_a_whole_batch_is_one_product(operations: Recorded) -> None:
    a, b = torch.ones(4, 8, 16), torch.ones(16, 32)
    (left,) = uses(operations(lambda: torch.bmm(a, b.expand(4, 16, 32))), "aten.bmm")
    (right,) = uses(operations(lambda: torch.bmm(a[0].expand(4, 8, 16), torch.ones(4, 16, 32))), "aten.bmm")
    assert {name: dict(left.spec.dims)[name] for name in "mnk"} == {"m": 32, "n": 32, "k": 16}
    assert {name: dict(right.spec.dims)[name] for name in "mnk"} == {"m": 8, "n": 128, "k": 16}


def test_an_operator_without_a_family_is_priced_by_its_bytes_and_far_from_sure(operations: Recorded) -> None:
    (operation,) = (item for item in operations(lambda: torch.histc(torch.ones(8, 64), 33)) if "hist" in item.name)
    (use,) = kernels_of(operation, "gpu")
    assert not is_known(operation)
    assert use.widening == UNKNOWN
    assert moved_b(use) == pytest.approx(8 * 64 * 4 + 33 * 4, rel=0.05)
    assert "aten.histc" in use.stand_in


def test_lists_of_tensors_are_few_launches_on_a_gpu_and_one_for_each_on_a_cpu(operations: Recorded) -> None:
    tensors = [torch.ones(100, 10) for _ in range(50)]
    ran = operations(lambda: torch._foreach_mul_(tensors, 2.0))
    on_gpu, on_cpu = uses(ran, "aten._foreach_mul_"), uses(ran, "aten._foreach_mul_", "cpu")
    assert sum(use.count for use in on_gpu) == 2
    assert sum(use.count for use in on_cpu) == 50
    for found in (on_gpu, on_cpu):
        assert sum(map(moved_b, found)) == pytest.approx(2 * 50 * 1000 * 4, rel=0.01)


def test_rms_norm_is_one_kernel_in_both_passes(operations: Recorded) -> None:
    norm, x = nn.RMSNorm(64), torch.ones(8, 64, requires_grad=True)
    ran = operations(lambda: norm(x).sum().backward())
    assert [item.name for item in ran if item.name != "aten.sum"] == [
        "kernelcast.rms_norm",
        "kernelcast.rms_norm_backward",
    ]
    assert {item.module for item in ran if "rms" in item.name} == {"RMSNorm"}
    assert [use.spec.family for use in uses(ran, "kernelcast.rms_norm_backward")] == ["layernorm", "reduction"]


def test_views_and_allocations_are_no_operators(operations: Recorded) -> None:
    x = torch.ones(4, 8)
    ran = operations(
        lambda: (x.view(8, 4).t()[1:].unsqueeze(0).expand(3, -1, -1), torch.empty(9), x.clone().squeeze_(0))
    )
    assert [item.name for item in ran] == ["aten.clone"]


def test_products_of_fp32_are_tf32_where_the_program_allows_it(recorded: Callable[..., Any]) -> None:
    def product() -> object:
        return torch.ones(8, 8) @ torch.ones(8, 8)

    torch.set_float32_matmul_precision("high")
    try:
        run = recorded(product, "h200")
    finally:
        torch.set_float32_matmul_precision("highest")
    (answer,) = run.totals.values()
    assert [part.kernel.spec.dtype for part in answer.whole.parts if part.kernel.spec.family == "gemm"] == ["tf32"]


@pytest.mark.parametrize(("is_allowed", "dtype"), [(True, "tf32"), (False, "fp32")])
def test_convolutions_of_fp32_are_tf32_as_is_the_default(
    is_allowed: bool, dtype: str, recorded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", is_allowed)
    run = recorded(lambda: nn.Conv2d(8, 8, 3)(torch.ones(1, 8, 16, 16)), "h200")
    (answer,) = run.totals.values()
    assert [part.kernel.spec.dtype for part in answer.whole.parts if part.kernel.spec.family == "conv2d"] == [dtype]
    assert read_program(as_data(run.program)).tf32_convolutions is is_allowed


@pytest.mark.parametrize(
    ("program", "name", "dtype", "arithmetic"),
    [
        (lambda x: x @ x, "aten.mm", torch.complex64, 8 * 64**3),
        (lambda x: torch.addmm(x[0], x, x), "aten.addmm", torch.complex128, 8 * 64**3),
        (lambda x: torch.bmm(x[None], x[None]), "aten.bmm", torch.complex64, 8 * 64**3),
        (torch.linalg.cholesky, "aten.linalg_cholesky_ex", torch.float32, 64**3 / 3),
        (torch.linalg.lu_factor, "aten.linalg_lu_factor_ex", torch.float32, 64**3 * 2 / 3),
        (lambda x: torch.linalg.solve(x, x), "aten._linalg_solve_ex", torch.float32, 64**3 * 8 / 3),
        (torch.linalg.inv, "aten.linalg_inv_ex", torch.complex64, 8 * 64**3),
        (torch.linalg.qr, "aten.linalg_qr", torch.float64, 64**3 * 8 / 3),
        (lambda x: torch.linalg.qr(x[:, :16], mode="r"), "aten.linalg_qr", torch.float64, 2 * 16**2 * (64 - 16 / 3)),
        (torch.linalg.eigh, "aten._linalg_eigh", torch.float32, 9 * 64**3),
        (torch.linalg.eig, "aten.linalg_eig", torch.float32, 25 * 64**3),
        (torch.linalg.svd, "aten._linalg_svd", torch.float32, 21 * 64**3),
        (lambda x: F.bilinear(x[:8], x[:8], x.expand(4, 64, 64)), "aten._trilinear", torch.float32, 2 * 8 * 4 * 64**2),
        (lambda x: torch.cdist(x[:8], x), "aten._euclidean_dist", torch.float32, 2 * 8 * 64**2),
        (lambda x: torch.cdist(x, x, p=1), "aten._cdist_forward", torch.float32, 2 * 64**3),
        (
            lambda x: torch.ops.aten._weight_int8pack_mm(x, torch.ones(64, 64, dtype=torch.int8), x[0]),
            "aten._weight_int8pack_mm", torch.bfloat16, 2 * 64**3,
        ),
    ],
)  # fmt: skip
def test_what_computes_more_than_it_moves_is_priced_by_its_arithmetic(
    program: Callable[..., Any], name: str, dtype: torch.dtype, arithmetic: float, operations: Recorded
) -> None:
    (operation,) = (item for item in operations(lambda: program(torch.ones(64, 64, dtype=dtype))) if item.name == name)
    (use, *_) = kernels_of(operation, "gpu")
    assert (use.spec.family, bool(use.stand_in), is_known(operation)) == ("gemm", True, True)
    assert arithmetic <= flops(use) / use.scale <= 1.1 * arithmetic
    assert operation.flops


def test_what_stands_for_a_product_takes_no_less_than_its_arithmetic(recorded: Callable[..., Any]) -> None:
    factorisation, product = (lambda x: torch.linalg.svd(x), lambda x: x.to(torch.complex64) @ x.to(torch.complex64))
    for program, times in ((factorisation, 17.0), (product, 1.0)):
        run = recorded(lambda program=program: program(torch.empty(2048, 2048, device="meta")), "h200")
        (answer,) = run.totals.values()
        (part,) = (part for part in answer.whole.parts if part.kernel.spec.family == "gemm")
        least_s = part.prediction.breakdown["compute"] / times
        assert least_s <= part.prediction.latency_s.lower * 1.0001
        assert answer.rough_share > 0.9


def test_arithmetic_of_products_that_pytorch_does_not_count(recorded: Callable[..., Any]) -> None:
    bytes_, half = torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.bfloat16)
    layer, x = nn.LSTM(16, 32), torch.ones(5, 4, 16)
    programs: list[tuple[Callable[[], Any], int]] = [
        (lambda: torch._int_mm(bytes_, bytes_), 2 * 32**3),
        (lambda: torch._grouped_mm(half, half.expand(4, 32, 32), offs=torch.ones(4, dtype=torch.int32)), 2 * 32**3),
        (lambda: torch.addbmm(half, half.expand(3, 32, 32), half.expand(3, 32, 32)), 2 * 3 * 32**3),
        (lambda: half @ half[0], 2 * 32**2),
        (lambda: layer(x), 2 * 5 * 4 * 128 * (16 + 32)),
    ]
    for program, arithmetic in programs:
        assert recorded(program).flops == arithmetic


def test_causal_attention_sees_the_keys_up_to_its_last_query(operations: Recorded) -> None:
    query, key = torch.ones(2, 4, 64, 32), torch.ones(2, 4, 256, 32)
    ran = [
        uses(operations(lambda seen=seen: F.scaled_dot_product_attention(query, seen, seen, is_causal=True)), ATTENTION)
        for seen in (key, key[:, :, :64])
    ]
    assert ran[0] == ran[1]
