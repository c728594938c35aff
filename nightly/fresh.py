"""The rows that a night has stored, read back from the store: what is done, what is judged, and what is new to learn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..datasets.files import family_schema
from ..datasets.store import StoreWarning
from .context import Night
from .rows import tonight

_SHORT = ("family", "device", "case_id", "status", "message", "latency_s", "power_w", "block")


def fresh_rows(night: Night) -> list[dict[str, Any]]:
    """Every row stored by this night, in short: its family, device, case, status, message, latency and power."""
    return in_short(fresh_tables(night, _SHORT))


def in_short(tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """The rows of tables as `fresh_rows` gives them."""
    return [row for table in tables.values() for row in table.select(_SHORT).to_pylist()]


def fresh_tables(
    night: Night, columns: tuple[str, ...] | None = None, blocks: Sequence[str] | None = None
) -> dict[str, pa.Table]:
    """The rows stored by this night by family, all columns or those named; families without any left out.

    `blocks` are those of other nights to be read instead.
    """
    blocks = night.blocks() if blocks is None else blocks
    if not blocks:
        return {}
    found: dict[str, pa.Table] = {}
    with warnings.catch_warnings():
        # What is damaged or unknown in the store is the check stage's to tell.
        warnings.simplefilter("ignore", StoreWarning)
        for family in night.store.families():
            schema = family_schema(family, columns)
            batches = list(night.store.scan(family, night.measurer.devices, columns, tonight(blocks)))
            if any(batch.num_rows for batch in batches):
                found[family] = pa.Table.from_batches(batches, schema)
    return found
