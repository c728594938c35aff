"""Energy by zeus (`ZeusMonitor`, ml.energy/zeus), beside our own reading: the same loop, a window as zeus takes one.

zeus reads the same counters, but where its windows begin and end: each end may miss up to one step of the counter, some
3 % of 3 s where it steps every 100 ms. It knows no cross-check with power and no throttling.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from .board import EnergyRule
from .protocol import Clock, Energy, EnergyRefusedError, MonotonicClock, SensorMissingError, SteadyLoop

_WINDOW = "kernelcast"


class ZeusMissingError(SensorMissingError):
    """zeus cannot be used on this machine; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class ZeusMeter:
    """Measures a GPU with zeus.

    Attributes:
        monitor: A `ZeusMonitor`.
        index: Which GPU, as zeus counts them.
        rule: How a loop is measured.
        clock: What times are read from.
        name: Name of the sensor.
    """

    monitor: Any
    index: int = 0
    rule: EnergyRule = field(default_factory=EnergyRule)
    clock: Clock = field(default_factory=MonotonicClock)
    name: str = "zeus"

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> Energy:
        """Energy per call over `windows` windows in a row.

        Raises:
            EnergyRefusedError: zeus saw no energy, or could not read the board.
        """
        done = self._run(loop, self.rule.settle_s)
        joules: list[float] = []
        counts, seconds = [done], 0.0
        for _ in range(windows):
            read = self._window(loop, counts)
            joules.append(read.gpu_energy[self.index])
            seconds += read.time
        if min(joules) <= 0:
            raise EnergyRefusedError(f"zeus saw no energy in a window of {seconds / windows:.2g} s")
        calls = counts[-1] - counts[0]
        each = [spent / (end - begin) for spent, begin, end in zip(joules, counts, counts[1:], strict=False)]
        return Energy(
            energy_j=sum(joules) / calls, power_w=sum(joules) / seconds, window_s=seconds, calls=calls, windows=windows,
            spread=(max(each) - min(each)) / statistics.median(each) if windows > 1 else None,
        )  # fmt: skip

    def _window(self, loop: SteadyLoop, counts: list[int]) -> Any:
        from zeus.exception import ZeusBaseError

        try:
            # The loop is to go on: waiting for the device would leave it idle.
            self.monitor.begin_window(_WINDOW, sync_execution=False, restart=True)
            counts.append(self._run(loop, self.rule.window_s))
            return self.monitor.end_window(_WINDOW, sync_execution=False)
        except ZeusBaseError as error:
            raise EnergyRefusedError(f"zeus cannot read the board: {error}") from None

    def _run(self, loop: SteadyLoop, seconds: float) -> int:
        began_s = self.clock.now_s()
        done = loop.turn()
        while self.clock.now_s() - began_s < seconds:
            done = loop.turn()
        return done


def zeus_meter(index: int = 0, rule: EnergyRule | None = None, clock: Clock | None = None) -> ZeusMeter:
    """The zeus meter of GPU `index`, which `CUDA_VISIBLE_DEVICES` counts for as it does for CUDA.

    Raises:
        ZeusMissingError: zeus is not installed, or finds no GPU.
    """
    try:
        from zeus.device import get_gpus
        from zeus.exception import ZeusBaseError
        from zeus.monitor import ZeusMonitor
    except ImportError as error:
        raise ZeusMissingError(f"zeus is not installed ({error}); install it with pip install zeus") from None
    try:
        gpus = get_gpus()
    except ZeusBaseError as error:
        raise ZeusMissingError(f"zeus finds no GPU ({error}); check that nvidia-smi or amd-smi runs") from None
    if index >= len(gpus):
        raise ZeusMissingError(f"zeus knows no GPU {index}, there are {len(gpus)}")
    monitor = ZeusMonitor(gpu_indices=[index], cpu_indices=[])
    return ZeusMeter(monitor, index, rule or EnergyRule(), clock or MonotonicClock())
