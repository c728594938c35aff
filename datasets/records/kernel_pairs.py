"""Measured pairs of kernels: what each takes alone, and how much longer beside the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...features.kernel import KernelSpec
from ..rows.schema import Status


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two kernels on a core each, one thread each, that ran at the same time over and over.

    A failed pair is a row with a status, never a hole.

    Attributes:
        a: The kernel on the first core.
        b: The one on the second.
        device: Catalogue name of the device.
        status: `ok`, or why there are no times.
        message: The reason in words.
        a_alone_s: Seconds of a call of a with the other core idle.
        b_alone_s: The same of b.
        a_slowdown: Time of a call of a beside b over that alone; median of the rounds.
        b_slowdown: The same of b.
        a_spread: Largest ratio of a round over the smallest, less 1.
        b_spread: The same of b.
        rounds: Rounds, each with windows alone before and after it.
        measured_at: UTC, ISO 8601.
    """

    a: KernelSpec
    b: KernelSpec
    device: str
    status: Status
    message: str | None = None
    a_alone_s: float | None = None
    b_alone_s: float | None = None
    a_slowdown: float | None = None
    b_slowdown: float | None = None
    a_spread: float | None = None
    b_spread: float | None = None
    rounds: int | None = None
    measured_at: str | None = None
