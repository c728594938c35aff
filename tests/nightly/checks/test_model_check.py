"""Model drift: intervals that no longer hold are found from judged rows alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Predictions, TargetColumns
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.nightly.checks.model_check import FreshRows, _share_interval, fresh_rows, model_drift

HELD_OUT = {"gemm": 5.0, "softmax": 5.0}


def _rows(nights: int, per_night: int = 40, moved: float = 0.0, since: int = 0, seed: int = 0) -> FreshRows:
    """Rows of two families, the first of which moves by `moved` (ln) from the night `since` on; intervals hold 90 %."""
    rng = np.random.default_rng(seed)
    n = nights * per_night
    night = np.repeat(np.arange(nights), per_night)
    family = rng.choice(("gemm", "softmax"), n)
    offset = 0.01 * rng.standard_normal(nights)[night]
    error = (
        np.sqrt(0.05**2 - 0.01**2) * rng.standard_normal(n) + offset + moved * ((night >= since) & (family == "gemm"))
    )
    predicted = 10.0 ** rng.uniform(-5, -3, n)
    half = np.exp(1.6449 * 0.05)
    names = np.array([f"202611{i:02d}" for i in range(nights)])
    return FreshRows(names[night], family, predicted * np.exp(error), predicted, predicted / half, predicted * half)


def test_a_model_that_holds_says_nothing_and_gives_its_numbers() -> None:
    findings, facts = model_drift(_rows(30), HELD_OUT)
    assert findings == []
    assert facts["all"]["n"] == 40
    assert facts["all"]["expected_coverage_pct"] == 90.0
    assert facts["all"]["coverage_low_pct"] < 90 < facts["all"]["coverage_high_pct"]
    assert facts["gemm"]["held_out_mean_ape_pct"] == 5.0
    assert facts["gemm"]["state"] == "quiet"


@pytest.mark.parametrize(("moved", "nights"), [(0.08, 20), (0.2, 9), (-0.2, 9)])
def test_one_family_that_moved_is_found_and_told(moved: float, nights: int) -> None:
    findings, facts = model_drift(_rows(10 + nights, moved=moved, since=10), HELD_OUT)
    by_subject = {item.subject: item for item in findings}
    assert "gemm" in by_subject
    assert "softmax" not in by_subject
    assert facts["softmax"]["state"] == "quiet"
    message = by_subject["gemm"].message
    assert "measured since 20261100" in message
    assert "made for 90 %" in message
    assert "5.0 % when trained" in message


def test_few_rows_and_none_say_so() -> None:
    findings, facts = model_drift(_rows(3, per_night=4, moved=1.0), HELD_OUT)
    assert (findings, facts["all"]["state"]) == ([], "not enough rows")
    empty = _rows(1).take(np.zeros(40, bool))
    findings, facts = model_drift(empty)
    assert (findings, facts["all"]["n"], facts["all"]["coverage_pct"]) == ([], 0, None)


def test_one_bad_night_among_many_does_not_alarm() -> None:
    rows = _rows(20)
    bad = rows.night == "20261110"
    rows = replace(rows, measured_s=np.where(bad, 3.0 * rows.measured_s, rows.measured_s))
    assert all(not model_drift(rows.take(rows.night <= f"202611{n:02d}"), HELD_OUT)[0] for n in range(10, 20))


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(0, 10, 0.0, 0.3085), (9, 10, 0.5550, 0.9975), (10, 10, 0.6915, 1.0)]
)
def test_the_interval_of_a_share_is_clopper_and_pearsons(hits: int, n: int, low: float, high: float) -> None:
    assert _share_interval(hits, n, 0.95) == pytest.approx((low, high), abs=1e-4)


def test_fresh_rows_hold_what_the_predictor_says() -> None:
    class Doubles:
        def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
            n = len(cases)
            latency = TargetColumns(np.full(n, 2.0), np.full(n, 1.5), np.full(n, 2.5))
            return Predictions(
                {"latency_s": latency},
                coverage,
                [""] * n,
                np.ones(n, bool),
                [()] * n,
                [""] * n,
                {},
                [""] * n,
                ["device"] * n,
            )

    cases = Cases.from_specs([KernelSpec.of("softmax", "fp16", rows=8, cols=8)] * 3, ["nvidia-t4"] * 3)
    rows = LabelledCases(cases, np.array([2.0, 2.4, 9.0]), np.full(3, np.nan))
    fresh = fresh_rows(Doubles(), [rows], [np.array(["1", "2", "2"])])
    assert fresh.family.tolist() == ["softmax"] * 3
    assert fresh.inside.tolist() == [True, True, False]
    assert len(fresh_rows(Doubles(), [], [])) == 0
