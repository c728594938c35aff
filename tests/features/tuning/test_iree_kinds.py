"""What IREE's kinds know of tiles: numbers for any task, what makes a tile poor, and rows of the store as tasks and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.collectors.cpu.plans.iree_gemm_tiles import Shape, is_sensible
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.kind import BOUND, Candidates, Task, get_kind
from kernelcast.features.tuning.kinds.iree_contraction import TILES, sensible

DEVICE = "amd-epyc-9005-vm-2c"
PRODUCT = {"batch": 1, "m": 256, "n": 256, "k": 256, "a_transposed": 0, "b_transposed": 0, "threads": 1}
CONVOLUTION = {"batch": 1, "out_h": 28, "out_w": 28, "out_c": 64, "kernel_h": 3, "kernel_w": 3, "in_c": 32, "stride": 1,
               "layout": 0, "threads": 1}  # fmt: skip
TILE = {"tile_m": 64, "tile_n": 64, "inner_m": 8, "inner_n": 32, "inner_k": 4}
CONV_TILE = {"tile_h": 4, "tile_w": 28, "tile_c": 64, "inner_w": 7, "inner_c": 32, "inner_k": 4}
SIZES = {"iree-contraction": PRODUCT, "iree-conv2d": CONVOLUTION}


def features(
    kind: str, sizes: Mapping[str, int], *configs: Mapping[str, int], device: str = DEVICE
) -> dict[str, np.ndarray]:
    """Every feature of configurations, by name."""
    own = get_kind(kind)
    tried = Candidates.of(Task(kind, SIZES[kind] | sizes, "fp32", device), configs)
    raw = {name: float(value) for name, value in tried.task.sizes.items()}
    raw |= own.facts_of(catalogue().get(device), "fp32")
    raw |= {name: tried.knobs.get(name, np.zeros(len(tried), np.int64)).astype(float) for name in own.knobs}
    formula = own.formula()
    return dict(zip(formula.names, formula.columns(raw, len(tried)).T, strict=True))


def expected(kind: str, sizes: Mapping[str, int], *configs: Mapping[str, int]) -> list[float]:
    return features(kind, sizes, *configs)["expected"].tolist()


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7919, 2**40])
def test_features_are_numbers_whatever_the_sizes(kind: str, size: int) -> None:
    tile = TILE if kind == "iree-contraction" else CONV_TILE
    packed = [{"data_tiling": 1}] if kind == "iree-contraction" else []
    huge = dict.fromkeys(tile, 2**40)
    for name in SIZES[kind]:
        result = features(kind, {name: size}, {}, tile, huge, dict.fromkeys(tile, 1), *packed)
        assert all(np.isfinite(column).all() for column in result.values()), name
        assert (result[BOUND] > 0).all()


def test_the_bound_of_a_product_is_its_arithmetic_on_the_cores_it_may_use() -> None:
    peak = get_kind("iree-contraction").facts_of(catalogue().get(DEVICE), "fp32")["peak_flops_per_s"]
    item, two = (features("iree-contraction", {"threads": n}, TILE)[BOUND][0] for n in (1, 2))
    assert item == pytest.approx(2 * 256**3 / peak)
    assert item == pytest.approx(2 * two)


@pytest.mark.parametrize(
    ("device", "vector_b", "registers", "l1_kib"),
    [
        (DEVICE, 64, 32, 48),
        ("amd-epyc-9654", 64, 32, 32),
        ("amd-epyc-9004-vm-2c", 64, 32, 32),
        ("amd-epyc-7003-vm-2c", 32, 16, 32),
        ("intel-core-ultra-9-285k", 32, 16, 48),
        ("intel-xeon-emerald-rapids-vm-2c", 64, 32, 48),
        ("aws-graviton2", 16, 32, 64),
        ("aws-graviton3", 32, 32, 64),
        ("nvidia-grace-cpu", 16, 32, 64),
    ],
)
def test_vectors_and_first_cache_follow_from_the_architecture(
    device: str, vector_b: int, registers: int, l1_kib: int
) -> None:
    facts = get_kind("iree-conv2d").facts_of(catalogue().get(device), "fp32")
    assert (facts["vector_b"], facts["registers"], facts["l1_b"]) == (vector_b, registers, 1024 * l1_kib)


def test_vectors_of_an_unknown_architecture_follow_from_its_peak() -> None:
    facts = [
        get_kind("iree-conv2d").facts_of(replace(catalogue().get(name), architecture="newest"), "fp32")
        for name in (DEVICE, "amd-epyc-7003-vm-2c")
    ]
    assert [(each["vector_b"], each["registers"]) for each in facts] == [(64, 32), (32, 16)]
    assert facts[0]["l2_b"] == 2**20


@pytest.mark.parametrize("kind", SIZES)
def test_a_gpu_has_no_tiles_of_a_cpu(kind: str) -> None:
    with pytest.raises(SpecError, match="is a gpu"):
        get_kind(kind).facts_of(catalogue().get("nvidia-t4"), "fp32")


@pytest.mark.parametrize(
    ("what", "sizes", "worse"),
    [
        ("sums that spill", {}, {"inner_m": 16, "inner_n": 64}),
        ("one row", {}, {"inner_m": 1}),
        ("half a vector", {}, {"inner_n": 8}),
        ("48 columns", {"n": 384}, {"inner_n": 48, "tile_n": 192}),
        ("a remainder that is known too late", {"n": 264}, {"inner_k": 1}),
        ("slices that leave a part", {"k": 256}, {"tile_k": 200}),
    ],
)
def test_what_makes_a_product_slow_is_expected_to(
    what: str, sizes: Mapping[str, int], worse: Mapping[str, int]
) -> None:
    usual, poor = expected("iree-contraction", sizes, TILE, TILE | worse)
    assert usual < poor, what


def test_a_remainder_of_a_block_that_covers_the_columns_costs_less_than_one_that_is_known_too_late() -> None:
    step = {"inner_k": 1, "inner_m": 6}
    covering, open_ = expected("iree-contraction", {"n": 37}, TILE | step, TILE | step | {"tile_n": 32})
    assert covering < open_ / 2


def test_irees_own_choice_is_poor_where_sizes_have_no_divisors() -> None:
    own, prime, packed = (
        expected("iree-contraction", {"m": m, "n": n}, config)[0]
        for m, n, config in ((256, 256, {}), (257, 257, {}), (257, 257, {"data_tiling": 1}))
    )
    assert prime > 20 * own
    assert packed < 2 * own


def test_a_core_without_avx_512_has_half_the_lanes_and_registers_and_other_tiles_of_irees_own() -> None:
    tiles = {"inner_m": 8, "inner_n": 16}
    wide, narrow = (
        features("iree-contraction", {"n": 257}, {}, TILE | tiles, device=name)
        for name in (DEVICE, "amd-epyc-7003-vm-2c")
    )
    assert (wide["lanes"][0], narrow["lanes"][0]) == (16, 8)
    assert (wide["spilled"][1], narrow["spilled"][1]) == (0, 8 * 2 + 2 + 1 - 16)
    # IREE takes a divisor of the columns with AVX-512, and one vector with AVX2.
    assert (wide["inner_n"][0], narrow["inner_n"][0]) == (1, 8)


def test_irees_own_channels_of_a_convolution_are_fewer_without_avx_512() -> None:
    wide, narrow = (
        features("iree-conv2d", {"out_c": 64}, {}, device=name)["inner_c"][0]
        for name in (DEVICE, "amd-epyc-7003-vm-2c")
    )
    assert (wide, narrow) == (16, 8)


@pytest.mark.parametrize(
    ("what", "sizes", "worse"),
    [
        ("columns left over", {}, {"tile_w": 16, "inner_w": 6}),
        ("channels left over", {"out_c": 72}, {}),
        ("48 channels", {"out_c": 192}, {"inner_c": 48, "tile_c": 192}),
        ("one column", {}, {"inner_w": 1}),
    ],
)
def test_what_makes_a_convolution_slow_is_expected_to(
    what: str, sizes: Mapping[str, int], worse: Mapping[str, int]
) -> None:
    whole = expected("iree-conv2d", sizes if worse else {}, CONV_TILE)[0]
    assert whole < expected("iree-conv2d", sizes, CONV_TILE | worse)[0], what


def test_columns_that_are_strided_over_cost_more_where_they_are_the_lanes() -> None:
    planar = {"layout": 1, "out_w": 16}
    config = CONV_TILE | {"tile_w": 16, "inner_w": 16, "inner_c": 8}
    assert expected("iree-conv2d", planar, config)[0] * 4 < expected("iree-conv2d", planar | {"stride": 2}, config)[0]


SPECS = [
    KernelSpec.of("gemm", "fp32", impl="iree", threads=1, m=33, n=65, k=129),
    KernelSpec.of("gemm", "fp32", impl="iree", threads=2, config={"data_tiling": 1}, m=33, n=65, k=129),
    KernelSpec.of("gemm", "fp32", variant="nt", impl="iree", threads=1, config=TILE, m=33, n=65, k=129),
    KernelSpec.of("gemm", "fp32", variant="tn", impl="iree", threads=1, config=TILE | {"tile_k": 32}, m=33, n=65, k=129),
    KernelSpec.of("gemm", "fp32", variant="batched", impl="iree", threads=1, config=TILE, batch=4, m=33, n=65, k=129),
    KernelSpec.of("conv2d", "fp32", variant="nhwc", impl="iree", threads=1, config=CONV_TILE, batch=2, in_channels=8,
                  out_channels=16, height=33, width=17, kernel=5, stride=2),
    KernelSpec.of("conv2d", "fp32", impl="iree", threads=1, batch=1, in_channels=8, out_channels=16, height=9, width=9,
                  kernel=3),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_measured_spec_is_a_task_and_a_configuration_and_back(spec: KernelSpec) -> None:
    kind = get_kind("iree-contraction" if spec.family == "gemm" else "iree-conv2d")
    result = kind.task_of(spec, DEVICE)
    assert result is not None
    task, config = result
    assert kind.spec_of(task, config) == spec


@pytest.mark.parametrize(
    "spec",
    [
        KernelSpec.of("gemm", "fp32", impl="torch", threads=1, m=33, n=65, k=129),
        KernelSpec.of("gemm", "fp32", impl="iree", m=33, n=65, k=129),
        KernelSpec.of("gemm", "fp32", variant="bias", impl="iree", threads=1, m=33, n=65, k=129),
        KernelSpec.of("gemm", "fp32", impl="iree", threads=1, config={"tile_m": 8}, m=33, n=65, k=129),
        KernelSpec.of("gemm", "fp32", impl="iree", threads=1, config=TILE | {"data_tiling": 1}, m=33, n=65, k=129),
        KernelSpec.of("conv2d", "fp32", impl="iree", threads=1, batch=1, in_channels=8, out_channels=16, height=9, width=9,
                      kernel=3, padding=1),
        KernelSpec.of("softmax", "fp32", impl="iree", threads=1, rows=4, cols=4),
    ],
    ids=str,
)  # fmt: skip
def test_other_rows_are_of_no_kind(spec: KernelSpec) -> None:
    assert all(get_kind(kind).task_of(spec, DEVICE) is None for kind in SIZES)


def test_a_task_that_no_spec_can_say_has_none() -> None:
    product, convolution = get_kind("iree-contraction"), get_kind("iree-conv2d")
    both = Task("iree-contraction", PRODUCT | {"a_transposed": 1, "b_transposed": 1}, "fp32", DEVICE)
    batched = Task("iree-contraction", PRODUCT | {"b_transposed": 1, "batch": 2}, "fp32", DEVICE)
    oblong = Task("iree-conv2d", CONVOLUTION | {"kernel_h": 1}, "fp32", DEVICE)
    assert product.spec_of(both, TILE) is product.spec_of(batched, TILE) is convolution.spec_of(oblong, {}) is None


def test_what_is_sensible_is_what_campaigns_measure() -> None:
    rng = np.random.default_rng(0)
    sizes = PRODUCT | {"m": 3000, "n": 2000}
    columns = {name: rng.choice([1, 2, 8, 16, 48, 64], 400) for name in TILES} | {"tile_k": np.zeros(400, np.int64)}
    rows = [{name: int(column[i]) for name, column in columns.items()} for i in range(400)]
    wanted = [is_sensible(Shape(sizes["m"], sizes["n"], sizes["k"]), row) for row in rows]
    assert sensible(sizes, columns).tolist() == wanted
    assert 0 < sum(wanted) < 400


@pytest.mark.parametrize(
    "sizes", [{}, {"m": 5, "n": 197, "k": 2450}, {"m": 1, "n": 8960}, {"batch": 16, "m": 77}], ids=str
)
def test_candidates_of_a_product_are_sensible_and_can_be_measured(sizes: Mapping[str, int]) -> None:
    kind = get_kind("iree-contraction")
    task = Task(kind.name, PRODUCT | sizes, "fp32", DEVICE)
    space, again = kind.space(task), kind.space(task)
    assert all((space.knobs[name] == again.knobs[name]).all() for name in kind.knobs)
    assert 100 < len(space) <= 300
    tiles = {name: space.knobs[name][2:] for name in TILES}
    assert sensible(task.sizes, tiles).all()
    assert all(kind.spec_of(task, space.config(i)) is not None for i in range(len(space)))
    # What was best for products like these: as many sums as registers hold, in whole vectors.
    assert {16, 32, 64} <= set(tiles["inner_n"].tolist())
