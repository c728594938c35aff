"""Which rows are whose: those of this night and of earlier ones, those models learn from, and those cases were measured in."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.shipped import read_shipped, shipped_families
from ..datasets.store.parquet_files import family_schema
from ..datasets.store.store import FINAL_STATUSES, Store, StoreWarning
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import KernelSpec, get_family
from ..features.spec_io.rows import spec_from_row
from ..models.training.labelled_cases import LabelledCases, joined, labelled_files, labelled_tables
from ..models.training.store_rows import labelled_batches, needed_columns
from .context import Night
from .record.plan import Plan
from .record.record import NightRecord

SHORT_COLUMNS = ("family", "device", "case_id", "status", "n_samples", "latency_s", "power_w", "block")

MOST_SPECS = 4000
"""So many measured cases are considered when choosing; of more, a sample by their hashes, the same every time."""


def in_blocks(blocks: Sequence[str]) -> pc.Expression:
    """Whether a stored row is of these blocks: those of a night are the rows it measured."""
    return pc.field("block").isin(pa.array(list(blocks), pa.string()))


def scan(store: Store, family: str, *query: Any) -> Iterator[pa.RecordBatch]:
    """What `Store.scan` gives, without warnings of files that are damaged or unknown: the check stage reports those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        yield from store.scan(family, *query)


def night_tables(
    night: Night, columns: tuple[str, ...] | None = None, blocks: Sequence[str] | None = None
) -> dict[str, pa.Table]:
    """The rows stored by this night by family, all columns or those named; families without rows are left out.

    `blocks` are those of other nights to be read instead.
    """
    blocks = night.blocks() if blocks is None else blocks
    if not blocks:
        return {}
    tables: dict[str, pa.Table] = {}
    for family in night.store.families():
        batches = list(scan(night.store, family, night.measurer.devices, columns, in_blocks(blocks)))
        if any(batch.num_rows for batch in batches):
            tables[family] = pa.Table.from_batches(batches, family_schema(family, columns))
    return tables


