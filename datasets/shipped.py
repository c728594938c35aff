"""The measured tables that come with kernelcast: one Parquet file per family in `datasets/shipped/`, with its card.

Beside them, in `datasets/tiles/`, tables of kernels in many tile configurations each, from which compilers' choices are learnt,
and in `datasets/history/` nights between which libraries changed, on which retraining is compared with reusing old models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..features.errors import SpecError, listed
from .files import family_schema, read_file

SHIPPED_DIR = Path(__file__).parent / "shipped"
TILES_DIR = Path(__file__).parent / "tiles"
HISTORY_DIR = Path(__file__).parent / "history"


def shipped_families(directory: Path = SHIPPED_DIR) -> list[str]:
    """Families that have a shipped table, sorted."""
    return sorted(path.stem for path in directory.glob("*.parquet"))


def read_shipped(
    family: str,
    devices: Iterable[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    directory: Path = SHIPPED_DIR,
) -> pa.Table:
    """The shipped rows of one family, of all devices or of those named, with their provenance in the metadata.

    Raises:
        SpecError: no such table or column; the message lists those there are.
        StoreError: the table is damaged.
    """
    known = shipped_families(directory)
    if family not in known:
        raise SpecError(f"no shipped table for {family!r}; shipped: {listed(known) or 'none'}", field="family")
    table = read_file(directory / f"{family}.parquet", family_schema(family, columns))
    if devices is None:
        return table
    rows = read_file(directory / f"{family}.parquet", family_schema(family, ["device"]))
    return table.filter(pc.is_in(rows["device"], pa.array(list(devices), pa.string())))
