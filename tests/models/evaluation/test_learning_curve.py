"""Learning curves: samples that hold each other, what measuring costs, files, and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.evaluation import learning_curve as module
from kernelcast.models.evaluation.charts import write_page
from kernelcast.models.evaluation.learning_curve import (
    Band,
    LearningCurves,
    Pool,
    curves_html,
    learning_curve_files,
    learning_curves,
)
from kernelcast.models.selection.suggest import ENERGY_S, PROTOCOLS, measuring_seconds
from kernelcast.models.training.labelled_cases import LabelledCases

MadeUp = Callable[..., LabelledCases]


@pytest.fixture(scope="module")
def pool(made_up: MadeUp) -> Pool:
    return Pool.of(made_up(260, power=0.0), catalogue())


@pytest.fixture(scope="module")
def found(pool: Pool) -> LearningCurves:
    return learning_curves([pool], rows=(30, 100, 1000), seeds=2, regressor="xgboost")


def test_errors_fall_with_rows(found: LearningCurves, pool: Pool) -> None:
    (curve,) = found.curves
    assert (curve.family, curve.target) == ("gemm", "latency_s")
    assert [point.rows for point in curve.points] == [30, 100, len(pool.rows)]
    assert [point.seeds for point in curve.points] == [2, 2, 1], "all rows are the same rows in any order"
    assert curve.points[-1].median_ape_pct.median < 0.7 * curve.points[0].median_ape_pct.median
    assert {point.judged for point in curve.points} == {pool.n_judged}
    for point in curve.points:
        assert point.mean_ape_pct.low <= point.mean_ape_pct.median <= point.mean_ape_pct.high
    costs = [point.seconds.median for point in curve.points]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(pool.seconds.sum())


def test_samples_hold_each_other_and_no_judged_row(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[float]] = []
    real = module._judged

    def spy(rows: LabelledCases, *rest: Any) -> Any:
        taken.append(rows.latency_s.tolist())
        return real(rows, *rest)

    monkeypatch.setattr(module, "_judged", spy)
    learning_curves([pool], rows=(30, 60), seeds=2, regressor="roofline")
    assert [len(item) for item in taken] == [30, 30, 60, 60]
    assert taken[2][:30] == taken[0]
    assert taken[3][:30] == taken[1]
    assert taken[0] != taken[1]
    assert not set(taken[3]) & set(pool.judged[0].latency_s.tolist())
    taken.clear()
    learning_curves([pool], rows=(30,), seeds=2, order="file", regressor="roofline")
    assert taken == [pool.rows.latency_s[:30].tolist()]


def test_what_measuring_costs(made_up: MadeUp) -> None:
    rows = made_up(40, power=0.5)
    seconds = measuring_seconds(rows, catalogue())
    gpu = PROTOCOLS["gpu"]
    short = (rows.latency_s < gpu.sample_s) & np.isnan(rows.power_w)
    fixed = gpu.overhead_s + gpu.first_call_s + gpu.warm_up_s + gpu.samples * gpu.sample_s
    np.testing.assert_allclose(seconds[short], fixed + gpu.calls * rows.latency_s[short])
    known = ~np.isnan(rows.power_w)
    assert (seconds[known] > ENERGY_S).all()
    recorded = measuring_seconds(rows, catalogue(), np.where(known, np.nan, 1.0))
    np.testing.assert_allclose(recorded[~known] - seconds[~known], 1.0 - gpu.first_call_s)
    np.testing.assert_allclose(recorded[known], seconds[known])
    # A call that takes longer than the time for a case is sampled as often as the rule says at least.
    cpu = PROTOCOLS["cpu"].seconds(np.array([1.0]), np.array([0.0]))[0]
    assert cpu == pytest.approx(0.19 + 0.033 + 7 + 9)


def test_the_shipped_h200_rows_cost_what_their_campaign_took() -> None:
    """8,130 rows with latency took 9.3 minutes (docs/measurement.md)."""
    from kernelcast.datasets.rows.table_columns import numbers, text
    from kernelcast.datasets.shipped import read_shipped, shipped_families
    from kernelcast.models.training.labelled_cases import labelled_table

    total, count = 0.0, 0
    for family in shipped_families():
        table = read_shipped(family)
        # Later campaigns chose other cases.
        of_it = (text(table, "device") == "nvidia-h200-sxm-141gb") & (text(table, "measured_at") < "2026-11-21")
        table = table.take(np.flatnonzero(of_it & (text(table, "status") == "ok")))
        if not len(table):
            continue
        rows = labelled_table(table, family)
        latency_only = np.isnan(rows.power_w)
        total += measuring_seconds(rows, catalogue(), numbers(table, "first_call_s").values)[latency_only].sum()
        count += int(latency_only.sum())
    assert count > 8000
    assert total / count == pytest.approx(9.3 * 60 / 8130, rel=0.05)


def test_what_cannot_be_drawn_says_why(pool: Pool, made_up: MadeUp) -> None:
    with pytest.raises(SpecError, match="20 or more, got 5"):
        learning_curves([pool], rows=(5,))
    with pytest.raises(SpecError, match="seeds must be 1 or more"):
        learning_curves([pool], seeds=0)
    with pytest.raises(SpecError, match="no order 'best'; orders: random, file"):
        learning_curves([pool], order="best")
    few = Pool.of(made_up(15), catalogue())
    with pytest.raises(SpecError, match="gemm has no curve"):
        learning_curves([few], regressor="roofline")
    both = learning_curves([few, pool], rows=(30,), seeds=1, regressor="roofline")
    assert any("gemm has no curve" in note for note in both.notes)


@pytest.fixture
def file(made_up: MadeUp, tmp_path: Path) -> Path:
    rows = made_up(150, power=0.0)
    columns = {"device": rows.cases.device, "dtype": rows.cases.dtype, "impl": rows.cases.impl,
               **{name: column.astype(int) for name, column in rows.cases.sizes.items()}}  # fmt: skip
    table = {name: column.tolist() for name, column in columns.items()} | {
        "latency_s": rows.latency_s.tolist(), "family": ["gemm"] * 150, "first_call_s": [0.5] * 50 + [None] * 100,
        "split": ["train"] * 90 + ["val_a"] * 30 + ["val_b"] * 20 + ["other"] * 10,
    }  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


def test_files_are_split_as_asked(file: Path) -> None:
    options: dict[str, Any] = {"rows": (30, 1000), "seeds": 1, "regressor": "roofline"}
    found = learning_curve_files([file], split=["val_*"], **options)
    (curve,) = found.curves
    assert [point.rows for point in curve.points] == [30, 90]
    assert curve.points[0].judged == 50
    assert found.facts["judged by"] == "val_a, val_b"
    assert found.facts["first calls recorded"] == {"gemm": "of 50 rows of 90"}
    assert curve.points[-1].seconds.median > 50 * 0.5
    by_hash = learning_curve_files([file], **options)
    assert by_hash.curves[0].points[-1].rows + by_hash.curves[0].points[-1].judged == 150
    with pytest.raises(SpecError, match=r"no row of .* has split 'test'; splits there: other, train, val_a, val_b"):
        learning_curve_files([file], split=["test"], **options)
    with pytest.raises(SpecError, match="split 'val_a' would be trained on and judged by"):
        learning_curve_files([file], split=["val_*"], train_split="val_a", **options)


def test_the_report_needs_nothing_else(found: LearningCurves, tmp_path: Path) -> None:
    html = curves_html(found)
    assert html.count("<svg") == 2
    assert "<script" not in html
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert "nan" not in re.sub(r"<style>.*</style>", "", html, flags=re.DOTALL).lower()
    write_page(curves_html(found), tmp_path / "out" / "curve.html")
    assert (tmp_path / "out" / "curve.html").read_text(encoding="utf-8") == html
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["curves"][0]["family"] == "gemm"


def test_a_band_is_median_least_and_most() -> None:
    assert Band.of([3.0, 1.0, 2.0]) == Band(2.0, 1.0, 3.0)
