"""PyTorch's attention backends, grouped products and quantised products, on CPU tensors."""

from __future__ import annotations

import types
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernelcast.collectors.gpu.measure import bench
from kernelcast.collectors.gpu.measure.operands import make_operands
from kernelcast.collectors.gpu.runners import torch as torch_runner
from kernelcast.collectors.gpu.runners.torch import special_launch
from kernelcast.collectors.runner import UnsupportedCaseError, gpu_runners
from kernelcast.features.kernel import KernelSpec, get_family

ATTENTION = {"batch": 2, "heads": 4, "kv_heads": 4, "head_dim": 32}


def _operands(spec: KernelSpec) -> tuple[Any, ...]:
    return make_operands(torch, spec, "cpu")


def _apart(got: Any, wanted: Any) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize(("q_len", "kv_len", "window"), [(1, 33, 0), (17, 17, 0), (9, 33, 0), (17, 17, 5)])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_math_backend_gives_the_familys_result(q_len: int, kv_len: int, window: int, kv_heads: int) -> None:
    sizes = ATTENTION | {"kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "window": window}
    spec = KernelSpec.of("attention", "fp32", impl="torch-math", **sizes)  # type: ignore[arg-type]
    operands = _operands(spec)
    got = gpu_runners()["torch-math"].launch(spec, operands).call()
    assert _apart(got, get_family("attention").run["torch"](torch, spec, *operands)()) < 1e-5


def test_attention_sees_the_keys_its_mask_says() -> None:
    spec = KernelSpec.of("attention", "fp32", **ATTENTION, q_len=3, kv_len=5, window=2)
    q, k, v = _operands(spec)
    scores = q @ k.transpose(-1, -2) / 32**0.5
    seen = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)
    wanted = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
    assert _apart(get_family("attention").run["torch"](torch, spec, q, k, v)(), wanted) < 1e-5


@pytest.mark.parametrize("impl", torch_runner.BACKENDS)
def test_only_the_chosen_backend_is_allowed_and_only_during_the_call(impl: str) -> None:
    cuda = torch.backends.cuda
    enabled = {"torch-flash": cuda.flash_sdp_enabled, "torch-efficient": cuda.mem_efficient_sdp_enabled,
               "torch-cudnn": cuda.cudnn_sdp_enabled, "torch-math": cuda.math_sdp_enabled}  # fmt: skip
    call = torch_runner.with_backend(torch, impl, lambda: [name for name, on in enabled.items() if on()])
    before = [on() for on in enabled.values()]
    assert call() == [impl]
    assert [on() for on in enabled.values()] == before


@pytest.mark.parametrize(
    ("impl", "by_bias"), [("torch-flash", True), ("torch-efficient", True), ("torch-cudnn", False)]
)
def test_chunked_prompts_use_a_causal_kernel_where_there_is_one(impl: str, by_bias: bool, monkeypatch: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: seen.append(k["attn_mask"])
    )
    spec = KernelSpec.of("attention", "bf16", impl=impl, **ATTENTION, q_len=4, kv_len=9)
    launch = gpu_runners()[impl].launch(spec, _operands(spec))
    assert len(seen) == 1
    assert isinstance(seen[0], torch.nn.attention.bias.CausalBias) == by_bias
    assert launch.expected is not None
    launch.expected()
    assert torch.equal(seen[0]._materialize() if by_bias else seen[0], seen[1])


