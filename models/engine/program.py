"""Formulas written with NumPy, as programs of the compiled engine: traced once, then run for all rows in one call.

A formula is a function of arrays whose last axis are the rows. Of one row, each of NumPy's operations costs a microsecond and
the arithmetic nothing: a program of 500 of them takes two. Without the compiled engine the function itself is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from weakref import finalize

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ...features.batch.cases import Floats, Indices
from ..regressor import Matrix
from .runtime import chosen_engine, library

_OPERATIONS = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "log", "log2", "exp", "sqrt", "ceil", "floor",
    "negative", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "isnan", "where",
)  # fmt: skip
"""NumPy's names of what a program can do; places are the opcodes of `native/program.hpp`."""

_SAME = {"bitwise_and": "minimum", "bitwise_or": "maximum"}
"""What is done of truth values, which are 1 and 0."""

_SHAPES = (np.concatenate, np.stack, np.broadcast_to)
"""What moves numbers about and computes nothing."""


class _Tape:
    """The steps of a program in order, every distinct one once; a node is a number (a constant) or an operation."""

    def __init__(self, inputs: int) -> None:
        self.nodes: dict[Any, int] = {("input", i): i for i in range(inputs)}

    def slots_of(self, value: Any) -> Any:
        """The slots of an array."""
        if isinstance(value, Traced):
            return value.slots
        return np.frompyfunc(self._constant, 1, 1)(np.asarray(value, dtype=np.float64))

    def step(self, name: str, operands: Sequence[Any]) -> Traced:
        """What an operation gives, element by element."""
        if (name := _SAME.get(name, name)) not in _OPERATIONS:
            raise TypeError(f"a program cannot do {name}")
        code = _OPERATIONS.index(name)
        node = np.frompyfunc(lambda *slots: self._slot((code, *slots, 0, 0)[:4]), len(operands), 1)
        return Traced(self, np.asarray(node(*map(self.slots_of, operands))))

    def _constant(self, value: float) -> int:
        return self._slot(("constant", float(value).hex()))

    def _slot(self, node: Any) -> int:
        return self.nodes.setdefault(node, len(self.nodes))


