"""What a night's models learn from and are judged by: the rows of this night and of earlier ones, the shipped ones, files."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.shipped import read_shipped, shipped_families
from ..datasets.store import Store, StoreWarning
from ..features.device import Catalogue
from ..features.kernel import get_family
from ..models.labelled import Labelled
from ..models.stored import labelled_batches, needed_columns
from ..models.tables import joined, labelled_files, labelled_tables
from .drift.ledger import Ledger
from .drift.training_rows import RowCounts, rows_for_training
from .gate.hold_out import teachable
from .plan import Plan

_REGIME_COLUMNS = ("software", "measured_at")


@dataclass(slots=True)
class Rows:
    """Rows of a store as models of today may learn from them: of each device its regime's, older ones moved by what is known.

    `counts` says what became of those read so far. `regimes` are the ledgers of the devices that have one.
    """

    store: Store
    plan: Plan
    known: Catalogue
    regimes: Mapping[str, Ledger]
    counts: RowCounts

    @classmethod
    def of(cls, store: Store, plan: Plan, known: Catalogue, regimes: Mapping[str, Ledger]) -> Rows:
        """Rows of a store, none read yet."""
        return cls(store, plan, known, regimes, RowCounts())

    def read(
        self, devices: Sequence[str] | None, where: pc.Expression, families: Collection[str] | None = None
    ) -> list[Labelled]:
        """The measured rows for which `where` holds, one table a family, thinned to the plan's `most_rows`.

        `families` are those to read, where not all are wanted.

        Raises:
            StoreError: the store cannot be read.
            SpecError: a device the catalogue does not know.
        """
        found = []
        with warnings.catch_warnings():
            # Damaged files are the check stage's to tell.
            warnings.simplefilter("ignore", StoreWarning)
            for family in self.store.families():
                if families is None or family in families:
                    good = (pc.field("status") == "ok") & where
                    batches = self.store.scan(family, devices, _columns(family), good)
                    found.append(self._labelled(family, (pa.Table.from_batches([batch]) for batch in batches)))
        return [rows for rows in found if len(rows)]

    def labelled(self, tables: Mapping[str, pa.Table]) -> list[Labelled]:
        """The measured rows of tables that were read already, as `read` gives them.

        Raises:
            SpecError: a device the catalogue does not know.
        """
        found = [
            self._labelled(family, [table.filter(pc.field("status") == "ok").select(_columns(family))])
            for family, table in sorted(tables.items())
        ]
        return [rows for rows in found if len(rows)]

    def _labelled(self, family: str, tables: Iterable[pa.Table]) -> Labelled:
        batches = self._by_regime(family, tables)
        return labelled_batches(
            family, batches, most_rows=self.plan.train.most_rows, seed=self.plan.seed, known=self.known
        )

    def _by_regime(self, family: str, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            for device, ledger in self.regimes.items():
                table, counts = rows_for_training(table, family, ledger, device)
                self.counts = self.counts.joined(counts)
            yield from table.to_batches()


def _columns(family: str) -> list[str]:
    return list(dict.fromkeys((*needed_columns(get_family(family)), *_REGIME_COLUMNS)))


def tonight(blocks: Sequence[str]) -> pc.Expression:
    """Whether a stored row is of these blocks."""
    return pc.field("block").isin(list(blocks))


def beside(rows: Rows, devices: Sequence[str]) -> list[Labelled]:
    """What models trained anew learn from beside the night's devices: the store's others, shipped rows, the plan's files.

    Raises:
        SpecError: a file of the plan cannot be read.
        StoreError: the store cannot be read.
    """
    train, known = rows.plan.train, rows.known
    found = rows.read(None, ~pc.field("device").isin(list(devices)))
    if train.with_shipped:
        found += labelled_tables({family: read_shipped(family) for family in shipped_families()})
    if train.data:
        found += labelled_files([Path(name).expanduser() for name in train.data], devices=known)
    return teachable(found, rows.plan.gate.hold_out)


def together(learn: Sequence[Labelled], others: Sequence[Labelled], most: int, seed: int) -> list[Labelled]:
    """One table a family: all of `learn`, and of `others` so many that `most` is kept, equal shares of every device first."""
    families = sorted({rows.cases.family.name for rows in (*learn, *others)})
    found = []
    for family in families:
        own = [rows for rows in learn if rows.cases.family.name == family]
        more = [rows for rows in others if rows.cases.family.name == family]
        if more:
            own.append(_thinned(joined(more), max(most - sum(map(len, own)), 0), seed))
        found.append(joined(own))
    return found


def _thinned(rows: Labelled, most: int, seed: int) -> Labelled:
    """At most `most` rows, drawn device by device in turns: a device with few rows must not be forgotten for one with many."""
    if len(rows) <= most:
        return rows
    drawn = np.random.default_rng(seed).random(len(rows))
    turn = np.zeros(len(rows))
    for device in np.unique(rows.cases.device):
        own = np.flatnonzero(rows.cases.device == device)
        turn[own[np.argsort(drawn[own])]] = np.arange(len(own))
    return rows.take(np.sort(np.lexsort((drawn, turn))[:most]))
