"""Families: flops and bytes against hand counts, and every variant run for real in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.families.attention import scored_pairs, touched_kv_len
from kernelcast.features.families.moe import expert_shares, touched_experts
from kernelcast.features.kernel import KernelFamily, KernelSpec, View, families, get_family

SMALL = {
    "gemm": {"batch": 2, "m": 5, "n": 7, "k": 3},
    "attention": {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 6, "kv_len": 9, "head_dim": 8, "window": 4},
    "softmax": {"rows": 3, "cols": 5},
    "layernorm": {"rows": 3, "cols": 8},
    "elementwise": {"rows": 3, "cols": 5},
    "reduction": {"rows": 3, "cols": 5},
    "copy": {"rows": 3, "cols": 5},
    "conv2d": {"batch": 2, "in_channels": 3, "out_channels": 4, "height": 9, "width": 8, "kernel": 3, "stride": 2,
               "padding": 1},
    "quantize": {"rows": 3, "cols": 5},
    "embedding": {"tokens": 3, "vocabulary": 7, "cols": 5},
    "cross_entropy": {"rows": 3, "cols": 5},
    "optimizer": {"tensors": 3, "elements": 5},
    "rope": {"tokens": 3, "heads": 2, "head_dim": 4},
    "causal_conv1d": {"batch": 2, "q_len": 3, "channels": 5, "width": 4},
    "linear_attention": {"batch": 2, "q_len": 3, "heads": 4, "key_heads": 2, "key_dim": 3, "value_dim": 5},
    "latent_attention": {"batch": 2, "heads": 3, "q_len": 4, "kv_len": 4, "hidden": 8, "query_rank": 6, "kv_rank": 5,
                         "nope_dim": 4, "rope_dim": 2, "value_dim": 3},
    "moe": {"tokens": 6, "hidden": 8, "inter": 4, "topk": 2, "experts": 3, "tp": 1, "ep": 1},
}  # fmt: skip


def view(family: str, dtype: str = "fp32", variant: str = "", **sizes: int) -> View:
    return View(dtype, dtype, variant, {**SMALL[family], **sizes})


@pytest.mark.parametrize(
    ("family", "variant", "flops", "moved"),
    [
        ("gemm", "", 2 * 2 * 5 * 7 * 3, 4 * (2 * 5 * 3 + 2 * 3 * 7 + 2 * 5 * 7)),
        ("gemm", "bias", 2 * 2 * 5 * 7 * 3, 4 * (2 * 5 * 3 + 2 * 3 * 7 + 7 + 2 * 5 * 7)),
        ("softmax", "", 5 * 15, 4 * 30),
        ("layernorm", "layernorm", 7 * 24, 4 * (24 + 8 + 8 + 24)),
        ("layernorm", "rmsnorm", 4 * 24, 4 * (24 + 8 + 24)),
        ("elementwise", "add", 15, 4 * 45),
        ("elementwise", "relu", 15, 4 * 30),
        ("reduction", "sum", 15, 4 * (15 + 3)),
        ("reduction", "sum_rows", 15, 4 * (15 + 5)),
        ("copy", "", 0, 4 * 30),
        ("quantize", "", 15, 4 * 30),
        ("quantize", "scale", 15, 4 * (15 + 3)),
        # Output 5 x 4 positions; 3 x 3 x 3 products for each of 4 channels.
        ("conv2d", "", 2 * 2 * 4 * 5 * 4 * 27, 4 * (2 * 3 * 9 * 8 + 4 * 3 * 9 + 2 * 4 * 5 * 4)),
    ],
)
def test_work_by_hand(family: str, variant: str, flops: float, moved: float) -> None:
    v = view(family, variant=variant)
    assert get_family(family).flops(v) == flops
    assert get_family(family).bytes_moved(v) == moved


def brute_pairs(q_len: int, kv_len: int, window: int) -> int:
    seen = [min(kv_len - q_len + i, window or kv_len) for i in range(1, q_len + 1)]
    return sum(seen)


@pytest.mark.parametrize("window", [0, 1, 3, 5, 9, 100])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 9), (4, 4), (3, 9), (9, 9)])
def test_attention_counts_the_pairs_the_mask_lets_through(q_len: int, kv_len: int, window: int) -> None:
    v = view("attention", q_len=q_len, kv_len=kv_len, window=window)
    assert scored_pairs(v) == brute_pairs(q_len, kv_len, window)
    mask_columns = {
        position
        for i in range(1, q_len + 1)
        for position in range(max(0, kv_len - q_len + i - (window or kv_len)), kv_len - q_len + i)
    }
    assert touched_kv_len(v) == len(mask_columns)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 9), (9, 9), (20, 6)])
def test_without_a_causal_mask_every_query_sees_every_key_of_its_window(window: int, q_len: int, kv_len: int) -> None:
    v = view("attention", variant="full", q_len=q_len, kv_len=kv_len, window=window)
    assert scored_pairs(v) == q_len * min(kv_len, window or kv_len)
    assert touched_kv_len(v) == kv_len
    spec = KernelSpec.of("attention", "bf16", variant="full", **SMALL["attention"] | {"q_len": q_len, "kv_len": kv_len})
    assert spec["kv_len"] == kv_len


def test_latent_attention_by_hand() -> None:
    family, v = get_family("latent_attention"), view("latent_attention", variant="prefill")
    into, queries, expand, output = 8 * (6 + 7), 6 * 3 * 6, 5 * 3 * 7, 3 * 3 * 8
    pairs = 2 * 3 * (4 * 5 / 2)
    assert family.flops(v) == 2 * 8 * (into + queries + expand + output) + 2 * pairs * (6 + 3)
    assert family.bytes_moved(v) == 4 * (2 * 8 * 8 + into + queries + expand + output + 2 * 4 * 7)
    step = view("latent_attention", variant="decode", q_len=1)
    assert family.flops(step) == 2 * 2 * (into + queries + expand + output) + 2 * (2 * 3 * 4) * (2 * 5 + 2)
    direct = view("latent_attention", variant="prefill", query_rank=0)
    assert family.flops(v) - family.flops(direct) == 2 * 8 * (into + queries - 8 * (3 * 6 + 7))


def test_steps_of_linear_attention_move_the_state_twice_and_prompts_once() -> None:
    family = get_family("linear_attention")
    state_b, tokens_b = 4 * 2 * 4 * 3 * 5, 4 * 2 * 3
    of_token = 2 * 4 * 5 + 2 * 2 * 3 + 4 * 2
    assert family.bytes_moved(view("linear_attention", variant="gated_delta")) == state_b + tokens_b * of_token
    assert family.bytes_moved(view("linear_attention", variant="gated_delta_step")) == 2 * state_b + tokens_b * of_token
    assert family.flops(view("linear_attention", variant="mamba2_step")) == 5 * 6 * 4 * 15
    assert family.least_flops is not None
    prompt = view("linear_attention", variant="kda", q_len=64)
    assert family.least_flops(prompt) < family.flops(prompt)


def test_a_short_convolution_keeps_the_last_positions() -> None:
    family = get_family("causal_conv1d")
    rows_b, state_b, weights_b = 4 * 6 * 5, 4 * 2 * 3 * 5, 4 * 4 * 5
    assert family.bytes_moved(view("causal_conv1d")) == 2 * rows_b + weights_b + state_b
    assert family.bytes_moved(view("causal_conv1d", variant="step")) == 2 * rows_b + weights_b + 2 * state_b


def test_a_gather_reads_no_row_of_its_table_twice() -> None:
    family = get_family("embedding")
    few, many = (view("embedding", tokens=tokens, vocabulary=1000) for tokens in (10, 10**6))
    assert family.bytes_moved(few) == pytest.approx(10 * 8 + 2 * 10 * 5 * 4, rel=0.01)
    assert family.bytes_moved(many) == pytest.approx(10**6 * (8 + 5 * 4) + 1000 * 5 * 4, rel=1e-6)
    assert family.bytes_moved(view("embedding", variant="backward")) == 3 * 8 + (3 + 7) * 5 * 4


def test_losses_steps_and_rotations_by_hand() -> None:
    passes = {"adam": 7, "momentum": 5, "sgd": 3}
    for variant, count in passes.items():
        assert get_family("optimizer").bytes_moved(view("optimizer", variant=variant)) == count * 15 * 4
    assert get_family("cross_entropy").bytes_moved(view("cross_entropy")) == 2 * 15 * 4 + 3 * 8
    assert get_family("rope").bytes_moved(view("rope")) == (2 * 3 * 2 * 4 + 2 * 3 * 4) * 4
    with pytest.raises(SpecError, match="head_dim must be even"):
        KernelSpec.of("rope", "bf16", tokens=1, heads=1, head_dim=65)


def test_quantised_activations_are_read_in_half_precision() -> None:
    family = get_family("quantize")
    assert family.bytes_moved(view("quantize", dtype="fp8")) == 15 * 2 + 15
    assert family.bytes_moved(view("quantize", dtype="fp8", variant="scale")) == 15 * 2 + 3 * 4


def test_an_fp8_cache_halves_the_cache_traffic() -> None:
    sizes = SMALL["attention"] | {"window": 0}
    family = get_family("attention")
    same, small = View("bf16", "bf16", "", sizes), View("bf16", "fp8", "", sizes)
    cache_bytes = 2 * 2 * 2 * 9 * 8 * 2
    assert family.bytes_moved(same) - family.bytes_moved(small) == cache_bytes / 2


def test_moe_touches_at_most_its_experts_and_fewer_under_a_power_law() -> None:
    counts = {
        variant: float(touched_experts(view("moe", variant=variant, tokens=8, topk=2, experts=16)))
        for variant in get_family("moe").variants
    }
    assert 1 <= counts["power_law_1.2"] < counts["power_law_1.01"] < counts["balanced"] <= 16
    assert counts["balanced"] == pytest.approx(16 * (1 - (15 / 16) ** 16))
    assert expert_shares("power_law_1.2", 4).sum() == pytest.approx(1.0)


def test_winograd_lowers_only_the_compute_bound_of_3x3_convolutions() -> None:
    family = get_family("conv2d")
    assert family.least_flops is not None
    plain, strided = view("conv2d", stride=1), view("conv2d", stride=2)
    assert family.least_flops(plain) == family.flops(plain) * 64 / 324
    assert family.least_flops(strided) == family.flops(strided)


@pytest.mark.parametrize("name", sorted(families()))
def test_formulas_answer_columns_as_they_answer_numbers(name: str) -> None:
    family = get_family(name)
    for variant in family.variants:
        rows = [SMALL[name], {key: value * 2 for key, value in SMALL[name].items()}]
        columns = {key: np.array([row[key] for row in rows], dtype=np.float64) for key in SMALL[name]}
        for formula in (family.flops, family.bytes_moved, family.footprint_b):
            together = formula(View("bf16", "bf16", variant, columns))
            alone = [float(formula(View("bf16", "bf16", variant, row))) for row in rows]
            np.testing.assert_allclose(together, alone)


def cases() -> list[tuple[KernelFamily, str, str]]:
    return [
        (family, variant, dtype)
        for family in families().values()
        for variant in family.variants
        for dtype in ("fp32", "bf16")
    ]


@pytest.mark.parametrize(("family", "variant", "dtype"), cases(), ids=lambda x: getattr(x, "name", x))
def test_every_variant_runs_in_pytorch_and_gives_the_declared_outputs(
    family: KernelFamily, variant: str, dtype: str
) -> None:
    torch = pytest.importorskip("torch")
    sizes = SMALL[family.name]
    if family.variant_of is not None and variant == "decode":
        sizes = sizes | {"q_len": 1}
    spec = KernelSpec.of(family.name, dtype, variant=variant, **sizes)
    v = View.of(spec)
    torch_dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "int64": torch.int64}
    operands = [torch.rand([int(size) for size in a.shape]).to(torch_dtypes[a.dtype]) + 0.5 for a in family.inputs(v)]
    result = family.run["torch"](torch, spec, *operands)()
    output, *_ = family.outputs(v)
    declared = [int(size) for size in output.shape]
    # A single product may come without its batch dimension of one.
    assert list(result.shape) in (declared, declared[1:] if declared[0] == 1 else declared)
    assert result.dtype == torch_dtypes[output.dtype]
    assert torch.isfinite(result.float()).all()
