from collections import Counter, defaultdict

import pytest
from kernelcast.collectors.gpu.kernels.compile_ahead import distinct_jobs
from kernelcast.collectors.gpu.plan.tiled_kernels import (
    MAX_FLOPS,
    ROWS_PER_BINARY,
    SHARED_LIMIT_B,
    GemmCode,
    tiled_gpu_plan,
)
from kernelcast.collectors.gpu.runners.cupy import tile_of
from kernelcast.collectors.gpu.runners.triton import triton_steps
from kernelcast.features.kernel import View, get_family


@pytest.fixture(scope="module")
def plan():
    return tiled_gpu_plan(2000, 1)


def test_has_as_many_different_cases_as_asked_in_their_shares(plan):
    assert len(plan) == len(set(plan)) == 2000
    kinds = Counter((spec.impl, spec.family) for spec in plan)
    assert kinds == {("triton", "gemm"): 1200, ("triton", "attention"): 500, ("cupy-tiled", "gemm"): 300}


def test_every_case_is_one_its_kernel_runs(plan):
    for spec in plan:
        assert tile_of(spec) if spec.impl == "cupy-tiled" else triton_steps(spec).steps


def test_is_the_same_for_the_same_seed_and_only_for_it(plan):
    assert tiled_gpu_plan(2000, 1) == plan
    assert tiled_gpu_plan(2000, 2) != plan
    assert tiled_gpu_plan(300, [1, 5]) == tiled_gpu_plan(300, [1, 5]) != tiled_gpu_plan(300, [1, 6])


def test_is_economical_in_binaries(plan):
    rows = sum(spec.impl == "triton" for spec in plan)
    assert 10 <= rows / len(distinct_jobs(plan)) <= ROWS_PER_BINARY


def test_shapes_meet_several_configurations(plan):
    configs = defaultdict(set)
    for spec in plan:
        if spec.impl == "triton" and spec.family == "gemm":
            configs[spec.dims].add((spec.dtype, spec.config))
    assert sorted(map(len, configs.values()))[len(configs) // 2] >= 6


def test_covers_every_dtype_single_tokens_odd_sizes_splits_and_decoding(plan):
    triton = [spec for spec in plan if spec.impl == "triton"]
    gemms = [spec for spec in triton if spec.family == "gemm"]
    assert {spec.dtype for spec in gemms} == {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"}
    assert any(spec["m"] == 1 for spec in gemms)
    assert any(spec["k"] % 2 for spec in gemms)
    assert any(spec["n"] % 2 for spec in gemms)
    assert len({dict(spec.config)["split_k"] for spec in gemms}) >= 4
    attentions = Counter(spec.variant for spec in triton if spec.family == "attention")
    assert min(attentions["decode"], attentions["prefill"]) > 150
    assert {dict(spec.config)["tile_k"] for spec in plan if spec.impl == "cupy-tiled"} >= {1, 16, 32}


def test_work_and_sizes_stay_within_limits(plan):
    for spec in plan:
        family = get_family(spec.family)
        assert family.flops(View.of(spec)) <= MAX_FLOPS
        if spec.impl == "triton" and spec.family == "gemm":
            assert 1 <= spec["m"] <= 8192
            assert 64 <= spec["n"] <= 16384
            assert 64 <= spec["k"] <= 16384


def test_binaries_that_cannot_fit_or_spill_everything_stay_out():
    def code(**knobs):
        base = {"dtype": "bf16", "aligned": (True, True), "split": False, "tile_m": 128, "tile_n": 128, "tile_k": 64,
                "warps": 8, "stages": 3}  # fmt: skip
        return GemmCode(**base | knobs)

    assert code().sensible
    assert not code(stages=8).sensible
    assert SHARED_LIMIT_B < 8 * (128 + 128) * 64 * 2
    assert not code(tile_m=256, tile_n=256, warps=4, stages=1).sensible
    assert not code(tile_m=16, tile_n=16, warps=16).sensible
    assert not code(dtype="fp8", tile_k=16).sensible


def test_refuses_a_plan_without_rows():
    with pytest.raises(ValueError, match="at least one row, got 0"):
        tiled_gpu_plan(0, 1)
