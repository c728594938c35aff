"""What may be measured on a GPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from kernelcast.collectors.gpu.plan.model_shapes import MODEL_SHAPES
from kernelcast.collectors.gpu.plan.strata import GPU_LIMITS, estimates, materialises_scores, variant_class
from kernelcast.collectors.gpu.plan.sweeps import COLD_SHARE, SWEEPS, aligned, get_sweep, recurrence
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, families, get_family

H200 = catalogue().get("nvidia-h200-sxm-141gb")
Drawn = dict[str, list[tuple[KernelSpec, bool]]]


@cache
def drawn_of_all() -> Drawn:
    """Candidates of every sweep; not when this file is read, which every worker does."""
    return {
        name: [pair for setting in sweep.settings for pair in sweep.candidates(setting, 90, np.random.default_rng(3))]
        for name, sweep in SWEEPS.items()
    }


def test_sweeps_are_of_families_with_model_shapes_and_shares_add_up() -> None:
    assert set(SWEEPS) == set(MODEL_SHAPES) == set(families())
    assert sum(sweep.share for sweep in SWEEPS.values()) == pytest.approx(1.0)
    with pytest.raises(SpecError, match="no GPU sweep of 'nonesuch'"):
        get_sweep("nonesuch")


@pytest.mark.parametrize("name", SWEEPS)
def test_settings_are_different_and_of_known_variants(name: str) -> None:
    settings = [(s.impl, s.dtype, s.variant) for s in SWEEPS[name].settings]
    assert len(set(settings)) == len(settings)
    assert {variant for _, _, variant in settings} <= set(get_family(name).variants)


@pytest.mark.parametrize("name", SWEEPS)
def test_model_shapes_are_complete_possible_and_different(name: str) -> None:
    family = get_family(name)
    shapes = MODEL_SHAPES[name]
    assert len({tuple(sorted(sizes.items())) for sizes in shapes}) >= 0.95 * len(shapes)
    for sizes in shapes:
        assert set(sizes) == set(family.dim_names)
        assert not family.impossible(sizes)


@pytest.mark.parametrize("name", SWEEPS)
def test_candidates_span_their_ranges_with_odd_sizes(name: str) -> None:
    for dim, (low, high) in SWEEPS[name].ranges.items():
        sizes = [spec[dim] for spec, from_model in drawn_of_all()[name] if not from_model]
        assert max(sizes) <= 1.01 * high
        if high / low >= 64:
            assert max(sizes) / max(1, min(sizes)) > 30, dim
            assert any(size % 2 for size in sizes), dim


@pytest.mark.parametrize("name", SWEEPS)
def test_models_and_cold_caches_have_their_share(name: str) -> None:
    assert 0.1 < np.mean([from_model for _, from_model in drawn_of_all()[name]]) < 0.45
    assert np.mean([spec.cache_state == "cold" for spec, _ in drawn_of_all()[name]]) == pytest.approx(
        COLD_SHARE, abs=0.08
    )


def test_quantised_products_are_aligned_as_torch_demands() -> None:
    quantised = [spec for spec, _ in drawn_of_all()["gemm"] if spec.dtype in ("fp8", "int8")]
    assert {spec.dtype for spec in quantised} == {"fp8", "int8"}
    assert all(spec["n"] % 16 == spec["k"] % 16 == 0 and spec["batch"] == 1 for spec in quantised)
    assert min(spec["m"] for spec in quantised if spec.dtype == "int8") == 17


def test_batches_are_measured_as_batched_alone() -> None:
    assert all((spec["batch"] > 1) == (spec.variant == "batched") for spec, _ in drawn_of_all()["gemm"])


def test_batches_of_thousands_are_of_small_products() -> None:
    many = [spec for spec, from_model in drawn_of_all()["gemm"] if spec["batch"] > 256 and not from_model]
    assert max(spec["batch"] for spec in many) > 32768
    assert max(spec[name] for spec in many for name in "mnk") <= 128
    assert np.mean(estimates(many, H200).within(GPU_LIMITS)) > 0.5


def test_attention_backends_get_what_they_can_run() -> None:
    specs = [spec for spec, _ in drawn_of_all()["attention"]]
    assert all(s["heads"] == s["kv_heads"] for s in specs if s.impl == "torch-efficient")
    assert not any(s["window"] for s in specs if s.impl == "torch-flash" and s.variant == "prefill")
    assert not any(s.dtype == "fp32" for s in specs if s.impl in ("torch-flash", "torch-cudnn"))
    assert all((s["q_len"] == 1) == (s.variant == "decode") for s in specs)
    classes = {variant_class(s) for s in specs if s.impl == "torch"}
    assert classes == {"prefill", "prefill-grouped", "decode", "decode-grouped", "chunked", "window"}


def test_expert_widths_suit_grouped_products() -> None:
    for spec, _ in drawn_of_all()["moe"]:
        assert spec["inter"] % (8 * spec["tp"]) == spec["hidden"] % 8 == 0


def test_limits_leave_most_candidates_and_cut_the_rest() -> None:
    for name, drawn in drawn_of_all().items():
        specs = [spec for spec, _ in drawn]
        result = estimates(specs, H200)
        allowed = result.within(GPU_LIMITS)
        assert allowed.mean() > 0.8, name
        assert result.memory_b[allowed].max() <= 4e9
        assert result.call_s[allowed].max() <= 30e-3
    huge = KernelSpec.of("copy", "fp32", rows=2**18, cols=2**18)
    assert not estimates([huge], H200).within(GPU_LIMITS)[0]


def test_materialised_scores_are_counted() -> None:
    sizes = {"batch": 4, "heads": 64, "kv_heads": 64, "q_len": 4096, "kv_len": 4096, "head_dim": 64}
    math, flash = (KernelSpec.of("attention", "bf16", impl=impl, **sizes) for impl in ("torch-math", "torch-flash"))
    result = estimates([math, flash], H200)
    assert materialises_scores(math)
    assert result.memory_b[0] > 12 * 4 * 64 * 4096**2
    assert result.within(GPU_LIMITS).tolist() == [False, True]


def test_regimes_follow_the_bounds() -> None:
    specs = [KernelSpec.of("gemm", "bf16", impl="torch", **dict(zip("mnk", mnk, strict=True)))
             for mnk in ((16, 16, 16), (8192, 8192, 8192), (1, 16384, 16384))]  # fmt: skip
    assert [stratum.regime for stratum in estimates(specs, H200).strata] == ["launch", "compute", "memory"]


def test_the_recurrence_in_columns_fills_the_square() -> None:
    points = recurrence(256, 2, np.random.default_rng(0))
    cells, counts = np.unique((points * 8).astype(int) @ [8, 1], return_counts=True)
    assert points.shape == (256, 2)
    assert (len(cells), counts.max() <= 7) == (64, True)


def test_aligned_sizes_never_vanish() -> None:
    assert [aligned(size, 16) for size in (1, 23, 25, 4096)] == [16, 16, 32, 4096]
