"""The micro-kernels that characterise a GPU: what each is launched with, and launching them through CuPy; and the bench.

The same launches on every GPU: counts of blocks and steps are fixed, never taken from the device. There are enough blocks
for many waves on any GPU of today, and the second, larger launch of each shows whether the first was long enough.

Also what the CUDA driver says of a GPU, read through ctypes.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ....features.kernel import KernelSpec
from ...meters.board import BoardMeter, idle_power_w, sensor_period_s
from ...meters.protocol import EnergyMeter
from ...runner import UnsupportedCaseError
from ..measure.bench import GpuBench
from ..measure.operands import make_operands

MICRO_SOURCE = Path(__file__).with_suffix(".cu")
"""CUDA source of all of them."""

_REPEATS = 5
_FLUSH_B = 512 * 2**20
"""Four times the largest last-level cache of a GPU so far (126 MB on B200)."""

_BLOCK_THREADS = 256


@dataclass(frozen=True, slots=True)
class Chain:
    """A dependent chain in one block; the larger of its two launches has twice as many links.

    Attributes:
        kernel: Name of the micro-kernel.
        steps: Links of the smaller launch.
        threads: Threads of the block.
        span_b: Bytes of the memory it walks through,
        stride_b: in pointers this many bytes apart that end where they began.
        cold: Whether caches are flushed first; otherwise one walk ahead of the timed ones warms them.
        compute_capability: Least compute capability that has it.
    """

    kernel: str
    steps: int
    threads: int = 1
    span_b: int = 4096
    stride_b: int = 128
    cold: bool = False
    compute_capability: int = 75


@dataclass(frozen=True, slots=True)
class SaturatingKernel:
    """A kernel that fills the GPU with blocks of 256 threads.

    Attributes:
        kernel: Name of the micro-kernel.
        work: Flops or bytes of each thread per step.
        steps: Steps of each thread.
        blocks: Blocks of the two launches.
        spans_b: Working sets of the two launches, powers of two.
        compute_capability: Least compute capability that has it.
    """

    kernel: str
    work: float
    steps: int
    blocks: tuple[int, int] = (16384, 32768)
    spans_b: tuple[int, int] = (4096, 4096)
    compute_capability: int = 75


class CupyMicro:
    """Micro-kernels compiled by NVRTC and launched by CuPy.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, index: int) -> None:
        import cupy

        cupy.cuda.Device(index).use()
        self._cupy = cupy
        self._capability = int(cupy.cuda.Device().compute_capability)
        self._module = cupy.RawModule(code=MICRO_SOURCE.read_text(encoding="utf-8"), options=("--std=c++17",))

    def chain_s(self, chain: Chain, steps: int) -> tuple[float, float]:
        """Seconds and SM clocks per step: medians over five launches after one that warms up."""
        kernel = self._kernel(chain.kernel, chain.compute_capability)
        # A walk longer than its span comes back to where it was: to caches that are warm, which a cold one must not.
        memory = self._linked(max(chain.span_b, steps * chain.stride_b) if chain.cold else chain.span_b, chain.stride_b)
        out = self._cupy.zeros(3, dtype=self._cupy.int64)
        results: list[tuple[float, float]] = []
        for _ in range(_REPEATS + 1):
            if chain.cold:
                self._flush()
            kernel((1,), (chain.threads,), (memory, self._cupy.int32(steps), out))
            clocks, ns, _ = (int(value) for value in out.get())
            results.append((ns * 1e-9 / steps, clocks / steps))
        seconds, clocks_per_step = zip(*results[1:], strict=True)
        return statistics.median(seconds), statistics.median(clocks_per_step)

    def throng_s(self, saturating_kernel: SaturatingKernel, blocks: int, span_b: int) -> float:
        """Seconds of one launch: the median of five between events, after one that warms up."""
        cupy = self._cupy
        kernel = self._kernel(saturating_kernel.kernel, saturating_kernel.compute_capability)
        memory = cupy.asarray(np.random.default_rng(1).standard_normal(span_b // 4, dtype=np.float32))
        sink = cupy.zeros(1, dtype=cupy.uint32)
        # Every thread steps by one block's width, and so comes by the whole set.
        words, steps = cupy.uint32(span_b // 16 - 1), cupy.int32(saturating_kernel.steps)
        arguments = (memory, words, cupy.uint32(_BLOCK_THREADS), steps, sink)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        seconds: list[float] = []
        for _ in range(_REPEATS + 1):
            start.record()
            kernel((blocks,), (_BLOCK_THREADS,), arguments)
            end.record()
            end.synchronize()
            seconds.append(float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3)
        return statistics.median(seconds[1:])

    def _kernel(self, name: str, needs: int) -> Any:
        if self._capability < needs:
            have, want = (f"{number // 10}.{number % 10}" for number in (self._capability, needs))
            raise UnsupportedCaseError(f"needs compute capability {want}, this GPU has {have}")
        return self._module.get_function(name)

    def _linked(self, span_b: int, stride_b: int) -> Any:
        """Memory in which every pointer, `stride_b` apart, holds the address of the next, the last that of the first."""
        cupy = self._cupy
        memory = cupy.zeros(span_b // 8, dtype=cupy.uint64)
        at = cupy.arange(0, span_b, stride_b, dtype=cupy.uint64)
        memory[:: stride_b // 8] = cupy.roll(at, -1) + cupy.uint64(memory.data.ptr)
        return memory

    def _flush(self) -> None:
        self._cupy.ones(_FLUSH_B // 4, dtype=self._cupy.float32)


class ProbeError(Exception):
    """A fact cannot be measured here; the message says why."""


_HOST_CALLS = 200
"""Calls enqueued in a row: far fewer than the thousand or so a stream holds before the host has to wait for the GPU."""

_HOST_REPEATS = 9


class ProbeBench:
    """What probes measure with: the GPU behind torch and CuPy, its energy sensor, and its number among CUDA's devices.

    Every method raises what its library raises; only the probe that asked has no value then.
    """

    def __init__(self, bench: GpuBench, meter: EnergyMeter, index: int) -> None:
        self._bench, self._meter, self._index = replace(bench, meter=meter), meter, index
        self._micro: CupyMicro | None = None

    def graph_s(self, spec: KernelSpec) -> float:
        """Seconds the GPU takes for one call, as a campaign measures it.

        Raises:
            ProbeError: the case has no latency; the message has its status and why.
        """
        row = self._bench.measure(spec)
        if row.latency_s is None:
            raise ProbeError(f"{row.status}: {row.message}")
        return row.latency_s

    def host_s(self, spec: KernelSpec) -> float:
        """Seconds the host takes to enqueue one call: the median of nine loops of 200, the GPU idle before each."""
        gpu = self._bench.gpu
        runner = self._bench.runners.get(spec.impl)
        if runner is None:
            raise ProbeError(f"no GPU runner for impl {spec.impl!r}")
        call = runner.launch(spec, make_operands(gpu.torch, spec, "cuda")).call
        per_call_s: list[float] = []
        for _ in range(_HOST_REPEATS + 1):
            gpu.call_s(call)
            began = time.perf_counter()
            for _ in range(_HOST_CALLS):
                call()
            per_call_s.append((time.perf_counter() - began) / _HOST_CALLS)
        gpu.call_s(call)
        return statistics.median(per_call_s[1:])

    def micro(self) -> CupyMicro:
        """What runs micro-kernels, compiled on first use.

        Raises:
            ProbeError: CuPy is not installed.
        """
        if self._micro is None:
            try:
                self._micro = CupyMicro(self._index)
            except ImportError as error:
                raise ProbeError(f"micro-kernels need CuPy ({error}); install cupy-cuda13x") from error
        return self._micro

    def power_w(self, spec: KernelSpec | None) -> float:
        """Mean power in a steady loop of `spec`, or at rest with a context open.

        Raises:
            ProbeError: there is no sensor, or its reading is not to be trusted.
        """
        if spec is None:
            return _known(idle_power_w(self._board().reader), "the GPU does not tell its power")
        self._board()
        row = self._bench.measure(spec, 1)
        return _known(row.power_w, row.message or "the sensor gave nothing")

    def sensor_period_s(self) -> float:
        """Median time between two steps of the energy counter.

        Raises:
            ProbeError: there is no sensor, or it does not step.
        """
        return _known(sensor_period_s(self._board().reader), "the energy counter did not step three times in 2 s")

    def _board(self) -> BoardMeter:
        if not isinstance(self._meter, BoardMeter):
            raise ProbeError("no energy sensor: NVML is not there or has no counter for this GPU")
        return self._meter


def _known(value: float | None, otherwise: str) -> float:
    if value is None:
        raise ProbeError(otherwise)
    return value


_LIBRARY = "libcuda.so.1"


_ATTRIBUTES: Mapping[str, tuple[int, float]] = {
    "compute_units": (16, 1.0),
    "boost_clock_hz": (13, 1e3),
    "memory_clock_hz": (36, 1e3),
    "memory_bus_b": (37, 1 / 8),
    "l2_b": (38, 1.0),
    "shared_memory_per_unit_b": (81, 1.0),
    "registers_per_unit_b": (82, 4.0),
}
"""Number of a `CUdevice_attribute` in cuda.h, and what its value is multiplied by to be in SI units."""


def device_attributes(index: int = 0, load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, float | None]:
    """Attributes of CUDA device `index` by name, in SI units; None for one the driver does not tell, empty without a driver.

    `memory_bus_b` is the width of the memory bus in bytes; memory moves that much twice per clock.
    """
    try:
        driver = load(_LIBRARY)
    except OSError:
        return {}
    device = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return {}
    attributes: dict[str, float | None] = {}
    for name, (number, scale) in _ATTRIBUTES.items():
        value = ctypes.c_int()
        known = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 and value.value > 0
        attributes[name] = value.value * scale if known else None
    size = ctypes.c_size_t()
    attributes["memory_b"] = float(size.value) if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0 else None
    return attributes
