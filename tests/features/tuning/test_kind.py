"""Tasks, candidates in columns, and the kinds that are found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.tuning.kind import Candidates, Task, TuningKind, check_sizes, get_kind, kinds

TASK = Task("toy", {"m": 512}, "fp32", "cpu")


def test_configurations_become_columns_and_come_back() -> None:
    configs = [{"tile_m": 8, "tile_n": 16}, {"unroll": 4}, {}]
    candidates = Candidates.of(TASK, configs)
    assert len(candidates) == 3
    assert [candidates.config(i) for i in range(3)] == configs
    assert candidates.knobs["tile_m"].dtype == np.int64
    assert candidates.knobs["tile_m"].tolist() == [8, 0, 0]


def test_candidates_without_knobs_still_count() -> None:
    assert len(Candidates.of(TASK, [{}, {}])) == 2
    assert len(Candidates.of(TASK, [])) == 0
    assert len(Candidates(TASK, {"tile_m": np.array([1, 2])})) == 2


def test_taking_rows() -> None:
    candidates = Candidates.of(TASK, [{"tile_m": size} for size in (8, 16, 32)])
    assert candidates.take([2, 0]).knobs["tile_m"].tolist() == [32, 8]
    assert len(candidates.take(np.array([True, False, True]))) == 2
    assert len(Candidates.of(TASK, [{}, {}, {}]).take([0, 1])) == 2


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": np.array([1.5])}, "whole numbers"),
        ({"a": np.array([[1]])}, "whole numbers"),
        ({"a": np.array([True])}, "whole numbers"),
        ({"a": np.array([-1])}, "from 0 to"),
        ({"a": np.array([2**41])}, "from 0 to"),
        ({"a": np.array([1, 2]), "b": np.array([1])}, "differ in length"),
    ],
)
def test_columns_that_are_none_are_refused(columns: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Candidates(TASK, columns)


@pytest.mark.parametrize("value", [1.5, -1, True, "8", 2**41, None])
def test_knob_values_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(SpecError, match="the knob tile must be a whole number"):
        Candidates.of(TASK, [{"tile": value}])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"m": 1}, "toy needs the size n; sizes: m, n"),
        ({"m": 1, "n": 1, "q": 1}, "toy has no size 'q'; sizes: m, n"),
        ({"m": 1, "n": -1}, "n must be a whole number"),
        ({"m": 1.0, "n": 1}, "m must be a whole number"),
        ({"m": 2**41, "n": 1}, "m must be a whole number"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: Any, says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        check_sizes("toy", ("m", "n"), sizes)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="no kind of tuning problem 'nonsense'; kinds: "):
        get_kind("nonsense")


def made_up(**changed: Any) -> TuningKind:
    kind = TuningKind(
        name="toy",
        compiler="any",
        sizes=("m",),
        knobs=("tile",),
        facts=("rate",),
        features=lambda v: {"bound_s": v["m"] / v["rate"], "tile": v["tile"]},
        space=lambda task: Candidates.of(task, [{"tile": 8}]),
        facts_of=lambda device, dtype: {"rate": 1e9},
    )
    return replace(kind, **changed)


def test_a_kind_without_a_bound_is_refused() -> None:
    assert made_up().formula().inputs == ("m", "tile", "rate")
    with pytest.raises(ValueError, match="bound_s"):
        made_up(features=lambda v: {"tile": v["tile"]}).formula()


@pytest.mark.parametrize("name", sorted(kinds()))
def test_features_of_every_kind_give_the_same_directly_and_as_a_program(name: str) -> None:
    kind = kinds()[name]
    draw = np.random.default_rng(0)
    device = catalogue().get("nvidia-h100-sxm-80gb" if kind.compiler == "triton" else "amd-epyc-9005-vm-2c")
    facts = kind.facts_of(device, "fp32")
    assert tuple(facts) == kind.facts
    values: dict[str, Any] = {size: float(draw.integers(1, 300)) for size in kind.sizes}
    values |= {knob: draw.choice([1.0, 2.0, 8.0, 32.0, 64.0], 40) for knob in kind.knobs}
    values |= {fact: float(value) for fact, value in facts.items()}
    program = kind.formula()
    matrix = program.columns(values, 40)
    assert np.isfinite(matrix).all()
    assert (matrix[:, program.names.index("bound_s")] > 0).all()
    with np.errstate(all="ignore"):
        direct = kind.features(values)
    for i, feature in enumerate(program.names):
        np.testing.assert_allclose(matrix[:, i], np.broadcast_to(direct[feature], 40), rtol=1e-12, err_msg=feature)
