"""Specs: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import MAX_DIM, KernelSpec, families, get_family


def test_defaults_are_filled_and_dims_keep_the_family_order() -> None:
    spec = KernelSpec.of("gemm", "float32", k=3, n=2, m=1)
    assert spec.dims == (("batch", 1), ("m", 1), ("n", 2), ("k", 3))
    assert spec.dtype == "fp32"
    assert str(spec) == "gemm[batch=1,m=1,n=2,k=3]:fp32"


def test_equal_specs_share_a_case_id_and_any_difference_changes_it() -> None:
    base = KernelSpec.of("gemm", "fp32", m=1, n=2, k=3)
    assert base.case_id == KernelSpec.of("gemm", "float32", k=3, m=1, n=2, batch=1).case_id
    others = [
        KernelSpec.of("gemm", "bf16", m=1, n=2, k=3),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=4),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=3, impl="iree"),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=3, threads=2),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=3, cache_state="cold"),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=3, timing="call"),
        KernelSpec.of("gemm", "fp32", m=1, n=2, k=3, config={"tile_m": 8}),
    ]
    assert len({base.case_id, *(spec.case_id for spec in others)}) == len(others) + 1


def test_case_id_is_stable_across_versions() -> None:
    # Stores are resumed by these: a change here would measure everything again.
    assert KernelSpec.of("gemm", "fp32", m=1, n=2, k=3).case_id == "7aa7f96a71f5cdee"


def test_the_variant_follows_from_sizes_or_defaults() -> None:
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "kv_len": 64, "head_dim": 64}
    assert KernelSpec.of("attention", "bf16", q_len=1, **sizes).variant == "decode"
    assert KernelSpec.of("attention", "bf16", q_len=64, **sizes).variant == "prefill"
    assert KernelSpec.of("layernorm", "fp32", rows=2, cols=8).variant == "layernorm"


def test_kv_dtype_equal_to_dtype_is_no_difference() -> None:
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 64, "head_dim": 64}
    assert KernelSpec.of("attention", "bf16", kv_dtype="bfloat16", **sizes).kv_dtype is None
    assert KernelSpec.of("attention", "bf16", kv_dtype="fp8", **sizes).kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("family", "dtype", "given", "field", "says"),
    [
        ("gem", "fp32", {"m": 1}, "family", "families: attention"),
        ("gemm", "fp99", {"m": 1, "n": 1, "k": 1}, "dtype", "dtypes: fp64"),
        ("gemm", "fp32", {"m": 1, "n": 1}, "k", "gemm needs k"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "q": 1}, "q", "gemm has no size 'q'; sizes: batch, m, n, k"),
        ("gemm", "fp32", {"m": 0, "n": 1, "k": 1}, "m", "between 1 and"),
        ("gemm", "fp32", {"m": -4, "n": 1, "k": 1}, "m", "got -4"),
        ("gemm", "fp32", {"m": MAX_DIM + 1, "n": 1, "k": 1}, "m", "between 1 and"),
        ("gemm", "fp32", {"m": 1.5, "n": 1, "k": 1}, "m", "whole number"),
        ("gemm", "fp32", {"m": True, "n": 1, "k": 1}, "m", "whole number"),
        ("gemm", "fp32", {"m": "4", "n": 1, "k": 1}, "m", "whole number"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "variant": "gelu"}, "variant", "variants: '', bias"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "config": {"tile": 8}}, "tile", "it takes: tile_m"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "threads": 0}, "threads", "between 1 and"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "cache_state": "warm"}, "cache_state", "hot, cold"),
        ("gemm", "fp32", {"m": 1, "n": 1, "k": 1, "timing": "host"}, "timing", "device, call"),
        ("elementwise", "fp32", {"rows": 1, "cols": 1}, "variant", "variants: relu"),
        ("softmax", "fp32", {"rows": 1, "cols": 1, "variant": "x"}, "variant", "no variant 'x'"),
    ],
)
def test_refusals_say_what_was_given_and_what_is_possible(
    family: str, dtype: str, given: dict[str, object], field: str, says: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        KernelSpec.of(family, dtype, **given)  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "sizes", "field"),
    [
        ("attention", {"batch": 1, "heads": 5, "kv_heads": 2, "q_len": 1, "kv_len": 8, "head_dim": 64}, "heads"),
        ("attention", {"batch": 1, "heads": 4, "kv_heads": 2, "q_len": 9, "kv_len": 8, "head_dim": 64}, "kv_len"),
        ("moe", {"tokens": 1, "hidden": 8, "inter": 8, "topk": 9, "experts": 8}, "topk"),
        ("conv2d", {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 2, "width": 9, "kernel": 3}, "height"),
    ],
)
def test_impossible_combinations_are_refused(family: str, sizes: dict[str, int], field: str) -> None:
    with pytest.raises(SpecError) as refusal:
        KernelSpec.of(family, "fp32", **sizes)
    assert refusal.value.field == field


def test_every_family_is_whole() -> None:
    assert set(families()) == {
        "attention", "causal_conv1d", "conv2d", "copy", "cross_entropy", "elementwise", "embedding", "gemm",
        "latent_attention", "layernorm", "linear_attention", "moe", "optimizer", "quantize", "reduction", "rope", "softmax",
    }  # fmt: skip
    for name in families():
        family = get_family(name)
        assert family.doc, name
        assert "torch" in family.run, name
        assert set(family.ranges) <= set(family.dim_names), name
        assert len(family.model_shapes) >= 7, name
        assert all(dim.doc for dim in family.dims), name
