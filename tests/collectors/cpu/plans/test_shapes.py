"""Which cases a campaign measures."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from kernelcast.collectors.cpu.plans.shapes import CPU_LIMITS, Limits, additive_recurrence, plan
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import View, families, get_family

NAMES = tuple(families())
EACH = 100
PLAN = plan(NAMES, EACH * len(NAMES), seed=7, threads=(1, 2))


def test_equal_arguments_give_equal_plans_and_other_seeds_others() -> None:
    assert plan(NAMES, EACH * len(NAMES), seed=7, threads=(1, 2)) == PLAN
    assert set(plan(NAMES, EACH * len(NAMES), seed=8, threads=(1, 2))) != set(PLAN)


def test_as_many_different_cases_as_asked_shared_equally() -> None:
    assert len({spec.case_id for spec in PLAN}) == len(PLAN) == EACH * len(NAMES)
    assert set(Counter(spec.family for spec in PLAN).values()) == {EACH}


def test_every_setting_is_covered() -> None:
    settings = Counter((spec.dtype, spec.threads, spec.cache_state) for spec in PLAN)
    assert set(settings) == set(itertools.product(("fp32", "bf16"), (1, 2), ("hot", "cold")))
    assert min(settings.values()) >= 30
    for name in NAMES:
        assert {spec.variant for spec in PLAN if spec.family == name} == set(get_family(name).variants)


def test_shapes_are_repeated_across_settings() -> None:
    twins = Counter((spec.shape_id, spec.variant) for spec in PLAN)
    assert np.mean(list(twins.values())) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_not_only_powers_of_two_and_span_their_range(name: str) -> None:
    family = get_family(name)
    for dim, (low, high) in family.ranges.items():
        sizes = {spec[dim] for spec in PLAN if spec.family == name}
        if high - low < 16 or dim == "head_dim":
            continue
        assert any(size & (size - 1) for size in sizes), dim
        assert max(sizes) / max(1, min(sizes)) > 8, dim


def test_model_shapes_and_space_filling_ones_are_both_there() -> None:
    for name in NAMES:
        known = {tuple(sorted(shape.items())) for shape in get_family(name).model_shapes}
        met = {spec.shape_id: tuple(sorted(spec.dims)) in known for spec in PLAN if spec.family == name}
        assert 0.1 <= np.mean(list(met.values())) <= 0.6, name


def test_no_case_is_beyond_the_limits() -> None:
    for spec in PLAN:
        assert CPU_LIMITS.allow(get_family(spec.family), View.of(spec))


def test_small_and_medium_cases_are_both_plenty() -> None:
    def rough_s(name: str) -> list[float]:
        family, views = get_family(name), [View.of(spec) for spec in PLAN if spec.family == name]
        return [max(float(family.flops(v)) / 5e10, float(family.footprint_b(v)) / 1.5e10) for v in views]

    times = np.array([time for name in NAMES for time in rough_s(name)])
    assert np.mean(times < 2e-5) > 0.1
    assert np.mean(times > 1e-3) > 0.15


def test_cases_that_share_operands_stand_together() -> None:
    key = [(spec.shape_id, spec.variant, spec.dtype, spec.threads) for spec in PLAN]
    runs = len(list(itertools.groupby(key)))
    assert runs == len(set(key))


def test_the_recurrence_fills_the_square() -> None:
    points = np.array(list(itertools.islice(additive_recurrence(2, np.zeros(2)), 256)))
    assert points.shape == (256, 2)
    cells, counts = np.unique((points * 8).astype(int) @ [8, 1], return_counts=True)
    # 256 random points would leave a cell of 64 empty now and then and crowd others with ten.
    assert len(cells) == 64
    assert counts.max() <= 7


def test_too_many_cases_within_too_tight_limits_is_an_error() -> None:
    with pytest.raises(ValueError, match="has only"):
        plan(["gemm"], 100, seed=1, limits=Limits(matrix_flops=10.0))
    with pytest.raises(SpecError, match="no kernel family"):
        plan(["nonesuch"], 10, seed=1)
