"""One case on a GPU from spec to row: operands, launch, check of the result, timing, and energy where it is asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ....datasets.rows.schema import Measurement, message_of
from ....features.kernel import KernelSpec, get_family
from ...host import utc_now
from ...meters.protocol import SLOWDOWNS, Energy, EnergyMeter, EnergyRefusedError, NoMeter
from ...runner import (
    MESSAGE_CHARS,
    GpuRunner,
    Launch,
    UnsupportedCaseError,
    first_line,
    row_of_error,
    status_of,
)
from ..plan.strata import masked
from .operands import Rotation, SetCounts, make_operands
from .timing import COLD, HOT, GraphRule, Sampled, sample
from .torch_gpu import TorchGpu

_ATTEMPTS = 2
"""Times a case is measured where the first time was throttled, or at a clock that may be left over from another case."""

RECOVERY_S = 0.2
"""Pause before a second attempt: clocks follow power within some tens of milliseconds."""

LOW_CLOCK = 0.97
"""A clock below this share of the fastest one seen is low; steps of a clock are about 1 % of it."""

ENERGY_GRAPH_S = 10e-3
"""Length of a graph replayed in a steady loop: long enough that launching it costs nothing, short beside a window."""

MAX_ENERGY_CALLS = 5000
"""Most calls of that graph. A node costs memory and microseconds to capture, and calls so short that more would fit (under
2 µs) fill some 4 ms even so, hundreds of times what launching the graph takes."""


class WrongResultError(Exception):
    """A kernel computes something else than the trusted library."""


class ThrottledError(Exception):
    """The device slowed itself down for its temperature or its supply."""


State = Callable[[], Mapping[str, Any]]
"""Clocks, temperature and throttle reasons now (`find.gpu_state`); empty where they cannot be read."""


@dataclass(slots=True)
class Clocks:
    """The clock under load, and how to wait for one.

    Attributes:
        fastest_hz: The fastest seen so far.
        pause: Waits for so many seconds; tests replace it.
    """

    fastest_hz: float = 0.0
    pause: Callable[[float], None] = time.sleep

    def low(self, clock_hz: float | None) -> bool:
        """Whether a clock is low beside the fastest one seen; False where none can be read."""
        if clock_hz is None:
            return False
        self.fastest_hz = max(self.fastest_hz, clock_hz)
        return clock_hz < LOW_CLOCK * self.fastest_hz


@dataclass(frozen=True, slots=True)
class GpuBench:
    """What one process measures with.

    Attributes:
        name: The name rows carry.
        gpu: The device.
        runners: Runners by impl.
        state: Reads clocks and temperature.
        meter: The energy sensor.
        hot: Rule of hot cases.
        cold: Rule of cold cases.
        clocks: The fastest clock seen under load.
    """

    name: str
    gpu: TorchGpu
    runners: Mapping[str, GpuRunner]
    state: State = dict
    meter: EnergyMeter = field(default_factory=NoMeter)
    hot: GraphRule = HOT
    cold: GraphRule = COLD
    clocks: Clocks = field(default_factory=Clocks)

    def measure(self, spec: KernelSpec, energy_windows: int = 0) -> Measurement:
        """The row of one case, whatever happens to it; with energy over `energy_windows` windows, none for 0."""
        try:
            return self._measured(spec, energy_windows)
        except Exception as error:  # noqa: BLE001  whatever a library raises is this case's result, not the campaign's end
            return row_of_error(spec, self.name, error)
        finally:
            # A lost context raises its error from every call, this one too. The row must not be lost with it: that the
            # context is gone is found and said by the worker.
            with contextlib.suppress(RuntimeError):
                self.gpu.release()

    def _measured(self, spec: KernelSpec, energy_windows: int) -> Measurement:
        if spec.timing == "call":
            raise UnsupportedCaseError("times of calls are not measured: the collector times the kernel alone")
        runner = self.runners.get(spec.impl)
        if runner is None:
            raise UnsupportedCaseError(
                f"no runner on this GPU for impl {spec.impl!r}; there are {', '.join(self.runners)}"
            )
        operands = make_operands(self.gpu.torch, spec, self.gpu.accelerator.type, self.gpu.formats)
        began = self.gpu.now_s()
        launch = runner.launch(spec, operands)
        # Before anything else calls it: with what the library compiles, loads and looks for at its first call.
        first_call_s = self.gpu.now_s() - began + self.gpu.call_s(launch.call)
        unchecked = _check_result(launch)
        rotation = None
        if spec.cache_state == "cold":
            counts = SetCounts.of(spec, self.gpu.cache_b, self.gpu.memory_b)
            rotation = Rotation(operands, lambda further: runner.launch(spec, further).call, counts, [launch.call])
        sampled, state, rejected = self._settled(launch, rotation)
        refusal, energy = None, None
        if energy_windows and rotation is None:
            try:
                energy = self._energy(launch, sampled, energy_windows)
            except EnergyRefusedError as refused:
                refusal = message_of("no energy", str(refused))
        message = "; ".join(text for text in (refusal, unchecked) if text is not None)
        return self._row(spec, launch, sampled, first_call_s, state, rejected, energy, message or None)

    def _settled(self, launch: Launch, rotation: Rotation | None) -> tuple[Sampled, Mapping[str, Any], int]:
        """Samples, the state they were taken in, and how many samples were rejected before them.

        Raises:
            ThrottledError: the device slowed itself down for its temperature or its supply, every time.
        """
        rejected = 0
        for attempt in range(1, _ATTEMPTS + 1):
            states: list[Mapping[str, Any]] = []
            sampled = self._sampled(launch, rotation, lambda seen=states: seen.append(self.state()))  # type: ignore[misc]
            state = states[0] if states else {}
            throttle = SLOWDOWNS & set(state.get("throttle") or ())
            # A clock that is still low from the case before comes back within the pause; one that this case pulls
            # down does not, and stays part of its time.
            if not throttle and (attempt > 1 or not self.clocks.low(state.get("sm_clock_hz"))):
                return sampled, state, rejected
            rejected += len(sampled.samples_s)
            # Its graph holds the outputs of all its calls; the next one is not to need as much again beside them.
            del sampled
            if attempt < _ATTEMPTS:
                self.clocks.pause(RECOVERY_S)
        raise ThrottledError(f"the device slowed itself down ({', '.join(sorted(throttle))}) in {_ATTEMPTS} attempts")

    def _sampled(self, launch: Launch, rotation: Rotation | None, look: Callable[[], None]) -> Sampled:
        if rotation is None:
            return sample(self.gpu, lambda n: [launch.call] * n, self.hot, in_flight=look)
        rule, most = self.cold, rotation.counts.most_calls
        if most is not None:
            rule = replace(rule, max_calls=min(rule.max_calls, most))
        return sample(self.gpu, rotation.in_turn, rule, flush=self.gpu.flush, in_flight=look)

    def _energy(self, launch: Launch, sampled: Sampled, windows: int) -> Energy | None:
        calls = min(MAX_ENERGY_CALLS, max(1, round(ENERGY_GRAPH_S / sampled.median_s)))
        graph = self.gpu.graph([launch.call] * calls)
        return self.meter.measure(self.gpu.steady(graph, calls), windows=windows)

    def _row(
        self, spec: KernelSpec, launch: Launch, sampled: Sampled, first_call_s: float, state: Mapping[str, Any],
        rejected: int, energy: Energy | None, message: str | None,
    ) -> Measurement:  # fmt: skip
        q1, q3 = np.percentile(sampled.samples_s, (25, 75))
        labels: dict[str, Any] = {}
        if energy is not None:
            labels = {
                "power_w": energy.power_w, "energy_j": energy.energy_j, "energy_source": self.meter.name,
                "energy_mode": "steady_loop", "net_energy_j": energy.net_energy_j, "idle_power_w": energy.idle_power_w,
                "power_integrated_w": energy.power_integrated_w, "steady_latency_s": energy.window_s / energy.calls,
                "energy_windows": energy.windows,
                "energy_spread": energy.spread,
            }  # fmt: skip
        return Measurement(
            spec=spec, device=self.name, status="ok", block="", latency_s=sampled.median_s, latency_q1_s=float(q1),
            latency_q3_s=float(q3), latency_min_s=float(sampled.samples_s.min()), n_samples=len(sampled.samples_s),
            first_call_s=first_call_s, converged=sampled.converged, noisy=sampled.noisy, rejected_samples=rejected,
            power_limit_w=state.get("power_limit_w"), sm_clock_hz=state.get("sm_clock_hz"),
            temperature_c=state.get("temperature_c"), message=message, measured_at=utc_now(),
            throttle=",".join(state["throttle"]) if state.get("throttle") is not None else None,
            registers=launch.resources.get("registers"), spill_b=launch.resources.get("spill_b"),
            shared_b=launch.resources.get("shared_b"), **labels,
        )  # fmt: skip


def _check_result(launch: Launch) -> str | None:
    """Compare with the trusted library, once; why that was not possible, None where it was or nothing is compared.

    Raises:
        WrongResultError: further apart than the launch's tolerance, or not finite.
    """
    if launch.expected is None:
        return None
    got = launch.call()
    try:
        wanted = launch.expected().float()
        apart = float((got.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
    except Exception as error:
        if status_of(error) != "out_of_memory":
            raise
        # What the reference needs says nothing about the kernel, which has just run.
        return f"result not checked, the reference needs too much memory ({first_line(error)})"[:MESSAGE_CHARS]
    if not apart <= launch.tolerance:
        raise WrongResultError(
            f"the result is {apart:.2g} off the reference (relative norm), {launch.tolerance:g} allowed"
        )
    return None


TOLERANCE = MappingProxyType({"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2, "fp8": 5e-2, "int8": 1e-5})
"""Largest relative error in the Frobenius norm by dtype of the operands.

