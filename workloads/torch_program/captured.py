"""A recorded program as it is kept: equal calls once with counts, and its peak memory; read from and written to JSON.

Whoever has torch records and saves a program; who reads it needs none to say what it costs.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite, log2
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...features.errors import SpecError
from ...features.kernel import MAX_DIM
from ..whole_model import MAX_COUNT
from .kernels.fusion import Fused, Fusion, fused
from .kernels.table import kernels_of, makes_state
from .memory import Memory, peak_memory, reuse_distances
from .operation import ITEMSIZES_B, Operation, Recording, TensorInfo

FORMAT = "kernelcast-program"
"""What the file says it is; `version` counts its forms."""
VERSION = 1
NEAR_B = 2.0**20
"""Bytes that the last cache of any CPU holds, so that what was touched no longer ago is not kept."""
_LONGEST_WORD = 300
_DEPTH = 2
"""Schemas of operators nest lists no deeper."""


@dataclass(frozen=True, slots=True)
class Call:
    """Equal calls of an operator.

    Attributes:
        operation: What is called; its storages are numbered within the call.
        count: How many there are in one run.
        compiled: How many where everything is compiled: other calls then, as chains of element-by-element operators are one.
        reuse: What one of them touches that the program touched long before: how many bytes were touched since, as a power of
            two, and how many of its own, in the mean of the calls.
    """

    operation: Operation
    count: int
    compiled: int
    reuse: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be priced.

    Attributes:
        calls: What runs in a step that is not the first, in the order of first calls.
        operators: Operators it ran.
        flops: Arithmetic of products and attention.
        views: Calls that only gave another view of a tensor.
        memory: Its peak.
        batch: Samples of one run; None where it was not given.
        tf32: Whether products of fp32 may be rounded to tf32.
        tf32_convolutions: Whether convolutions of fp32 may be.
        compiles: Whether the program compiles parts of itself.
        fusion: What that makes one pass of.
        whole_fusion: The same where everything is compiled.
        notes: What to know of how it was recorded.
    """

    calls: tuple[Call, ...]
    operators: int
    flops: float
    views: int
    memory: Memory
    batch: int | None = None
    tf32: bool = False
    tf32_convolutions: bool = False
    compiles: bool = False
    fusion: Fusion = field(default_factory=Fusion)
    whole_fusion: Fusion = field(default_factory=Fusion)
    notes: tuple[str, ...] = ()


def capture(recording: Recording, batch: int | None = None) -> Program:
    """What is kept of a recording.

    Raises:
        SpecError: nothing ran.
    """
    if not recording.operations:
        raise SpecError("the program ran no operator; put the work inside the `with` block", field="program")
    operations = [operation for operation in recording.operations if not makes_state(operation, recording)]
    runs = [fused(recording, operations, everything=everything) for everything in (False, True)]
    eager, compiled = (_counted(run.operations, reuse_distances(recording, run.operations)) for run in runs)
    calls = tuple(
        Call(
            seen.operation, eager[key].count if key in eager else 0, compiled[key].count if key in compiled else 0,
            seen.reuse(),
        )
        for key, seen in (eager | compiled | eager).items()
    )  # fmt: skip
    return Program(
        calls=calls, operators=len(recording.operations), flops=recording.flops, views=recording.views,
        memory=peak_memory(recording), batch=batch, tf32=recording.tf32,
        tf32_convolutions=recording.tf32_convolutions, compiles=any(operation.compiled for operation in operations),
        fusion=_fusion(runs[0]), whole_fusion=_fusion(runs[1]), notes=tuple(recording.notes),
    )  # fmt: skip


def _fusion(run: Fused) -> Fusion:
    return Fusion(run.chained, run.passes)


