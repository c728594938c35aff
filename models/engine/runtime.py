"""Running ONNX graphs: what training checks itself with and serving answers from.

The compiled engine (`native/`) runs forests and periodic networks where the package was built with it: a plain shared library
beside this file, loaded by ctypes, which releases the interpreter's lock during a call. onnxruntime runs everything else.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from ...features.batch.cases import Floats
from ...features.errors import SpecError, listed
from ...features.vector.schema import FeatureSchema
from ..regressor import Matrix
from .onnx_arrays import ForestArrays, NetworkArrays, arrays_of

_VERSION = 2
"""Of the library's functions (`kc_version`); one of another version, left by an older build, is not used."""

_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p

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
    """One graph in the library's memory; it goes when this object does.

    Attributes:
        address: Where the library keeps it.
        width: Columns of its input.
        targets: Columns of its answer.
    """

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
                native = ctypes.CDLL(str(path))
                version = native.kc_version()
            except (OSError, AttributeError):
                continue
            if version == _VERSION:
                return _with_types(native)
    return None


def _with_types(native: Any) -> Any:
    native.kc_forest.restype = native.kc_network.restype = _pointer
    native.kc_forest.argtypes = (ctypes.c_int, ctypes.POINTER(_Forest))
    native.kc_network.argtypes = (ctypes.c_int, ctypes.POINTER(_Network))
    native.kc_free.argtypes, native.kc_free.restype = (_pointer,), None
    native.kc_run.argtypes = (_pointer, ctypes.c_int, _pointer, ctypes.c_int64, ctypes.c_int64, _pointer)
    native.kc_program.restype = _pointer
    native.kc_program.argtypes = (_long, _long, _pointer, _long, _pointer, _long, _pointer, _long)
    native.kc_free_program.argtypes, native.kc_free_program.restype = (_pointer,), None
    native.kc_calculate.argtypes = (_pointer, _long, _long, *[_pointer] * 5, _long, _pointer, _long, _pointer, _pointer)
    return native


def levels() -> range:
    """Kinds of instructions that the library knows and this processor runs, the best last: 0 any, 1 AVX2, 2 AVX-512."""
    native = library()
    return range(0) if native is None else range(native.kc_best_level() + 1)


def load_native(graph: bytes, level: int | None = None) -> NativeGraph | None:
    """A graph ready to run, with the best instructions there are; None for what the library is not there for."""
    native = library()
    arrays = None if native is None else arrays_of(graph)
    if arrays is None:
        return None
    level = levels()[-1] if level is None else level
    address = _forest(native, arrays, level) if isinstance(arrays, ForestArrays) else _network(native, arrays, level)
    if not address:
        return None
    loaded = NativeGraph(address, arrays.width, arrays.targets)
    # Not at the end of the process: another thread may still run it.
    finalize(loaded, native.kc_free, address).atexit = False
    return loaded


class GraphBatch:
    """Graphs that one call of the library answers. Safe to share between threads.

    Raises:
        ValueError: they read different numbers of columns.
    """

    def __init__(self, graphs: Sequence[NativeGraph]) -> None:
        # Their memory is freed with these objects.
        self._graphs = tuple(graphs)
        self._targets = [graph.targets for graph in graphs]
        self._width = graphs[0].width
        self._addresses = (_pointer * len(graphs))(*[graph.address for graph in graphs])
        self._run = library().kc_run
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
        out: Any = np.empty(rows * sum(self._targets))
        if rows:
            inputs: Any = np.ascontiguousarray(x)
            # The address of an array that may be written is found in half the time.
            start = ctypes.byref(_Byte.from_buffer(inputs)) if inputs.flags.writeable else _address(inputs)
            code = self._run(self._addresses, len(self._targets), start, rows, self._width,
                             ctypes.byref(_Byte.from_buffer(out)))  # fmt: skip
            if code != 0:
                raise MemoryError(f"the compiled engine stopped with code {code}")
        answers, begin = [], 0
        for targets in self._targets:
            end = begin + rows * targets
            answers.append(out[begin:end].reshape(rows, targets))
            begin = end
        return answers


