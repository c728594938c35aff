"""Work: bounds against hand figures, physics that must hold for any case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import TERMS, lower_bound_s, work
from kernelcast.features.cost.device_limits import LAUNCH_FLOOR_S
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.vector.extract import extract
from kernelcast.features.vector.schema import FeatureSchema

H100 = "nvidia-h100-sxm-80gb"


def test_a_large_gemm_is_bound_by_compute_at_the_datasheet_peak() -> None:
    spec = KernelSpec.of("gemm", "bf16", m=8192, n=8192, k=8192)
    result = work(Cases.from_specs([spec], [H100]), catalogue())
    assert result.binding() == ["compute"]
    assert result.lower_bound_s[0] == pytest.approx(2 * 8192**3 / 989.4e12, rel=1e-3)


def test_a_large_copy_is_bound_by_memory_less_what_the_cache_may_hold() -> None:
    hot = KernelSpec.of("copy", "fp32", rows=65536, cols=16384)
    cold = KernelSpec.of("copy", "fp32", rows=65536, cols=16384, cache_state="cold")
    moved, device = 2 * 4 * 65536 * 16384, catalogue().get(H100)
    bandwidth, l2 = device.required("memory_bandwidth_b_per_s"), device.required("l2_b")
    assert lower_bound_s(cold, device) == pytest.approx((moved - l2) / bandwidth)
    small = KernelSpec.of("copy", "fp32", rows=256, cols=1024, cache_state="cold")
    assert work(Cases.from_specs([small], [H100]), catalogue()).bounds_s["dram"][0] == pytest.approx(2**20 / bandwidth)
    assert lower_bound_s(hot, device) == pytest.approx((moved - l2) / bandwidth)


def test_a_tiny_kernel_is_bound_by_its_launch() -> None:
    for name, kind in ((H100, "gpu"), ("amd-epyc-9005-vm-2c", "cpu")):
        result = work(
            Cases.from_specs([KernelSpec.of("elementwise", "fp32", variant="add", rows=1, cols=1)], [name]), catalogue()
        )
        assert result.binding() == ["launch"]
        assert result.lower_bound_s[0] == LAUNCH_FLOOR_S[kind]


def test_a_cpu_thread_has_its_share_of_the_peak_and_no_more_than_all_cores() -> None:
    def bound(threads: int | None) -> float:
        spec = KernelSpec.of("gemm", "fp32", m=512, n=512, k=512, threads=threads)
        return lower_bound_s(spec, catalogue().get("amd-epyc-9005-vm-2c"))

    assert bound(1) == pytest.approx(2 * bound(2))
    assert bound(None) == bound(2) == bound(64)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SpecError, match="no device 'h300'"):
        work(Cases.from_specs([KernelSpec.of("softmax", "fp32", rows=1, cols=2)], ["h300"]), catalogue())


def _terms(family: str, device: str, variant: str = "", **sizes: int) -> dict[str, float]:
    cases = Cases.from_specs([KernelSpec.of(family, "fp32", variant=variant, **sizes)], [device])
    features = extract(cases, FeatureSchema.fit(cases), catalogue())
    return dict(zip(TERMS, features.terms[:, 0].tolist(), strict=True))


def test_a_row_that_outgrows_its_cache_is_read_again() -> None:
    v100 = "nvidia-v100-pcie-32gb"
    device = catalogue().get(v100)
    long, short = (_terms("softmax", v100, rows=4096, cols=cols) for cols in (16384, 4096))
    assert long["row again"] == pytest.approx(long["input"]), "four rows of 64 KiB are twice 128 KiB of L1"
    assert short["row again"] < 1e-12
    assert long["one row"] == pytest.approx(16384 / device.required("boost_clock_hz"))
    assert _terms("copy", v100, rows=4096, cols=16384)["one row"] < 1e-12, "no unit has a whole row to itself"


def test_keys_outside_a_window_are_not_read() -> None:
    sizes = {"batch": 4, "heads": 32, "kv_heads": 8, "q_len": 1, "head_dim": 128}
    cut, short = (
        _terms("attention", H100, "decode", kv_len=kv_len, window=window, **sizes)
        for kv_len, window in ((65536, 1024), (1024, 0))
    )
    whole = _terms("attention", H100, "decode", kv_len=65536, window=0, **sizes)
    assert cut["weights"] == pytest.approx(short["weights"])
    assert cut["input"] == whole["input"]
    assert cut["beyond l2"] == pytest.approx(short["beyond l2"])
    assert whole["beyond l2"] > 100 * cut["beyond l2"]


def test_experts_without_a_token_and_rows_without_an_index_are_not_read() -> None:
    few, many = (
        _terms("moe", H100, "balanced", tokens=1, hidden=1024, inter=512, topk=2, experts=experts)
        for experts in (8, 64)
    )
    assert few["weights"] == pytest.approx(many["weights"], rel=0.1), "the router has a row for each expert"
    small, large = (_terms("embedding", H100, tokens=64, vocabulary=rows, cols=256) for rows in (10**5, 10**6))
    assert small["weights"] + small["input"] == pytest.approx(large["weights"] + large["input"], rel=0.01)


def test_pixels_that_a_stride_skips_leave_the_sum_of_input_and_weights() -> None:
    sizes = {"batch": 1, "in_channels": 1024, "out_channels": 8, "kernel": 1, "padding": 0}
    strided = _terms("conv2d", H100, height=64, width=64, stride=2, **sizes)
    small = _terms("conv2d", H100, height=32, width=32, stride=1, **sizes)
    assert strided["input"] + strided["weights"] == pytest.approx(small["input"] + small["weights"])


SIZE = st.integers(1, 8192)
DEVICES = st.sampled_from(["amd-epyc-9005-vm-2c", "nvidia-t4", "nvidia-a100-sxm-80gb", H100, "amd-mi300x"])


@settings(derandomize=True, max_examples=150, deadline=None)
@given(m=SIZE, n=SIZE, k=SIZE, device=DEVICES, dtype=st.sampled_from(["fp32", "bf16"]), grow=st.sampled_from("mnk"))
def test_more_gemm_never_has_a_lower_bound(m: int, n: int, k: int, device: str, dtype: str, grow: str) -> None:
    sizes = {"m": m, "n": n, "k": k}
    larger = sizes | {grow: sizes[grow] * 2}
    entry = catalogue().get(device)
    small_s, large_s = (lower_bound_s(KernelSpec.of("gemm", dtype, **s), entry) for s in (sizes, larger))
    assert 0 < small_s <= large_s < np.inf


@settings(derandomize=True, max_examples=150, deadline=None)
@given(rows=SIZE, cols=SIZE, device=DEVICES, variant=st.sampled_from(["add", "gelu"]))
def test_cold_is_never_bounded_below_hot(rows: int, cols: int, device: str, variant: str) -> None:
    hot, cold = (
        KernelSpec.of("elementwise", "bf16", variant=variant, rows=rows, cols=cols, cache_state=state)
        for state in ("hot", "cold")
    )
    entry = catalogue().get(device)
    assert lower_bound_s(hot, entry) <= lower_bound_s(cold, entry)


def test_one_by_one_equals_batch() -> None:
    rng = np.random.default_rng(3)
    specs = [
        KernelSpec.of("gemm", dtype, m=int(m), n=int(n), k=int(k), threads=threads, cache_state=state)
        for (m, n, k), dtype, threads, state in zip(
            rng.integers(1, 5000, (8, 3)), ["fp32", "bf16"] * 4, [1, 2, None, 1] * 2, ["hot"] * 5 + ["cold"] * 3,
            strict=True,
        )
    ]  # fmt: skip
    names = ["amd-epyc-9005-vm-2c", H100] * 4
    together = work(Cases.from_specs(specs, names), catalogue()).lower_bound_s
    alone = [lower_bound_s(spec, catalogue().get(name)) for spec, name in zip(specs, names, strict=True)]
    np.testing.assert_array_equal(together, alone)
