"""What Inductor measured, as the plug-in hands it on, and the memory of it that later lists are judged by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...features.kernel import KernelSpec


@dataclass(frozen=True, slots=True)
class Measured:
    """One choice on one device with the time Inductor measured, or a failure.

    Attributes:
        spec: The choice.
        device: Catalogue name of the device.
        status: `ok` or `failed`, as in rows.
        latency_s: Seconds, None for a failure.
        note: Description by Inductor.
        stack: Versions that compiled it (`torch 2.13.0, triton 3.6.0`); results of another stack are measured again.
        measured_at: When, ISO 8601 in UTC.
        least: Whether `latency_s` is the least of the samples, not their median.
    """

    spec: KernelSpec
    device: str
    status: str
    latency_s: float | None
    note: str
    stack: str
    measured_at: str
    least: bool = False


class Keeper(Protocol):
    """Where measured choices go and where they come back from in the next process."""

    def keep(self, rows: Sequence[Measured], device: str, facts: Mapping[str, Any]) -> None:
        """Take rows of one device, with the facts that are their provenance; they must survive a crash from now on."""

    def remembered(self, device: str) -> Sequence[Measured]:
        """Every row of the device that was kept before."""

    def close(self) -> None:
        """Put away what was taken; may be called again."""


FAILURES = 2
"""Failures after which a choice is not tried again: one may have been an accident, memory taken by another process say."""


class Memory:
    """What is known of single choices on one device, from earlier processes and from this one."""

    def __init__(self, stack: str) -> None:
        """`stack` is that of this process: only its rows speak for single choices."""
        self._stack = stack
        self._least_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def learn(self, rows: Iterable[Measured]) -> None:
        """Remember rows; the least time of a choice counts, as it does for Inductor."""
        for row in rows:
            if row.stack != self._stack:
                continue
            case = row.spec.case_id
            if row.latency_s is None:
                self._failures[case] = self._failures.get(case, 0) + 1
            else:
                self._least_s[case] = min(row.latency_s, self._least_s.get(case, row.latency_s))

    def latency_s(self, spec: KernelSpec | None) -> float | None:
        """The least time measured for exactly this case, None where there is none."""
        return None if spec is None else self._least_s.get(spec.case_id)

    def failed(self, spec: KernelSpec | None) -> bool:
        """Whether exactly this case never ran and failed `FAILURES` times or more."""
        if spec is None or spec.case_id in self._least_s:
            return False
        return self._failures.get(spec.case_id, 0) >= FAILURES


def stack_of(versions: Mapping[str, str]) -> str:
    """The words of `Measured.stack` for a mapping of versions by name."""
    return ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions)
