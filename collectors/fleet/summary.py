"""What a fleet did: per device what is stored and left, per instance how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceSummary:
    """One device of one node. `ended` is None for one that worked to the end, else why it did not."""

    device: str
    node: str
    index: int
    rows: int
    blocks: int
    losses: int
    ended: str | None


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """By device name: rows stored by status, cases skipped as stored before, cases left and why."""

    stored: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]
    left: Mapping[str, int]
    why_left: Mapping[str, str]
    instances: tuple[InstanceSummary, ...]
    interrupted: bool
    seconds: float

    def __str__(self) -> str:
        lines = []
        for device, rows in self.stored.items():
            counts = ", ".join(f"{count} {status}" for status, count in sorted(rows.items())) or "no rows"
            text = f"{device}: {counts}; {self.skipped[device]} were there already"
            if self.left[device]:
                text += f"; {self.left[device]} cases left ({self.why_left[device]})"
            lines.append(text)
        lines += [f"{one.device} on {one.node}: {one.ended}" for one in self.instances if one.ended is not None]
        end = ", run the same command again for what is left" if any(self.left.values()) else ""
        return "\n".join([*lines, f"{self.seconds:.0f} s on {len(self.instances)} devices{end}"])
