"""Rows to train on from a store of any size: streamed, repeated measurements merged, common kinds of case thinned.

Memory is bounded by the rows asked for, not by those stored: columns are read batch by batch, words as numbers, and `Sample`
says at once which rows cannot be in the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...datasets.rows.splits import Hashes, mixed, word_hash
from ...datasets.rows.table_columns import numbers, text_codes
from ...datasets.store.store import Store
from ...features.batch.cases import Floats, Indices
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...features.kernel import KernelFamily, get_family
from ..regressor import Progress, no_progress
from .labelled_cases import CASE_WORDS, LabelledCases, stored_cases

MOST_ROWS = 20_000
"""Rows kept of a family unless told otherwise: what more of them gain, and cost, is in `docs/storage.md`."""

STRATUM = ("device", "impl", "dtype", "variant", "cache_state", "timing")

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
) -> list[LabelledCases]:
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
    steps = progress or no_progress
    tables = []
    for done, name in enumerate(names):
        steps(f"reading {name}", done, len(names))
        batches = store.scan(name, wanted, needed_columns(get_family(name)), where=pc.field("status") == "ok")
        rows = labelled_batches(name, batches, most_rows=most_rows, seed=seed, known=known)
        if len(rows):
            tables.append(rows)
    return tables


def needed_columns(family: KernelFamily) -> list[str]:
    """Columns that training reads of a family's rows."""
    return [*CASE_WORDS, "source", *_numeric(family), "software", "block", "case_id"]


def labelled_batches(
    family: str,
    batches: Iterable[pa.RecordBatch],
    *,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    known: Catalogue | None = None,
) -> LabelledCases:
    """What `labelled_store` does with one family's rows, given batch by batch with the columns `needed_columns`."""
    fam, sample = get_family(family), Sample(most_rows, seed)
    words = {name: _Vocabulary() for name in (*CASE_WORDS, "source")}
    for batch in batches:
        _add(sample, pa.Table.from_batches([batch]), fam, words)
    rows, case = sample.rows()
    return _labelled(fam, rows, case, words, known or catalogue())


class _Vocabulary:
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
        return np.array(list(self._number), dtype=np.str_)[codes]


def _add(sample: Sample, table: pa.Table, family: KernelFamily, words: dict[str, _Vocabulary]) -> None:
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
    family: KernelFamily, rows: Columns, case: Indices, words: dict[str, _Vocabulary], known: Catalogue
) -> LabelledCases:
    if not rows:
        nothing: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype=np.int32) for name in words}
        rows = nothing | {name: np.empty(0) for name in _numeric(family)}
    first = np.unique(case, return_index=True)[1]
    # A case's rows differ in nothing else but who measured them: of several the first by name is told.
    source = words["source"].at(rows["source"])
    source = source[np.lexsort((source, case))[first]]
    text = {name: words[name].at(rows[name][first]) for name in CASE_WORDS}
    cases = stored_cases(family, text, source, lambda name: rows[name][first], known)
    return LabelledCases(cases, group_medians(rows["latency_s"], case), group_medians(rows["power_w"], case), source)


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
    folded = np.zeros(n, dtype=np.uint64)
    for part in parts:
        folded = mixed(folded ^ part)
    return folded


MOST_REPEATS = 64
"""Rows kept of one case, to take a median over: a sentinel is measured thousands of times, and its median is known by then."""

Columns = Mapping[str, npt.NDArray[Any]]
_NO_LIMIT = np.iinfo(np.uint64).max
_HOLD = 4
"""Rows held between two rounds of thinning, in multiples of those kept after the last: fewer rounds against memory."""
_LEAST_HELD = 2**17


