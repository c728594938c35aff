"""Values of JSON columns as numpy columns: every value checked at once, and which rows are not acceptable.

Nothing here says what is wrong with a row: a row that is not acceptable is read again as a single spec, whose words then
explain it, so that columns and single specs are refused alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..features.cases import Floats
from ..features.coded import Words
from ..features.errors import SpecError
from ..features.kernel import KernelFamily
from .problems import MAX_LISTED
from .requests import MAX_TEXT

Mask = npt.NDArray[np.bool_]
UNFIT = "\0"
"""Stands for every text that is not acceptable; no acceptable one holds this letter."""

_NUMBERS = frozenset({int, float, type(None)})
_BEYOND = 2.0**60
"""Stands for every number too large to be any size, so that those beyond float64 can be compared."""
_NO_CHECK = next(field.default for field in fields(KernelFamily) if field.name == "check")
"""What a family has that takes sizes of any kind together: not worth a call per row."""


def numbers(given: Any, n: int, low: int, high: int, *, optional: bool) -> tuple[Floats, Mask]:
    """Whole numbers from `low` to `high`, shape `(n,)`, and which rows have none; one value that is no list is for all rows.

    Where they are `optional` a null is NaN.
    """
    values = given if isinstance(given, list) else [given]
    kinds = set(map(type, values))
    fit = None if kinds <= _NUMBERS else np.array([type(value) in _NUMBERS for value in values])
    if fit is not None:
        values = [value if type(value) in _NUMBERS else None for value in values]
    try:
        found = np.array(values, dtype=np.float64)
    except OverflowError:
        found = np.array([None if value is None else _bounded(value) for value in values], dtype=np.float64)
    good = (found >= low) & (found <= high)
    if float in kinds:
        good &= np.floor(found) == found
    if optional:
        good |= np.isnan(found)
    if fit is not None:
        good &= fit
    if not isinstance(given, list):
        return np.repeat(found, n), np.repeat(~good, n)
    return found, ~good


def _bounded(value: float) -> float:
    return float(max(min(value, _BEYOND), -_BEYOND))


def words(given: Any, n: int, read: Callable[[str | None], str]) -> tuple[Words, Mask]:
    """Texts of shape `(n,)` as `read` gives them, and which rows have none it takes; one value that is no list is for all rows.

    `read` is called once per distinct text or null and raises SpecError; after `MAX_LISTED` refusals it is not asked further,
    as the request is refused anyway. A row without an acceptable text has `UNFIT`.
    """
    values = given if isinstance(given, list) else [given]
    try:
        known = dict.fromkeys(values)
    except TypeError:
        # Lists and objects cannot be keys, nor texts.
        values = [value if isinstance(value, str | None) else False for value in values]
        known = dict.fromkeys(values)
    place: dict[Any, int] = {}
    number: dict[str, int] = {}
    n_unfit = 0
    for value in known:
        word = UNFIT if n_unfit >= MAX_LISTED else _read(value, read)
        n_unfit += word is UNFIT
        place[value] = number.setdefault(word, len(number))
    if isinstance(given, list):
        code = np.fromiter(map(place.__getitem__, values), dtype=np.intp, count=n)
    else:
        code = np.full(n, place[values[0]], dtype=np.intp)
    found = Words(tuple(number), code)
    return found, found.is_word(UNFIT) if n_unfit else np.zeros(n, dtype=np.bool_)


def _read(value: Any, read: Callable[[str | None], str]) -> str:
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT):
        return UNFIT
    try:
        return read(value)
    except SpecError:
        return UNFIT


def following(family: KernelFamily, sizes: Mapping[str, Floats], given: Words) -> tuple[Words, Mask]:
    """What follows from all sizes of a row, which are whole numbers: its variant, and whether the family refuses them together.

    The variant is the one `given`; where none is (the empty text) the one the sizes imply, or the family's own.
    """
    refused = np.zeros(len(given.code), dtype=np.bool_)
    imply = family.variant_of if "" in given.words else None
    if family.check is not _NO_CHECK or imply is not None:
        said = [(family.check(row) is not None, imply and imply(row)) for row in _rows(sizes)]
        refused = np.array([one for one, _ in said], dtype=np.bool_)
        if imply is not None:
            implied = Words.of(np.array([word for _, word in said], dtype=object))
            return Words.joined([given, implied], lambda word, otherwise: word or otherwise), refused
    if "" not in given.words or "" in family.variants:
        return given, refused
    return Words.joined([given], lambda word: word or family.default_variant), refused


def _rows(sizes: Mapping[str, Floats]) -> Iterator[dict[str, int]]:
    """The sizes of one row after the other; a mapping at a time, as keeping them all costs more than making them."""
    names = tuple(sizes)
    for values in zip(*(column.astype(np.int64).tolist() for column in sizes.values()), strict=True):
        yield dict(zip(names, values, strict=True))
