"""Traces of torch.profiler (`export_chrome_trace`, `tensorboard_trace_handler`) taken with `record_shapes=True`.

What is known of the file (Chrome trace events as Kineto writes them, `libkineto/src/output_json.cpp`):

* Times are in **microseconds**. An operator (`cat` `cpu_op`) has its operands' `Input Dims`, `Input type`, `Input
  Strides` and `Concrete Inputs` where shapes were recorded; the last two are missing in older traces, and what needs
  them is left out.
* A kernel shares its `correlation` with the runtime call that launched it; the operator is the outermost known one
  that was running on that call's thread. A case's time is the sum of its kernels, without the gaps between them
  (`timing` `device`).
* Several calls of one case become one row, their median: the first calls hold what a first call costs.
* `deviceProperties` names the GPUs; a trace without it needs `--device`.
* fp32 products whose kernels say so (`tf32`, `s1688`) ran in TF32, which the operands' types do not tell.

Kernels that CUDA graphs replay or compiled code launches belong to no operator and are counted, not imported. The
torch version is not in the trace: `impl` is `torch`.

Operand shapes and the order of arguments are those of the operators' schemas (`aten/src/ATen/native/native_functions.yaml`).
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ...features.errors import SpecError
from ..form.importer import US, ImportBuilder, ImportedTables, Importer, Progress, agreed_device, any_file, find_files

Shape = tuple[int, ...]
Case = tuple[str, dict[str, Any]]

TORCH_FORMATS: Mapping[str, str] = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "c10::bfloat16": "bf16", "signed char": "int8",
    "c10::float8_e4m3fn": "fp8", "int": "int32", "long int": "int64", "long": "int64",
}  # fmt: skip
"""C++ types a profiler names, in lower case, that the project has a format for."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded call of an operator. What the profiler did not record is empty.

    Attributes:
        name: The operator, such as `aten::mm`.
        shapes: Shape of each argument in order; empty for an argument that is no tensor.
        types: Element type of each argument.
        strides: Strides of each argument; empty with older profilers.
        values: Arguments that are no tensors, as text; empty with older profilers.
    """

    name: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    strides: tuple[Shape, ...]
    values: tuple[str, ...]

    def shape(self, at: int) -> Shape:
        """Shape of an argument, empty where it is no tensor."""
        return self.shapes[at] if at < len(self.shapes) else ()

    def value(self, at: int) -> Any:
        """An argument that is no tensor, as Python reads it; None where it was not recorded."""
        try:
            return ast.literal_eval(self.values[at])
        except (IndexError, ValueError, SyntaxError):
            return None

    def is_given(self, at: int) -> bool:
        """Whether an optional tensor was passed."""
        return bool(self.shape(at)) or (at < len(self.types) and self.types[at].lower() in TORCH_FORMATS)


def _column_first(call: Recorded, at: int) -> bool:
    """Whether an operand of two dimensions lies column by column; False where strides were not recorded."""
    if at >= len(call.strides) or len(call.strides[at]) != 2:
        return False
    (rows, columns), (_, width) = call.strides[at], call.shape(at)
    return rows == 1 and columns != 1 and width > 1


def _mm(call: Recorded) -> Case | str:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 2 or len(b) != 2:
        return "products without recorded shapes"
    word = f"{'t' if _column_first(call, 0) else 'n'}{'t' if _column_first(call, 1) else 'n'}"
    return "gemm", {"variant": "" if word == "nn" else word, "batch": 1, "m": a[0], "n": b[1], "k": a[1]}


def _addmm(call: Recorded) -> Case | str:
    bias, a, b = (call.shape(at) for at in range(3))
    if len(a) != 2 or len(b) != 2:
        return "products without recorded shapes"
    if len(bias) != 1:
        return "products that add a whole matrix"
    return "gemm", {"variant": "bias", "batch": 1, "m": a[0], "n": b[1], "k": a[1]}


def _bmm(call: Recorded) -> Case | str:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 3 or len(b) != 3:
        return "products without recorded shapes"
    return "gemm", {"variant": "batched", "batch": a[0], "m": a[1], "n": b[2], "k": a[2]}


def _flat(shape: Shape) -> dict[str, int]:
    return {"rows": prod(shape[:-1]), "cols": shape[-1]}


def _softmax(call: Recorded) -> Case | str:
    shape, dim = call.shape(0), call.value(1)
    if not shape or dim is None:
        return "softmax without a recorded shape and dimension"
    if dim not in (-1, len(shape) - 1):
        return "softmax over another dimension than the last"
    return "softmax", {"variant": ""} | _flat(shape)


def _norm(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        shape, over = call.shape(0), call.value(1)
        if not shape or not isinstance(over, list):
            return "norms without a recorded shape and dimensions"
        if len(over) != 1 or not call.is_given(2):
            return "norms over several dimensions, or without a learned scale"
        return "layernorm", {"variant": variant} | _flat(shape)

    return read


def _unary(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        shape = call.shape(0)
        return ("elementwise", {"variant": variant} | _flat(shape)) if shape else "operators without recorded shapes"

    return read


def _binary(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        a, b = call.shape(0), call.shape(1)
        if not a:
            return "operators without recorded shapes"
        if not b:
            scalar = f"{variant}u"
            if scalar not in ("addu", "mulu", "divu", "powu"):
                return "a tensor and a scalar, for an operator the family has with two tensors only"
            return "elementwise", {"variant": scalar} | _flat(a)
        if a != b:
            return "element-wise operators that broadcast one operand"
        if call.types[:2] and len(set(call.types[:2])) > 1:
            return "element-wise operators on two formats"
        return "elementwise", {"variant": variant} | _flat(a)

    return read


def _conv2d(call: Recorded) -> Case | str:
    image, weight = call.shape(0), call.shape(1)
    stride, padding, dilation, groups = (call.value(at) for at in range(3, 7))
    if len(image) != 4 or len(weight) != 4 or not all(isinstance(item, list) for item in (stride, padding, dilation)):
        return "convolutions without recorded shapes, stride and padding"
    if call.is_given(2):
        return "convolutions with a bias, which is a kernel more"
    sides = (weight[2:], stride, padding, dilation)
    if any(len(set(side)) != 1 for side in sides) or dilation[0] != 1 or groups != 1:
        return "convolutions that are grouped, dilated or not square"
    return "conv2d", {
        "variant": "", "batch": image[0], "in_channels": image[1], "out_channels": weight[0], "height": image[2],
        "width": image[3], "kernel": weight[2], "stride": stride[0], "padding": padding[0],
    }  # fmt: skip


def _attention(call: Recorded) -> Case | str:
    q, k, v = (call.shape(at) for at in range(3))
    if len(q) != 4 or len(k) != 4 or k != v or q[3] != k[3]:
        return "attention without recorded shapes, or whose values have another size than its keys"
    if call.is_given(3):
        return "attention with a mask of its own"
    case = {
        "batch": q[0],
        "heads": q[1],
        "kv_heads": k[1],
        "q_len": q[2],
        "kv_len": k[2],
        "head_dim": q[3],
        "window": 0,
    }
    if q[2] == 1:
        return "attention", {"variant": "decode"} | case
    causal = call.value(5)
    if causal is False:
        return "attention", {"variant": "full"} | case
    if causal is not True or q[2] != k[2]:
        return "attention that does not say its mask, or has a causal one of unequal lengths"
    return "attention", {"variant": "prefill"} | case


_UNARY = ("relu", "gelu", "silu", "tanh", "exp", "sigmoid", "sqrt", "log", "neg", "abs")
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum")

OPERATORS: Mapping[str, Callable[[Recorded], Case | str]] = {
    "aten::mm": _mm, "aten::addmm": _addmm, "aten::bmm": _bmm, "aten::softmax": _softmax, "aten::_softmax": _softmax,
    "aten::layer_norm": _norm("layernorm"), "aten::rms_norm": _norm("rmsnorm"), "aten::conv2d": _conv2d,
    "aten::scaled_dot_product_attention": _attention,
    **{f"aten::{name}{end}": _unary(name) for name in _UNARY for end in ("", "_")},
    **{f"aten::{name}{end}": _binary(name) for name in _BINARY for end in ("", "_")},
}  # fmt: skip
"""Operators by the name a profiler records; in-place ones do the same work."""


_GPU_WORK = ("kernel", "gpu_memset", "gpu_memcpy")
_LAUNCHING = ("cuda_runtime", "cuda_driver")
_MARKS = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
_TF32 = re.compile(r"tf32|s1688")
_HEAD_B = 8192

_Event = Mapping[str, Any]


@dataclass(slots=True)
class _Call:
    """A call of an operator: when it ran, and what it launched."""

    start_us: float
    end_us: float
    event: _Event
    launched_us: float = 0.0
    devices: set[Any] | None = None
    kernels: str = ""


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _is_trace(path: Path) -> bool:
    if not path.name.endswith((".json", ".json.gz")):
        return False
    try:
        with _open(path) as file:
            head = file.read(_HEAD_B)
    except (OSError, EOFError):
        return False
    return any(mark in head for mark in _MARKS)


def _read(path: Path, device: str | None, progress: Progress) -> ImportedTables:
    builder = ImportBuilder()
    files = list(find_files(path, _is_trace))
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for done, file in enumerate(files):
        progress("reading traces", done, len(files))
        _trace(file, _load(file), device, times, builder)
        builder.files += 1
    progress("reading traces", len(files), len(files))
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (name, dtype, family, *case), durations_us in times.items():
        row = {"device": name, "dtype": dtype, "latency_s": statistics.median(durations_us) * US} | dict(case)
        by_family[family].append(row)
    for family, rows in by_family.items():
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        builder.add(family, len(rows), impl="torch", timing="device", **columns)
    calls = sum(len(durations_us) for durations_us in times.values())
    builder.remark(len(times), f"medians over {calls} calls")
    return builder.done()


def _load(path: Path) -> _Event:
    try:
        with _open(path) as file:
            document = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise SpecError(f"{path} is no readable trace: {error}", field="path") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise SpecError(
            f"{path} holds no traceEvents; export it with torch.profiler's export_chrome_trace", field="path"
        )
    return document


def _trace(
    path: Path, trace: _Event, device: str | None, times: dict[tuple[Any, ...], list[float]], builder: ImportBuilder
) -> None:
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    by_thread = _outermost(events)
    launches = {_argument(event, "correlation"): event for event in events if event.get("cat") in _LAUNCHING}
    orphans = 0
    for event in events:
        if event.get("cat") not in _GPU_WORK:
            continue
        call = _launcher(launches.get(_argument(event, "correlation")), by_thread)
        if call is None:
            orphans += event["cat"] == "kernel"
            continue
        call.launched_us += float(event.get("dur", 0.0))
        call.devices = (call.devices or set()) | {_argument(event, "device")}
        call.kernels += f" {event.get('name', '')}"
    builder.leave_out(orphans, "kernels that no known operator launched")
    names = {gpu.get("id"): str(gpu.get("name", "")) for gpu in trace.get("deviceProperties") or ()}
    for call in (call for calls in by_thread.values() for call in calls):
        case = _case(call)
        if isinstance(case, str):
            builder.leave_out(1, case)
            continue
        device_name = names.get(next(iter(call.devices or {None})), "") or (
            next(iter(names.values())) if len(names) == 1 else ""
        )
        key = (agreed_device(device_name, device, str(path)), *case)
        times[key].append(call.launched_us)


def _case(call: _Call) -> tuple[Any, ...] | str:
    """`(dtype, family, (name, value) …)` of a call, or why it is no row."""
    arguments = call.event.get("args") or {}
    if "Input Dims" not in arguments:
        return "operators without recorded shapes; profile with record_shapes=True"
    if not call.launched_us > 0 or len(call.devices or ()) != 1:
        return "operators that launched nothing on a GPU, or on several"
    recorded = Recorded(
        str(call.event["name"]), _shapes(arguments["Input Dims"]), tuple(map(str, arguments.get("Input type") or ())),
        _shapes(arguments.get("Input Strides") or ()), tuple(map(str, arguments.get("Concrete Inputs") or ())),
    )  # fmt: skip
    kind = next((name.lower() for name in recorded.types if name and name != "Scalar"), "")
    if kind not in TORCH_FORMATS:
        return f"no format for operands of type {kind or 'unknown'!r}"
    outcome = OPERATORS[recorded.name](recorded)
    if isinstance(outcome, str):
        return outcome
    family, case = outcome
    in_tf32 = TORCH_FORMATS[kind] == "fp32" and family in ("gemm", "conv2d") and _TF32.search(call.kernels.lower())
    return ("tf32" if in_tf32 else TORCH_FORMATS[kind], family, *case.items())


def _shapes(shapes: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of all arguments; what is no plain list of sizes (a scalar, a list of tensors) is empty."""
    return tuple(
        tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else ()
        for shape in shapes
    )