def merged_module(module: str) -> str:
    """The path of a module with the numbers of repeated ones left out, so that equal layers are one."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)


@dataclass(slots=True)
class _Equal:
    """Equal operations: one of them, how many there are, and the bytes of all by how many were touched since."""

    operation: Operation
    count: int
    since_b: defaultdict[float, float]

    def reuse(self) -> tuple[tuple[float, float], ...]:
        return tuple((distance_b, size_b / self.count) for distance_b, size_b in sorted(self.since_b.items()))


def _counted(operations: Iterable[Operation], reuse: Iterable[Sequence[tuple[float, float]]]) -> dict[Any, _Equal]:
    """Equal operations once, by what makes them equal."""
    results: dict[Any, _Equal] = {}
    for operation, touches in zip(operations, reuse, strict=True):
        plain = _by_itself(operation)
        key = (
            plain.name, plain.inputs, plain.outputs, plain.module, plain.phase, plain.pointwise, plain.flops,
            tuple(plain.arguments.items()), plain.upper_bound,
        )  # fmt: skip
        equal = results.setdefault(key, _Equal(plain, 0, defaultdict(float)))
        equal.count += 1
        for distance_b, size_b in touches:
            if distance_b > NEAR_B:
                equal.since_b[2.0 ** ceil(log2(distance_b))] += size_b
    return results


def _by_itself(operation: Operation) -> Operation:
    """An operation with its storages numbered from 0, without what JSON cannot hold of its arguments, such as infinity."""
    numbers: dict[int, int] = {}

    def renumbered(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, storage=numbers.setdefault(tensor.storage, len(numbers)))

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(plain(item) for item in value)
        if isinstance(value, float) and not isfinite(value):
            return None
        return renumbered(value) if isinstance(value, TensorInfo) else value

    inputs = tuple(renumbered(tensor) for tensor in operation.inputs)
    outputs = tuple(renumbered(tensor) for tensor in operation.outputs)
    arguments = {name: plain(value) for name, value in operation.arguments.items() if _is_plain(value)}
    module = merged_module(operation.module)
    return replace(operation, arguments=arguments, inputs=inputs, outputs=outputs, module=module, compiled=False)


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a truth value, a word, nothing, a tensor, or a list of these; devices and dtypes are left out."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, TensorInfo) or type(value) in (bool, int, float, str)


_Size = Annotated[int, Meta(ge=0, le=MAX_DIM)]
_Stride = Annotated[int, Meta(ge=-MAX_DIM, le=2**62)]
_Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_Bytes = Annotated[int, Meta(ge=0, le=2**62)]
_Name = Annotated[str, Meta(max_length=300)]
_Amount = Annotated[float, Meta(ge=0, le=1e30)]
_Distance = Annotated[float, Meta(ge=1, le=2.0**62)]
_Place = Annotated[int, Meta(ge=0)]


class _Tensor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    shape: Annotated[list[_Size], Meta(max_length=64)]
    strides: Annotated[list[_Stride], Meta(max_length=64)]
    dtype: Annotated[str, Meta(max_length=40)]
    itemsize_b: Annotated[int, Meta(ge=1, le=64)]


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    count: _Count
    compiled: _Count
    inputs: list[tuple[_Place, _Place]]
    outputs: list[tuple[_Place, _Place]]
    arguments: dict[str, Any] = {}
    flops: _Amount = 0.0
    module: _Name = ""
    phase: _Name = "forward"
    pointwise: bool = False
    upper_bound: bool = False
    reuse: Annotated[list[tuple[_Distance, _Amount]], Meta(max_length=64)] = []


class _Memory(msgspec.Struct, forbid_unknown_fields=True):
    peak_b: _Bytes
    weights_b: _Bytes
    gradients_b: _Bytes
    optimizer_state_b: _Bytes
    activations_b: _Bytes
    inputs_b: _Bytes
    at: _Name = ""
    workspace_b: _Bytes = 0
    states_b: _Bytes = 0
    of_batch_b: _Bytes = 0


class _Fusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chained: _Count = 0
    passes: _Count = 0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    operators: _Count
    memory: _Memory
    tensors: list[_Tensor]
    calls: Annotated[list[_Call], Meta(min_length=1)]
    flops: _Amount = 0.0
    views: _Count = 0
    batch: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    tf32: bool = False
    tf32_convolutions: bool = False
    compiles: bool = False
    fusion: _Fusion = _Fusion()
    whole_fusion: _Fusion = _Fusion()
    notes: Annotated[list[Annotated[str, Meta(max_length=2000)]], Meta(max_length=100)] = []


def as_data(program: Program) -> dict[str, Any]:
    """A program as plain data, which `read_program` takes.

    `tensors` has every shape once; a call's tensors are pairs of a position in it and the number of a storage within the call.
    """
    places: dict[tuple[Any, ...], int] = {}

    def pair(tensor: TensorInfo) -> list[int]:
        key = (tensor.shape, tensor.strides, tensor.dtype, tensor.itemsize_b)
        return [places.setdefault(key, len(places)), tensor.storage]

    calls = [
        {
            "name": item.operation.name, "count": item.count, "compiled": item.compiled,
            "inputs": [pair(tensor) for tensor in item.operation.inputs],
            "outputs": [pair(tensor) for tensor in item.operation.outputs],
            "arguments": {name: _written(value, item.operation.inputs) for name, value in item.operation.arguments.items()},
            "flops": item.operation.flops, "module": item.operation.module, "phase": item.operation.phase,
            "pointwise": item.operation.pointwise, "upper_bound": item.operation.upper_bound,
            "reuse": [list(pair) for pair in item.reuse],
        }
        for item in program.calls
    ]  # fmt: skip
    return {
        "format": FORMAT, "version": VERSION, "operators": program.operators, "flops": program.flops, "views": program.views,
        "batch": program.batch, "tf32": program.tf32, "tf32_convolutions": program.tf32_convolutions,
        "compiles": program.compiles, "fusion": asdict(program.fusion),
        "whole_fusion": asdict(program.whole_fusion), "memory": asdict(program.memory), "notes": list(program.notes),
        "tensors": [[list(shape), list(strides), dtype, size_b] for shape, strides, dtype, size_b in places], "calls": calls,
    }  # fmt: skip


def save_program(program: Program, path: Path) -> Path:
    """Write a program to a file of JSON.

    Raises:
        SpecError: the place cannot be written.
    """
    try:
        path.write_text(json.dumps(as_data(program)) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror}", field="path") from error
    return path


def _written(value: Any, inputs: Sequence[TensorInfo]) -> Any:
    """A tensor as its position among the inputs."""
    if isinstance(value, tuple):
        return [_written(item, inputs) for item in value]
    return {"input": inputs.index(value)} if isinstance(value, TensorInfo) else value


def is_program(values: Any) -> bool:
    """Whether data says that it is a captured program."""
    return isinstance(values, Mapping) and values.get("format") == FORMAT


def read_program(values: Any, most: int | None = None) -> Program:
    """The program that plain data describes.

    Args:
        values: what `as_data` gave.
        most: most calls that are taken.

    Raises:
        SpecError: it is no such data, has more calls, or an operator has not the inputs that PyTorch's has.
    """
    if not is_program(values):
        raise SpecError(
            f'a captured program has "format": "{FORMAT}"; save one with run.save_program("program.json")',
            field="program",
        )
    try:
        file = msgspec.convert(values, _File)
    except msgspec.ValidationError as error:
        raise SpecError(f"the captured program is damaged: {error}", field="program") from error
    if file.version != VERSION:
        raise SpecError(
            f"the captured program has version {file.version}, and version {VERSION} is read; record it again with this one",
            field="program",
        )
    if most is not None and len(file.calls) > most:
        raise SpecError(
            f"the captured program has {len(file.calls)} different calls; at most {most} are priced", field="program"
        )
    for i, shape in enumerate(file.tensors):
        if ITEMSIZES_B.get(shape.dtype) != shape.itemsize_b:
            raise SpecError(
                f"program.tensors[{i}]: PyTorch has no dtype {shape.dtype!r} of {shape.itemsize_b} bytes",
                field=f"program.tensors[{i}]",
            )
    return Program(
        calls=tuple(_read_call(item, i, file.tensors) for i, item in enumerate(file.calls)),
        operators=file.operators, flops=file.flops, views=file.views, memory=Memory(**msgspec.to_builtins(file.memory)),
        batch=file.batch, tf32=file.tf32, tf32_convolutions=file.tf32_convolutions, compiles=file.compiles,
        fusion=Fusion(file.fusion.chained, file.fusion.passes),
        whole_fusion=Fusion(file.whole_fusion.chained, file.whole_fusion.passes), notes=tuple(file.notes),
    )  # fmt: skip


def _read_call(item: _Call, index: int, tensors: Sequence[_Tensor]) -> Call:
    where = f"program.calls[{index}]"

    def tensor(pair: tuple[int, int]) -> TensorInfo:
        if pair[0] >= len(tensors):
            raise SpecError(f"{where}: there is no tensor {pair[0]}; there are {len(tensors)}", field=where)
        shape = tensors[pair[0]]
        if len(shape.shape) != len(shape.strides):
            raise SpecError(f"{where}: tensor {pair[0]} has another number of strides than sizes", field=where)
        return TensorInfo(tuple(shape.shape), tuple(shape.strides), shape.dtype, shape.itemsize_b, pair[1])

    inputs, outputs = tuple(map(tensor, item.inputs)), tuple(map(tensor, item.outputs))
    operation = Operation(
        name=item.name, arguments={name: _read(value, inputs, where) for name, value in item.arguments.items()},
        inputs=inputs, outputs=outputs, flops=item.flops, module=item.module, phase=item.phase, pointwise=item.pointwise,
        upper_bound=item.upper_bound,
    )  # fmt: skip
    try:
        for kind in ("gpu", "cpu"):
            kernels_of(operation, kind)
    except SpecError as error:
        raise SpecError(f"{where}: {item.name}: {error}", field=where) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Costings take what PyTorch's schemas promise; data of others promises nothing.
        raise SpecError(
            f"{where}: {item.name} has not the inputs and arguments of PyTorch's operator ({type(error).__name__}: {error})",
            field=where,
        ) from error
    return Call(operation, item.count, item.compiled, tuple(item.reuse))


def _read(value: Any, inputs: Sequence[TensorInfo], where: str, depth: int = 0) -> Any:
    if isinstance(value, list) and depth <= _DEPTH:
        return tuple(_read(item, inputs, where, depth + 1) for item in value)
    if isinstance(value, dict) and isinstance(place := value.get("input"), int) and 0 <= place < len(inputs):
        return inputs[place]
    if value is None or type(value) in (bool, int, float) or (isinstance(value, str) and len(value) <= _LONGEST_WORD):
        return value
    raise SpecError(
        f'{where}: arguments are numbers, truth values, short words, null, {{"input": position}} and lists of these',
        field=where,
    )
