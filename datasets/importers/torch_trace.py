"""Traces of torch.profiler (`export_chrome_trace`, `tensorboard_trace_handler`) taken with `record_shapes=True`.

What is known of the file (Chrome trace events as Kineto writes them, `libkineto/src/output_json.cpp`):

* Times are in **microseconds**. An operator (`cat` `cpu_op`) has its operands' `Input Dims`, `Input type`, `Input
  Strides` and `Concrete Inputs` where shapes were recorded; the last two are missing in older traces, and what needs
  them is left out.
* A kernel shares its `correlation` with the runtime call that launched it; the operator is the outermost known one
  that was running on that call's thread. A case's time is the sum of its kernels, without the gaps between them.
* Several calls of one case become one row, their median: the first calls hold what a first call costs.
* `deviceProperties` names the GPUs; a trace without it needs `--device`.
* fp32 products whose kernels say so (`tf32`, `s1688`) ran in TF32, which the operands' types do not tell.

Kernels that CUDA graphs replay or compiled code launches belong to no operator and are counted, not imported. The
torch version is not in the trace: `impl` is `torch`.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...features.errors import SpecError
from ..importing.foreign_kernels import OPERATORS, TORCH_FORMATS, Recorded
from ..importing.importer import US, Harvest, ImportedTables, Importer, Progress, agreed_device, any_file, find_files

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
    harvest = Harvest("torch-trace")
    files = list(find_files(path, _is_trace))
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for done, file in enumerate(files):
        progress("reading traces", done, len(files))
        _trace(file, _load(file), device, times, harvest)
        harvest.file_read()
    progress("reading traces", len(files), len(files))
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (name, dtype, family, *case), durations_us in times.items():
        row = {"device": name, "dtype": dtype, "latency_s": statistics.median(durations_us) * US} | dict(case)
        by_family[family].append(row)
    for family, rows in by_family.items():
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        harvest.add(family, len(rows), impl="torch", **columns)
    calls = sum(len(durations_us) for durations_us in times.values())
    harvest.remark(len(times), f"medians over {calls} calls")
    return harvest.done()


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
    path: Path, trace: _Event, device: str | None, times: dict[tuple[Any, ...], list[float]], harvest: Harvest
) -> None:
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    by_thread = _outermost(events)
    starts = {thread: [call.start_us for call in calls] for thread, calls in by_thread.items()}
    launches = {_argument(event, "correlation"): event for event in events if event.get("cat") in _LAUNCHING}
    orphans = 0
    for event in events:
        if event.get("cat") not in _GPU_WORK:
            continue
        call = _launcher(launches.get(_argument(event, "correlation")), by_thread, starts)
        if call is None:
            orphans += event["cat"] == "kernel"
            continue
        call.launched_us += float(event.get("dur", 0.0))
        call.devices = (call.devices or set()) | {_argument(event, "device")}
        call.kernels += f" {event.get('name', '')}"
    harvest.leave_out(orphans, "kernels that no known operator launched")
    names = {gpu.get("id"): str(gpu.get("name", "")) for gpu in trace.get("deviceProperties") or ()}
    for call in (call for calls in by_thread.values() for call in calls):
        case = _case(call)
        if isinstance(case, str):
            harvest.leave_out(1, case)
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


def _launcher(
    launch: _Event | None,
    by_thread: Mapping[tuple[Any, Any], list[_Call]],
    starts: Mapping[tuple[Any, Any], list[float]],
) -> _Call | None:
    if launch is None:
        return None
    thread, at = (launch.get("pid"), launch.get("tid")), float(launch["ts"])
    calls = by_thread.get(thread, [])
    before = bisect_right(starts.get(thread, []), at) - 1
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
