"""Features of a tuning problem as a small program: written once as a Python function, run by Python and C++ alike.

A kind writes its features as a function over named values with `+ - * /` and the functions of this module. Called with
numpy columns or numbers it computes; called by `trace` with symbols it is written down as a `Formula`, a straight-line
program that a model file stores. Values are float64. Nothing here raises or warns for numbers, and what mathematics
leaves open is laid down, the same in Python and C++:

* a division by zero gives 0, and so `ceil_div(a, 0)` is 0 and `mod(a, 0)` is `a` (a knob that is left out is 0);
* `log2` of anything below 2**-64, zero and negative numbers included, is -64;
* `exp` of more than 700 is `exp(700)`; `sqrt` of a negative number is 0;
* `less` and `equal` give 1.0 or 0.0, and `where` takes its second value when its first is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .operations import LEAST_LOG2, MOST_EXP, OPCODES, Column, apply

Value = Any
"""A float, a float64 column `(n,)`, or while tracing a `Symbol`; features only compute with it."""

NOT_A_TRUTH = (
    "the features of a kind cannot branch on a value: write where(less(a, b), x, y), and less or equal to compare"
)


def _operator(name: str, *, swapped: bool = False) -> Callable[[Symbol, Value], Value]:
    """A method of arithmetic; `swapped` for the one that Python calls on the operand to the right."""
    if swapped:
        return lambda self, other: _call(name, other, self)
    return lambda self, other: _call(name, self, other)


class Symbol:
    """A value that is not known yet; computing with it writes a step of the program down."""

    __slots__ = ("_tape", "slot")
    __array_ufunc__ = None
    """Makes numpy numbers leave arithmetic with a symbol to the symbol."""

    def __init__(self, tape: _Tape, slot: int) -> None:
        self._tape = tape
        self.slot = slot

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)

    def __neg__(self) -> Value:
        return _call("sub", 0.0, self)

    def _refuse(self, *_others: object) -> Any:
        raise TypeError(NOT_A_TRUTH)

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __float__ = __int__ = _refuse


def divide(a: Value, b: Value) -> Value:
    """`a / b`, and 0 where `b` is 0. Use it instead of `/` wherever the divisor can be a knob that is left out."""
    return _call("div", a, b)


def ceil_div(a: Value, b: Value) -> Value:
    """The smallest whole number not below `a / b`, and 0 where `b` is 0."""
    return _call("ceil", _call("div", a, b))


def floor(a: Value) -> Value:
    """The largest whole number not above `a`."""
    return _call("floor", a)


def ceil(a: Value) -> Value:
    """The smallest whole number not below `a`."""
    return _call("ceil", a)


def mod(a: Value, b: Value) -> Value:
    """What is left of `a` after whole `b`s, `a - b * floor(a / b)`; `a` where `b` is 0."""
    return _call("sub", a, _call("mul", b, floor(divide(a, b))))


def minimum(a: Value, b: Value) -> Value:
    """The smaller of two."""
    return _call("min", a, b)


def maximum(a: Value, b: Value) -> Value:
    """The larger of two."""
    return _call("max", a, b)


def log2(a: Value) -> Value:
    """Logarithm to base 2; -64 for anything below 2**-64. Not to be rounded: its last bit depends on the machine."""
    return _call("log2", a)


def exp(a: Value) -> Value:
    """The exponential of `a`, at most that of 700."""
    return _call("exp", a)


def sqrt(a: Value) -> Value:
    """Square root; 0 for negative numbers."""
    return _call("sqrt", a)


def less(a: Value, b: Value) -> Value:
    """1.0 where `a < b`, else 0.0."""
    return _call("less", a, b)


def less_equal(a: Value, b: Value) -> Value:
    """1.0 where `a <= b`, else 0.0."""
    return _call("sub", 1.0, _call("less", b, a))


def equal(a: Value, b: Value) -> Value:
    """1.0 where the two are the same number, else 0.0."""
    return _call("equal", a, b)


def where(condition: Value, a: Value, b: Value) -> Value:
    """`a` where `condition` is not 0, else `b`."""
    return _call("select", condition, a, b)


@dataclass(frozen=True, slots=True)
class Formula:
    """A straight-line program over float64 values. Slots are numbered: inputs first, then constants, then one per step.

    Attributes:
        inputs: Names of the inputs.
        constants: Constants.
        steps: `(opcode, a, b, c)` with slots before its own; operands an operation does not have are 0.
        outputs: `(name, slot)` of the results.
    """

    inputs: tuple[str, ...]
    constants: tuple[float, ...]
    steps: tuple[tuple[int, int, int, int], ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs, in order: the columns of the feature matrix."""
        return tuple(name for name, _ in self.outputs)

    def values(self, raw: Mapping[str, Any]) -> list[float | Column]:
        """The outputs in order, each a float or a column `(n,)`: a float where it depends on no column.

        `raw` has every input, a number or a column of one common length; work on numbers alone is done once.

        Raises:
            KeyError: an input is missing.
        """
        slots: list[Any] = []
        for name in self.inputs:
            value = raw[name]
            slots.append(np.asarray(value, dtype=np.float64) if isinstance(value, np.ndarray) else float(value))
        slots.extend(self.constants)
        # Compilers ask with a knob left out or a size that overflows on its way; neither is worth a warning.
        with np.errstate(all="ignore"):
            apply(self.steps, slots)
        return [slots[slot] for _, slot in self.outputs]

    def columns(self, raw: Mapping[str, Any], n: int) -> Column:
        """The feature matrix `(n, n_features)` float64, columns in the order of `names`.

        Raises:
            KeyError: an input is missing.
            ValueError: a column has another length than `n`.
        """
        matrix = np.empty((len(self.outputs), n))
        for row, value in zip(matrix, self.values(raw), strict=True):
            row[:] = value
        return np.ascontiguousarray(matrix.T)


