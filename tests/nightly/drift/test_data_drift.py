"""Data drift: inputs that are others than those trained on are told with how far; large numbers alone are not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from kernelcast.features.cases import Cases
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.drift.data import DataWatch, Inputs, data_drift, moved_features, outside_domain
from kernelcast.nightly.drift.two_sample import ks_p_value, largest_gap, population_stability, share_p_value

DEVICE = "nvidia-h200-sxm-141gb"


def _cases(
    n: int, seed: int, low: float = 5.0, high: float = 12.0, dtypes: tuple[str, ...] = ("fp16", "bf16")
) -> Cases:
    rng = np.random.default_rng(seed)
    specs = [
        KernelSpec.of("gemm", str(rng.choice(dtypes)), impl="torch", **{dim: int(2 ** rng.uniform(low, high)) for dim in "mnk"})
        for _ in range(n)
    ]  # fmt: skip
    return Cases.of(specs, [DEVICE] * n)


def _inputs(asked: Cases, trained: Cases | None = None, outside: float = 0.0) -> Inputs:
    mask = np.arange(len(asked)) < outside * len(asked)
    return Inputs(trained if trained is not None else _cases(600, seed=0), asked, mask)


def test_cases_like_the_training_rows_say_nothing() -> None:
    findings, facts = data_drift({"gemm": _inputs(_cases(400, seed=1))})
    assert findings == []
    assert facts["gemm"]["state"] == "quiet"


def test_larger_sizes_are_told_with_both_medians() -> None:
    findings, facts = data_drift({"gemm": _inputs(_cases(200, seed=2, low=9.0))}, what="measured tonight")
    assert facts["gemm"]["state"] == "drifted"
    assert "gemm cases measured tonight" in findings[0].said
    assert "when trained" in findings[0].said
    assert facts["gemm"]["features"]["operations"]["gap"] > 0.3
    assert facts["gemm"]["features"]["operations"]["psi"] > 0.25


def test_another_dtype_is_told() -> None:
    findings, facts = data_drift({"gemm": _inputs(_cases(200, seed=3, dtypes=("fp16",)))})
    assert "dtype bf16" in findings[0].said or "dtype fp16" in findings[0].said
    assert facts["gemm"]["features"]["dtype=bf16"]["gap"] > 0.4


def test_a_hundred_thousand_cases_do_not_alarm_on_nothing() -> None:
    rng = np.random.default_rng(4)
    one, other = rng.normal(0, 1, 100_000), rng.normal(0.05, 1, 100_000)
    assert largest_gap(one, other) < DataWatch().least_gap
    trained, asked = _cases(3000, seed=5), _cases(3000, seed=6, low=5.5)
    moved = {one.feature: one for one in moved_features(Inputs(trained, asked, np.zeros(3000, bool)))}
    assert moved["m"].p_value < 0.05
    assert moved["m"].gap < DataWatch().least_gap
    assert data_drift({"gemm": _inputs(asked, trained)})[0] == []


def test_few_cases_say_nothing() -> None:
    findings, facts = data_drift({"gemm": _inputs(_cases(19, seed=7, low=11.0), outside=1.0)})
    assert findings == []
    assert facts["gemm"]["state"] == "too few cases"


def test_a_share_outside_the_domain_is_told_with_its_share_of_requests() -> None:
    asked = _cases(100, seed=8)
    counts = np.ones(100)
    counts[:30] = 100.0
    inputs = Inputs(_cases(600, seed=0), asked, np.arange(100) < 30, counts)
    findings, facts = data_drift({"gemm": inputs})
    assert findings[0].level == "warning"
    assert "30 of 100 gemm cases asked for (30%, 98% of all requests)" in findings[0].said
    assert facts["gemm"]["outside_share"] == pytest.approx(0.3)
    assert data_drift({"gemm": _inputs(asked, outside=0.05)})[0] == []


def test_what_the_model_does_not_know_is_outside() -> None:
    class Half:
        def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> SimpleNamespace:
            if "bf16" in cases.dtype:
                raise SpecError("no peak for bf16", field="dtype")
            return SimpleNamespace(in_domain=np.ones(len(cases), bool))

    cases = _cases(30, seed=0)
    assert outside_domain(Half(), cases).tolist() == (cases.dtype == "bf16").tolist()  # type: ignore[arg-type]


def test_quiet_nights_hardly_ever_alarm() -> None:
    trained = _cases(600, seed=9)
    alarms = sum(bool(data_drift({"gemm": _inputs(_cases(60, seed=100 + i), trained)})[0]) for i in range(40))
    assert alarms == 0


@pytest.mark.parametrize(("n", "gap"), [(5, 0.8), (10, 0.5), (40, 0.3)])
def test_the_p_value_is_that_of_the_exact_test(n: int, gap: float) -> None:
    from scipy.stats import ks_2samp

    one = np.arange(n, dtype=float)
    other = one + gap * n - 0.5
    assert ks_p_value(one, other, 0) == pytest.approx(ks_2samp(one, other, method="exact").pvalue, rel=1e-6)


def test_p_values_of_equal_samples_are_uniform_or_larger() -> None:
    rng = np.random.default_rng(0)
    small = np.mean([ks_p_value(*rng.normal(size=(2, 80)), seed=0) <= 0.05 for _ in range(400)])
    assert small <= 0.08
    assert ks_p_value(np.zeros(50), np.zeros(70), 0) == 1.0
    assert share_p_value((5, 10), (5, 10)) == pytest.approx(1.0)


def test_the_stability_index_is_zero_for_equal_shares_and_large_for_others() -> None:
    values = np.random.default_rng(1).normal(size=5000)
    assert population_stability(values, values) == pytest.approx(0.0, abs=1e-9)
    assert population_stability(values, values + 1.0) > 0.5
    assert math.isfinite(population_stability(np.zeros(30), np.ones(30)))
