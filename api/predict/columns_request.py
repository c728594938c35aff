"""The request of `/v1/predict/columns`: from bytes to checked cases, without an object per row.

Each column is checked at once, which gives the rows that are not acceptable. Such a row is then read again as a single spec,
and the error of that is reported, so columns and single specs are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Cases, Floats
from ...features.batch.categorical import Categorical
from ...features.device import Catalogue
from ...features.dtypes import parse_dtype
from ...features.errors import SpecError, listed
from ...features.kernel import CACHE_STATES, MAX_DIM, MAX_THREADS, TIMINGS, KernelFamily
from ...features.spec_io.reading import IMPL, MAX_TEXT, SETTING_FIELDS, SPEC_FIELDS, kind_of, read_spec, shown_name
from ..transport.bodies import named_family, read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import MAX_LISTED, FieldProblem, ProblemError, field_problem, invalid, invalid_field
from .spec import MAX_IMPLS, too_many_impls

FIELDS = ("family", "columns", "coverage", *SETTING_FIELDS)
COLUMNS = tuple(name for name in SPEC_FIELDS if name != "family")
MAX_NESTED = 200
"""Most lists and objects in a body, several times what columns need. They are counted before a body is decoded, as millions of
empty ones take thirty times the memory of their text."""

_REQUIRED = ("device", "dtype", "sizes")
_GROUPS = ("sizes", "config")
_WANTED = '{"family": …, "columns": {"device": …, "dtype": …, "sizes": {…}}}'


def read_columns(body: bytes, catalogue: Catalogue, max_rows: int) -> tuple[Cases, float, list[Any]]:
    """The cases in a JSON body, the coverage of the intervals, and its `SETTING_FIELDS`, None where left out.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for too many rows, 422 naming what is wrong (`columns.sizes.m[17]`).
    """
    if (nested := body.count(b"[") + body.count(b"{")) > MAX_NESTED:
        raise ProblemError(
            422, f"the body has {nested} lists and objects; a request in columns has one list per column"
        )
    root = read_object(body, _WANTED)
    for name in root:
        if name not in FIELDS:
            raise invalid_field(shown_name(name), f"unknown field; a request in columns takes {listed(FIELDS)}")
    for name in FIELDS[:2]:
        if name not in root:
            raise invalid_field(name, f"{name} is missing; send {_WANTED}")
    refuse_duplicate_names(body, root, [root["columns"]])
    coverage = read_coverage(root)
    table = Table.from_columns(named_family(root["family"]), root["columns"], max_rows)
    return checked_cases(table, catalogue, partial(_path, table)), coverage, [root.get(name) for name in SETTING_FIELDS]


def checked_cases(table: Table, catalogue: Catalogue, path: Callable[[str | None, int | None], str]) -> Cases:
    """The cases of a table; `path` is the address of a field in a row, or of a whole column (None).

    Raises:
        ProblemError: 422, naming the values that cannot be predicted.
    """
    cases, bad = _cases(table, catalogue) if table.complete() else (None, np.ones(table.n, dtype=np.bool_))
    if cases is None or bad.any():
        raise _explain(table, catalogue, bad, path)
    if (named := len(cases.coded("impl").words)) > MAX_IMPLS:
        raise invalid_field(path("impl", None), too_many_impls(named))
    return cases


@dataclass(frozen=True, slots=True)
class Table:
    """Columns as they were sent, not checked yet.

    Attributes:
        family: The family of every row.
        columns: Columns by name, `sizes` and `config` an object of columns each. A column is a list, texts with each word once
            or an array of numbers (NaN: not set); anything else is the value of every row.
        n: Number of rows.
    """

    family: KernelFamily
    columns: Mapping[str, Any]
    n: int

    @classmethod
    def from_columns(cls, family: KernelFamily, columns: Any, max_rows: int) -> Table:
        """The columns, which must be of one length.

        Raises:
            ProblemError: they are no columns, one has no name of a field, they differ in length, or are too long.
        """
        if not isinstance(columns, dict):
            raise invalid_field("columns", f"must be an object of columns, not {kind_of(columns)}")
        for name in columns:
            if name not in COLUMNS:
                shown = shown_name(name)
                raise invalid_field(f"columns.{shown}", f"unknown column {shown!r}; columns are {listed(COLUMNS)}")
        for name in _REQUIRED:
            if name not in columns:
                raise invalid_field(f"columns.{name}", f"{name} is missing; columns need {listed(_REQUIRED)}")
        lengths = {path: len(value) for path, value in _paths(columns) if isinstance(value, list)}
        first = next(iter(lengths), "")
        for path, length in lengths.items():
            if length != lengths[first]:
                raise invalid_field(
                    path, f"has {length} values where {first} has {lengths[first]}; lists have one value per row"
                )
        n = lengths[first] if lengths else 1
        if not n:
            raise invalid_field(first, "is an empty list; send at least one row")
        if n > max_rows:
            raise ProblemError(413, f"{n} rows in one request; at most {max_rows} are allowed, send them in parts")
        return cls(family, columns, n)

    def complete(self) -> bool:
        """Whether sizes and knobs are objects of names that the family has, with every size that it needs."""
        sizes, config = self.columns["sizes"], self.config
        return (
            isinstance(sizes, dict)
            and isinstance(config, dict)
            and sizes.keys() <= set(self.family.dim_names)
            and config.keys() <= set(self.family.config)
            and all(dim.name in sizes for dim in self.family.dims if dim.default is None)
        )

    @property
    def config(self) -> Any:
        """The knobs, as they were sent."""
        config = self.columns.get("config")
        return {} if config is None else config

    def row(self, i: int) -> dict[str, Any]:
        """Row `i` as a single spec; a knob of the family that is null is left out, as it is in columns."""

        def at(value: Any) -> Any:
            if isinstance(value, Categorical):
                return value.at(i)
            if isinstance(value, np.ndarray):
                return None if np.isnan(value[i]) else int(value[i])
            return value[i] if isinstance(value, list) else value

        item = {name: at(value) for name, value in self.columns.items() if name not in _GROUPS}
        item |= {
            name: {knob: at(value) for knob, value in self.columns[name].items()}
            if isinstance(self.columns[name], dict)
            else self.columns[name]
            for name in _GROUPS
            if name in self.columns
        }
        if isinstance(item.get("config"), dict):
            known = self.family.config
            item["config"] = {
                knob: value for knob, value in item["config"].items() if value is not None or knob not in known
            }
        return {"family": self.family.name, **item}


def _paths(columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in columns.items():
        if name in _GROUPS:
            # A list is no object of columns; that is said of its first row.
            inner = value if isinstance(value, dict) else {}
            yield from ((f"columns.{name}.{shown_name(knob)}", column) for knob, column in inner.items())
        else:
            yield f"columns.{name}", value


def _cases(table: Table, catalogue: Catalogue) -> tuple[Cases, Mask]:
    """The cases, and which of their rows are not acceptable."""
    family, columns, n = table.family, table.columns, table.n
    bad = np.zeros(n, dtype=np.bool_)

    def column(checked: tuple[Any, Mask]) -> Any:
        np.logical_or(bad, checked[1], out=bad)
        return checked[0]

    raw = columns["sizes"]
    sizes: dict[str, Floats] = {
        dim.name: column(number_column(raw.get(dim.name, dim.default), n, dim.minimum, MAX_DIM, optional=False))
        for dim in family.dims
    }
    config: dict[str, Floats] = {
        name: column(number_column(table.config.get(name), n, 0, MAX_DIM, optional=True)) for name in family.config
    }
    threads: Floats = column(number_column(columns.get("threads"), n, 1, MAX_THREADS, optional=True))
    # What follows from sizes is asked of whole numbers only.
    whole = {name: np.where(bad, 1.0, size) for name, size in sizes.items()} if bad.any() else sizes
    text: dict[str, Categorical] = {
        "device": column(text_column(columns["device"], n, lambda name: catalogue.get(_not_null(name)).name)),
        "dtype": column(text_column(columns["dtype"], n, lambda name: parse_dtype(_not_null(name)))),
        "kv_dtype": column(text_column(columns.get("kv_dtype"), n, _kv_dtype)),
        "variant": column(
            text_column(columns.get("variant"), n, lambda name: _among(name or "", ("", *family.variants)))
        ),
        "impl": column(text_column(columns.get("impl"), n, _impl)),
        "timing": column(text_column(columns.get("timing"), n, lambda name: _among(name or "", ("", *TIMINGS)))),
        "cache_state": column(
            text_column(columns.get("cache_state", "hot"), n, lambda name: _among(_not_null(name), CACHE_STATES))
        ),
    }
    text["variant"] = column(implied_variants(family, whole, text["variant"]))
    bad |= ~text["variant"].among(family.variants)
    text["kv_dtype"] = Categorical.joined([text["kv_dtype"], text["dtype"]], lambda kv_dtype, dtype: kv_dtype or dtype)
    bad |= _without_peak(text["device"], text["dtype"], family, catalogue)
    return Cases.from_columns(family, text, threads, sizes, config), bad


def _not_null(name: str | None) -> str:
    if name is None:
        raise SpecError("must be text, not null")
    return name


def _among(name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise SpecError(f"{name!r} is none of {listed(known)}")
    return name


def _kv_dtype(name: str | None) -> str:
    return "" if name is None else parse_dtype(name)


def _impl(name: str | None) -> str:
    if name and not IMPL.fullmatch(name):
        raise SpecError(f"{name!r} is no name of an implementation")
    return name or ""


def _without_peak(device: Categorical, dtype: Categorical, family: KernelFamily, catalogue: Catalogue) -> Mask:
    """Which rows have a dtype that their device has no peak for, or lack one of the two."""

    def peak_state(name: str, number_format: str) -> str:
        if UNFIT in (name, number_format):
            return "none"
        try:
            catalogue.get(name).peak_flops_per_s(number_format, family.unit)
        except SpecError:
            return "none"
        return "known"

    return Categorical.joined([device, dtype], peak_state).is_word("none")


def _explain(
    table: Table, catalogue: Catalogue, bad: Mask, path_of: Callable[[str | None, int | None], str]
) -> ProblemError:
    """The problem that says what is wrong with the first rows that are not acceptable."""
    errors: dict[tuple[str, str], FieldProblem] = {}
    for i in np.flatnonzero(bad)[: MAX_LISTED * 2].tolist():
        try:
            read_spec(table.row(i), catalogue)
        except SpecError as error:
            path = path_of(error.field, i)
            # What is wrong with a value that all rows share is said once.
            errors.setdefault((path, str(error)), field_problem(error, path))
        else:
            raise RuntimeError(f"row {i} is refused in columns and taken as a single spec")
        if len(errors) == MAX_LISTED:
            break
    return invalid(list(errors.values()))


def _path(table: Table, field: str | None, i: int | None) -> str:
    """The address of what a row's error is about; of a whole column where `i` is None."""
    if not field or field in _GROUPS:
        return f"columns.{field}" if field else "columns"
    group, _, name = field.partition(".")
    value = table.columns.get(group)
    if name:
        # A name that the family does not have is wrong in every row.
        known = (*table.family.dim_names, *table.family.config)
        value = value.get(name) if isinstance(value, dict) and name in known else None
    return f"columns.{field}[{i}]" if isinstance(value, list) and i is not None else f"columns.{field}"