def _forest(native: Any, a: ForestArrays, level: int) -> int | None:
    arrays = [a.roots, a.feature, a.left, a.right, a.leaf_target, a.left_leaf, a.right_leaf, a.missing_left, a.threshold,
              a.leaf_value, a.base]  # fmt: skip
    sizes = (a.width, a.targets, len(a.roots), len(a.feature), len(a.leaf_value))
    handle: int | None = native.kc_forest(level, _Forest(*sizes, *(_address(array) for array in arrays)))
    return handle


def _network(native: Any, a: NetworkArrays, level: int) -> int | None:
    numbers, waves, embedding = a.numbers, a.frequency.shape[2], a.embed_weight.shape[2]
    depth = len(a.layer_weights)
    sizes = (a.width, len(a.columns), numbers, waves, embedding, depth, a.out_weight.shape[1])
    arrays = [a.columns, a.mean, a.scale, a.frequency, a.embed_weight, a.embed_bias, a.out_weight]
    layers = [(_pointer * depth)(*map(_address, part)) for part in (a.layer_weights, a.layer_biases)]
    handle: int | None = native.kc_network(level, _Network(*sizes, a.clip, a.out_bias, *map(_address, arrays), *layers))
    return handle


def _address(array: Any) -> int:
    address: int = array.ctypes.data
    return address


_PIECE_ROWS = 2048
_MAX_BATCHES = 64

ENGINE_ENV = "KERNELCAST_ENGINE"
"""What runs graphs: one of `ENGINES`."""

ENGINES = ("auto", "native", "onnxruntime")
"""auto: the compiled engine for the graphs it knows, where the package was built with it, else onnxruntime; native: the same,
and an error where it was not; onnxruntime: that for all."""


class Runtime:
    """Loaded graphs, each on the engine that knows it (`ENGINE_ENV`). Safe to share between threads.

    A row's answers are the same to the last bit whatever rows are asked beside it, where the compiled engine runs its graph.
    Between the engines answers of trees are equal; those of networks differ by rounding, less than 1e-5.

    Raises:
        GraphError: a graph is no valid model for this version of onnxruntime.
        SpecError: the environment asks for an engine that is not there.
    """

    def __init__(self, graphs: Sequence[bytes]) -> None:
        native = chosen_engine() == "native"
        loaded = {i: load_native(graph) for i, graph in enumerate(graphs)} if native else {}
        self._native = {i: graph for i, graph in loaded.items() if graph is not None}
        others = [i for i in range(len(graphs)) if i not in self._native]
        self._sessions = dict(zip(others, onnx_sessions([graphs[i] for i in others]), strict=True))
        self._all = tuple(range(len(graphs)))
        self._batches: dict[tuple[int, ...], tuple[tuple[int, ...], GraphBatch | None, tuple[int, ...]]] = {}

    def run(self, x: Matrix, only: Iterable[int] | None = None) -> dict[int, Floats]:
        """Answers for `x` of every graph, or `only` of some, by the graph's place: float64 of shape `(n, n_targets)`.

        A graph that `only` names several times is run once.

        Raises:
            ValueError: `x` is not float32 of as many columns as the graphs read.
        """
        chosen = self._all if only is None else tuple(only)
        places, batch, others = self._batches.get(chosen) or self._batch(chosen)
        outputs = {} if batch is None else dict(zip(places, batch.run(x), strict=True))
        if others:
            # In pieces that stay in the cache: networks are half as fast again on them.
            pieces = [x[start : start + _PIECE_ROWS] for start in range(0, max(len(x), 1), _PIECE_ROWS)]
            outputs |= {i: _run(self._sessions[i], pieces) for i in others}
        return outputs

    def _batch(self, chosen: tuple[int, ...]) -> tuple[tuple[int, ...], GraphBatch | None, tuple[int, ...]]:
        """Which of the chosen graphs the compiled engine runs, in one call, and which others; cached for the next call."""
        distinct = tuple(dict.fromkeys(chosen))
        places = tuple(i for i in distinct if i in self._native)
        others = tuple(i for i in distinct if i not in self._native)
        entry = places, GraphBatch([self._native[i] for i in places]) if places else None, others
        if len(self._batches) < _MAX_BATCHES:
            self._batches[chosen] = entry
        return entry


