"""Model drift: intervals that no longer hold are found from judged rows alone, with a false alarm rate that is proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.cases import Cases
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.labelled import Labelled
from kernelcast.models.prediction import Predictions, TargetColumns
from kernelcast.nightly.drift.evidence import CoverageWatch, coverage_evidence
from kernelcast.nightly.drift.model import FreshRows, fresh_rows, model_drift
from kernelcast.nightly.drift.robust import bootstrap_median, share_interval

OWN = {"gemm": 5.0, "softmax": 5.0}


def _rows(nights: int, per_night: int = 40, moved: float = 0.0, since: int = 0, why: str = "space-filling", seed: int = 0,
          families: tuple[str, ...] = ("gemm", "softmax")) -> FreshRows:  # fmt: skip
    """Rows of two families, the first of which moves by `moved` (ln) from the night `since` on; intervals hold 90 %."""
    rng = np.random.default_rng(seed)
    n = nights * per_night
    night = np.repeat(np.arange(nights), per_night)
    family = rng.choice(families, n)
    offset = 0.01 * rng.standard_normal(nights)[night]
    error = (
        np.sqrt(0.05**2 - 0.01**2) * rng.standard_normal(n) + offset + moved * ((night >= since) & (family == "gemm"))
    )
    predicted = 10.0 ** rng.uniform(-5, -3, n)
    half = np.exp(1.6449 * 0.05)
    names = np.array([f"202611{i:02d}" for i in range(nights)])
    return FreshRows(names[night], family, np.full(n, why), predicted * np.exp(error), predicted, predicted / half,
                     predicted * half, 0.9)  # fmt: skip


def _together(*parts: FreshRows) -> FreshRows:
    names = ("night", "slice", "why", "measured_s", "predicted_s", "low_s", "high_s")
    return FreshRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, coverage=0.9)


def test_a_model_that_holds_says_nothing_and_gives_its_numbers() -> None:
    findings, facts = model_drift(_rows(30), OWN)
    assert findings == []
    assert facts["all"]["n"] == 40
    assert facts["all"]["expected_coverage_pct"] == 90.0
    assert facts["all"]["coverage_low_pct"] < 90 < facts["all"]["coverage_high_pct"]
    assert facts["gemm"]["bias_low_pct"] < 1 < facts["gemm"]["bias_high_pct"] + 2
    assert facts["gemm"]["held_out_mean_ape_pct"] == 5.0
    assert facts["gemm"]["state"] == "quiet"


@pytest.mark.parametrize(("moved", "nights"), [(0.08, 20), (0.2, 9), (-0.2, 9)])
def test_one_family_that_moved_is_found_and_told(moved: float, nights: int) -> None:
    findings, facts = model_drift(_rows(10 + nights, moved=moved, since=10), OWN)
    told = {one.subject: one for one in findings}
    assert "gemm" in told
    assert "softmax" not in told
    assert facts["softmax"]["state"] == "quiet"
    said = told["gemm"].said
    assert "the night 20261110" in said or "the night 20261109" in said or "the night 20261111" in said
    assert "made for 90 %" in said
    assert "where it promised 5.0 %" in said
    assert told["gemm"].numbers["bias_pct"] == pytest.approx(100 * np.expm1(moved), abs=2.5)


def test_informative_rows_decide_nothing_and_are_reported_apart() -> None:
    unsure = replace(_rows(20, moved=0.3, families=("gemm",), seed=1), why=np.full(800, "informative"))
    findings, facts = model_drift(_together(_rows(20), unsure), OWN)
    assert findings == []
    assert facts["not judged"]["informative"]["n"] == 40
    assert facts["not judged"]["informative"]["coverage_pct"] < 20
    repeats = replace(unsure, why=np.full(800, "repeat"))
    assert model_drift(_together(_rows(20), repeats), OWN)[0]


def test_few_rows_none_and_a_night_without_any_say_so() -> None:
    findings, facts = model_drift(_rows(5, per_night=4, moved=1.0), OWN)
    assert (findings, facts["all"]["state"]) == ([], "not enough rows")
    empty = _rows(1).take(np.zeros(40, bool))
    findings, facts = model_drift(empty)
    assert (findings, facts["all"]["n"], facts["all"]["coverage_pct"]) == ([], 0, None)


def test_one_bad_night_does_not_alarm() -> None:
    rows = _rows(20)
    bad = rows.night == "20261110"
    rows = replace(rows, measured_s=np.where(bad, 3.0 * rows.measured_s, rows.measured_s))
    assert all(not model_drift(rows.take(rows.night <= f"202611{n:02d}"), OWN)[0] for n in range(10, 20))


def test_the_proven_bound_holds_when_rows_of_a_night_hang_together() -> None:
    """Nights whose share of misses is wild but 10 % on average: within a year at most 5 % of histories alarm."""
    rng, watch = np.random.default_rng(0), CoverageWatch()
    shares = rng.beta(0.1, 0.9, (1000, 365))
    evidence = coverage_evidence(shares, 0.9, watch)
    alarmed = (evidence >= watch.limit(9, overall=True)).any(axis=1).mean()
    assert alarmed <= 0.025 + 3 * (0.025 / 1000) ** 0.5
    assert watch.limit(9, overall=False) == pytest.approx(9 * watch.limit(9, overall=True))


def test_evidence_never_overflows_and_missing_nights_change_nothing() -> None:
    watch = CoverageWatch()
    assert np.isfinite(coverage_evidence(np.ones((1, 5000)), 0.9, watch)).all()
    one = coverage_evidence(np.array([0.5, 0.5]), 0.9, watch)
    other = coverage_evidence(np.array([0.5, np.nan, 0.5]), 0.9, watch)
    assert one[-1] == pytest.approx(other[-1])


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(0, 10, 0.0, 0.3085), (9, 10, 0.5550, 0.9975), (10, 10, 0.6915, 1.0)]
)
def test_the_interval_of_a_share_is_clopper_and_pearsons(hits: int, n: int, low: float, high: float) -> None:
    assert share_interval(hits, n, 0.95) == pytest.approx((low, high), abs=1e-4)


def test_bootstrap_of_one_value_is_that_value() -> None:
    assert bootstrap_median(np.array([0.5]), 0.95, 0) == (0.5, 0.5)


def test_fresh_rows_hold_what_the_predictor_says() -> None:
    class Doubles:
        def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
            n = len(cases)
            latency = TargetColumns(np.full(n, 2.0), np.full(n, 1.5), np.full(n, 2.5))
            return Predictions(
                {"latency_s": latency}, coverage, [""] * n, np.ones(n, bool), [()] * n, [""] * n, {}, [""] * n
            )

    cases = Cases.of([KernelSpec.of("softmax", "fp16", rows=8, cols=8)] * 3, ["nvidia-t4"] * 3)
    rows = Labelled(cases, np.array([2.0, 2.4, 9.0]), np.full(3, np.nan))
    fresh = fresh_rows(Doubles(), [rows], [np.array(["1", "2", "2"])], [np.array(["usage", "repeat", "repeat"])])
    assert fresh.slice.tolist() == ["softmax"] * 3
    assert fresh.outside.tolist() == [False, False, True]
    assert len(fresh_rows(Doubles(), [], [], [])) == 0
