"""Which GPU cases are measured, in which order."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache

import numpy as np
import pytest
from kernelcast.collectors.gpu.plan.plan import HEAD_START, energy_cases, energy_order, gpu_plan
from kernelcast.collectors.gpu.plan.strata import GPU_LIMITS, ROUND, CoverageOrder, Limits, estimates
from kernelcast.collectors.gpu.plan.sweeps import SWEEPS
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec

H200 = catalogue().get("nvidia-h200-sxm-141gb")
CELLS = {(sweep.family, s.impl, s.dtype) for sweep in SWEEPS.values() for s in sweep.settings}
TILED = [
    KernelSpec.of("gemm", "bf16", impl="triton", config={"tile_m": tile}, m=512 + i, n=512, k=512)
    for i in range(200)
    for tile in (64, 128)
]


@cache
def planned() -> list[KernelSpec]:
    """A plan of all families; not when this file is read, which every worker does."""
    return gpu_plan(1500, 7, device=H200)


def _gemms(ms: tuple[int, ...], **settings: str) -> list[KernelSpec]:
    return [KernelSpec.of("gemm", "bf16", impl="torch", m=m, n=1024, k=1024, **settings) for m in ms]  # type: ignore[arg-type]


def test_equal_arguments_give_equal_plans_and_other_seeds_others() -> None:
    assert gpu_plan(1500, 7, device="h200") == planned()
    assert len(set(gpu_plan(1500, 8, device=H200)) & set(planned())) < 500


def test_as_many_different_cases_as_asked_all_within_the_limits() -> None:
    assert len({spec.case_id for spec in planned()}) == len(planned()) == 1500
    assert estimates(planned(), H200).within(GPU_LIMITS).all()


def test_a_short_campaign_covers_every_library_dtype_regime_and_cache() -> None:
    prefix, strata = planned()[:300], estimates(planned(), H200).strata
    assert {(spec.family, spec.impl, spec.dtype) for spec in prefix} == CELLS
    for margin in ("regime", "cache_state", "variant"):
        everywhere = Counter((s.family, getattr(s, margin)) for s in strata)
        early = {(s.family, getattr(s, margin)) for s in strata[:300]}
        assert {pair for pair, count in everywhere.items() if count >= 8} <= early, margin


def test_families_get_their_shares() -> None:
    counts = Counter(spec.family for spec in planned())
    for name, sweep in SWEEPS.items():
        assert counts[name] / len(planned()) == pytest.approx(sweep.share, rel=0.2), name


def test_sizes_do_not_drift_within_the_plan() -> None:
    seconds = np.log(estimates(planned(), H200).call_s)
    within_round = np.tile(np.arange(ROUND), len(planned()) // ROUND)
    assert abs(np.corrcoef(seconds, within_round)[0, 1]) < 0.1


def test_what_is_measured_is_not_planned_again_and_counts() -> None:
    gemms = [spec for spec in planned() if spec.family == "gemm"]
    again = gpu_plan(300, 7, device=H200, measured=planned())
    assert not {spec.case_id for spec in again} & {spec.case_id for spec in planned()}
    lopsided = gpu_plan(300, 7, device=H200, measured=gemms)
    assert not any(spec.family == "gemm" for spec in lopsided[:100])


def test_other_candidates_are_drawn_once_more_is_measured() -> None:
    few = {"families": ("copy",), "device": H200}
    first = gpu_plan(100, 7, **few)  # type: ignore[arg-type]
    second = gpu_plan(100, 7, measured=first, **few)  # type: ignore[arg-type]
    assert second == gpu_plan(100, 7, measured=first, **few)  # type: ignore[arg-type]
    assert len(second) == 100
    elsewhere = gpu_plan(1, 7, device=H200, families=("gemm",))
    assert gpu_plan(100, 7, measured=elsewhere, **few) != first  # type: ignore[arg-type]


def test_tiled_cases_come_after_the_head_start_in_their_own_order() -> None:
    plan = gpu_plan(800, 7, device=H200, tiled=TILED)
    places = [i for i, spec in enumerate(plan) if spec.impl == "triton"]
    assert len(plan) == 800
    assert [plan[i] for i in places] == TILED[:150]
    assert places[0] == HEAD_START + 3
    assert set(np.diff(places).tolist()) == {4}
    resumed = gpu_plan(800, 7, device=H200, tiled=TILED, measured=TILED[:50])
    assert next(spec for spec in resumed if spec.impl == "triton") == TILED[50]


def test_few_families_and_narrow_limits() -> None:
    plan = gpu_plan(200, 1, device=H200, families=("softmax", "copy"), limits=Limits(memory_b=1e6))
    assert {spec.family for spec in plan} == {"softmax", "copy"}
    assert estimates(plan, H200).memory_b.max() <= 1e6
    with pytest.raises(SpecError, match="no GPU sweep"):
        gpu_plan(10, 1, device=H200, families=("nonesuch",))


def test_planning_ten_thousand_cases_is_quick() -> None:
    began = time.process_time()
    assert len(gpu_plan(10_000, 1, device=H200)) == 10_000
    assert time.process_time() - began < 20


def test_the_unknown_comes_before_the_known_and_the_cheap_before_the_dear() -> None:
    near, far, known = _gemms((1100, 4000, 1024))
    strata = estimates([near, far, known], H200).strata

    def first(cost_s: tuple[float, float]) -> KernelSpec:
        order = CoverageOrder([near, far], [strata[0]] * 2, np.array(cost_s), np.random.default_rng(0),
                              measured=[(known, strata[0])])  # fmt: skip
        return [near, far][order.take(1)[0]]

    assert first((1.0, 1.0)) == far
    assert first((1.0, 100.0)) == near


def test_the_emptiest_stratum_comes_first() -> None:
    hot, cold = _gemms((2000, 3000)), _gemms((2000,), cache_state="cold")
    strata = estimates([*hot, *cold], H200).strata
    order = CoverageOrder([hot[0], cold[0]], [strata[0], strata[2]], np.ones(2), np.random.default_rng(0),
                          measured=[(hot[1], strata[0])])  # fmt: skip
    assert order.take(1) == [1]
    assert order.take(5) == [0]
    assert order.take(5) == []


def test_energy_cases_are_hot_stratified_and_stable() -> None:
    hot = [spec for spec in planned() if spec.cache_state == "hot"]
    chosen = energy_cases(planned(), device=H200)
    assert chosen <= {spec.case_id for spec in hot}
    strata = estimates(hot, H200).strata
    with_energy = {s for spec, s in zip(hot, strata, strict=True) if spec.case_id in chosen}
    assert with_energy == set(strata)
    many = [s for s, count in Counter(strata).items() if count >= 10]
    share = np.mean([spec.case_id in chosen for spec, s in zip(hot, strata, strict=True) if s in many])
    assert 0.08 < share < 0.3
    later = energy_cases([*planned(), *TILED], device=H200)
    assert chosen <= later
    assert energy_cases(planned(), device=H200, seed=1) != chosen
    assert energy_cases([], device=H200) == frozenset()
    with pytest.raises(ValueError, match="above 0"):
        energy_cases(planned(), device=H200, share=0.0)


def test_the_order_for_energy_covers_early_and_leaves_out_what_is_known() -> None:
    chosen = energy_cases(planned(), device=H200)
    specs = [spec for spec in planned() if spec.case_id in chosen]
    order = energy_order(specs, 3, device=H200)
    assert sorted(spec.case_id for spec in order) == sorted(chosen)
    assert order == energy_order(specs, 3, device=H200)
    assert {(s.family, s.impl, s.dtype) for s in order[:100]} == {(s.family, s.impl, s.dtype) for s in specs}
    assert not set(energy_order(specs, 3, device=H200, measured=specs[:40])) & set(specs[:40])
    assert energy_order([], 3, device=H200) == []
