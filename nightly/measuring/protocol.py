"""What a night asks of whatever measures: to look at its sentinels, to name candidates, and to measure cases until a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...collectors.campaign import Sink
from ...collectors.progress import Progress
from ...collectors.sentinel import Reading
from ...features.kernel import KernelSpec
from ..record import Finding


@dataclass(frozen=True, slots=True)
class Looked:
    """How a device stands before anything is measured.

    Fixed cases read some times in a row (seconds by case), the facts that a block's provenance would hold, its clock in Hz
    and its temperature in degrees Celsius, None where not told.
    """

    readings: tuple[Reading, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock_hz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How collecting ended: whether someone stopped it, and what there is to say."""

    interrupted: bool = False
    findings: tuple[Finding, ...] = ()


class Measurer(Protocol):
    """Something that measures one device or several, by catalogue name."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices it measures."""
        ...

    def characterise(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Facts of the device, measured now (`{name: {"value", "source"}}`); None where that cannot be done from here.

        Raises:
            WorkerStartError: nothing can be measured.
        """
        ...

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, Looked]:
        """Each device's `cases`, read `times` times in a row; none for devices that cannot be looked at from here.

        Raises:
            WorkerStartError: nothing can be measured.
            CampaignError: the device is not the one named.
        """
        ...

    def candidates(self, device: str, wanted: int, seed: int, measured: Sequence[KernelSpec]) -> list[KernelSpec]:
        """Cases the device could measure, about `wanted`; equal seeds and equal `measured` give equal cases."""
        ...

    def can(self, device: str, spec: KernelSpec) -> bool:
        """Whether a case that someone asked for can be measured on the device under this plan."""
        ...

    def collect(
        self, cases: Mapping[str, Sequence[KernelSpec]], *, sink: Sink, until: float, note: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> Ended:  # fmt: skip
        """Measure each device's cases, in order, and hand every block to `sink`; none is begun after `until` (monotonic).

        Raises:
            CampaignError: nothing more can be stored or measured; what was stored stays.
        """
        ...