def trace(inputs: Sequence[str], function: Callable[[Mapping[str, Value]], Mapping[str, Value]]) -> Formula:
    """The program that `function` is: equal steps shared, work on constants done, steps nothing needs left out.

    Args:
        inputs: names of the values the function reads, each once.
        function: takes a mapping of those names to values and gives a mapping of output names to values.

    Raises:
        ValueError: a name is given twice, there is no output, or an output is neither a number nor computed from inputs.
        TypeError: the function branches on a value.
        KeyError: the function reads a value that is not among the inputs.
    """
    if len(set(inputs)) != len(inputs):
        raise ValueError(f"an input is named twice: {', '.join(inputs)}")
    tape = _Tape(len(inputs))
    result = function({name: Symbol(tape, i) for i, name in enumerate(inputs)})
    if not result:
        raise ValueError("the features of a kind are empty")
    outputs = []
    for name, value in result.items():
        if not isinstance(value, Symbol | int | float | np.number):
            raise ValueError(f"the feature {name} is {value!r}; it must be a number or computed from the inputs")
        outputs.append((str(name), tape.slot_of(value)))
    return tape.formula(tuple(inputs), outputs)


_COMMUTING = frozenset({"add", "mul", "min", "max", "equal"})
_NEUTRAL = {("add", 0.0), ("sub", 0.0), ("mul", 1.0), ("div", 1.0)}
"""Operations whose second operand can be such that the first is the answer."""


class _Tape:
    """Steps in the order they are asked for; every distinct step once. Slots: inputs, then constants and steps mixed."""

    def __init__(self, n_inputs: int) -> None:
        self._n_inputs = n_inputs
        self._nodes: list[float | tuple[int, int, int, int]] = []
        self._known: dict[object, int] = {}

    def slot_of(self, value: Value) -> int:
        """The slot of a symbol of this tape, or of a constant."""
        if isinstance(value, Symbol):
            return value.slot
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"a feature uses the constant {number}; constants must be finite")
        return self._node(number, ("constant", number.hex()))

    def step(self, name: str, operands: Sequence[Value]) -> Symbol:
        """The symbol of an operation on values."""
        slots = [self.slot_of(operand) for operand in operands]
        constants = [self._constant(slot) for slot in slots]
        if all(constant is not None for constant in constants):
            return Symbol(self, self.slot_of(_call(name, *constants)))
        if len(slots) == 2 and constants[1] is not None and (name, constants[1]) in _NEUTRAL:
            return Symbol(self, slots[0])
        if name in _COMMUTING:
            slots.sort()
        a, b, c = (*slots, 0, 0)[:3]
        node = (OPCODES[name].code, a, b, c)
        return Symbol(self, self._node(node, node))

    def formula(self, inputs: tuple[str, ...], outputs: list[tuple[str, int]]) -> Formula:
        """The program of what the outputs need: constants gathered before the steps."""
        needed = {slot for _, slot in outputs}
        for slot in range(self._n_inputs + len(self._nodes) - 1, self._n_inputs - 1, -1):
            node = self._nodes[slot - self._n_inputs]
            if slot in needed and isinstance(node, tuple):
                needed.update(node[1 : 1 + _ARITY_OF[node[0]]])
        items = [slot for slot in range(self._n_inputs, self._n_inputs + len(self._nodes)) if slot in needed]
        constants = [slot for slot in items if self._constant(slot) is not None]
        steps = [slot for slot in items if self._constant(slot) is None]
        place = {slot: i for i, slot in enumerate((*range(self._n_inputs), *constants, *steps))}
        return Formula(
            inputs=inputs,
            constants=tuple(float(self._constant(slot) or 0.0) for slot in constants),
            steps=tuple(self._moved(slot, place) for slot in steps),
            outputs=tuple((name, place[slot]) for name, slot in outputs),
        )

    def _moved(self, slot: int, place: Mapping[int, int]) -> tuple[int, int, int, int]:
        node = self._nodes[slot - self._n_inputs]
        assert isinstance(node, tuple)  # noqa: S101 - a slot that is no constant is a step
        arity = _ARITY_OF[node[0]]
        a, b, c = (place[operand] if i < arity else 0 for i, operand in enumerate(node[1:]))
        return node[0], a, b, c

    def _constant(self, slot: int) -> float | None:
        node = self._nodes[slot - self._n_inputs] if slot >= self._n_inputs else None
        return node if isinstance(node, float) else None

    def _node(self, node: float | tuple[int, int, int, int], key: object) -> int:
        if key not in self._known:
            self._known[key] = self._n_inputs + len(self._nodes)
            self._nodes.append(node)
        return self._known[key]


_ARITY_OF = {operation.code: operation.arity for operation in OPCODES.values()}


def _call(name: str, *operands: Value) -> Value:
    """One operation: written down where an operand is a symbol, else computed."""
    for operand in operands:
        if isinstance(operand, Symbol):
            return operand._tape.step(name, operands)
    operation = OPCODES[name]
    if any(isinstance(operand, np.ndarray) for operand in operands):
        with np.errstate(all="ignore"):
            return operation.on_columns(*(_as_float(operand) for operand in operands))
    return operation.on_numbers(*(float(operand) for operand in operands))


def _as_float(value: Value) -> Value:
    return value.astype(np.float64, copy=False) if isinstance(value, np.ndarray) else float(value)


__all__ = [
    "LEAST_LOG2", "MOST_EXP", "Formula", "Symbol", "Value", "ceil", "ceil_div", "divide", "equal", "exp", "floor", "less",
    "less_equal", "log2", "maximum", "minimum", "mod", "sqrt", "trace", "where",
]  # fmt: skip