Mask = npt.NDArray[np.bool_]
UNFIT = "\0"
"""Stands for every text that is not acceptable; no acceptable one holds this letter."""

_NUMBERS = frozenset({int, float, type(None)})
_BEYOND = 2.0**60
"""Stands for every number too large to be any size, so that those beyond float64 can be compared."""
_NO_CHECK = next(field.default for field in fields(KernelFamily) if field.name == "check")
"""What a family has that takes sizes of any kind together: not worth a call per row."""


def number_column(raw: Any, n: int, low: int, high: int, *, optional: bool) -> tuple[Floats, Mask]:
    """Whole numbers from `low` to `high`, shape `(n,)`, and which rows have none; one value that is no column is for all rows.

    Where they are `optional` a null is NaN.
    """
    if isinstance(raw, np.ndarray):
        good = (raw >= low) & (raw <= high)
        return raw, ~(good | np.isnan(raw) if optional else good)
    values = raw if isinstance(raw, list) else [raw]
    kinds = set(map(type, values))
    fit = None if kinds <= _NUMBERS else np.array([type(value) in _NUMBERS for value in values])
    if fit is not None:
        values = [value if type(value) in _NUMBERS else None for value in values]
    try:
        column = np.array(values, dtype=np.float64)
    except OverflowError:
        column = np.array([None if value is None else _bounded(value) for value in values], dtype=np.float64)
    good = (column >= low) & (column <= high)
    if float in kinds:
        good &= np.floor(column) == column
    if optional:
        good |= np.isnan(column)
    if fit is not None:
        good &= fit
    if not isinstance(raw, list):
        return np.repeat(column, n), np.repeat(~good, n)
    return column, ~good