def test_a_backend_that_refuses_says_why_and_running_out_of_memory_is_something_else() -> None:
    spec = KernelSpec.of("attention", "fp32", impl="torch-cudnn", **ATTENTION, q_len=8, kv_len=8)
    with pytest.raises(UnsupportedCaseError, match=r"torch-cudnn does not take this case: .*No"):
        gpu_runners()["torch-cudnn"].launch(spec, _operands(spec))

    def refused() -> None:
        warnings.warn("Flash attention requires fp16 (Triggered internally at a/b.cpp:1.)", UserWarning, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    with pytest.raises(UnsupportedCaseError, match=r"requires fp16$"):
        torch_runner._try(torch, "torch-flash", refused)

    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        torch_runner._try(torch, "torch-flash", full)


def test_huge_masked_cases_are_not_compared_with_what_would_fill_the_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "MAX_CHECKED_SCORES", 10)
    spec = KernelSpec.of("attention", "fp32", impl="torch-math", **ATTENTION, q_len=4, kv_len=9)
    assert gpu_runners()["torch-math"].launch(spec, _operands(spec)).expected is None
    monkeypatch.setattr(torch_runner, "_try", lambda *_: None)
    flash = KernelSpec.of("attention", "bf16", impl="torch-flash", **ATTENTION, q_len=4, kv_len=9)
    assert gpu_runners()["torch-flash"].launch(flash, _operands(flash)).expected is None


MOE = {"tokens": 24, "hidden": 32, "inter": 16, "topk": 2, "experts": 6}


@pytest.mark.parametrize("variant", get_family("moe").variants)
def test_grouped_experts_give_the_familys_result(variant: str) -> None:
    for sizes in (MOE, MOE | {"tokens": 1}, MOE | {"experts": 8, "ep": 4, "tp": 2}):
        spec = KernelSpec.of("moe", "bf16", variant=variant, impl="torch-grouped", **sizes)  # type: ignore[arg-type]
        launch = gpu_runners()["torch-grouped"].launch(spec, _operands(spec))
        assert launch.expected is not None
        assert _apart(launch.call(), launch.expected()) < launch.tolerance


def test_routing_is_by_shares_sorted_by_expert_and_the_same_every_time() -> None:
    spec = KernelSpec.of("moe", "bf16", variant="power_law_1.2", tokens=1000, hidden=8, inter=8, topk=4, experts=8)
    rows, ends = torch_runner.routing(torch, spec, 8)
    assert rows.shape == (4000,)
    assert ends.dtype == torch.int32
    assert ends[-1] == 4000
    counts = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    assert counts == sorted(counts, reverse=True)
    assert torch.equal(rows, torch_runner.routing(torch, spec, 8)[0])


@pytest.mark.parametrize(
    ("dtype", "sizes", "message"),
    [("fp16", {}, "takes bf16, not fp16"), ("bf16", {"inter": 12}, "inter over tp in multiples of 8, got 12"),
     ("bf16", {"hidden": 20}, "hidden in multiples of 8, got 20")],
)  # fmt: skip
def test_what_the_grouped_product_does_not_take_is_said(dtype: str, sizes: dict[str, int], message: str) -> None:
    spec = KernelSpec.of("moe", dtype, impl="torch-grouped", **MOE | sizes)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedCaseError, match=message):
        gpu_runners()["torch-grouped"].launch(spec, _operands(spec))


def test_the_grouped_product_of_an_older_torch_or_none() -> None:
    old: Any = types.SimpleNamespace(nn=torch.nn, _grouped_mm="private", __version__="2.9")
    old.nn = types.SimpleNamespace(functional=types.SimpleNamespace())
    assert torch_runner.grouped_product(old) == "private"
    del old._grouped_mm
    with pytest.raises(UnsupportedCaseError, match=r"torch 2\.9 has no grouped product"):
        torch_runner.grouped_product(old)


@pytest.mark.parametrize("impl", [*torch_runner.BACKENDS, "torch-grouped"])
def test_runners_take_their_own_family_without_configuration(impl: str) -> None:
    runner = gpu_runners()[impl]
    other = KernelSpec.of("softmax", "bf16", impl=impl, rows=4, cols=4)
    with pytest.raises(UnsupportedCaseError, match="not softmax"):
        runner.launch(other, _operands(other))
    assert "torch" in runner.versions()


