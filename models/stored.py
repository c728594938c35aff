"""Rows to train on from a store of any size: streamed, repeated measurements merged, common kinds of case thinned.

Memory is bounded by the rows asked for, not by those stored: columns are read batch by batch, words as numbers, and `thinning`
says at once which rows cannot be in the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.hashing import Hashes, mixed, word_hash
from ..datasets.store import Store
from ..datasets.tables import numbers, text_codes
from ..features.cases import Cases, Indices
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from ..features.kernel import KernelFamily, get_family
from .labelled import Labelled
from .thinning import Columns, Sample, group_medians

MOST_ROWS = 20_000
"""Rows kept of a family unless told otherwise: what more of them gain, and cost, is in `docs/storage.md`."""

STRATUM = ("device", "impl", "dtype", "variant", "cache_state")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""

_CASE_WORDS = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")
_ID_B = 16
"""Characters of a `case_id`."""


def labelled_store(
    store: Store,
    *,
    families: Sequence[str] | None = None,
    devices: Iterable[str] | None = None,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    known: Catalogue | None = None,
    progress: Progress | None = None,
) -> list[Labelled]:
    """The measured rows (status `ok`) of a store, one table per family in the order of the names.

    Rows of one device, case and software are one row with their median latency and median power. Of each family at most
    `most_rows` are kept, but one of every stratum at least: strata have equal shares, and what rare ones leave goes to others.
    Which are kept depends on the rows and the seed, not on how they are spread over files.

    Args:
        store: where to read.
        families: only these; default: all that the store has.
        devices: only these, as the store names them.
        most_rows: rows kept of a family.
        seed: draws other rows of the common strata.
        known: the catalogue devices must be in; default: the shipped one.
        progress: told the families done.

    Raises:
        SpecError: an unknown family or device, or `most_rows` below 1.
        StoreError: the store cannot be read.
    """
    if most_rows < 1:
        raise SpecError(f"most_rows is {most_rows}; give 1 or more", field="most_rows")
    names = sorted(store.families() if families is None else {get_family(name).name for name in families})
    wanted = None if devices is None else list(devices)
    steps = progress or (lambda what, done, total: None)
    found = []
    for done, name in enumerate(names):
        steps(f"reading {name}", done, len(names))
        batches = store.scan(name, wanted, needed_columns(get_family(name)), where=pc.field("status") == "ok")
        rows = labelled_batches(name, batches, most_rows=most_rows, seed=seed, known=known)
        if len(rows):
            found.append(rows)
    return found


def needed_columns(family: KernelFamily) -> list[str]:
    """Columns that training reads of a family's rows."""
    return [*_CASE_WORDS, "source", *_numeric(family), "software", "block", "case_id"]


def labelled_batches(
    family: str,
    batches: Iterable[pa.RecordBatch],
    *,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    known: Catalogue | None = None,
) -> Labelled:
    """What `labelled_store` does with one family's rows, given batch by batch with the columns `needed_columns`."""
    fam, sample = get_family(family), Sample(most_rows, seed)
    words = {name: _Words() for name in (*_CASE_WORDS, "source")}
    for batch in batches:
        _add(sample, pa.Table.from_batches([batch]), fam, words)
    rows, case = sample.rows()
    return _labelled(fam, rows, case, words, known or catalogue())


class _Words:
    """Words of a text column, numbered as they come."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {"": 0}

    def coded(self, table: pa.Table, name: str) -> npt.NDArray[np.int32]:
        """The column's words by number, shape `(n,)`; 0 where missing."""
        codes, words = text_codes(table, name)
        of_word = [self._number.setdefault(word, len(self._number)) for word in words]
        return np.array([*of_word, 0], dtype=np.int32)[codes]

    def at(self, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.str_]:
        """The words themselves."""
        found: npt.NDArray[np.str_] = np.array(list(self._number), dtype=np.str_)[codes]
        return found


