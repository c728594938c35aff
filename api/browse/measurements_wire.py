"""What the server asks the process that reads measured rows, and what that answers: plain types both sides import.

A frame is a head, the status and the length of what follows, and that: JSON of a question one way; of an answer, or of a
`Refused`, the other.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

HEAD = struct.Struct(">II")
"""Status (an HTTP status in replies, 0 in questions) and bytes of JSON that follow."""

SHIPPED, TILES, STORE = "shipped", "tiles", "store"
SETS = (SHIPPED, TILES, STORE)
"""Names of the sets: what comes with kernelcast, its tables of tile configurations, and the user's own store."""

FILTERS = ("set", "family", "device", "dtype", "impl", "variant", "status", "cache_state")
"""What rows are chosen by, all but `set` a column. Values given are alternatives; no value is any."""

NONE_WORD = "none"
"""Stands for the empty name in filters and lists: no variant, no implementation given."""

MAX_POINTS = 2000
"""Most points one answer has; more than a plot can show."""


class SetsQuestion(msgspec.Struct, frozen=True, tag="sets"):
    """Which sets there are."""


class RowsQuestion(msgspec.Struct, frozen=True, tag="rows"):
    """A page of the rows that pass every filter.

    Attributes:
        filters: Allowed values by name of `FILTERS`.
        sort: The column to sort by; None keeps the order in which rows are stored.
        descending: Whether the largest come first.
        offset: Rows to skip.
        limit: Most rows to return.
    """

    filters: dict[str, list[str]]
    sort: str | None
    descending: bool
    offset: int
    limit: int


class LikeDevice(msgspec.Struct, frozen=True):
    """A device of a question.

    Attributes:
        name: Its catalogue name.
        names: All names that rows may have it under.
        cores: Number of cores of a CPU, None on a GPU.
    """

    name: str
    names: list[str]
    cores: int | None


class SpecQuestion(msgspec.Struct, frozen=True):
    """Measured rows that are like a spec on devices.

    Attributes:
        family: Kernel family.
        dtype: Element type.
        kv_dtype: Element type of the KV cache, None without one.
        variant: Variant, empty for none.
        impl: Implementation, empty for none.
        sizes: Sizes, without one that varies.
        config: Knobs, likewise.
        threads: CPU threads, None for all cores.
        cache_state: State of the cache.
        timing: `device` or `call`; rows that do not say are of the device, and on a CPU the two are one.
        devices: The devices.
    """

    family: str
    dtype: str
    kv_dtype: str | None
    variant: str
    impl: str
    sizes: dict[str, int]
    config: dict[str, int]
    threads: int | None
    cache_state: str
    timing: str
    devices: list[LikeDevice]


class LikeQuestion(SpecQuestion, frozen=True, tag="like"):
    """Measured rows that equal a spec in everything but one size or knob.

    Attributes:
        dim: The size or knob that varies.
    """

    dim: str


class NearestQuestion(SpecQuestion, frozen=True, tag="nearest"):
    """The measured case on each device that differs from a spec least in its sizes, and in nothing else."""


Question = SetsQuestion | RowsQuestion | LikeQuestion | NearestQuestion


class Refused(msgspec.Struct, frozen=True):
    """Why a question was refused.

    Attributes:
        field: The parameter at fault, empty for none.
        detail: What is wrong with it.
    """

    field: str
    detail: str


class MeasuredCard(msgspec.Struct, frozen=True):
    """The card of a data set.

    Attributes:
        title: Its title
        text: Its text, Markdown
    """

    title: str
    text: str


class MeasuredSet(msgspec.Struct, frozen=True):
    """A set of measured rows. Lists hold every value of a column; `none` stands for the empty value.

    Attributes:
        name: The value of `set` in /v1/measurements
        title: Its title
        rows: Number of rows
        families: Kernel families
        devices: Devices
        dtypes: Element types
        impls: Implementations
        variants: Variants
        statuses: Statuses of measurements
        cards: Cards of its data
        notes: What could not be read, such as a damaged file; the other rows of the set are there
    """

    name: str
    title: str
    rows: int
    families: list[str]
    devices: list[str]
    dtypes: list[str]
    impls: list[str]
    variants: list[str]
    statuses: list[str]
    cards: list[MeasuredCard]
    notes: list[str]


class MeasuredSetsAnswer(msgspec.Struct, frozen=True):
    """The sets of measured rows.

    Attributes:
        sets: The sets
    """

    sets: list[MeasuredSet]


class MeasurementsAnswer(msgspec.Struct, frozen=True):
    """A page of measured rows, in SI units. With one `family` its sizes and knobs are columns; otherwise the columns
    `sizes` and `config` hold an object each.

    Attributes:
        total: Number of all rows that pass the filters
        offset: Position of the first row of this page
        columns: Names of the columns
        rows: The rows, one cell per column; null where a value is missing
    """

    total: int
    offset: int
    columns: list[str]
    rows: list[list[Any]]


class MeasuredPoint(msgspec.Struct, frozen=True):
    """The median of all measurements of one case.

    Attributes:
        device: Catalogue name of the device
        value: Value of the size or knob that varies
        latency_s: Time of one run, seconds
        power_w: Mean power, watts; null where it was not measured
        energy_j: Energy of one run, joules; null where it was not measured
        threads: CPU threads; null on a GPU
        cache_state: State of the cache
        impl: Implementation
        runs: Number of measurements
    """

    device: str
    value: int
    latency_s: float
    power_w: float | None
    energy_j: float | None
    threads: int | None
    cache_state: str
    impl: str
    runs: int


class LikeAnswer(msgspec.Struct, frozen=True):
    """Measured points along one size or knob, by device, implementation and value.

    Attributes:
        dim: The size or knob that varies
        timing: What the times contain: `device`, the kernel alone, or `call`, one call with its launch
        points: The points
        left_out: Number of points left out because there are too many
    """

    dim: str
    timing: str
    points: list[MeasuredPoint]
    left_out: int = 0


class NearestCase(msgspec.Struct, frozen=True):
    """The measured case that is nearest to a spec, the median of all its measurements.

    Attributes:
        device: Catalogue name of the device
        doublings: By how many doublings the size that differs most differs; 0 where the very case was measured
        sizes: Its sizes
        latency_s: Time of one run, seconds
        power_w: Mean power, watts; null where it was not measured
        energy_j: Energy of one run, joules; null where it was not measured
        threads: CPU threads; null on a GPU
        impl: Implementation
        runs: Number of measurements
    """

    device: str
    doublings: float
    sizes: dict[str, int]
    latency_s: float
    power_w: float | None
    energy_j: float | None
    threads: int | None
    impl: str
    runs: int


class NearestAnswer(msgspec.Struct, frozen=True):
    """The nearest measured cases; devices on which nothing like the spec was measured have none.

    Attributes:
        timing: What the times contain: `device`, the kernel alone, or `call`, one call with its launch
        cases: One for each device that has one
    """

    timing: str
    cases: list[NearestCase]
