"""What the server asks the process that reads measured rows, and what that answers: plain types both sides import.

A frame is a head, the status and the length of what follows, and that: JSON of a question one way; of an answer, or of a
`Refused`, the other.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta

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
    """A page of the rows that pass every filter, `filters` by name of `FILTERS`; unsorted, rows come as they are stored."""

    filters: dict[str, list[str]]
    sort: str | None
    descending: bool
    offset: int
    limit: int


class LikeDevice(msgspec.Struct, frozen=True):
    """A device by its catalogue name, all the names rows may have it under, and the cores of a CPU (None on a GPU)."""

    name: str
    names: list[str]
    cores: int | None


class LikeQuestion(msgspec.Struct, frozen=True, tag="like"):
    """Measured rows that equal a spec in everything but `dim`, a size or a knob, which `sizes` and `config` leave out."""

    family: str
    dtype: str
    kv_dtype: str | None
    variant: str
    impl: str
    sizes: dict[str, int]
    config: dict[str, int]
    threads: int | None
    cache_state: str
    dim: str
    devices: list[LikeDevice]


Question = SetsQuestion | RowsQuestion | LikeQuestion


class Refused(msgspec.Struct, frozen=True):
    """A question that has no answer: the parameter at fault (empty: none) and why."""

    field: str
    detail: str


class MeasuredCard(msgspec.Struct, frozen=True):
    """The card of a data set, in Markdown."""

    title: str
    text: str


class MeasuredSet(msgspec.Struct, frozen=True):
    """A set of measured rows; the lists hold every value its columns have, `none` standing for the empty one.

    `notes` name what could not be read, such as a damaged file; the rest of the set is there nevertheless.
    """

    name: Annotated[str, Meta(description="What `set` takes in /v1/measurements")]
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
    """The sets there are."""

    sets: list[MeasuredSet]


class MeasurementsAnswer(msgspec.Struct, frozen=True):
    """A page of rows: `total` are all that pass the filters, `rows` have one cell per column, in SI units, missing is null.

    With one `family` its sizes and knobs are columns. Otherwise the columns `sizes` and `config` hold an object of them.
    """

    total: int
    offset: int
    columns: list[str]
    rows: list[list[Any]]


class MeasuredPoint(msgspec.Struct, frozen=True):
    """The median of `runs` measurements of one case; `value` is that of the dimension that varies."""

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
    """Measured points along `dim`, by device, implementation and value; `left_out` counts those beyond the most."""

    dim: str
    points: list[MeasuredPoint]
    left_out: int = 0


ANSWERS = (MeasuredSetsAnswer, MeasurementsAnswer, LikeAnswer)
