"""Measures the programs of `torch_suite.py` on this machine's GPU: time, memory and energy of a step, to a Parquet file.

A step is measured as in a training loop: steps are enqueued one after the other, and the host waits for the GPU at the end of
each batch of them alone. So a step takes as long as the longer of the host and the GPU. Needs torch, numpy and pyarrow, and
nvidia-ml-py for energy; nothing here imports the predictor.
"""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from kernelcast.collectors.gpu.measure.torch_gpu import GraphLoop
from kernelcast.collectors.meters.board import EnergyRule
from kernelcast.collectors.meters.find import find_gpu_meter, gpu_facts, open_gpu_reader
from kernelcast.collectors.meters.protocol import EnergyMeter, EnergyRefusedError
from torch import nn
from torch_suite import Step, is_compiled, programs

SIZES = {"small": False, "large": True}
RULE = EnergyRule(settle_s=0.5, window_s=0.5, edge=0.02)
"""Times as in the GPU campaign (`collectors/gpu/campaign.py`). Windows grow until their edges are known to 2 % of them, where a
campaign asks for 1 %: all programs then fit into three minutes."""

WARM_S = 0.1
"""Seconds of steps before anything counts, so that clocks are up and the allocator holds what a step needs."""
LATENCY_S, BATCH_S, LEAST_BATCHES = 0.3, 0.05, 5
TURN_S = 6e-3
"""Seconds of steps that a steady loop enqueues at a time."""
_REPEATS = 5
_LONGEST_WAIT_CYCLES = 400_000_000
"""A fifth of a second at 2 GHz."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A program on the GPU; None where something could not be measured, for which `message` has the reason.

    Attributes:
        program: Its name.
        size: `small` or `large`.
        first_s: Seconds of the first step, compiling included.
        latency_s: Seconds of a step in a steady loop: the median over batches.
        latency_low_s: The tenth percentile of batches.
        latency_high_s: The ninetieth.
        host_s: Seconds the host takes to enqueue one step while the GPU waits for work.
        device_s: Seconds the GPU takes for a step that is enqueued as a whole before it begins.
        memory_b: Most bytes of tensors during a step that is not the first: weights, state and inputs included.
        energy_j: Joules of a step in a steady loop, all that the board draws.
        power_w: Mean power meanwhile.
        energy_step_s: Seconds of a step meanwhile, when the host also reads the sensor.
        message: What went wrong.
    """

    program: str
    size: str
    first_s: float | None = None
    latency_s: float | None = None
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    host_s: float | None = None
    device_s: float | None = None
    memory_b: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    energy_step_s: float | None = None
    message: str = ""


