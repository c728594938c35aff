"""The compiled engine for forests and periodic networks (`native/`), where the package was built with it.

It is a plain shared library beside this file, loaded by ctypes, which lets go of the interpreter's lock during a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from ..features.cases import Floats
from .graph_reader import ForestArrays, NetworkArrays, arrays_of
from .regressor import Matrix

_VERSION = 1
"""Of the library's functions (`kc_version`); one of another version, left by an older build, is not used."""

_int, _pointer = ctypes.c_int32, ctypes.c_void_p

_Byte = ctypes.c_char
_FLOAT32 = np.dtype(np.float32)


class _Forest(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("width", "targets", "trees", "splits", "leaves")),
        *((name, _pointer) for name in ("roots", "feature", "left", "right", "leaf_target")),
        *((name, _pointer) for name in ("left_leaf", "right_leaf", "missing_left")),
        *((name, _pointer) for name in ("threshold", "leaf_value", "base")),
    )


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("width", "columns", "numbers", "frequencies", "embedding", "layers", "outputs")),
        *((name, ctypes.c_float) for name in ("clip", "out_bias")),
        ("column", _pointer),
        *((name, _pointer) for name in ("mean", "scale", "frequency", "embed_weight", "embed_bias", "out_weight")),
        *((name, ctypes.POINTER(_pointer)) for name in ("layer_weight", "layer_bias")),
    )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NativeGraph:
    """One graph in the library's memory; it goes when this object does."""

    address: int
    width: int
    targets: int


@lru_cache(maxsize=1)
def library() -> Any:
    """The loaded library, None where the package was built without it or it cannot be loaded here."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.is_file():
            try:
                found = ctypes.CDLL(str(path))
                version = found.kc_version()
            except (OSError, AttributeError):
                continue
            if version == _VERSION:
                return _with_types(found)
    return None


def _with_types(found: Any) -> Any:
    found.kc_forest.restype = found.kc_network.restype = _pointer
    found.kc_forest.argtypes = (ctypes.c_int, ctypes.POINTER(_Forest))
    found.kc_network.argtypes = (ctypes.c_int, ctypes.POINTER(_Network))
    found.kc_free.argtypes, found.kc_free.restype = (_pointer,), None
    found.kc_run.argtypes = (_pointer, ctypes.c_int, _pointer, ctypes.c_int64, ctypes.c_int64, _pointer)
    return found


def levels() -> range:
    """Kinds of instructions that the library knows and this processor runs, the best last: 0 any, 1 AVX2, 2 AVX-512."""
    found = library()
    return range(0) if found is None else range(found.kc_best_level() + 1)


def load(graph: bytes, level: int | None = None) -> NativeGraph | None:
    """A graph ready to run, with the best instructions there are; None for what the library is not there for."""
    found = library()
    arrays = None if found is None else arrays_of(graph)
    if arrays is None:
        return None
    level = levels()[-1] if level is None else level
    address = _forest(found, arrays, level) if isinstance(arrays, ForestArrays) else _network(found, arrays, level)
    if not address:
        return None
    loaded = NativeGraph(address, arrays.width, arrays.targets)
    # Not at the end of the process: another thread may still run it.
    finalize(loaded, found.kc_free, address).atexit = False
    return loaded


class Together:
    """Graphs that one call of the library answers. Safe to share between threads.

    Raises:
        ValueError: they read different numbers of columns.
    """

    def __init__(self, graphs: Sequence[NativeGraph]) -> None:
        # Held here: their memory goes when they do.
        self._graphs = tuple(graphs)
        self._targets = [graph.targets for graph in graphs]
        self._width = graphs[0].width
        self._addresses = (_pointer * len(graphs))(*[graph.address for graph in graphs])
        if any(graph.width != self._width for graph in graphs):
            raise ValueError(f"graphs of one call read as many columns each, not {[graph.width for graph in graphs]}")

    def run(self, x: Matrix) -> list[Floats]:
        """Answers of each graph for `x`, float32 `(n, width)`: float64 of shape `(n, targets)`.

        Raises:
            ValueError: `x` has another width or type.
        """
        if x.dtype != _FLOAT32 or x.ndim != 2 or x.shape[1] != self._width:
            raise ValueError(f"the graphs read float32 of {self._width} columns; given: {x.dtype} of shape {x.shape}")
        rows = len(x)
        out = np.empty(rows * sum(self._targets))
        if rows:
            x = np.ascontiguousarray(x)
            run = library().kc_run
            if (code := run(self._addresses, len(self._targets), _start(x), rows, self._width, _start(out))) != 0:
                raise MemoryError(f"the compiled engine stopped with code {code}")
        answers, start = [], 0
        for targets in self._targets:
            end = start + rows * targets
            answers.append(out[start:end].reshape(rows, targets))
            start = end
        return answers


def run(graphs: Sequence[NativeGraph], x: Matrix) -> list[Floats]:
    """Answers of each graph for `x`, see `Together.run`."""
    return Together(graphs).run(x)


def _start(array: Any) -> Any:
    """Where a contiguous array that is not empty starts; for one that may be written, in half the time."""
    return ctypes.byref(_Byte.from_buffer(array)) if array.flags.writeable else _address(array)


def _forest(found: Any, a: ForestArrays, level: int) -> int | None:
    arrays = [a.roots, a.feature, a.left, a.right, a.leaf_target, a.left_leaf, a.right_leaf, a.missing_left, a.threshold,
              a.leaf_value, a.base]  # fmt: skip
    sizes = (a.width, a.targets, len(a.roots), len(a.feature), len(a.leaf_value))
    address: int | None = found.kc_forest(level, _Forest(*sizes, *(_address(array) for array in arrays)))
    return address


def _network(found: Any, a: NetworkArrays, level: int) -> int | None:
    numbers, waves, embedding = a.numbers, a.frequency.shape[2], a.embed_weight.shape[2]
    depth = len(a.layer_weights)
    sizes = (a.width, len(a.columns), numbers, waves, embedding, depth, a.out_weight.shape[1])
    arrays = [a.columns, a.mean, a.scale, a.frequency, a.embed_weight, a.embed_bias, a.out_weight]
    layers = [(_pointer * depth)(*map(_address, part)) for part in (a.layer_weights, a.layer_biases)]
    address: int | None = found.kc_network(level, _Network(*sizes, a.clip, a.out_bias, *map(_address, arrays), *layers))
    return address


def _address(array: Any) -> int:
    address: int = array.ctypes.data
    return address
