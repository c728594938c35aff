"""What a prediction for a program says: totals with intervals, where the time goes, and what code is expected to be like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...models.predict.prediction import Interval
from ..units import counted, joules, seconds, watts, with_ends

_SHOWN = 8
"""Most kernels of a program in its text."""


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One kernel's part of a program; latency and energy are those of all its runs.

    Attributes:
        title: What it is.
        kind: One of `features.mlir.program.KINDS`.
        ops: The operations in it by name.
        lines: Their lines in the user's text where the reader knows them.
        runs: How often it runs.
        latency_s: Seconds.
        energy_j: Joules; None where they are not known.
        time_share: Share of the latency of the program.
        flops: Floating-point operations.
        bytes: Bytes moved.
        bound: The limit that binds it analytically.
        spec: The kernel it was recognised as, as text; empty where there is no family for it.
        stand_in: How that differs from what it does.
        understood: False where its cost is a guess that widens the interval.
        op_shares: Share of its time of each of `ops`, as the limits of each alone would have it; they add up to 1.
        line_shares: The same of each of `lines`; operations without a line are in none.
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
    op_shares: tuple[float, ...]
    line_shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """What a program costs by its kernels.

    Attributes:
        latency_s: Latency.
        power_w: Mean power; None where nothing is known of it.
        energy_j: Energy; None where nothing is known of power.
        in_domain: Whether the program, or all its kernels, are inside the domain of the model.
        notes: What to know of the answer.
        bound_s: The time no run of these kernels can beat.
        breakdown: Its parts, in seconds.
        groups: The kernels' parts.
    """

    latency_s: Interval
    power_w: Interval | None = None
    energy_j: Interval | None = None
    in_domain: bool
    notes: tuple[str, ...]
    bound_s: float
    breakdown: Mapping[str, float]
    groups: tuple[GroupCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModulePrediction(ProgramCost):
    """What one function of a module costs on one device.

    Attributes:
        function: Its name.
        reader: What read the text.
        device: Name of the device.
        compiler: The compiler assumed.
        threads: The thread count assumed; None on a GPU.
        coverage: Share of programs whose value the intervals are built to contain.
        method: What answered: `composition` of kernel predictions, or the learned model with what it is blended from.
        flops: Floating-point operations.
        bytes: Bytes moved.
        footprint_b: Bytes of memory used.
        intensity: Flops per byte.
        utilization: Achieved arithmetic over the device's peak, 0 to 1.
        not_understood: Operations whose cost is unknown, with the reason.
        characteristics: Further learned targets, such as `code_instructions`, `registers` or `spills`, by name.
    """

    function: str
    reader: str
    device: str
    compiler: str
    threads: int | None
    coverage: float
    method: str
    flops: float
    bytes: float
    footprint_b: float
    intensity: float
    utilization: float | None
    not_understood: tuple[tuple[str, str], ...]
    characteristics: Mapping[str, Interval] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        kernels = counted(len(self.groups), "kernel")
        return f"@{self.function} on {self.device}: {with_ends(self.latency_s, seconds)}, {kernels}"

    def __str__(self) -> str:
        parts = sorted(self.groups, key=lambda group: group.time_share, reverse=True)
        more = [f"and {counted(len(parts) - _SHOWN, 'other kernel')}"] if len(parts) > _SHOWN else []
        return "\n  ".join([
            f"@{self.function} on {self.device}", f"latency  {with_ends(self.latency_s, seconds)}",
            f"power    {with_ends(self.power_w, watts)}", f"energy   {with_ends(self.energy_j, joules)}",
            *(f"{100 * part.time_share:4.1f} %  {part.title}, bound by {part.bound}" for part in parts[:_SHOWN]), *more,
            f"{100 * self.coverage:g} % intervals, {'inside' if self.in_domain else 'outside'} what was measured", *self.notes,
        ])  # fmt: skip