_SCHEMA = pa.schema([
    (name, pa.string() if name in ("program", "size", "message") else pa.float64()) for name in Measured.__slots__
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that are enqueued together, as a graph's calls are."""

    step: Step
    steps: int

    def launch(self) -> None:
        """Enqueue them; does not wait."""
        for _ in range(self.steps):
            self.step()


class StepTimer:
    """Times steps on a GPU; `api` is `torch.cuda` or a double of it."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def steps_s(self, step: Step, count: int) -> float:
        """Seconds a step takes of `count` enqueued one after the other."""
        self._api.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        self._api.synchronize()
        return (time.perf_counter() - began) / count

    def warm_s(self, step: Step) -> float:
        """About what a step takes, after enough of them."""
        until = time.perf_counter() + WARM_S
        step_s = self.steps_s(step, 1)
        while time.perf_counter() < until:
            step_s = self.steps_s(step, batch_of(TURN_S, step_s))
        return step_s

    def latencies_s(self, step: Step, step_s: float) -> Sequence[float]:
        """Seconds of a step, one number of each batch."""
        count, found, until = batch_of(BATCH_S, step_s), list[float](), time.perf_counter() + LATENCY_S
        while time.perf_counter() < until or len(found) < LEAST_BATCHES:
            found.append(self.steps_s(step, count))
        return found

    def host_s(self, step: Step) -> float:
        """Seconds the host takes to enqueue a step."""
        found = []
        for _ in range(_REPEATS):
            self._api.synchronize()
            began = time.perf_counter()
            step()
            found.append(time.perf_counter() - began)
        self._api.synchronize()
        return float(np.median(found))

    def device_s(self, step: Step, host_s: float) -> float | None:
        """Seconds the GPU takes for a step. It waits until all of the step is enqueued; None where that is not possible."""
        cycles, found = int(4e9 * host_s) + 100_000, list[float]()
        while len(found) < _REPEATS and cycles <= _LONGEST_WAIT_CYCLES:
            start, end = (self._api.Event(enable_timing=True) for _ in range(2))
            self._api.synchronize()
            self._api._sleep(cycles)
            start.record()
            step()
            end.record()
            is_late = start.query()
            end.synchronize()
            if is_late:
                cycles *= 2
            else:
                found.append(float(start.elapsed_time(end)) * 1e-3)
        return float(np.median(found)) if len(found) == _REPEATS else None

    def peak_b(self, step: Step) -> int:
        """Most bytes of tensors during a step."""
        self._api.synchronize()
        self._api.reset_peak_memory_stats()
        step()
        self._api.synchronize()
        return int(self._api.max_memory_allocated())


def batch_of(seconds: float, step_s: float) -> int:
    """How many steps take so long, one at least."""
    return max(1, round(seconds / step_s))


def measure_program(api: Any, where: str, build: Callable[[], Step], meter: EnergyMeter) -> Mapping[str, Any]:
    """Build a program on a device and measure a step of it: fields of `Measured`."""
    gc.collect()
    api.empty_cache()
    before_b = int(api.memory_allocated())
    with torch.device(where):
        step = build()
    timer = StepTimer(api)
    first_s = timer.steps_s(step, 1)
    step_s = timer.warm_s(step)
    latencies = timer.latencies_s(step, step_s)
    low_s, latency_s, high_s = (float(each) for each in np.quantile(latencies, (0.1, 0.5, 0.9)))
    host_s = timer.host_s(step)
    fields: dict[str, Any] = {
        "first_s": first_s, "latency_s": latency_s, "latency_low_s": low_s, "latency_high_s": high_s, "host_s": host_s,
        "device_s": timer.device_s(step, host_s), "memory_b": float(timer.peak_b(step) - before_b),
    }  # fmt: skip
    try:
        batch = batch_of(TURN_S, latency_s)
        energy = meter.measure(GraphLoop(api, Batch(step, batch), batch))
    except EnergyRefusedError as refused:
        return fields | {"message": f"no energy: {refused}"}
    if energy is None:
        return fields
    step_s = energy.window_s / energy.calls
    return fields | {"energy_j": energy.energy_j, "power_w": energy.power_w, "energy_step_s": step_s}


def measure_all(
    api: Any, where: str, meter: EnergyMeter, out: Path, facts: Mapping[str, Any], *, seconds: float, only: str = "",
    began: float | None = None,
) -> Sequence[Measured]:  # fmt: skip
    """Measure every program in both sizes, compiled ones last, and write the file after each.

    Args:
        api: `torch.cuda`, or a double of it.
        where: torch's name of the device.
        meter: its energy meter.
        out: the Parquet file.
        facts: what to keep of the machine.
        seconds: programs that would begin later than this are left out.
        only: programs whose name has this in it.
        began: `time.perf_counter()` from which the seconds count; None: now.
    """
    began = time.perf_counter() if began is None else began
    every = [(size, name, build) for size, large in SIZES.items() for name, build in programs(large=large).items()]
    every = sorted((each for each in every if only in each[1]), key=lambda each: is_compiled(each[1]))
    rows: list[Measured] = []
    left_out: list[str] = []
    for i, (size, name, build) in enumerate(every):
        if time.perf_counter() - began > seconds:
            left_out.append(f"{name} ({size})")
            continue
        if is_compiled(name):
            # Else the second size of a module would be compiled for any size.
            torch.compiler.reset()
        try:
            row = Measured(name, size, **measure_program(api, where, build, meter))
        except Exception as error:  # noqa: BLE001 - one program that fails costs no other its measurement
            row = Measured(name, size, message=f"{type(error).__name__}: {str(error).strip()}".split("\n")[0])
        rows.append(row)
        write(rows, out, {**facts, "left_out": left_out})
        print(f"{time.perf_counter() - began:6.1f} s  {i + 1:2d}/{len(every)}  {_line(row)}", flush=True)
    write(rows, out, {**facts, "left_out": left_out})
    print(f"{len(rows)} programs in {time.perf_counter() - began:.0f} s are in {out}; left out: {left_out or 'none'}")
    return rows


def _line(row: Measured) -> str:
    parts = [f"{row.program} ({row.size})"]
    for value, scale, unit in (
        (row.latency_s, 1e3, "ms"), (row.host_s, 1e3, "ms of the host"), (row.device_s, 1e3, "ms of the GPU"),
        (row.memory_b, 1e-6, "MB"), (row.energy_j, 1e3, "mJ"), (row.power_w, 1.0, "W"),
    ):  # fmt: skip
        if value is not None:
            parts.append(f"{value * scale:.4g} {unit}")
    return ", ".join([*parts, row.message] if row.message else parts)


def write(rows: Sequence[Measured], out: Path, facts: Mapping[str, Any]) -> None:
    """Write all rows; the file is whole at any moment."""
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=_SCHEMA)
    partial = out.with_name(f"{out.name}.part")
    pq.write_table(table.replace_schema_metadata({"facts": json.dumps(facts)}), partial)
    partial.replace(out)


def read(path: Path) -> tuple[Sequence[Measured], Mapping[str, Any]]:
    """The rows of a file and the facts of its machine."""
    table = pq.read_table(path)
    facts: Mapping[str, Any] = json.loads((table.schema.metadata or {}).get(b"facts", b"{}"))
    return [Measured(**row) for row in table.to_pylist()], facts


def warm_libraries(where: str) -> None:
    """Have libraries take the workspaces that they keep, which are not a program's memory."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(256, 256, device=where, dtype=dtype)
        layer(torch.randn(256, 256, device=where, dtype=dtype)).square().mean().backward()
        with torch.no_grad():
            layer(torch.randn(256, 256, device=where, dtype=dtype))


def measure_cuda(out: Path, *, seconds: float, only: str = "") -> None:
    """Measure on the first CUDA device."""
    began = time.perf_counter()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; install a CUDA build of torch and check nvidia-smi")
    out.parent.mkdir(parents=True, exist_ok=True)
    properties = torch.cuda.get_device_properties(0)
    uuid = f"GPU-{properties.uuid}"
    # Gross energy needs no power at rest, and the loop's turns are far shorter than the counter's step.
    meter, why = find_gpu_meter(rule=RULE, calibrate=False, uuid=uuid)
    reader = open_gpu_reader(uuid=uuid)
    facts = {
        "device": properties.name, "torch": torch.__version__, "cuda": torch.version.cuda, "energy": why,
        "python": platform.python_version(), "gpu": {} if reader is None else gpu_facts(reader),
    }  # fmt: skip
    print(json.dumps(facts), flush=True)
    warm_libraries("cuda")
    measure_all(torch.cuda, "cuda", meter, out, facts, seconds=seconds, only=only, began=began)