def test_quantised_products_are_right() -> None:
    for dtype, variant, tolerance in (("int8", "", 0.0), ("fp8", "", 5e-3), ("fp8", "bias", 5e-3), ("fp8", "nt", 5e-3)):
        spec = KernelSpec.of("gemm", dtype, variant=variant, m=33, n=48, k=64)
        a, b, *bias = _operands(spec)
        call = special_launch(torch, spec, (a, b, *bias))
        assert call is not None
        wanted = a[0].double() @ b[0].double() + (bias[0].double() if bias else 0.0)
        assert call().dtype == (torch.int32 if dtype == "int8" else torch.bfloat16)
        assert _apart(call(), wanted) <= tolerance


@pytest.mark.parametrize(
    ("dtype", "settings", "message"),
    [("fp8", {"n": 40}, "multiples of 16, got 40 and 64"), ("int8", {"variant": "bias"}, "variant bias"),
     ("fp8", {"variant": "tn"}, "variant tn"), ("int8", {"batch": 2}, "got batch 2")],
)  # fmt: skip
def test_quantised_products_say_what_they_do_not_take(dtype: str, settings: dict[str, Any], message: str) -> None:
    spec = KernelSpec.of("gemm", dtype, **({"m": 32, "n": 48, "k": 64} | settings))
    with pytest.raises(UnsupportedCaseError, match=message):
        special_launch(torch, spec, (torch.zeros(1), torch.zeros(1)))


def test_old_cards_and_few_rows_are_refused_on_a_gpu() -> None:
    card = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_capability=lambda device: (8, 0)))
    on_gpu = types.SimpleNamespace(is_cuda=True, device="cuda")
    with pytest.raises(UnsupportedCaseError, match=r"capability 8\.9 or more"):
        special_launch(card, KernelSpec.of("gemm", "fp8", m=32, n=48, k=64), (on_gpu, None))
    with pytest.raises(UnsupportedCaseError, match="from 17 rows on, got 16"):
        special_launch(card, KernelSpec.of("gemm", "int8", m=16, n=48, k=64), (on_gpu, None))


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_precision_is_switched_for_the_call_alone(dtype: str, monkeypatch: Any) -> None:
    during: list[str] = []
    image = {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 4, "width": 4, "kernel": 1}
    for family, sizes, switch, operator in (
        ("gemm", {"m": 4, "n": 4, "k": 4}, torch.backends.cuda.matmul, (torch, "mm")),
        ("conv2d", image, torch.backends.cudnn.conv, (torch.nn.functional, "conv2d")),
    ):
        spec = KernelSpec.of(family, dtype, **sizes)  # type: ignore[arg-type]
        call = special_launch(torch, spec, _operands(spec))
        monkeypatch.setattr(*operator, lambda *_, seen=switch, **__: during.append(seen.fp32_precision))
        before = switch.fp32_precision
        assert call is not None
        call()
        assert switch.fp32_precision == before
    assert during == [{"fp32": "ieee", "tf32": "tf32"}[dtype]] * 2


def test_everything_else_is_the_familys_own_call() -> None:
    for spec in (KernelSpec.of("gemm", "bf16", m=4, n=4, k=4), KernelSpec.of("softmax", "fp32", rows=4, cols=4)):
        assert special_launch(torch, spec, _operands(spec)) is None


def test_tf32_is_unsupported_where_it_would_silently_be_fp32() -> None:
    spec = KernelSpec.of("gemm", "tf32", impl="torch", m=8, n=8, k=8)
    volta = SimpleNamespace(
        backends=torch.backends, cuda=SimpleNamespace(get_device_capability=lambda device: (7, 0)), mm=torch.mm
    )
    operand = SimpleNamespace(is_cuda=True, device="cuda:0")
    with pytest.raises(UnsupportedCaseError, match="tf32 needs compute capability"):
        special_launch(volta, spec, (operand, operand))


def test_keys_in_another_dtype_are_unsupported_by_torch() -> None:
    spec = KernelSpec.of("attention", "bf16", impl="torch", kv_dtype="fp8", batch=1, heads=1, kv_heads=1, q_len=8,
                         kv_len=8, head_dim=64)  # fmt: skip
    with pytest.raises(UnsupportedCaseError, match="dtype of the queries"):
        gpu_runners()["torch"].launch(spec, ())
