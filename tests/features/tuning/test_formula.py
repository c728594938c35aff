"""Features written once as a function: computed directly, traced into a program, and run over numbers and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelcast.features.tuning import formula as f
from kernelcast.features.tuning.operations import BY_CODE, OPCODES

TILES = np.array([0.0, 1.0, 3.0, 8.0, 100.0])


def everything(v: Mapping[str, Any]) -> dict[str, Any]:
    blocks = f.ceil_div(v["m"], v["tile"])
    small = f.less(v["tile"], 4)
    return {
        "blocks": blocks,
        "twice": f.ceil_div(v["m"], v["tile"]) * 2 + 0,
        "left_over": f.mod(v["m"], v["tile"]),
        "chosen": f.where(small, f.log2(v["tile"]), f.sqrt(v["tile"])),
        "mixed": -v["tile"] + 3 - 1 / v["m"] + 2.0 * v["tile"] / v["m"],
        "decay": f.exp(-1 * v["tile"]) + f.exp(v["tile"] * 1e6),
        "bounded": f.minimum(f.maximum(v["tile"], 2.0), v["m"]),
        "alike": f.equal(v["tile"], 8) + f.less_equal(v["tile"], 8),
        "rounded": f.floor(v["m"] / 3.0) + f.ceil(v["m"] / 3.0),
        "fixed": f.maximum(2, 5) * 3.0,
        "ratio": f.divide(v["m"], v["tile"]),
    }


@pytest.mark.parametrize("tile", [TILES, TILES[:1], *TILES.tolist()], ids=str)
@pytest.mark.parametrize("m", [77.0, 1.0, 0.0, np.array([5.0, 6.0, 0.0, 2.0**40, 1.0])], ids=str)
def test_traced_program_gives_what_the_function_gives(m: Any, tile: Any) -> None:
    if isinstance(m, np.ndarray) and isinstance(tile, np.ndarray) and len(tile) == 1:
        m = m[:1]
    values = {"m": f.maximum(m, 1.0), "tile": tile}
    columns = [value for value in values.values() if isinstance(value, np.ndarray)]
    n = len(columns[0]) if columns else 3
    program = f.trace(("m", "tile"), everything)
    direct = everything(values)
    matrix = program.columns(values, n)
    assert matrix.shape == (n, len(direct))
    assert np.isfinite(matrix).all()
    for i, name in enumerate(program.names):
        np.testing.assert_allclose(matrix[:, i], np.broadcast_to(direct[name], n), rtol=1e-12)


def test_what_mathematics_leaves_open_is_laid_down() -> None:
    for zero, minus in ((0.0, -4.0), (np.zeros(2), np.full(2, -4.0))):
        assert np.all(f.divide(5.0, zero) == 0.0)
        assert np.all(f.ceil_div(5.0, zero) == 0.0)
        assert np.all(f.mod(5.0, zero) == 5.0)
        assert np.all(f.log2(zero) == f.LEAST_LOG2)
        assert np.all(f.log2(minus) == f.LEAST_LOG2)
        assert np.all(f.log2(zero + 2.0**-70) == f.LEAST_LOG2)
        assert np.all(f.sqrt(minus) == 0.0)
        assert np.all(f.exp(zero + 1e9) == math.exp(f.MOST_EXP))
        assert np.all(f.where(zero, 1.0, 2.0) == 2.0)


def test_numbers_stay_numbers_until_they_meet_a_column() -> None:
    program = f.trace(("m", "tile"), lambda v: {"a": f.log2(v["m"]) * 3, "b": v["m"] * v["tile"], "c": 1})
    a, b, c = program.values({"m": 8, "tile": np.array([1, 2])})
    assert (a, c) == (9.0, 1.0)
    assert isinstance(a, float)
    assert isinstance(b, np.ndarray)
    assert b.dtype == np.float64


def test_whole_columns_of_integers_do_not_overflow() -> None:
    program = f.trace(("m",), lambda v: {"cubed": v["m"] * v["m"] * v["m"]})
    assert program.columns({"m": np.array([2**40])}, 1)[0, 0] == 2.0**120


def test_equal_steps_are_shared_and_dead_ones_dropped() -> None:
    def features(v: Mapping[str, Any]) -> dict[str, Any]:
        _ = f.sqrt(v["a"]) * 7.0
        return {"x": v["a"] * v["b"] + 1.0, "y": 1 + v["b"] * v["a"], "z": (v["a"] * v["b"]) * 1 - 0}

    program = f.trace(("a", "b"), features)
    assert len(program.steps) == 2
    assert program.constants == (1.0,)
    slots = dict(program.outputs)
    assert slots["x"] == slots["y"]


def test_work_on_constants_is_done_while_tracing() -> None:
    program = f.trace(("a",), lambda v: {"x": v["a"] + f.log2(f.maximum(4, 16)) * 2})
    assert program.constants == (8.0,)
    assert len(program.steps) == 1


def test_steps_only_look_back() -> None:
    program = f.trace(("m", "tile"), everything)
    first = len(program.inputs) + len(program.constants)
    for i, (code, *operands) in enumerate(program.steps):
        used = BY_CODE[code].arity
        assert all(slot < first + i for slot in operands[:used])
        assert not any(operands[used:])


def test_codes_are_those_of_the_file_format() -> None:
    names = [
        "add",
        "sub",
        "mul",
        "div",
        "min",
        "max",
        "floor",
        "ceil",
        "log2",
        "exp",
        "sqrt",
        "less",
        "equal",
        "select",
    ]
    assert [(name, OPCODES[name].code) for name in names] == [(name, i) for i, name in enumerate(names)]
    assert [operation.code for operation in BY_CODE] == list(range(len(names)))


@pytest.mark.parametrize(
    "function",
    [
        lambda v: {"x": 1.0 if v["a"] else 2.0},
        lambda v: {"x": 1.0 if v["a"] < 3 else 2.0},
        lambda v: {"x": math.sqrt(v["a"])},
    ],
    ids=["truth", "comparison", "math"],
)
def test_branching_on_a_value_is_refused_with_what_to_write(function: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"where\(less"):
        f.trace(("a",), function)


@pytest.mark.parametrize(
    ("inputs", "function", "says"),
    [
        (("a", "a"), lambda v: {"x": v["a"]}, "twice"),
        (("a",), lambda v: {}, "empty"),
        (("a",), lambda v: {"x": "text"}, "must be a number"),
        (("a",), lambda v: {"x": v["a"] * math.inf}, "finite"),
    ],
)
def test_what_is_no_program_is_refused(inputs: Any, function: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        f.trace(inputs, function)


def test_an_unknown_input_is_named() -> None:
    with pytest.raises(KeyError, match="tile_q"):
        f.trace(("a",), lambda v: {"x": v["tile_q"]})
    with pytest.raises(KeyError, match="b"):
        f.trace(("a", "b"), lambda v: {"x": v["a"]}).values({"a": 1})


def test_numpy_numbers_leave_arithmetic_to_symbols() -> None:
    program = f.trace(("a",), lambda v: {"x": np.float64(2.0) * v["a"] + np.float64(1.0) - v["a"]})
    assert program.columns({"a": 3.0}, 1)[0, 0] == 4.0


sizes = st.integers(0, 2**40)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5))
def test_any_legal_input_is_finite_and_alike_as_numbers_and_as_columns(rows: list[tuple[int, int]]) -> None:
    program = f.trace(("m", "tile"), everything)
    m, tile = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    together = program.columns({"m": f.maximum(m, 1.0), "tile": tile}, len(rows))
    assert np.isfinite(together).all()
    for i in range(len(rows)):
        alone = program.columns({"m": max(float(m[i]), 1.0), "tile": float(tile[i])}, 1)
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-12)
