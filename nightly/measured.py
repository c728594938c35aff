"""What was measured on a device before: which cases not to choose again, and a fair sample of them to choose beside."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from ..datasets.schema import spec_of
from ..datasets.shipped import read_shipped, shipped_families
from ..datasets.store import FINAL_STATUSES, Store, StoreWarning
from ..features.errors import SpecError
from ..features.kernel import KernelSpec, get_family

MOST_SPECS = 4000
"""So many measured cases are looked at when choosing; of more, a sample by their hashes, the same every time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Ids of the cases of a device that need not be measured again, and at most `MOST_SPECS` of those that gave a time.

    `own` are those of them that the store has, and so can be measured again to be compared.
    """

    ids: frozenset[str]
    specs: tuple[KernelSpec, ...]
    own: tuple[KernelSpec, ...]


def measured_before(store: Store, device: str, *, shipped: bool = True) -> Measured:
    """What the store, and the shipped tables beside it, have of a device.

    Raises:
        StoreError: the store cannot be reached.
    """
    ids: set[str] = set()
    own = _sampled(_stored(store, device), ids)
    beside = _sampled(_shipped(device), ids) if shipped else []
    every = sorted([*own, *beside], key=lambda one: one[0])[:MOST_SPECS]
    return Measured(frozenset(ids), tuple(_specs(every)), tuple(_specs(own)))


def _sampled(rows: Iterator[Mapping[str, Any]], ids: set[str]) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows that gave a time with the smallest ids, with their ids as numbers; the ids of all are added to `ids`."""
    smallest: list[tuple[int, int, Mapping[str, Any]]] = []
    for number, row in enumerate(rows):
        if row["case_id"] in ids:
            continue
        ids.add(row["case_id"])
        if row["status"] != "ok":
            continue
        # A case's id is a hash: those with the smallest are a fair sample, whatever order rows come in.
        item = (-int(row["case_id"], 16), number, row)
        if len(smallest) < MOST_SPECS:
            heapq.heappush(smallest, item)
        elif item > smallest[0]:
            heapq.heapreplace(smallest, item)
    return sorted(((-place, row) for place, _, row in smallest), key=lambda one: one[0])


def _stored(store: Store, device: str) -> Iterator[Mapping[str, Any]]:
    final = pc.field("status").isin(list(FINAL_STATUSES))
    with warnings.catch_warnings():
        # A file that cannot be read is the check stage's to tell.
        warnings.simplefilter("ignore", StoreWarning)
        for family in store.families():
            for batch in store.scan(family, [device], _columns(family), final):
                yield from batch.to_pylist()


def _shipped(device: str) -> Iterator[Mapping[str, Any]]:
    for family in shipped_families():
        for row in read_shipped(family, [device], _columns(family)).to_pylist():
            if row["status"] in FINAL_STATUSES:
                yield row


def _columns(family: str) -> list[str]:
    fam = get_family(family)
    return ["family", "dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", *fam.dim_names, *fam.config,
            "status", "case_id"]  # fmt: skip


def _specs(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[KernelSpec]:
    for _, row in rows:
        try:
            yield spec_of(row)
        except SpecError:
            # A case of an older version's families: its id still counts as measured.
            continue
