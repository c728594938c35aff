"""Coverage asked for against coverage found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.models.evaluation import scoring as module
from kernelcast.models.evaluation.reports import reliability as drawn
from kernelcast.models.evaluation.scoring import LEVELS, Reliability, reliability
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.models.training.labelled_cases import LabelledCases

MadeUp = Callable[..., LabelledCases]


@pytest.fixture(scope="module")
def rows(made_up: MadeUp) -> LabelledCases:
    """Rows the model was not trained on, half of them on a device it never saw."""
    return made_up(300, seed=41, devices=("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb"), power=0.5)


@pytest.fixture(scope="module")
def found(predictor: ArtifactPredictor, rows: LabelledCases) -> list[Reliability]:
    return reliability(predictor, [rows])


def test_devices_seen_and_unseen_are_told_apart(found: list[Reliability], rows: LabelledCases) -> None:
    seen = rows.cases.device == "nvidia-a100-sxm-80gb"
    known = ~np.isnan(rows.power_w)
    counts = {(item.target, item.seen): item.n for item in found}
    assert counts["latency_s", True] == seen.sum()
    assert counts["latency_s", False] == (~seen).sum()
    assert counts["power_w", True] == (seen & known).sum()
    assert {item.target for item in found} == {"latency_s", "power_w", "energy_j"}


def test_more_is_covered_the_more_is_asked_for(found: list[Reliability]) -> None:
    for item in found:
        assert [level.asked_pct for level in item.levels] == [round(level * 100, 3) for level in LEVELS]
        for name in ("covered_pct", "width_pct"):
            values = [getattr(level, name) for level in item.levels]
            assert values == sorted(values)
        assert item.levels[0].covered_pct < item.levels[-1].covered_pct


def test_shares_are_those_of_the_intervals(
    predictor: ArtifactPredictor, found: list[Reliability], rows: LabelledCases
) -> None:
    columns = predictor.predict_cases(rows.cases, coverage=0.8).targets["latency_s"]
    inside = (columns.lower <= rows.latency_s) & (rows.latency_s <= columns.upper)
    seen = rows.cases.device == "nvidia-a100-sxm-80gb"
    (own,) = (item for item in found if item.target == "latency_s" and item.seen)
    (level,) = (item for item in own.levels if item.asked_pct == 80)
    assert level.covered_pct == pytest.approx(inside[seen].mean() * 100, abs=1e-3)
    width = (columns.upper - columns.lower)[seen] / columns.value[seen]
    assert level.width_pct == pytest.approx(np.median(width) * 100, abs=1e-3)


def test_several_tables_are_one_and_large_ones_are_thinned(
    predictor: ArtifactPredictor, rows: LabelledCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [rows.take(np.arange(0, 150)), rows.take(np.arange(150, 300))]
    assert reliability(predictor, halves) == reliability(predictor, [rows])
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    (item, *_) = reliability(predictor, [replace(rows, power_w=np.full(300, np.nan))], levels=(0.9,))
    assert sum(two.n for two in reliability(predictor, [rows], levels=(0.9,)) if two.target == "latency_s") == 100
    assert [level.asked_pct for level in item.levels] == [90.0]
    assert reliability(predictor, []) == []
    assert reliability(predictor, [rows], levels=()) == []


def test_the_chart_has_a_line_for_either_kind_of_device(found: list[Reliability]) -> None:
    svg = drawn([item for item in found if item.target == "latency_s"])
    assert svg.count("<circle") == 2 * len(LEVELS)
    assert 'class="line seen"' in svg
    assert 'class="line unseen"' in svg
    assert "nan" not in svg
