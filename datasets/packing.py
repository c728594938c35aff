"""Packing measured rows into one sorted table per family: the form in which tables are shipped and shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..features.kernel import get_family
from .files import commit_files, file_metadata, parquet_bytes, provenance_of
from .tables import text

Mask = npt.NDArray[np.bool_]


def pack(tables: Mapping[str, Sequence[pa.Table]], out_dir: Path) -> list[Path]:
    """Write the rows of each family as `out_dir/<family>.parquet`, with the provenance of all their blocks.

    A row that is there twice is written once, and a failed attempt at a case that succeeded elsewhere is left out.

    Raises:
        StoreError: the disk is full or not writable.
    """
    written = []
    for family, parts in tables.items():
        facts: dict[str, dict[str, Any]] = {}
        for part in parts:
            facts.update(provenance_of(part))
        rows = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        rows = rows.filter(pa.array(_first_of_each(rows)))
        rows = rows.filter(pa.array(~_superseded(rows))).sort_by([(key, "ascending") for key in sort_keys(family)])
        used = {block: facts[block] for block in rows["block"].unique().to_pylist() if block in facts}
        path = Path(out_dir) / f"{family}.parquet"
        commit_files([(path, parquet_bytes(rows.replace_schema_metadata(file_metadata(used))))])
        written.append(path)
    return written


def sort_keys(family: str) -> list[str]:
    """Columns by which packed rows of a family are sorted."""
    return ["device", "dtype", "variant", *get_family(family).dim_names, "impl", "threads", "cache_state", "measured_at",
            "case_id"]  # fmt: skip


def _first_of_each(table: pa.Table) -> Mask:
    """The first of the rows that share block, device and case, shape `(n,)`."""
    names = np.char.add(np.char.add(text(table, "block"), "|"), _cases(table))
    first: Mask = np.zeros(len(names), dtype=np.bool_)
    first[np.unique(names, return_index=True)[1]] = True
    return first


def _superseded(table: pa.Table) -> Mask:
    """Rows without a measurement of cases that have one, shape `(n,)`."""
    ok = text(table, "status") == "ok"
    cases = _cases(table)
    superseded: Mask = ~ok & np.isin(cases, cases[ok])
    return superseded


def _cases(table: pa.Table) -> npt.NDArray[np.str_]:
    return np.char.add(np.char.add(text(table, "device"), "|"), text(table, "case_id"))
