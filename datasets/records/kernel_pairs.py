"""Measured pairs of kernels: what each takes alone, and how much longer beside the other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_from_row, spec_row
from ..rows.schema import Status
from ..store.location import commit_files
from ..store.parquet_files import file_metadata, provenance_of, read_file, sorted_bytes


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two kernels of one device that ran at the same time over and over.

    On a CPU on a core each, one thread each; on a GPU on a stream each of one process. A failed pair is a row with a
    status, never a hole.

    Attributes:
        a: The kernel on the first core or stream.
        b: The one on the second.
        device: Catalogue name of the device.
        status: `ok`, or why there are no times.
        message: The reason in words.
        a_alone_s: Seconds of a call of a with the other core or stream idle.
        b_alone_s: The same of b.
        a_slowdown: Time of a call of a beside b over that alone; median of the cycles.
        b_slowdown: The same of b.
        a_error: Standard error of its logarithm.
        b_error: The same of b.
        cycles: Cycles, each with slots alone and together.
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
    a_error: float | None = None
    b_error: float | None = None
    cycles: int | None = None
    measured_at: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What was measured, whatever came of it."""
        return self.device, self.a.case_id, self.b.case_id


PAIRS_DIR = Path(__file__).parents[1] / "data" / "pairs"
"""The measured pairs that come with kernelcast: of a CPU in `pairs.parquet`."""

GPU_PAIRS = PAIRS_DIR / "h200-pairs.parquet"
"""Those of a GPU, on two streams."""

_TEXT = ("a", "b", "device", "status", "message", "measured_at")
_NUMBERS = ("a_alone_s", "b_alone_s", "a_slowdown", "b_slowdown", "a_error", "b_error")
PAIR_SCHEMA = pa.schema([
    *((name, pa.string()) for name in _TEXT[:5]), *((name, pa.float64()) for name in _NUMBERS), ("cycles", pa.int32()),
    ("measured_at", pa.string()),
])  # fmt: skip
"""Columns and types of the table; `a` and `b` are specs as JSON, as `features.spec_io.rows` writes them."""


def write_pairs(path: Path, rows: Sequence[PairRow], facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write rows with their provenance, `{block: facts}`, in place of what the file had.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    plain = [asdict(row) | {name: json.dumps(spec_row(getattr(row, name))) for name in "ab"} for row in rows]
    table = pa.Table.from_pylist(plain, PAIR_SCHEMA).replace_schema_metadata(file_metadata(facts))
    commit_files([(path, sorted_bytes(table, ("device", "a", "b")))])


def read_pairs(path: Path = PAIRS_DIR / "pairs.parquet") -> tuple[list[PairRow], dict[str, dict[str, Any]]]:
    """The rows of a file, by default the one that ships, and their provenance, `{block: facts}`.

    Raises:
        StoreError: the file is missing, damaged, or not of this kind.
    """
    table = read_file(path, PAIR_SCHEMA)
    rows = [PairRow(**row | {name: spec_from_row(json.loads(row[name])) for name in "ab"}) for row in table.to_pylist()]
    return rows, provenance_of(table)
