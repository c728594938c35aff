"""What probes measure with on a real GPU: the campaign's own bench for kernels, CuPy for micro-kernels, NVML for power."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from ...datasets.schema import Measurement
from ...features.kernel import KernelSpec
from ..meters.board import BoardMeter
from ..meters.protocol import EnergyMeter
from ..meters.startup import idle_power_w, sensor_period_s
from .bench import GpuBench
from .micro import CupyMicro, Micro
from .operands import make_operands
from .probes import ProbeError

_HOST_CALLS = 200
"""Calls enqueued in a row: far fewer than the thousand or so a stream holds before the host has to wait for the GPU."""

_HOST_REPEATS = 9


class CudaProbeBench:
    """The `ProbeBench` of a real GPU; `meter` is its energy sensor, `index` its number among CUDA's devices."""

    def __init__(
        self, bench: GpuBench, meter: EnergyMeter, index: int = 0, *, open_micro: Callable[[int], Micro] = CupyMicro,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._bench, self._meter, self._index = replace(bench, meter=meter), meter, index
        self._open_micro, self._now_s = open_micro, now_s
        self._micro: Micro | None = None

    def graph_s(self, spec: KernelSpec) -> float:
        """Seconds the GPU takes for one call, as a campaign measures it.

        Raises:
            ProbeError: the case has no latency; the message has its status and why.
        """
        row = self._row(spec)
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
            began = self._now_s()
            for _ in range(_HOST_CALLS):
                call()
            per_call_s.append((self._now_s() - began) / _HOST_CALLS)
        gpu.call_s(call)
        return statistics.median(per_call_s[1:])

    def micro(self) -> Micro:
        """What runs micro-kernels, compiled on first use.

        Raises:
            ProbeError: CuPy is not installed.
        """
        if self._micro is None:
            try:
                self._micro = self._open_micro(self._index)
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
        row = self._row(spec, energy_windows=1)
        return _known(row.power_w, row.message or "the sensor gave nothing")

    def sensor_period_s(self) -> float:
        """Median time between two steps of the energy counter.

        Raises:
            ProbeError: there is no sensor, or it does not step.
        """
        return _known(sensor_period_s(self._board().reader), "the energy counter did not step three times in 2 s")

    def _row(self, spec: KernelSpec, energy_windows: int = 0) -> Measurement:
        return self._bench.measure(spec, energy_windows)

    def _board(self) -> BoardMeter:
        if not isinstance(self._meter, BoardMeter):
            raise ProbeError("no energy sensor: NVML is not there or has no counter for this GPU")
        return self._meter


def _known(value: float | None, otherwise: str) -> float:
    if value is None:
        raise ProbeError(otherwise)
    return value
