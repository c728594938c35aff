"""The IREE runner compiles, runs and checks what a configuration names; the tiled plan is legal and repeatable."""

from __future__ import annotations

import time

import numpy as np
import pytest
from kernelcast.collectors.cpu.plans import iree_gemm_tiles as tiled
from kernelcast.collectors.cpu.plans import iree_texts
from kernelcast.collectors.cpu.plans.iree_conv_tiles import tiled_conv_plan
from kernelcast.collectors.cpu.plans.iree_gemm_tiles import tiled_gemm_plan
from kernelcast.collectors.runner import Prepared, UnsupportedCaseError, runners
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.cpu_block import MAX_FILLED, MAX_UNROLLED

TILES = {"tile_m": 16, "tile_n": 32, "inner_m": 4, "inner_n": 16, "inner_k": 2}


def gemm(m: int = 33, n: int = 47, k: int = 29, **config: int) -> KernelSpec:
    return KernelSpec.of("gemm", "fp32", impl="iree", threads=1, config=config, m=m, n=n, k=k)


CONV_TILES = {"tile_h": 2, "tile_w": 8, "tile_c": 16, "inner_w": 4, "inner_c": 16, "inner_k": 1}


def conv(variant: str = "nhwc", padding: int = 0, **config: int) -> KernelSpec:
    return KernelSpec.of(
        "conv2d", "fp32", variant=variant, impl="iree", threads=1, config=config, batch=1, in_channels=3, out_channels=24,
        height=11, width=13, kernel=3, stride=1, padding=padding,
    )  # fmt: skip


def prepare(spec: KernelSpec) -> Prepared:
    pytest.importorskip("iree.compiler")
    pytest.importorskip("iree.runtime")
    return runners()["iree"].prepare(spec)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"data_tiling": 1}, TILES, TILES | {"tile_k": 8}], ids=str)
def test_every_kind_of_configuration_gives_the_right_product(config: dict[str, int]) -> None:
    # prepare() itself compares with numpy; the sizes are ones that no tile divides.
    prepared = prepare(gemm(**config))
    prepared.call()
    assert 0.0 < prepared.setup_s < 15.0


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"data_tiling": 1}, TILES], ids=str)
@pytest.mark.parametrize("variant", ["nt", "tn", "batched"])
def test_every_operand_layout_gives_the_right_product(variant: str, config: dict[str, int]) -> None:
    batch = 3 if variant == "batched" else 1
    spec = KernelSpec.of("gemm", "fp32", variant=variant, impl="iree", config=config, batch=batch, m=33, n=47, k=29)
    prepare(spec).call()  # prepare() itself compares with numpy


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, CONV_TILES], ids=str)
@pytest.mark.parametrize("variant", ["", "nhwc"])
def test_a_convolution_takes_its_configuration_and_gives_the_right_result(variant: str, config: dict[str, int]) -> None:
    # prepare() itself compares with numpy.
    prepare(conv(variant, **config)).call()


def test_a_convolution_that_is_lowered_otherwise_is_unsupported() -> None:
    with pytest.raises(UnsupportedCaseError, match="does not lower"):
        iree_texts.with_conv_config("func.func @kernel() { return }", conv(**CONV_TILES))


def test_a_call_overwrites_the_result_rather_than_adding_to_it() -> None:
    pytest.importorskip("iree.runtime")
    from kernelcast.collectors.cpu.runners import iree

    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    compiled = iree._compile(iree_texts.matmul_mlir(gemm(m=3, n=5, k=4)))
    call, result = iree._bind(*iree._load(compiled), a, b, np.zeros((3, 5), np.float32))
    call()
    call()
    assert (result() == 4.0).all()


def test_configurations_change_the_kernel_and_not_its_operands() -> None:
    from kernelcast.collectors.cpu.runners import iree

    assert "vector_common_parallel = [4, 16, 0]" in iree_texts.matmul_mlir(gemm(**TILES))
    assert "compilation_info" not in iree_texts.matmul_mlir(gemm())
    assert "cache_reduction" not in iree_texts.matmul_mlir(gemm(**TILES))
    for default, tuned in zip(iree._operands(gemm()), iree._operands(gemm(**TILES)), strict=True):
        assert (default == tuned).all()


