"""Bets: wealth that grows only for a challenger that errs less, and shapes that are judged before they are learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly.gate.challengers import adapted, fold_scores
from kernelcast.nightly.gate.evidence import Evidence, ShapeScore, Wealth, fold_count, folds, new_shapes, scores
from kernelcast.nightly.gate.judge import Rules, chosen, judge, refusals

NIGHT = "20261122T220000Z-home"


def gains(rng: np.random.Generator, mean: float, n: int) -> np.ndarray:
    """Differences of errors in points, heavy-tailed as real ones."""
    return mean + 8.0 * rng.standard_t(4, n)


def test_no_better_challenger_is_promoted_more_often_than_alpha_however_often_one_looks() -> None:
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(300):
        wealth, lowest = Wealth(), 1.0
        for _ in range(15):
            wealth = wealth.after(gains(rng, 0.0, 30))
            lowest = min(lowest, wealth.p_value)
        wrong += lowest <= 0.05
    assert wrong <= 0.05 * 300


@pytest.mark.parametrize(("mean", "shapes", "least"), [(20.0, 40, 0.95), (5.0, 150, 0.8), (2.0, 600, 0.5)])
def test_better_challengers_are_seen(mean: float, shapes: int, least: float) -> None:
    rng = np.random.default_rng(2)
    seen = [Wealth().after(gains(rng, mean, shapes)).p_value <= 0.05 / 3 for _ in range(100)]
    assert np.mean(seen) >= least


def test_evidence_adds_up_over_nights() -> None:
    night = [ShapeScore("gemm", "cpu", 2, 30.0, 25.0, 0.9, 0.9) for _ in range(30)]
    once = Evidence().after(night, 0.5)
    twice = once.after(night, 0.5)
    assert twice.together().shapes == 60
    assert twice.together().p_value < once.together().p_value < 1
    assert twice.together().mean_gain_pct == pytest.approx(5.0)
    assert twice.together(without=["gemm"]).p_value == 1.0
    assert twice.worse["gemm"].p_value == 1.0


def test_a_few_rows_promote_nothing_and_a_worse_family_stays_the_champions() -> None:
    few = [ShapeScore("gemm", "cpu", 2, 30.0, 25.0, 0.9, 0.9) for _ in range(8)]
    assert not judge("new", few, Evidence(), [], Rules(), 3).better
    many = [ShapeScore("gemm", "cpu", 2, 60.0, 20.0, 0.9, 0.9) for _ in range(60)]
    worse = [ShapeScore("copy", "cpu", 2, 10.0, 40.0, 0.9, 0.9) for _ in range(40)]
    verdict = judge("new", many + worse, Evidence(), [], Rules(), 3)
    assert verdict.better
    assert verdict.passed
    assert verdict.keep == ("copy",)
    assert chosen([verdict]) is verdict
    again = [ShapeScore("gemm", "cpu", 2, 30.0, 27.0, 0.9, 0.9) for _ in range(40)]
    assert not judge("adapted", again, Evidence(), [], Rules(), 3).better
    assert judge("adapted", again, Evidence(), [], Rules(), 3, refit=1.2).better
    barely = [ShapeScore("gemm", "cpu", 2, 30.0, 29.9, 0.9, 0.9) for _ in range(9)]
    assert not judge("adapted", barely, Evidence(), [], Rules(), 3, refit=1.2).better
    assert judge("adapted", barely, Evidence(), [], Rules(), 3, refit=1.5).better
    refused = judge("new", many, Evidence(), ["it is too slow"], Rules(), 3)
    assert chosen([refused]) is None
    narrow = [ShapeScore("gemm", "cpu", 2, 60.0, 20.0, 0.9, 0.2) for _ in range(60)]
    assert "intervals hold 20%" in judge("new", narrow, Evidence(), [], Rules(), 3).summary


def test_shapes_judge_once_and_before_they_are_learned_from(rows) -> None:
    earlier, tonight = rows(60, seed=5), rows(90, seed=6)
    assert new_shapes(tonight, [earlier]).all()
    assert not new_shapes(earlier, [earlier]).any()
    dealt = folds(tonight, NIGHT, 4)
    assert set(dealt.tolist()) == {0, 1, 2, 3}
    assert (folds(tonight, "another", 4) != dealt).any()
    assert [fold_count(0, 100), fold_count(100, 100), fold_count(1000, 100), fold_count(0, 0)] == [4, 2, 1, 1]


def test_adapting_is_judged_by_what_it_had_not_seen(rows, champion: Path) -> None:
    served = load_predictor(champion)
    judged = fold_scores(served, [rows(60, seed=5)], [rows(60, seed=6)], NIGHT, "process", 0)
    assert len(judged) == 60
    assert np.mean([score.champion_pct for score in judged]) > 60
    assert np.mean([score.challenger_pct for score in judged]) < 20
    # Without any row before them the first fold teaches only.
    alone = fold_scores(served, [], [rows(60, seed=6)], NIGHT, "median", 0)
    assert 20 < len(alone) < 60


def test_a_challenger_that_forgets_is_refused(rows, champion: Path, save, tmp_path: Path) -> None:
    less = save(tmp_path / "less", [rows(seed=2)])
    assert "no longer knows softmax on nvidia-t4" in " ".join(
        refusals(champion, less, [rows(20)], Rules(), catalogue())
    )
    assert list(refusals(champion, less, [rows(20)], Rules(may_forget=True, quick_s=9.0), catalogue())) == []
    today = adapted(champion, [rows(60, seed=5)], tmp_path / "today")
    result = scores(load_predictor(champion), load_predictor(today.path), [rows(40, seed=9)])
    assert {score.family for score in result} == {"gemm"}
