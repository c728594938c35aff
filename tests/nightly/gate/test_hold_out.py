"""What teaches never judges; what judges was never learned from."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.datasets.rows.splits import shape_hashes
from kernelcast.models.training.labelled_cases import joined
from kernelcast.nightly.gate.hold_out import (
    HOLD_OUT,
    LAST_NIGHT,
    frozen,
    judges_tonight,
    judging_rows,
    split_rows,
    teachable,
    unseen,
)

NIGHT = "20261122T220000Z-home"


def test_the_hold_out_is_frozen_and_grows_only_by_new_shapes(rows) -> None:
    old, more = rows(400, seed=1), rows(400, seed=2)
    both = joined([old, more])
    assert (frozen(both.cases)[:400] == frozen(old.cases)).all()
    assert 0.05 < frozen(both.cases).mean() < 0.15


def test_the_hold_out_is_the_same_in_every_release(rows) -> None:
    # Another hold-out would judge by rows that models have learned from.
    assert np.flatnonzero(frozen(rows(60, seed=1).cases)).tolist() == [33, 44, 46, 47, 58]


def test_nothing_that_teaches_judges(rows) -> None:
    earlier, tonight = rows(300, seed=1), rows(300, seed=2)
    split = split_rows([earlier], [tonight], NIGHT)
    (learn,), (evidence,) = split.learn, split.evidence
    taught = shape_hashes(learn.cases)
    assert not np.isin(shape_hashes(evidence.rows.cases), taught).any()
    assert len(learn) + len(evidence) == 600
    assert set(evidence.origin.tolist()) == {HOLD_OUT, LAST_NIGHT}
    assert judging_rows(split.evidence)["last_night"] == pytest.approx(135, abs=30)
    assert not frozen(learn.cases).any()


def test_a_shape_measured_before_does_not_judge_the_night(rows) -> None:
    earlier = rows(200, seed=1)
    split = split_rows([earlier], [earlier], NIGHT)
    assert judging_rows(split.evidence)["last_night"] == 0
    assert judging_rows(split.evidence)["hold_out"] == 2 * frozen(earlier.cases).sum()


def test_another_night_has_another_half(rows) -> None:
    cases = rows(400, seed=3).cases
    first, second = judges_tonight(cases, NIGHT), judges_tonight(cases, "20261123T220000Z-home")
    assert 0.4 < (first == second).mean() < 0.6


def test_families_are_dealt_apart_and_empty_ones_left_out(rows) -> None:
    nothing = rows(10, family="softmax").take(np.zeros(0, dtype=np.intp))
    split = split_rows([], [rows(50, seed=1), nothing], NIGHT)
    assert [item.rows.cases.family.name for item in split.evidence] == ["gemm"]
    assert judging_rows(split_rows([], [], NIGHT).evidence) == {"hold_out": 0, "last_night": 0}


def test_teachable_leaves_the_hold_out_out(rows) -> None:
    (remaining,) = teachable([rows(200, seed=1)])
    assert len(remaining) == 200 - frozen(rows(200, seed=1).cases).sum()


def test_unseen_are_new_shapes_and_the_hold_out(rows) -> None:
    earlier, tonight = rows(100, seed=1), joined([rows(100, seed=1), rows(50, seed=2)])
    (result,) = unseen([earlier], [tonight])
    assert len(result) == 50 + frozen(earlier.cases).sum()
    assert unseen([], [rows(5).take(np.zeros(0, dtype=np.intp))]) == ()
