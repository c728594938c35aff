"""What measuring a row costs in seconds of a machine, by the protocol of `docs/measurement.md`.

No row records its own wall time, only how long its first call took (`first_call_s`). The rest is worked out from the
latency: repetitions until the stopping rule is met, warm-up, and what a case costs beside its kernel (operands, graphs,
checks, the store). That last part is a constant, chosen so that the shipped campaigns come out at what they really took.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..features.cases import Floats
from ..features.device import Catalogue
from .labelled import Labelled


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a kind of device is measured; times in seconds.

    `samples` samples of at least `sample_s` each, cut short at `most_s`, though never under `fewest` calls; before them
    `warm_up_s` and `calls` single calls. `first_call_s` stands in where a row does not record its own, and `overhead_s`
    is the rest of a row's mean wall time.
    """

    samples: int
    sample_s: float
    fewest: int
    most_s: float
    warm_up_s: float
    calls: int
    first_call_s: float
    overhead_s: float

    def seconds(self, latency_s: Floats, first_call_s: Floats) -> Floats:
        """Seconds to measure kernels of these latencies, shape `(n,)`; an unknown first call is NaN."""
        sampling = self.samples * np.maximum(latency_s, self.sample_s)
        held = np.maximum(np.minimum(sampling, self.most_s), self.fewest * latency_s)
        first = np.where(np.isnan(first_call_s), self.first_call_s, first_call_s)
        found: Floats = self.overhead_s + first + self.warm_up_s + self.calls * latency_s + held
        return found


PROTOCOLS = {
    # collectors/gpu/timing.py (GraphRule). The shipped H200 campaign took 68.6 ms a row (8,130 rows in 9.3 minutes), of which
    # this rule explains 37 ms and first calls 5 ms on average.
    "gpu": Protocol(samples=10, sample_s=2e-3, fewest=1, most_s=0.5, warm_up_s=0.01, calls=19,
                    first_call_s=0.005, overhead_s=0.026),
    # collectors/timing.py (StoppingRule): three blocks of ten. The shipped CPU campaigns took 0.30 s a row (14,887 rows in
    # 74 minutes), of which this rule explains 65 ms and first calls 44 ms on average.
    "cpu": Protocol(samples=30, sample_s=2e-5, fewest=9, most_s=0.12, warm_up_s=0.033, calls=7,
                    first_call_s=0.044, overhead_s=0.19),
}  # fmt: skip
"""By the kind of device; every other kind is taken for a GPU."""

ENERGY_S = 2.8
"""More for a row with power: settling and the window of the energy meter. 151 H200 rows took 7.2 minutes, 2.9 s each."""


def measuring_seconds(rows: Labelled, devices: Catalogue, first_call_s: Floats | None = None) -> Floats:
    """Seconds of machine time each row costs, shape `(n,)`.

    Args:
        rows: measured rows.
        devices: the catalogue, for the kind of each device.
        first_call_s: recorded first calls in seconds, NaN where a row has none; None for no record at all.

    Raises:
        SpecError: a device the catalogue does not know.
    """
    first = np.full(len(rows), np.nan) if first_call_s is None else first_call_s
    seconds = np.empty(len(rows))
    for index, (name,) in rows.cases.groups("device"):
        protocol = PROTOCOLS.get(devices.get(name).kind, PROTOCOLS["gpu"])
        seconds[index] = protocol.seconds(rows.latency_s[index], first[index])
    return seconds + np.where(np.isnan(rows.power_w), 0.0, ENERGY_S)
