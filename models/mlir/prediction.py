"""What a prediction for a program says: totals with intervals, where the time goes, and what code is expected to be like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..prediction import Interval


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One kernel's part of a program; latency and energy are those of all its runs.

    `title` says what it is, `ops` the operations in it by name, `lines` their lines in the user's text where the reader tells.
    `kind` is one of `features.mlir.program.KINDS`. `spec` is the kernel it was recognised as, as text, empty where there is no
    family for it; `stand_in` how that differs from what it does. `bound` is the limit that binds it on paper. `understood` is
    False where its cost is a guess that widens the interval.
    """

    title: str
    kind: str
    ops: tuple[str, ...]
    lines: tuple[int, ...]
    runs: float
    latency_s: float
    energy_j: float | None
    time_share: float
    flops: float
    bytes: float
    bound: str
    spec: str
    stand_in: str
    understood: bool


@dataclass(frozen=True, slots=True)
class ModulePrediction:
    """What one function of a module costs on one device.

    `compiler` and `threads` are those assumed. `method` names what answered: `composition` of kernel predictions, or the
    learned model with what it is blended from. `power_w` and `energy_j` are None where nothing is known of power.
    `utilization` is achieved arithmetic over the device's peak, 0 to 1. `characteristics` are further learned targets, such as
    `code_instructions`, `registers` or `spills`, by name. `bound_s` is the time no run of these kernels can beat and
    `breakdown` its parts, in seconds.
    `not_understood` lists operations whose cost is unknown, with the reason.
    """

    function: str
    reader: str
    device: str
    compiler: str
    threads: int | None
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    method: str
    in_domain: bool
    notes: tuple[str, ...]
    bound_s: float
    breakdown: Mapping[str, float]
    flops: float
    bytes: float
    footprint_b: float
    intensity: float
    utilization: float | None
    groups: tuple[GroupCost, ...]
    not_understood: tuple[tuple[str, str], ...]
    characteristics: Mapping[str, Interval] = field(default_factory=lambda: MappingProxyType({}))