class Traced(NDArrayOperatorsMixin):
    """An array whose numbers are not known yet: computing with it writes steps down.

    Attributes:
        slots: The place of each number, of the array's shape.
    """

    def __init__(self, tape: _Tape, slots: Any) -> None:
        self._tape = tape
        self.slots = slots

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any) -> Any:
        if ufunc is np.invert:
            return self._tape.step("equal", (*inputs, 0.0))
        if ufunc is np.floor_divide:
            return np.floor(inputs[0] / inputs[1])
        return NotImplemented if method != "__call__" else self._tape.step(ufunc.__name__, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where:
            return self._tape.step("where", args)
        if function is np.clip:
            value, low, high = args
            return np.minimum(np.maximum(value, low), high)
        if function not in _SHAPES:
            raise TypeError(f"a program cannot do {function.__name__}")
        many = isinstance(args[0], list | tuple)
        first = [self._tape.slots_of(each) for each in args[0]] if many else self.slots
        return Traced(self._tape, function(first, *args[1:], **kwargs))

    def __getitem__(self, key: Any) -> Traced:
        return Traced(self._tape, np.asarray(self.slots[key]))

    def __len__(self) -> int:
        return len(self.slots)

    def __bool__(self) -> bool:
        raise TypeError("a program cannot branch on a number; write np.where")

    @property
    def shape(self) -> Any:
        """Lengths of the axes."""
        return self.slots.shape

    def max(self, axis: int) -> Any:
        """The largest along an axis."""
        return self._folded(np.maximum, axis)

    def sum(self, axis: int) -> Any:
        """The sum along an axis, from its first number to its last."""
        return self._folded(np.add, axis)

    def prod(self, axis: int) -> Any:
        """The product along an axis, likewise."""
        return self._folded(np.multiply, axis)

    def _folded(self, operation: Callable[[Any, Any], Any], axis: int) -> Any:
        return reduce(operation, (Traced(self._tape, part) for part in np.moveaxis(self.slots, axis, 0)))


class Program:
    """A formula ready to run. Safe to share between threads.

    Args:
        function: The formula: of arrays `(k, n)`, one for each of `columns` and then of `numbers`, gives one `(m, n)`.
        columns: Heights of the arrays that are given row by row.
        numbers: Heights of those that many rows share.
    """

    def __init__(self, function: Callable[..., Any], columns: Sequence[int], numbers: Sequence[int]) -> None:
        self._function = function
        self._cuts = np.cumsum(columns)[:-1].tolist(), np.cumsum(numbers)[:-1].tolist()
        self._address: int | None = None
        self._n_columns, self._n_numbers = sum(columns), sum(numbers)
        if chosen_engine() == "native":
            self._compile(sum(columns), sum(numbers))

    def _compile(self, columns: int, numbers: int) -> None:
        tape = _Tape(columns + numbers)
        inputs = Traced(tape, np.arange(columns + numbers).astype(object)[:, None])
        outputs = tape.slots_of(self._function(*self._split(inputs[:columns], inputs[columns:])))[:, 0].tolist()
        nodes = list(tape.nodes)[columns + numbers :]
        constants = [slot for slot, (kind, *_) in enumerate(nodes) if kind == "constant"]
        steps = [slot for slot, (kind, *_) in enumerate(nodes) if kind != "constant"]
        # Constants lie before the steps.
        place = [*range(columns + numbers), *[0] * len(nodes)]
        for i, slot in enumerate((*constants, *steps), columns + numbers):
            place[columns + numbers + slot] = i
        values = np.array([float.fromhex(nodes[slot][1]) for slot in constants])
        code = np.array([(nodes[slot][0], *(place[at] for at in nodes[slot][1:])) for slot in steps], dtype=np.int32)
        self._n_outputs = len(outputs)
        places = np.array([place[slot] for slot in outputs], dtype=np.int32)
        native = library()
        address = native.kc_program(columns, numbers, values.ctypes.data, len(values), code.ctypes.data, len(code),
                                    places.ctypes.data, len(places))  # fmt: skip
        if not address:
            raise MemoryError("no memory for a program of the compiled engine")
        self._address, self._run = address, native.kc_calculate
        finalize(self, native.kc_free_program, address).atexit = False

    def _split(self, columns: Any, numbers: Any) -> list[Any]:
        parts = []
        for whole, cuts in zip((columns, numbers), self._cuts, strict=True):
            parts += [whole[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
        return parts

    def run(
        self,
        columns: Floats,
        numbers: Floats | None = None,
        code: Indices | None = None,
        rows: Indices | None = None,
        reading: GraphColumns | None = None,
    ) -> tuple[Floats, Any]:
        """The outputs, shape `(m, n)`, and what graphs read of them, shape `(n, width)`, where there is a `reading`.

        Args:
            columns: The arrays given row by row, one under the other, shape `(k, n)`.
            numbers: What many rows share, a row for each sort of row; None for a formula without any.
            code: Which of `numbers` each row has, shape `(n,)`; given together with them.
            rows: Which of `columns` each row has, shape `(n,)`; None: its own.
            reading: Where graphs read the outputs.
        """  # fmt: skip
        n = columns.shape[1] if code is None else len(code)
        out: Any
        x: Any = None
        arguments: tuple[Any, ...] = 0, None, 0, None, None
        if self._address is None:
            columns = columns if rows is None else columns[:, rows]
            out = self._function(*self._split(columns, columns[:0] if numbers is None else numbers[code].T))
            if reading is not None:
                x = reading.constants[code]
                x[:, reading.columns] = out[: len(reading.columns)].T
            return out, x
        out = np.empty((self._n_outputs, n))
        if reading is not None:
            width = reading.constants.shape[1]
            x = np.empty((n, width), dtype=np.float32)
            arguments = (len(reading.columns), _start(reading.columns), width, _start(reading.constants), _start(x))
        if columns.shape[0] != self._n_columns or (0 if numbers is None else numbers.shape[1]) != self._n_numbers:
            raise ValueError(f"a program of {self._n_columns} columns and {self._n_numbers} numbers is given others")
        if n:
            failed = self._run(
                self._address, n, columns.shape[1], _start(columns), None if rows is None else _start(rows),
                None if numbers is None else _start(numbers), None if numbers is None or len(numbers) == 1 else _start(code),
                _start(out), *arguments,
            )  # fmt: skip
            if failed:
                raise MemoryError("no memory for a program of the compiled engine")
        return out, x


@dataclass(frozen=True, slots=True)
class GraphColumns:
    """Where graphs read the first outputs of a program.

    Attributes:
        columns: Column of each output, int64.
        constants: What the other columns hold, float32, a row for each sort of row.
    """

    columns: Indices
    constants: Matrix


def _start(array: Any) -> Any:
    """The address of an array, or of a contiguous copy; of one that may be written it is known in half the time."""
    if not array.flags.c_contiguous:
        array = array.copy()
    return ctypes.byref(_Byte.from_buffer(array)) if array.flags.writeable else array.ctypes.data


_Byte = ctypes.c_char
