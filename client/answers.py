"""What the service answers, as the client gives it back; names end in their SI unit, None is what is unknown.

A field that a newer service adds is passed over; what is said about fields here is said at length in its OpenAPI document.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """A predicted value with its interval, lower ≤ value ≤ upper."""

    value: float
    lower: float
    upper: float


class Prediction(msgspec.Struct, frozen=True):
    """What one kernel costs on one device; power and energy are None where no model has seen power."""

    family: str
    device: str
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    bound: str
    breakdown: dict[str, float]
    method: str
    in_domain: bool
    notes: list[str]


class Intervals(msgspec.Struct, frozen=True):
    """Predicted values with their intervals in columns, one per row; None where a row's is unknown."""

    value: list[float | None]
    lower: list[float | None]
    upper: list[float | None]


class Words(msgspec.Struct, frozen=True):
    """Words, each once, and which of them each row has."""

    words: list[str]
    codes: list[int]

    def rows(self) -> list[str]:
        """The word of every row."""
        return [self.words[code] for code in self.codes]


class RowNotes(msgspec.Struct, frozen=True):
    """Notes that rows share."""

    rows: list[int]
    notes: list[str]


class Columns(msgspec.Struct, frozen=True):
    """Predictions in columns of `n` rows; a target that is known of no row is None."""

    family: str
    n: int
    coverage: float
    latency_s: Intervals
    power_w: Intervals | None
    energy_j: Intervals | None
    bound: Words
    method: Words
    in_domain: list[bool]
    notes: list[RowNotes]


class KernelPart(msgspec.Struct, frozen=True):
    """One kernel of a whole model; latency, power and energy are those of a single run."""

    name: str
    count: int
    family: str
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    time_share: float
    energy_share: float | None
    bound: str
    method: str
    in_domain: bool
    notes: list[str]


class FamilyPart(msgspec.Struct, frozen=True):
    """All kernels of one family in a whole model."""

    family: str
    launches: int
    latency_s: float
    energy_j: float | None
    time_share: float
    energy_share: float | None


class Whole(msgspec.Struct, frozen=True):
    """What a whole model costs on one device; `dominant` are positions of the kernels that take 80 % of the time."""

    device: str
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    bound_s: float
    launch_s: float
    launches: int
    in_domain: bool
    notes: list[str]
    without_energy: list[str]
    dominant: list[int]
    families: list[FamilyPart]
    kernels: list[KernelPart]


class Group(msgspec.Struct, frozen=True):
    """Operations of a program that run as one kernel; latency and energy are those of all its runs."""

    title: str
    kind: str
    ops: list[str]
    lines: list[int]
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


class NotUnderstood(msgspec.Struct, frozen=True):
    """An operation whose cost is unknown."""

    op: str
    reason: str


class Program(msgspec.Struct, frozen=True):
    """What one run of a function of MLIR text costs on one device."""

    function: str
    device: str
    compiler: str
    threads: int | None
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    method: str
    in_domain: bool
    notes: list[str]
    bound_s: float
    breakdown: dict[str, float]
    flops: float
    bytes: float
    footprint_b: float
    intensity: float
    utilization: float | None
    groups: list[Group]
    not_understood: list[NotUnderstood]
    characteristics: dict[str, Interval]


class ReaderRefusal(msgspec.Struct, frozen=True):
    """A reader that was asked first and could not read the text."""

    reader: str
    reason: str


class Programs(msgspec.Struct, frozen=True):
    """A program on one device after the other, in the order asked; `functions` are those that can be asked about."""

    reader: str
    refusals: list[ReaderRefusal]
    functions: list[str]
    answers: list[Program]


class Fact(msgspec.Struct, frozen=True):
    """A number in SI units and where it comes from."""

    value: float
    source: str


class Device(msgspec.Struct, frozen=True):
    """A device of the service's catalogue."""

    name: str
    title: str
    vendor: str
    kind: str
    architecture: str
    compute_capability: str | None
    aliases: list[str]
    facts: dict[str, Fact]
    matrix_flops_per_s: dict[str, Fact]
    vector_flops_per_s: dict[str, Fact]
    measured: dict[str, Fact]


Schema = dict[str, Any]
"""A JSON Schema, draft 2020-12."""