def test_a_wrong_product_is_an_error() -> None:
    from kernelcast.collectors.cpu.runners import iree

    right = np.ones((2, 2), np.float32)
    iree.check_result(right + np.float32(1e-6), right)
    for wrong in (right * np.float32(1.001), np.full_like(right, np.nan)):
        with pytest.raises(ArithmeticError, match="wrong result"):
            iree.check_result(wrong, right)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (KernelSpec.of("softmax", "fp32", impl="iree", threads=1, rows=4, cols=4), "not softmax"),
        (
            KernelSpec.of("gemm", "fp32", impl="iree", threads=1, batch=2, m=4, n=4, k=4),
            "batch 1, or the variant batched",
        ),
        (KernelSpec.of("gemm", "fp32", impl="iree", threads=1, variant="bias", m=4, n=4, k=4), "variants of them"),
        (KernelSpec.of("gemm", "bf16", impl="iree", threads=1, m=4, n=4, k=4), "fp32, not bf16"),
        (conv(padding=1), "without padding"),
        (conv(**CONV_TILES | {"inner_k": 0}), "inner_k is not"),
        (gemm(warps=4), "got warps"),
        (gemm(**TILES, data_tiling=1), "data_tiling=1 alone"),
        (gemm(tile_m=16), "tile_n is not"),
        (gemm(**TILES | {"inner_k": 0}), "inner_k is not"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_cases_say_why(spec: KernelSpec, reason: str) -> None:
    with pytest.raises(UnsupportedCaseError, match=reason):
        runners()["iree"].prepare(spec)


def test_what_the_compiler_refuses_is_unsupported_with_its_own_words() -> None:
    pytest.importorskip("iree.compiler")
    from kernelcast.collectors.cpu.runners import iree

    with pytest.raises(UnsupportedCaseError, match=r"iree-compile: .*nonsense"):
        iree._compile("func.func @matmul() { nonsense }")


def test_a_compiler_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelcast.collectors.cpu.runners import iree

    monkeypatch.setattr(iree, "compiler", lambda: ("sleep", "600"))
    monkeypatch.setattr(iree, "_FLAGS", ())
    monkeypatch.setattr(iree, "COMPILE_LIMIT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(UnsupportedCaseError, match=r"longer than 0\.2 s"):
        iree._compile("")
    assert time.monotonic() - began < 60


def test_the_plan_is_repeatable_and_never_repeats_a_case() -> None:
    plan = tiled_gemm_plan(6, 10, seed=3)
    assert plan == tiled_gemm_plan(6, 10, seed=3)
    assert plan != tiled_gemm_plan(6, 10, seed=4)
    assert len({spec.case_id for spec in plan}) == len(plan) == 6 * (10 + 2)


def test_the_plan_keeps_its_limits_and_has_both_baselines_for_every_shape() -> None:
    plan = tiled_gemm_plan(32, 50, seed=0)
    shapes = {(spec.variant, spec.dims) for spec in plan}
    assert len(shapes) == 32
    for baseline in ((), (("data_tiling", 1),)):
        assert {(spec.variant, spec.dims) for spec in plan if spec.config == baseline} == shapes
    for spec in plan:
        shape = tiled.Shape(spec["m"], spec["n"], spec["k"], spec.variant, spec["batch"])
        assert (spec.impl, spec.threads, spec.cache_state) == ("iree", 1, "hot")
        assert (spec["batch"] > 1) == (spec.variant == "batched")
        assert tiled.FLOPS[0] <= shape.flops <= tiled.FLOPS[1]
        if "tile_m" not in (config := dict(spec.config)):
            continue
        assert tiled.is_sensible(shape, config)
        for dim in ("m", "n"):
            assert config[f"tile_{dim}"] % config[f"inner_{dim}"] == 0
        if "tile_k" in config:
            assert config["tile_k"] % config["inner_k"] == 0
            assert config["tile_k"] < shape.k
            assert config["tile_m"] * config["tile_n"] <= MAX_FILLED


def test_the_plan_holds_odd_sizes_and_sizes_of_models() -> None:
    shapes = {spec.dims for spec in tiled_gemm_plan(32, 1, seed=0)}
    sizes = {size for shape in shapes for _, size in shape}
    assert sum(size % 2 for size in sizes) >= 8
    assert {768, 3072} & sizes


def test_the_plan_of_convolutions_keeps_its_limits_and_has_the_default_of_every_shape() -> None:
    plan = tiled_conv_plan(24, 12, seed=0)
    assert plan == tiled_conv_plan(24, 12, seed=0)
    assert len({spec.case_id for spec in plan}) == len(plan)
    shapes = {(spec.variant, spec.dims) for spec in plan}
    assert len(shapes) == 24
    assert {variant for variant, _ in shapes} == {"", "nhwc"}
    assert {(spec.variant, spec.dims) for spec in plan if not spec.config} == shapes
    for config in (dict(spec.config) for spec in plan if spec.config):
        assert config["tile_w"] % config["inner_w"] == config["tile_c"] % config["inner_c"] == 0
        assert config["inner_w"] * config["inner_c"] * config["inner_k"] <= MAX_UNROLLED
