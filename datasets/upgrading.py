"""Reading files of older formats as rows of the newest one: a table of steps, each from one version to the next.

Steps are applied when a file is read; files themselves stay as they are until `kernelcast data compact --in-place` writes their
rows anew. A step only ever adds columns, so it says which columns it makes and which it needs for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .schema import FORMAT_VERSION
from .software import software_by_block

Facts = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Gives `{block: facts}` of the file; asked only where it is needed, since unpacking it costs."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A step from one format to the next: columns it makes, from which columns, and how (`apply(rows, facts)`)."""

    makes: tuple[str, ...]
    needs: tuple[str, ...]
    apply: Callable[[pa.Table, Facts], pa.Table]


def _unchanged(rows: pa.Table, _: Facts) -> pa.Table:
    """Version 2 only added columns that nobody had measured before: a reader gives columns a file lacks as null."""
    return rows


def _with_software(rows: pa.Table, facts: Facts) -> pa.Table:
    """Version 3's `software`, from the provenance of each row's block."""
    if "software" in rows.schema.names:
        return rows
    of_block = software_by_block(facts())
    names = pc.unique(rows["block"])
    words = pa.array([of_block(name) for name in names.to_pylist()], pa.string())
    return rows.append_column(
        pa.field("software", pa.string()), pc.take(words, pc.index_in(rows["block"], value_set=names))
    )


UPGRADES: Mapping[int, Upgrade] = MappingProxyType(
    {1: Upgrade((), (), _unchanged), 2: Upgrade(("software",), ("block",), _with_software)}
)
"""The step from each version to the next."""


def needed(version: int, columns: list[str], present: list[str]) -> list[str]:
    """Columns to read of a file of `version` that has the columns `present`, so that `columns` can be made of them."""
    wanted = set(columns)
    for at in range(version, FORMAT_VERSION):
        if wanted & set(UPGRADES[at].makes):
            wanted |= set(UPGRADES[at].needs)
    return [name for name in present if name in wanted]


def upgraded(rows: pa.Table, version: int, columns: list[str], facts: Facts) -> pa.Table:
    """`rows` of a file of `version` with the columns that later versions added, where `columns` asks for them."""
    for at in range(version, FORMAT_VERSION):
        step = UPGRADES[at]
        if set(step.makes) & set(columns) and set(step.needs) <= set(rows.schema.names):
            rows = step.apply(rows, facts)
    return rows
