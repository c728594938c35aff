"""The operations a formula is made of: their codes in a model file, and what they compute on numbers and on columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

LEAST_LOG2 = -64.0
"""What `log2` gives for 2**-64 and everything below, so that a knob that is left out stays a finite feature."""

MOST_EXP = 700.0
"""Largest argument `exp` is taken of; e**709.8 is the largest float64."""

_LEAST = 2.0**LEAST_LOG2
_ZERO, _LEAST_THERE, _MOST_THERE = np.array(0.0), np.array(_LEAST), np.array(MOST_EXP)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a formula.

    Attributes:
        code: Its code in a file.
        arity: Number of operands.
        on_numbers: Computes it on floats.
        on_columns: Computes it on columns.
    """

    code: int
    arity: int
    on_numbers: Callable[..., float]
    on_columns: Callable[..., Any]


def _divide_columns(a: Any, b: Any) -> Any:
    quotient = np.divide(a, b)
    return np.where(np.equal(b, 0.0), 0.0, quotient)


def _select_columns(condition: Any, a: Any, b: Any) -> Any:
    return np.where(np.not_equal(condition, 0.0), a, b)


OPCODES: dict[str, Operation] = {
    "add": Operation(0, 2, lambda a, b: a + b, np.add),
    "sub": Operation(1, 2, lambda a, b: a - b, np.subtract),
    "mul": Operation(2, 2, lambda a, b: a * b, np.multiply),
    "div": Operation(3, 2, lambda a, b: a / b if b != 0.0 else 0.0, _divide_columns),
    "min": Operation(4, 2, lambda a, b: b if b < a else a, np.minimum),
    "max": Operation(5, 2, lambda a, b: b if b > a else a, np.maximum),
    # `x // 1.0` is floor without the exception math.floor has for infinity.
    "floor": Operation(6, 1, lambda a: a // 1.0, np.floor),
    "ceil": Operation(7, 1, lambda a: -(-a // 1.0), np.ceil),
    "log2": Operation(
        8, 1, lambda a: math.log2(a) if a > _LEAST else LEAST_LOG2, lambda a: np.log2(np.maximum(a, _LEAST_THERE))
    ),
    "exp": Operation(9, 1, lambda a: math.exp(min(a, MOST_EXP)), lambda a: np.exp(np.minimum(a, _MOST_THERE))),
    "sqrt": Operation(10, 1, lambda a: math.sqrt(a) if a > 0.0 else 0.0, lambda a: np.sqrt(np.maximum(a, _ZERO))),
    "less": Operation(11, 2, lambda a, b: 1.0 if a < b else 0.0, lambda a, b: np.less(a, b).astype(np.float64)),
    "equal": Operation(12, 2, lambda a, b: 1.0 if a == b else 0.0, lambda a, b: np.equal(a, b).astype(np.float64)),
    "select": Operation(13, 3, lambda condition, a, b: a if condition != 0.0 else b, _select_columns),
}
"""Every operation by name. Codes are part of the file format and never change their meaning."""

BY_CODE = tuple(OPCODES.values())
"""The operations in the order of their codes."""

_DIV, _LESS, _EQUAL, _SELECT = (OPCODES[name].code for name in ("div", "less", "equal", "select"))
_ARITY = tuple(operation.arity for operation in BY_CODE)
_ON_NUMBERS = tuple(operation.on_numbers for operation in BY_CODE)
_ON_COLUMNS = tuple(operation.on_columns for operation in BY_CODE)


def apply(steps: Sequence[tuple[int, int, int, int]], slots: list[Any]) -> None:
    """Run steps, appending the value of each to `slots`; values are floats or columns of one length."""
    # numpy meets an array of no dimensions twice as fast as a Python float, so numbers that meet columns are made that, once.
    columns = [None if isinstance(value, float) else value for value in slots]
    # Truths of comparisons, and where divisors are 0, by slot: each is worked out once.
    truths: dict[int, Any] = {}
    zeros: dict[int, Any] = {}
    boxes: dict[int, Any] = {}

    def boxed(slot: int) -> Any:
        entry = columns[slot]
        if entry is None:
            entry = boxes.get(slot)
            if entry is None:
                entry = boxes[slot] = np.array(slots[slot])
        return entry

    for code, a, b, c in steps:
        arity = _ARITY[code]
        if code == _SELECT:
            if columns[a] is None:
                # A condition that is one number for all rows takes a whole side, which may itself be a number.
                value = slots[b if slots[a] != 0.0 else c]
            else:
                if a not in truths:
                    truths[a] = slots[a] != 0.0
                value = np.where(truths[a], boxed(b), boxed(c))
        elif arity == 1:
            value = _ON_NUMBERS[code](slots[a]) if columns[a] is None else _ON_COLUMNS[code](slots[a])
        elif columns[a] is None and columns[b] is None:
            value = _ON_NUMBERS[code](slots[a], slots[b])
        elif code == _DIV:
            value = _quotient(boxed(a), slots[b] if columns[b] is None else columns[b], b, zeros)
        elif code in (_LESS, _EQUAL):
            truth = truths[len(slots)] = boxed(a) < boxed(b) if code == _LESS else boxed(a) == boxed(b)
            value = truth.astype(np.float64)
        else:
            value = _ON_COLUMNS[code](boxed(a), boxed(b))
        slots.append(value)
        columns.append(None if isinstance(value, float) else value)


def _quotient(above: Any, below: Any, slot: int, zeros: dict[int, Any]) -> Any:
    """`above / below`, at least one a column, 0 where the divisor is; the divisor of a slot is searched for zeros once."""
    if isinstance(below, float):
        return above / np.array(below) if below != 0.0 else np.zeros_like(above)
    if slot not in zeros:
        result = below == _ZERO
        zeros[slot] = result if np.count_nonzero(result) else None
    quotient = above / below
    if zeros[slot] is not None:
        quotient[zeros[slot]] = 0.0
    return quotient