def _bounded(value: float) -> float:
    return float(max(min(value, _BEYOND), -_BEYOND))


def text_column(raw: Any, n: int, read: Callable[[str | None], str]) -> tuple[Categorical, Mask]:
    """Texts of shape `(n,)` as `read` gives them, and which rows have none it takes; one value that is no column is for all.

    `read` is called once per distinct text or null and raises SpecError; after `MAX_LISTED` refusals it is not asked further,
    as the request is refused anyway. A row without an acceptable text has `UNFIT`.
    """
    known, code = (raw.words, raw.code) if isinstance(raw, Categorical) else _distinct(raw, n)
    number: dict[str, int] = {}
    place: list[int] = []
    n_unfit = 0
    for value in known:
        word = UNFIT if n_unfit >= MAX_LISTED else _read(value, read)
        n_unfit += word is UNFIT
        place.append(number.setdefault(word, len(number)))
    column = Categorical(tuple(number), np.array(place, dtype=np.intp)[code])
    return column, column.is_word(UNFIT) if n_unfit else np.zeros(n, dtype=np.bool_)


def _distinct(raw: Any, n: int) -> tuple[Sequence[Any], npt.NDArray[np.intp]]:
    """Each value once, and which of them each row has."""
    if not isinstance(raw, list):
        return [raw], np.zeros(n, dtype=np.intp)
    try:
        number = {value: i for i, value in enumerate(dict.fromkeys(raw))}
    except TypeError:
        # Lists and objects cannot be keys, nor texts.
        return _distinct([value if isinstance(value, str | None) else False for value in raw], n)
    return list(number), np.fromiter(map(number.__getitem__, raw), dtype=np.intp, count=n)