def _outermost(events: Iterable[_Event]) -> dict[tuple[Any, Any], list[_Call]]:
    """Calls of known operators by thread, in the order they began, without those another known one made."""
    by_thread: dict[tuple[Any, Any], list[_Call]] = defaultdict(list)
    for event in sorted(
        (event for event in events if event.get("cat") == "cpu_op" and event.get("name") in OPERATORS),
        key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))),
    ):
        calls = by_thread[event.get("pid"), event.get("tid")]
        start = float(event["ts"])
        if not calls or start >= calls[-1].end_us:
            calls.append(_Call(start, start + float(event.get("dur", 0.0)), event))
    return by_thread


def _launcher(launch: _Event | None, by_thread: Mapping[tuple[Any, Any], list[_Call]]) -> _Call | None:
    if launch is None:
        return None
    calls, at = by_thread.get((launch.get("pid"), launch.get("tid")), []), float(launch["ts"])
    before = bisect_right(calls, at, key=lambda call: call.start_us) - 1
    return calls[before] if before >= 0 and at <= calls[before].end_us else None


def _argument(event: _Event, name: str) -> Any:
    return (event.get("args") or {}).get(name)


IMPORTER = Importer(
    name="torch-trace",
    title="traces of torch.profiler (.json, .json.gz)",
    looks_like=lambda path: any_file(path, _is_trace),
    read=_read,
    names_devices=False,
)
