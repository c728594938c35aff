"""Which files of a folder count: the record that makes packed files take the place of those they were packed from.

A compaction writes packed files, then one record that names them and the files they replace. That record is the only step that
changes what readers see, and it is one file, so it is there or not. A second copy of it follows, for the case that the first is
damaged. Until the replaced files are removed, later, readers that listed the folder before still find them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .committing import StoreError
from .naming import BLOCKS, PACKED, RECORD, ROWS, kind_of


@dataclass(frozen=True, slots=True)
class Replacement:
    """A record: packed files with their rows, the file of their provenance, and the files they replace; one folder's names."""

    name: str
    packed: tuple[tuple[str, int], ...]
    blocks: str | None
    replaced: frozenset[str]

    def files(self) -> set[str]:
        """What the record brought into the folder, itself left out."""
        return {name for name, _ in self.packed} | ({self.blocks} if self.blocks else set())

    def says_the_same(self, other: Replacement) -> bool:
        """Whether it is a copy of another record."""
        return self.content() == other.content()

    def content(self) -> bytes:
        """The record as it is written."""
        said = {"packed": [list(one) for one in self.packed], "blocks": self.blocks, "replaced": sorted(self.replaced)}
        return json.dumps(said, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Live:
    """A folder as readers see it. `rows` are the files that count, in the order they were stored; `blocks` hold the provenance
    of packed ones. `gone` are named by a record and not there; `unused` belong to no record that counts; `unread`
    records are damaged, so that what is unused is not known for sure.
    """

    rows: tuple[str, ...]
    blocks: tuple[str, ...]
    records: tuple[Replacement, ...]
    void: tuple[Replacement, ...]
    replaced: frozenset[str]
    gone: tuple[str, ...]
    unused: tuple[str, ...]
    unread: int

    def sizes(self) -> dict[str, int]:
        """Rows of the packed files that count."""
        return {name: rows for record in self.records for name, rows in record.packed if name in self.rows}


def record_of(name: str, content: bytes) -> Replacement:
    """A record as it was written.

    Raises:
        StoreError: it is damaged.
    """
    try:
        said: dict[str, Any] = json.loads(content)
        packed = tuple((str(one), int(rows)) for one, rows in said["packed"])
        blocks = said["blocks"]
        return Replacement(name, packed, None if blocks is None else str(blocks), frozenset(map(str, said["replaced"])))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot read {name}: it is no record of replaced files") from error


def live(names: Iterable[str], read: Callable[[str], Replacement | None]) -> Live:
    """What counts among the names of one folder; `read` gives a record, None for one that is damaged.

    A record that replaces what another, earlier one has replaced is void: two compactions ran at once, and the rows of both are
    the same. A copy of an earlier one is no other.
    """
    listed = list(names)
    kinds = {name: kind_of(name) for name in listed}
    records: list[Replacement] = []
    void: list[Replacement] = []
    replaced: set[str] = set()
    unread = 0
    for name in sorted(one for one, kind in kinds.items() if kind == RECORD):
        record = read(name)
        if record is None:
            unread += 1
            continue
        if record.replaced & replaced and not any(record.says_the_same(one) for one in records):
            void.append(record)
            continue
        records.append(record)
        replaced |= record.replaced
    packed = {name for record in records for name, _ in record.packed} - replaced
    blocks = {record.blocks for record in records if record.blocks and any(one in packed for one, _ in record.packed)}
    plain = {name for name, kind in kinds.items() if kind == ROWS} - replaced
    used = {name for record in records for name in record.files()}
    return Live(
        rows=tuple(sorted(plain | (packed & kinds.keys()))),
        blocks=tuple(sorted(blocks & kinds.keys())),
        records=tuple(records),
        void=tuple(void),
        replaced=frozenset(replaced),
        gone=tuple(sorted((packed | blocks) - kinds.keys())),
        unused=tuple(sorted(one for one, kind in kinds.items() if kind in (PACKED, BLOCKS) and one not in used)),
        unread=unread,
    )