def chosen_engine() -> str:
    """What runs the graphs it knows in this process: `native` or `onnxruntime`.

    Raises:
        SpecError: `ENGINE_ENV` names no engine, or the compiled one where the package was built without it.
    """
    engine = os.environ.get(ENGINE_ENV, "").strip() or "auto"
    if engine not in ENGINES:
        raise SpecError(
            f"{ENGINE_ENV} is {engine!r}; it can be {listed(ENGINES)}; leave it out for auto", field=ENGINE_ENV
        )
    available = engine != "onnxruntime" and library() is not None
    if engine == "native" and not available:
        raise SpecError(
            f"{ENGINE_ENV} is native, but this installation has no compiled engine for this machine; install kernelcast where "
            f"there is a C++ compiler, or set {ENGINE_ENV}=auto to let onnxruntime answer",
            field=ENGINE_ENV,
        )
    return "native" if available else "onnxruntime"


def onnx_sessions(graphs: Sequence[bytes]) -> list[Any]:
    """A session of onnxruntime on one thread for each graph.

    Raises:
        GraphError: a graph is no valid model for the installed onnxruntime.
    """
    if not graphs:
        # It takes memory and time to load: not where nothing needs it.
        return []
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread: a server answers many requests at once, and spinning pools would fight for the cores.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    try:
        return [onnxruntime.InferenceSession(graph, options, providers=providers) for graph in graphs]
    except Exception as error:  # onnxruntime's errors share no other base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise GraphError(f"onnxruntime {onnxruntime.__version__} cannot run a graph: {reason}") from error


def _run(session: Any, pieces: Sequence[Matrix]) -> Floats:
    outputs = [session.run(None, {"x": piece})[0] for piece in pieces]
    return np.concatenate(outputs).astype(np.float64) if len(outputs) > 1 else outputs[0].astype(np.float64)


class GraphError(SpecError):
    """A graph that the installed onnxruntime does not take."""


def weighted_sum(outputs: Mapping[int, Floats], members: Sequence[tuple[int, int, float]]) -> Floats:
    """The sum of the answers in the (graph, column, weight) triples `members` (at least one), shape `(n,)`."""
    parts = [weight * outputs[graph][:, column] for graph, column, weight in members]
    answer: Floats = parts[0]
    for part in parts[1:]:
        answer = answer + part
    return answer


def append_log_base(values: Floats, log_base: Floats | None) -> Matrix:
    """What graphs read: features and, where latency is a ratio to an analytic model, log2 of its seconds as last column."""
    if log_base is None:
        return values.astype(np.float32)
    n, width = values.shape
    x = np.empty((n, width + 1), dtype=np.float32)
    # Features come column by column: of many rows, a cache line of columns at a time is written in half the time.
    step = _LINE_COLUMNS if n > _LINE_COLUMNS else width
    for start in range(0, width, step):
        end = min(start + step, width)
        x[:, start:end] = values[:, start:end]
    x[:, -1] = log_base / np.log(2.0)
    return x


_LINE_COLUMNS = 16
"""Numbers of single precision in a cache line of 64 bytes."""


def mask_device_features(x: Matrix, schema: FeatureSchema) -> Matrix:
    """The inputs as they are for a device never measured: no label says where a case ran."""
    x = x.copy()
    x[:, schema.place_columns] = 0.0
    return x