def _read(value: Any, read: Callable[[str | None], str]) -> str:
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT):
        return UNFIT
    try:
        return read(value)
    except SpecError:
        return UNFIT


def implied_variants(
    family: KernelFamily, sizes: Mapping[str, Floats], variant: Categorical
) -> tuple[Categorical, Mask]:
    """What follows from all sizes of a row, which are whole numbers: its variant, and whether the family refuses them together.

    The variant is the one `variant`; where none is (the empty text) the one the sizes imply, or the family's own.
    """
    refused = np.zeros(len(variant.code), dtype=np.bool_)
    imply = family.variant_of if "" in variant.words else None
    if family.check is not _NO_CHECK or imply is not None:
        named = (variant.words[code] or None for code in variant.code.tolist())
        otherwise = imply or (lambda row: family.default_variant)
        rows = [(row, word or otherwise(row)) for row, word in zip(_rows(sizes), named, strict=True)]
        refused = np.array([family.check(row, word) is not None for row, word in rows], dtype=np.bool_)
        if imply is not None:
            implied = Categorical.encode(np.array([word for _, word in rows], dtype=object))
            return Categorical.joined([variant, implied], lambda word, otherwise: word or otherwise), refused
    if "" not in variant.words or "" in family.variants:
        return variant, refused
    return Categorical.joined([variant], lambda word: word or family.default_variant), refused


def _rows(sizes: Mapping[str, Floats]) -> Iterator[dict[str, int]]:
    """The sizes of one row after the other; a mapping at a time, as keeping them all costs more than making them."""
    names = tuple(sizes)
    for values in zip(*(column.astype(np.int64).tolist() for column in sizes.values()), strict=True):
        yield dict(zip(names, values, strict=True))