def _add(sample: Sample, table: pa.Table, family: KernelFamily, words: dict[str, _Words]) -> None:
    """Take of some rows what can still be in the sample; the others' numbers are never read."""
    n = table.num_rows
    latency_s = numbers(table, "latency_s").values
    strata = _folded([_word_hashes(table, name) for name in STRATUM], n)
    cases = _folded([_word_hashes(table, "device"), _word_hashes(table, "software"), _id_hashes(table)], n)
    order = sample.numbers(cases)
    good = np.flatnonzero((latency_s > 0) & np.isfinite(latency_s) & sample.may_keep(strata, order))
    if not len(good):
        return
    rows = table.take(pa.array(good.tolist(), pa.int64()))
    columns: dict[str, npt.NDArray[Any]] = {name: words[name].coded(rows, name) for name in words}
    columns |= {name: numbers(rows, name).values for name in _numeric(family)}
    # Equal latencies of different blocks must not stand or fall together when repeats are drawn.
    draws = _folded([columns["latency_s"].view(np.uint64), _word_hashes(rows, "block")], len(good))
    sample.add(strata[good], order[good], draws, columns)


def _labelled(
    family: KernelFamily, rows: Columns, case: Indices, words: dict[str, _Words], known: Catalogue
) -> Labelled:
    if not rows:
        nothing: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype=np.int32) for name in words}
        rows = nothing | {name: np.empty(0) for name in _numeric(family)}
    first = np.unique(case, return_index=True)[1]
    # A case's rows differ in nothing else but who measured them: of several the first by name is told.
    source = words["source"].at(rows["source"])
    by_source = np.lexsort((source, case))[first]
    text = {name: words[name].at(rows[name][first]) for name in _CASE_WORDS}
    devices, of_device = np.unique(text["device"], return_inverse=True)
    text["device"] = np.array([known.get(name).name for name in devices.tolist()] or [""], dtype=np.str_)[of_device]
    text["kv_dtype"] = np.where(text["kv_dtype"] == "", text["dtype"], text["kv_dtype"])
    text["cache_state"] = np.where(text["cache_state"] == "", "hot", text["cache_state"])
    cases = Cases(
        family=family,
        threads=rows["threads"][first],
        sizes={name: rows[name][first] for name in family.dim_names},
        config={name: rows[name][first] for name in family.config},
        **text,
    ).with_core_counts(known)
    return Labelled(
        cases, group_medians(rows["latency_s"], case), group_medians(rows["power_w"], case), source[by_source]
    )


def _numeric(family: KernelFamily) -> tuple[str, ...]:
    return ("threads", *family.dim_names, *family.config, "latency_s", "power_w")


def _word_hashes(table: pa.Table, name: str) -> Hashes:
    codes, words = text_codes(table, name)
    return np.array([*map(word_hash, words), word_hash("")], dtype=np.uint64)[codes]


def _id_hashes(table: pa.Table) -> Hashes:
    """Hashes of the column `case_id`, whose words are nearly all different: from their characters, no object each."""
    column = table["case_id"].combine_chunks()
    lengths = pc.min_max(pc.binary_length(column)).as_py()
    if column.null_count or (lengths["min"], lengths["max"]) != (_ID_B, _ID_B):
        return _word_hashes(table, "case_id")
    column = column.cast(pa.string())
    halves = np.frombuffer(column.buffers()[2], dtype="<u8", count=2 * len(column), offset=_start(column))
    return _folded([halves[0::2].astype(np.uint64), halves[1::2].astype(np.uint64)], len(column))


def _start(column: pa.StringArray) -> int:
    """Where a column's characters begin in their buffer."""
    return int(np.frombuffer(column.buffers()[1], dtype=np.int32, count=1, offset=4 * column.offset)[0])


def _folded(parts: Sequence[Hashes], n: int) -> Hashes:
    """One hash of several, shape `(n,)`, in which their order counts."""
    found = np.zeros(n, dtype=np.uint64)
    for part in parts:
        found = mixed(found ^ part)
    return found
