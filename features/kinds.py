"""The kind of a case: all of it but its sizes and its knobs' values. What follows from it is worked out once a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .coded import Words

MOST_KEPT = 4096
"""Kinds of which something is kept: far more than are asked about, few enough that made-up words cannot fill the memory."""

_Found = TypeVar("_Found")


class Kind(NamedTuple):
    """Where and how a case runs. `threads` is None on a GPU; `knobs` are the names of the knobs that are set, sorted."""

    device: str
    dtype: str
    kv_dtype: str
    variant: str
    impl: str
    cache_state: str
    threads: float | None
    knobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kinds:
    """The distinct kinds among `n` cases, and which of them each case has, shape `(n,)`."""

    kinds: tuple[Kind, ...]
    code: npt.NDArray[np.intp]

    def words(self, text: Callable[[Kind], str]) -> Words:
        """The column of a word that follows from the kind."""
        return self.word_list([text(kind) for kind in self.kinds])

    def word_list(self, words: Sequence[str]) -> Words:
        """The column of a word per kind."""
        if len(words) == 1:
            return Words((words[0],), self.code)
        number: dict[str, int] = {}
        same = np.array([number.setdefault(word, len(number)) for word in words], dtype=np.intp)
        return Words(tuple(number), same[self.code])

    def column(self, values: Sequence[Any]) -> Any:
        """The column of a value per kind, or the rows of a vector per kind: shape `(n, …)`."""
        return np.array(values)[self.code]


class ByKind(Generic[_Found]):
    """What follows from a kind alone (never an empty value), worked out once a kind and kept, of some `MOST_KEPT` kinds.

    Safe to share between threads: whoever finds it, finds the same.
    """

    def __init__(self) -> None:
        self._kept: dict[Kind, _Found] = {}

    def of(self, kinds: Kinds, find: Callable[[Kind], _Found]) -> list[_Found]:
        """What is kept of each kind, or what `find` finds where nothing is."""
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        kept = self._kept
        return [kept.get(kind) or kept.setdefault(kind, find(kind)) for kind in kinds.kinds]
