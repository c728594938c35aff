"""A bounded sample of any number of measured rows: repeats of a case together, rare kinds of case whole, common ones thinned.

Every case has a random number made of its hash; of each kind of case (a *stratum*) those with the smallest numbers are kept: a
fair sample of the stratum's cases however often each was measured and however rows are spread over files (bottom-k sampling:
Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..datasets.hashing import Hashes, mixed
from ..features.cases import Floats, Indices

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
        self._held, self._hold = 0, _LEAST_HELD

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
        self._held += len(strata)
        if self._held > self._hold:
            self._thin()
            self._hold = max(_LEAST_HELD, _HOLD * self._held)

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
        kept = (rank[case] < share) & (np.arange(len(order)) - first[case] < MOST_REPEATS)
        last = np.minimum(first_case + share - 1, len(first) - 1)
        self._strata = strata
        self._limits = np.where(counts >= share, number[first[last]], _NO_LIMIT)
        chosen = order[kept]
        self._parts = [{name: column[chosen] for name, column in rows.items()}]
        self._held = len(chosen)
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
    given = ~np.isnan(values)
    order = np.lexsort((values[given], group[given]))
    ordered, sizes = values[given][order], np.bincount(group[given], minlength=n)
    start = np.cumsum(sizes) - sizes
    found = np.full(n, np.nan)
    some = sizes > 0
    low, high = (start + (sizes - 1) // 2)[some], (start + sizes // 2)[some]
    found[some] = (ordered[low] + ordered[high]) / 2
    return found


def _changes(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before; the first does."""
    found = np.ones(len(column), dtype=np.bool_)
    found[1:] = column[1:] != column[:-1]
    return found
