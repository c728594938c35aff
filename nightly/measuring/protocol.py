"""The protocol of a measurer: it reads sentinels, proposes candidates, and measures cases until a given time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...collectors.campaign import Progress
from ...collectors.kernel_campaign import Reading, Sink
from ...features.kernel import KernelSpec
from ..record.record import Finding


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A device as it is read before anything is measured.

    Attributes:
        readings: Fixed cases read some times in a row: seconds by case.
        facts: What the provenance of a block would hold.
        clock_hz: None where it cannot be read.
        temperature_c: None where it cannot be read.
    """

    readings: tuple[Reading, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock_hz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class CollectingEnd:
    """How collecting ended.

    Attributes:
        interrupted: Whether a person stopped it.
        findings: What the report should tell of it.
    """

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
            ChildStartError: nothing can be measured.
        """
        ...

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, DeviceReading]:
        """Each device's `cases`, read `times` times in a row; none for devices that cannot be looked at from here.

        Raises:
            ChildStartError: nothing can be measured.
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
    ) -> CollectingEnd:  # fmt: skip
        """Measure each device's cases, in order, and hand every block to `sink`; none is begun after `until` (monotonic).

        Raises:
            CampaignError: nothing more can be stored or measured; what was stored stays.
        """
        ...
