from __future__ import annotations

import time

import numpy as np
import pytest
from kernelcast.datasets.rows.splits import (
    column_hashes,
    devices_left_out,
    held_out_device,
    held_out_region,
    held_out_shapes,
    mixed,
    shape_folds,
    shape_hashes,
    word_hash,
)
from kernelcast.features.batch.cases import Cases
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec


def gemms(*sizes: tuple[int, int, int], devices: list[str] | None = None) -> Cases:
    specs = [KernelSpec.of("gemm", "fp32", m=m, n=n, k=k) for m, n, k in sizes]
    return Cases.from_specs(specs, devices or ["d"] * len(specs))


GRID = gemms(*((m, n, 64) for m in range(1, 41) for n in range(1, 51)))


def test_hashes_are_pinned():
    # Changing these changes every split and every cross-validated number that was ever published.
    # The first two are published test vectors of FNV-1a and of splitmix64 seeded with 0.
    assert word_hash("foobar") == 0x85944171F73967E8
    assert mixed(np.array([0], dtype=np.uint64)).tolist() == [0xE220A8397B1DCDAF]
    assert column_hashes([np.array([1.0, 2.0]), np.array([3.0, 3.0])], 2, "x").tolist() == PINNED_COLUMNS
    assert shape_hashes(gemms((1, 2, 3), (4096, 4096, 2**40))).tolist() == PINNED_SHAPES


PINNED_COLUMNS = [13024133799582127872, 4501775363396999004]
PINNED_SHAPES = [2457035186795549383, 7462123185190187107]


def test_splits_are_pinned():
    assert np.flatnonzero(held_out_shapes(GRID, 0.005)).tolist() == PINNED_HELD_OUT
    assert shape_folds(GRID, 5)[:20].tolist() == PINNED_FOLDS


PINNED_HELD_OUT = [77, 213, 625, 718, 792, 809, 848, 900, 1013, 1662, 1702, 1713, 1754]
PINNED_FOLDS = [1, 4, 4, 3, 4, 2, 4, 4, 3, 0, 1, 3, 0, 1, 0, 3, 1, 0, 3, 4]


def test_one_shape_never_lands_on_two_sides():
    rng = np.random.default_rng(0)
    specs = [
        KernelSpec.of("gemm", dtype, m=m, n=8, k=8, impl=impl, threads=threads, cache_state=cache, config=config,
                      variant=variant)
        for m in rng.integers(1, 2**20, 60).tolist()
        for dtype, impl, threads, cache, config, variant in (
            ("fp32", "", None, "hot", {}, ""), ("bf16", "torch", 4, "cold", {"tile_m": 64}, "bias")
        )
    ]  # fmt: skip
    cases = Cases.from_specs(specs, ["a", "b"] * 60)
    for column in (held_out_shapes(cases, 0.3), shape_folds(cases, 4), held_out_region(cases, 0.3)):
        assert (column[::2] == column[1::2]).all()
        assert len(set(column.tolist())) > 1


def test_families_are_hashed_apart():
    specs = [KernelSpec.of(family, "fp32", rows=4, cols=8) for family in ("softmax", "copy")]
    assert shape_hashes(Cases.from_specs(specs[:1], ["d"])) != shape_hashes(Cases.from_specs(specs[1:], ["d"]))


def test_adding_rows_moves_no_other_row():
    half = GRID.take(slice(0, 700))
    assert (held_out_shapes(GRID, 0.2)[:700] == held_out_shapes(half, 0.2)).all()
    assert (shape_folds(GRID, 7)[:700] == shape_folds(half, 7)).all()


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_share_is_kept_and_seeds_differ(share):
    masks = [held_out_shapes(GRID, share, seed) for seed in range(3)]
    for mask in masks:
        assert mask.mean() == pytest.approx(share, abs=0.03)
    assert (masks[0] != masks[1]).any()
    assert (masks[1] != masks[2]).any()


def test_folds_are_even_and_grouped():
    folds = shape_folds(GRID, 5)
    assert sorted(set(folds.tolist())) == [0, 1, 2, 3, 4]
    assert np.bincount(folds).min() > 0.15 * len(GRID)
    assert (folds != shape_folds(GRID, 5, seed=1)).any()


def test_settings_of_a_sweep_of_one_shape_are_dealt_and_those_of_several_shapes_are_not():
    settings = [{"tile_m": m, "tile_n": n} for m in (16, 32, 64, 128) for n in (8, 16, 32, 64, 128)]

    def swept(*sizes: int, impl: str) -> list[KernelSpec]:
        return [
            KernelSpec.of("gemm", "fp32", m=size, n=64, k=64, impl=impl, config=config)
            for size in sizes for config in settings
        ]  # fmt: skip

    specs = [*swept(64, impl="clblast"), *swept(64, 128, impl="triton")]
    folds = shape_folds(Cases.from_specs(specs, ["d"] * len(specs)), 4)
    assert len(set(folds[:20].tolist())) == 4
    assert all(len(set(folds[i : i + 20].tolist())) == 1 for i in (20, 40))
    few = swept(64, impl="clblast")[:19]
    assert len(set(shape_folds(Cases.from_specs(few, ["d"] * len(few)), 4).tolist())) == 1


def test_the_region_is_the_largest_work():
    mask = held_out_region(GRID, 0.05)
    work = GRID.sizes["m"] * GRID.sizes["n"]
    assert mask.sum() == 100
    assert work[mask].min() >= work[~mask].max()


def test_the_region_of_a_family_without_arithmetic_is_by_bytes():
    specs = [KernelSpec.of("copy", "fp32", rows=rows, cols=8) for rows in (5, 900, 7, 20)]
    assert held_out_region(Cases.from_specs(specs, ["d"] * 4), 0.25).tolist() == [False, True, False, False]


def test_few_shapes():
    assert held_out_region(gemms((1, 1, 1)), 0.5).tolist() == [False]
    assert held_out_region(gemms((1, 1, 1), (2, 2, 2)), 0.05).tolist() == [False, True]


def test_devices():
    cases = gemms((1, 1, 1), (2, 2, 2), (3, 3, 3), devices=["b", "a", "b"])
    assert [(name, mask.tolist()) for name, mask in devices_left_out(cases)] == [
        ("a", [False, True, False]),
        ("b", [True, False, True]),
    ]
    with pytest.raises(SpecError, match="cannot hold out 'c': the rows are of a, b"):
        held_out_device(cases, "c")
    assert list(devices_left_out(gemms((1, 1, 1)))) == []


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_shares_out_of_range(share):
    with pytest.raises(SpecError, match="between 0 and 1"):
        held_out_shapes(GRID, share)
    with pytest.raises(SpecError, match="between 0 and 1"):
        held_out_region(GRID, share)
    with pytest.raises(SpecError, match="at least 2"):
        shape_folds(GRID, 1)


def test_a_hundred_thousand_rows_take_a_moment():
    cases = GRID.take(np.arange(100_000) % len(GRID))
    start = time.process_time()
    held_out_shapes(cases)
    held_out_region(cases)
    shape_folds(cases)
    assert time.process_time() - start < 3