def short_rows(tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """The rows of tables with `SHORT_COLUMNS` alone."""
    return [row for table in tables.values() for row in table.select(SHORT_COLUMNS).to_pylist()]


def night_software(record: NightRecord, devices: Iterable[str]) -> dict[str, str]:
    """The software that each device ran in a night, empty where it is not known.

    A device that cannot be read before the night, such as one of a fleet, is known from `check` on.
    """
    checked, sentinels = record.stage("check").facts.get("software", {}), record.stage("sentinels").facts
    return {
        device: str(checked.get(device) or sentinels.get("devices", {}).get(device, sentinels).get("software") or "")
        for device in devices
    }


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Rows of a store as models may learn from them.

    Attributes:
        store: Where rows are.
        plan: Says how many rows of a family are kept, and of which software.
        known: The catalogue.
        software: What devices run now; only rows of it are read where the plan says `train.software: current`.
    """

    store: Store
    plan: Plan
    known: Catalogue
    software: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_night(cls, night: Night) -> TrainingRows:
        """The rows for the models of a night."""
        return cls(night.store, night.plan, night.devices, night_software(night.record, night.measurer.devices))

    def read(self, devices: Sequence[str] | None, where: pc.Expression) -> list[LabelledCases]:
        """The measured rows for which `where` holds, one table a family, thinned to the plan's `most_rows`.

        Raises:
            StoreError: the store cannot be read.
            SpecError: a device the catalogue does not know.
        """
        tables = []
        good = (pc.field("status") == "ok") & where
        for family in self.store.families():
            batches = scan(self.store, family, devices, _training_columns(family), good)
            tables.append(self._labelled(family, (pa.Table.from_batches([batch]) for batch in batches)))
        return [rows for rows in tables if len(rows)]

    def labelled(self, tables: Mapping[str, pa.Table]) -> list[LabelledCases]:
        """The measured rows of tables that were read already, as `read` gives them.

        Raises:
            SpecError: a device the catalogue does not know.
        """
        labelled = [
            self._labelled(family, [table.filter(pc.field("status") == "ok").select(_training_columns(family))])
            for family, table in sorted(tables.items())
        ]
        return [rows for rows in labelled if len(rows)]

    def _labelled(self, family: str, tables: Iterable[pa.Table]) -> LabelledCases:
        batches = (batch for table in tables for batch in self._of_software(table).to_batches())
        return labelled_batches(
            family, batches, most_rows=self.plan.train.most_rows, seed=self.plan.seed, known=self.known
        )

    def _of_software(self, table: pa.Table) -> pa.Table:
        if self.plan.train.software == "all":
            return table
        for device, software in self.software.items():
            if software:
                table = table.filter((pc.field("device") != device) | (pc.field("software") == software))
        return table


def _training_columns(family: str) -> list[str]:
    return list(dict.fromkeys((*needed_columns(get_family(family)), "software")))


def other_rows(rows: TrainingRows, devices: Sequence[str]) -> list[LabelledCases]:
    """What models trained anew learn from beside the night's devices: the store's others, shipped rows, the plan's files.

    Raises:
        SpecError: a file of the plan cannot be read.
        StoreError: the store cannot be read.
    """
    train = rows.plan.train
    tables = rows.read(None, ~pc.field("device").isin(list(devices)))
    if train.with_shipped:
        tables += labelled_tables({family: read_shipped(family) for family in shipped_families()})
    if train.data:
        tables += labelled_files([Path(name).expanduser() for name in train.data], devices=rows.known)
    return tables


def together(
    learn: Sequence[LabelledCases], others: Sequence[LabelledCases], most: int, seed: int
) -> list[LabelledCases]:
    """One table a family: all of `learn`, and of `others` as many as `most` leaves, equal shares of every device first."""
    tables = []
    for family in sorted({rows.cases.family.name for rows in (*learn, *others)}):
        first = [rows for rows in learn if rows.cases.family.name == family]
        more = [rows for rows in others if rows.cases.family.name == family]
        if more:
            first.append(_thinned(joined(more), max(most - sum(map(len, first)), 0), seed))
        tables.append(joined(first))
    return tables


def _thinned(rows: LabelledCases, most: int, seed: int) -> LabelledCases:
    """At most `most` rows, drawn device by device in turns: a device with few rows must not be forgotten for one with many."""
    if len(rows) <= most:
        return rows
    drawn = np.random.default_rng(seed).random(len(rows))
    turn = np.zeros(len(rows))
    for device in np.unique(rows.cases.device):
        places = np.flatnonzero(rows.cases.device == device)
        turn[places[np.argsort(drawn[places])]] = np.arange(len(places))
    return rows.take(np.sort(np.lexsort((drawn, turn))[:most]))


@dataclass(frozen=True, slots=True)
class MeasuredCases:
    """The cases of a device that were measured before.

    Attributes:
        ids: Ids of the cases that need not be measured again.
        specs: At most `MOST_SPECS` of those that gave a time.
        stored: Those of them that the store has, and so can be measured again to be compared.
    """

    ids: frozenset[str]
    specs: tuple[KernelSpec, ...]
    stored: tuple[KernelSpec, ...]


def measured_cases(store: Store, device: str, *, shipped: bool = True) -> MeasuredCases:
    """What the store, and the shipped tables beside it, have of a device.

    Raises:
        StoreError: the store cannot be reached.
    """
    ids: set[str] = set()
    stored = _sampled(_stored(store, device), ids)
    beside = _sampled(_shipped(device), ids) if shipped else []
    every = heapq.nsmallest(MOST_SPECS, [*stored, *beside], key=lambda item: item[0])
    return MeasuredCases(frozenset(ids), tuple(_specs(every)), tuple(_specs(stored)))


def _sampled(rows: Iterator[Mapping[str, Any]], ids: set[str]) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows that gave a time with the smallest ids, with their ids as numbers; the ids of all are added to `ids`."""

    def fresh() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for row in rows:
            if row["case_id"] not in ids:
                ids.add(row["case_id"])
                if row["status"] == "ok":
                    yield int(row["case_id"], 16), row

    # A case's id is a hash: those with the smallest are a fair sample, whatever order rows come in.
    return heapq.nsmallest(MOST_SPECS, fresh(), key=lambda item: item[0])


def _stored(store: Store, device: str) -> Iterator[Mapping[str, Any]]:
    final = pc.field("status").isin(list(FINAL_STATUSES))
    for family in store.families():
        for batch in scan(store, family, [device], _case_columns(family), final):
            yield from batch.to_pylist()


def _shipped(device: str) -> Iterator[Mapping[str, Any]]:
    for family in shipped_families():
        for row in read_shipped(family, [device], _case_columns(family)).to_pylist():
            if row["status"] in FINAL_STATUSES:
                yield row


def _case_columns(family: str) -> list[str]:
    fam = get_family(family)
    return ["family", "dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "timing", *fam.dim_names,
            *fam.config, "status", "case_id"]  # fmt: skip


def _specs(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[KernelSpec]:
    for _, row in rows:
        try:
            yield spec_from_row(row)
        except SpecError:
            # A case of an older version's families: its id still counts as measured.
            continue
