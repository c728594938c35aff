"""Formulas as programs of the compiled engine: the numbers that NumPy gives, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernelcast.features.cost.bounds import counts_of
from kernelcast.features.kernel import View, families, get_family
from kernelcast.models.engine.program import GraphColumns, Program
from kernelcast.models.engine.runtime import ENGINE_ENV, library

pytestmark = pytest.mark.skipif(library() is None, reason="the package was built without the compiled engine")

N = 37


def _formula(sizes: Any, extra: Any, numbers: Any) -> Any:
    a, b = sizes
    half = np.where(a / 2.0 == np.floor(a / 2.0), a // 2.0, np.nan)
    best = np.stack([a, b, numbers[0]]).max(axis=0)
    known = ~np.isnan(half) & (b > numbers[1])
    sides = (np.ceil(sizes[:, None] / np.array([[16.0], [128.0]])) * 2.0).prod(axis=0)
    rows = [half, best, np.clip(b - 3, 1, a), np.where(known, np.exp(-a), np.log2(b)), np.sqrt(extra[0]) + np.log(a)]
    return np.concatenate([np.stack(rows), sides, np.broadcast_to(sizes.sum(axis=0), (1, *a.shape))])


@pytest.fixture
def given() -> tuple[Any, Any, Any]:
    """Columns of rows, numbers they share, and which each row has."""
    rng = np.random.default_rng(0)
    columns = rng.integers(1, 300, (3, N)).astype(np.float64)
    columns[2, 3] = np.nan
    return columns, rng.random((4, 2)) * 100, rng.integers(0, 4, N)


def test_a_program_gives_what_numpy_gives(given: tuple[Any, Any, Any]) -> None:
    columns, numbers, code = given
    out, _ = Program(_formula, (2, 1), (2,)).run(columns, numbers, code)
    expected = _formula(columns[:2], columns[2:], numbers[code].T)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_rows_can_be_chosen_and_a_row_alone_is_as_among_others(given: tuple[Any, Any, Any]) -> None:
    columns, numbers, code = given
    program, rows = Program(_formula, (2, 1), (2,)), np.arange(N - 1, -1, -2)
    whole, _ = program.run(columns, numbers, code)
    some, _ = program.run(columns, numbers, code[rows], rows)
    np.testing.assert_array_equal(some, whole[:, rows])
    alone, _ = program.run(columns[:, 5:6], numbers[code[5:6]], np.zeros(1, dtype=np.intp))
    np.testing.assert_array_equal(alone[:, 0], whole[:, 5])
    nothing, _ = program.run(columns[:, :0], numbers, code[:0])
    assert nothing.shape == (len(whole), 0)


def test_graphs_read_the_first_outputs_in_their_columns(given: tuple[Any, Any, Any]) -> None:
    columns, numbers, code = given
    constants = np.arange(20, dtype=np.float32).reshape(4, 5)
    out, x = Program(_formula, (2, 1), (2,)).run(
        columns, numbers, code, reading=GraphColumns(np.array([3, 1]), constants)
    )
    np.testing.assert_array_equal(x[:, [3, 1]], out[:2].T.astype(np.float32))
    np.testing.assert_array_equal(x[:, [0, 2, 4]], constants[code][:, [0, 2, 4]])


def test_without_the_engine_the_formula_itself_answers(
    given: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, numbers, code = given
    reading = GraphColumns(np.array([3, 1]), np.zeros((4, 5), dtype=np.float32))
    native = Program(_formula, (2, 1), (2,)).run(columns, numbers, code, reading=reading)
    monkeypatch.setenv(ENGINE_ENV, "onnxruntime")
    plain = Program(_formula, (2, 1), (2,)).run(columns, numbers, code, reading=reading)
    for one, other in zip(native, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(name for name, family in families().items() if not family.looks_at_sizes))
def test_counts_of_every_variant_of_every_family_are_the_same_as_a_program(name: str) -> None:
    family = get_family(name)
    sizes = np.array([[shape[dim] for shape in family.model_shapes] for dim in family.dim_names], dtype=np.float64)
    for variant in family.variants:

        def counted(columns: Any, _: Any, variant: str = variant) -> Any:
            return counts_of(family, View("fp8", "bf16", variant, dict(zip(family.dim_names, columns, strict=True))))

        out, _ = Program(counted, (len(sizes),), (0,)).run(sizes)
        np.testing.assert_array_equal(out, counted(sizes, None))


@pytest.mark.parametrize("formula", [lambda a: a if a[0] > 1 else -a, lambda a: np.sort(a), lambda a: np.sin(a)])
def test_what_a_program_cannot_do_is_refused_when_it_is_traced(formula: Any) -> None:
    with pytest.raises(TypeError, match="a program cannot"):
        Program(lambda columns, _: formula(columns), (1,), (0,))


def test_arrays_of_other_heights_are_refused() -> None:
    program = Program(lambda a, b: a + b, (2,), (2,))
    with pytest.raises(ValueError, match="a program of 2 columns and 2 numbers is given others"):
        program.run(np.ones((1, 4)), np.ones((1, 2)), np.zeros(4, dtype=np.intp))
