"""A text column with few distinct values: each value once and a code per row, so that work is done once per value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Categorical:
    """A text column with few distinct values, as pandas' and Arrow's type of that name.

    Attributes:
        words: The distinct values; some of them no row may have.
        code: Which one each row has, shape `(n,)`.
    """

    words: tuple[str, ...]
    code: npt.NDArray[np.intp]

    @classmethod
    def encode(cls, column: Any) -> Categorical:
        """The column encoded, in one pass: a dictionary is several times faster here than sorting text."""
        number: dict[str, int] = {}
        code = [number.setdefault(word, len(number)) for word in column.tolist()]
        return cls(tuple(number), np.array(code, dtype=np.intp))

    @classmethod
    def joined(cls, columns: Sequence[Categorical], text: Callable[..., str]) -> Categorical:
        """The column of `text(*words)` of each row's words in `columns`."""
        code = np.zeros(len(columns[0].code), dtype=np.intp)
        for column in columns:
            code = code * len(column.words) + column.code
        first, dense = dense_codes(code)
        words = [text(*(column.words[column.code[row]] for column in columns)) for row in first]
        number: dict[str, int] = {}
        same = np.array([number.setdefault(word, len(number)) for word in words], dtype=np.intp)
        return cls(tuple(number), same[dense])

    def __len__(self) -> int:
        return len(self.code)

    def strings(self) -> npt.NDArray[np.str_]:
        """The words themselves, shape `(n,)`."""
        return np.array(self.words or ("",), dtype=np.str_)[self.code]

    def at(self, row: int) -> str:
        """The word of one row."""
        return self.words[int(self.code[row])]

    def among(self, known: Collection[str]) -> npt.NDArray[np.bool_]:
        """Whether each row's word is one of `known`, shape `(n,)`."""
        return np.array([word in known for word in self.words], dtype=np.bool_)[self.code]

    def is_word(self, word: str) -> npt.NDArray[np.bool_]:
        """Whether each row's word is this one, shape `(n,)`."""
        equal: npt.NDArray[np.bool_] = self.code == (self.words.index(word) if word in self.words else -1)
        return equal


def dense_codes(code: npt.NDArray[np.intp]) -> tuple[list[int], npt.NDArray[np.intp]]:
    """A row in which each distinct code first occurs, and the codes renumbered 0, 1, 2 …"""
    if not code.any():
        return [0] if len(code) else [], np.zeros(len(code), dtype=np.intp)
    highest = int(code.max())
    if highest > _TABLE_PER_ROW * len(code):
        _, first, dense = np.unique(code, return_index=True, return_inverse=True)
        return first.tolist(), dense
    # Few codes: a table of first rows, written backwards so that the first one stays, is faster than sorting.
    table = np.full(highest + 1, -1, dtype=np.intp)
    table[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    there = np.flatnonzero(table >= 0)
    number = np.empty(highest + 1, dtype=np.intp)
    number[there] = np.arange(len(there))
    return table[there].tolist(), number[code]


_TABLE_PER_ROW = 8
"""Largest code, in rows, up to which a table of all codes is worth it."""