Some times what rounding the result gives (bf16 keeps 8 bits), cutting operands to tf32's 10 bits, or summing 16384
products in fp32. Hopper's tensor cores add fp8 products with some 14 bits, up to 2 % off at k = 4096 ("DeepSeek-V3", arXiv
2412.19437, 3.3.2).
"""


MAX_CHECKED_SCORES = 2**26
"""With a mask torch's own attention may write all scores to memory, 4 bytes each: only this many are compared."""


def expected_product(spec: KernelSpec, a: Any, b: Any) -> Callable[[], Any]:
    """a·b of one product, operands (1, m, k) and (1, k, n), as (m, n) in fp64 for 4-byte operands and fp32 for shorter.

    Shorter formats fit tf32's mantissa, so fp32 is exact in its operands even where tf32 is allowed.
    """
    import torch

    wide = torch.float64 if spec.dtype in ("fp32", "tf32") else torch.float32
    return lambda: torch.mm(a[0].to(wide), b[0].to(wide))


def expected_attention(spec: KernelSpec, q: Any, k: Any, v: Any) -> Callable[[], Any] | None:
    """The family's own call of torch's attention, in the operands' dtype; None where that would need too much memory."""
    import torch

    scores = float(spec["batch"] * spec["heads"]) * spec["q_len"] * spec["kv_len"]
    if masked(spec) and scores > MAX_CHECKED_SCORES:
        return None
    # Prepared only when called: a mask may be as large as all scores.
    return lambda: get_family("attention").run["torch"](torch, spec, q, k, v)()