class Sample:
    """At most `most_cases` cases, and at least one of every stratum; `seed` draws others.

    Strata have equal shares, and what small ones leave goes to the others. Shares only shrink as rows come, so a case that was
    dropped once would never be kept: the sample is the same in whatever order rows come.
    """

    def __init__(self, most_cases: int, seed: int = 0) -> None:
        self.most_cases = most_cases
        self._salt = mixed(np.array([seed], dtype=np.uint64))
        self._strata: Hashes = np.empty(0, dtype=np.uint64)
        self._limits: Hashes = np.empty(0, dtype=np.uint64)
        self._parts: list[Columns] = []
        self._candidates, self._hold = 0, _LEAST_HELD

    def numbers(self, cases: Hashes) -> Hashes:
        """The cases' random numbers, shape `(n,)`; cases and numbers map one to one."""
        return mixed(cases ^ self._salt)

    def may_keep(self, strata: Hashes, numbers: Hashes) -> npt.NDArray[np.bool_]:
        """Which rows could be in the sample, shape `(n,)`."""
        if not len(self._strata):
            return np.ones(len(strata), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._strata, strata), len(self._strata) - 1)
        return np.asarray(numbers <= np.where(self._strata[at] == strata, self._limits[at], _NO_LIMIT))

    def add(self, strata: Hashes, numbers: Hashes, draws: Hashes, columns: Columns) -> None:
        """Take rows that `may_keep`: by their stratum and number, a hash that tells repeats apart, and what is to be kept."""
        self._parts.append({"_stratum": strata, "_number": numbers, "_draw": draws, **columns})
        self._candidates += len(strata)
        if self._candidates > self._hold:
            self._thin()
            self._hold = max(_LEAST_HELD, _HOLD * self._candidates)

    def rows(self) -> tuple[Columns, Indices]:
        """The sample's rows, ordered by case, and the case of each, shape `(n,)`, from 0 on; nothing where no rows came."""
        if not self._parts:
            return {}, np.empty(0, dtype=np.intp)
        rows = self._thin()
        case = np.unique(rows["_number"], return_inverse=True)[1]
        order = np.lexsort((rows["_draw"], case))
        return {name: column[order] for name, column in rows.items() if name[0] != "_"}, case[order]

    def _thin(self) -> Columns:
        """Keep every stratum's share, and remember the largest number that can still come in."""
        names = list(self._parts[0])
        rows = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        order = np.lexsort((rows["_draw"], rows["_number"], rows["_stratum"]))
        stratum, number = rows["_stratum"][order], rows["_number"][order]
        begins = _changes(stratum) | _changes(number)
        case = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        strata, first_case, counts = np.unique(stratum[first], return_index=True, return_counts=True)
        share = equal_share(counts, self.most_cases)
        rank = np.arange(len(first)) - np.repeat(first_case, counts)
        in_share = (rank[case] < share) & (np.arange(len(order)) - first[case] < MOST_REPEATS)
        last = np.minimum(first_case + share - 1, len(first) - 1)
        self._strata = strata
        self._limits = np.where(counts >= share, number[first[last]], _NO_LIMIT)
        chosen = order[in_share]
        self._parts = [{name: column[chosen] for name, column in rows.items()}]
        self._candidates = len(chosen)
        return self._parts[0]


def equal_share(counts: Indices, most: int) -> int:
    """The largest share, at least 1, so that taking it of each of `counts`, or all where there are fewer, is at most `most`."""
    low, high = 1, max(1, int(counts.max(initial=1)))
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(np.minimum(counts, middle).sum()) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def group_medians(values: Floats, group: Indices) -> Floats:
    """The median of each group's values, NaN left out, shape `(groups,)`; NaN for a group without any. Groups count from 0."""
    n = int(group.max(initial=-1)) + 1
    is_number = ~np.isnan(values)
    order = np.lexsort((values[is_number], group[is_number]))
    ordered, sizes = values[is_number][order], np.bincount(group[is_number], minlength=n)
    start = np.cumsum(sizes) - sizes
    medians = np.full(n, np.nan)
    some = sizes > 0
    low, high = (start + (sizes - 1) // 2)[some], (start + sizes // 2)[some]
    medians[some] = (ordered[low] + ordered[high]) / 2
    return medians


def _changes(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before; the first does."""
    changes = np.ones(len(column), dtype=np.bool_)
    changes[1:] = column[1:] != column[:-1]
    return changes
