"""From the bytes of a request in columns to checked cases, without an object per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.coded import Words
from ..features.device import Catalogue
from ..features.dtypes import parse_dtype
from ..features.errors import SpecError, listed
from ..features.kernel import CACHE_STATES, MAX_DIM, MAX_THREADS, KernelFamily, get_family
from .columns_read import UNFIT, Mask, following, numbers, words
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import (
    IMPL,
    MAX_IMPLS,
    MAX_TEXT,
    SPEC_FIELDS,
    invalid,
    kind_of,
    read_coverage,
    read_object,
    read_spec,
    refuse_duplicate_names,
    shown_name,
    too_many_impls,
)  # fmt: skip

FIELDS = ("family", "columns", "coverage")
COLUMNS = tuple(name for name in SPEC_FIELDS if name != "family")
MAX_NESTED = 200
"""Most lists and objects in a body, several times what columns need. They are counted before a body is decoded, as millions of
empty ones take thirty times the memory of their text."""

_REQUIRED = ("device", "dtype", "sizes")
_GROUPS = ("sizes", "config")
_WANTED = '{"family": …, "columns": {"device": …, "dtype": …, "sizes": {…}}}'


@dataclass(frozen=True, slots=True)
class ColumnsRequest:
    """What was asked in columns; `device` are the cases' devices by catalogue name."""

    cases: Cases
    device: Words
    coverage: float


def read_columns(body: bytes, catalogue: Catalogue, max_rows: int) -> ColumnsRequest:
    """The cases in a JSON body.

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
            raise _wrong(shown_name(name), f"unknown field; a request in columns takes {listed(FIELDS)}")
    for name in FIELDS[:2]:
        if name not in root:
            raise _wrong(name, f"{name} is missing; send {_WANTED}")
    refuse_duplicate_names(body, root, [root["columns"]])
    coverage = read_coverage(root)
    table = _Table.of(_family(root["family"]), root["columns"], max_rows)
    cases, bad = _cases(table, catalogue) if table.complete() else (None, np.ones(table.n, dtype=np.bool_))
    if cases is None or bad.any():
        raise _explained(table, catalogue, bad)
    return ColumnsRequest(cases, cases.coded("device"), coverage)


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns as they were sent: `n` rows; a value that is no list is that of every row."""

    family: KernelFamily
    columns: Mapping[str, Any]
    n: int

    @classmethod
    def of(cls, family: KernelFamily, columns: Any, max_rows: int) -> _Table:
        """The columns, which must be of one length.

        Raises:
            ProblemError: they are no columns, one has no name of a field, they differ in length, or are too long.
        """
        if not isinstance(columns, dict):
            raise _wrong("columns", f"must be an object of columns, not {kind_of(columns)}")
        for name in columns:
            if name not in COLUMNS:
                shown = shown_name(name)
                raise _wrong(f"columns.{shown}", f"unknown column {shown!r}; columns are {listed(COLUMNS)}")
        for name in _REQUIRED:
            if name not in columns:
                raise _wrong(f"columns.{name}", f"{name} is missing; columns need {listed(_REQUIRED)}")
        lengths = {path: len(value) for path, value in _paths(columns) if isinstance(value, list)}
        first = next(iter(lengths), "")
        for path, length in lengths.items():
            if length != lengths[first]:
                raise _wrong(
                    path, f"has {length} values where {first} has {lengths[first]}; lists have one value per row"
                )
        n = lengths[first] if lengths else 1
        if not n:
            raise _wrong(first, "is an empty list; send at least one row")
        if n > max_rows:
            raise ProblemError(413, f"{n} rows in one request; at most {max_rows} are taken, send them in parts")
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


def _cases(table: _Table, catalogue: Catalogue) -> tuple[Cases, Mask]:
    """The cases, and which of their rows are not acceptable."""
    family, columns, n = table.family, table.columns, table.n
    bad = np.zeros(n, dtype=np.bool_)

    def column(found: tuple[Any, Mask]) -> Any:
        np.logical_or(bad, found[1], out=bad)
        return found[0]

    given = columns["sizes"]
    sizes: dict[str, Floats] = {
        dim.name: column(numbers(given.get(dim.name, dim.default), n, dim.minimum, MAX_DIM, optional=False))
        for dim in family.dims
    }
    config: dict[str, Floats] = {
        name: column(numbers(table.config.get(name), n, 0, MAX_DIM, optional=True)) for name in family.config
    }
    threads: Floats = column(numbers(columns.get("threads"), n, 1, MAX_THREADS, optional=True))
    # What follows from sizes is asked of whole numbers only.
    whole = {name: np.where(bad, 1.0, size) for name, size in sizes.items()} if bad.any() else sizes
    text: dict[str, Words] = {
        "device": column(words(columns["device"], n, lambda name: catalogue.get(_given(name)).name)),
        "dtype": column(words(columns["dtype"], n, lambda name: parse_dtype(_given(name)))),
        "kv_dtype": column(words(columns.get("kv_dtype"), n, _kv_dtype)),
        "variant": column(words(columns.get("variant"), n, lambda name: _among(name or "", ("", *family.variants)))),
        "impl": column(words(columns.get("impl"), n, _impl)),
        "cache_state": column(
            words(columns.get("cache_state", "hot"), n, lambda name: _among(_given(name), CACHE_STATES))
        ),
    }
    if (named := len(text["impl"].words)) > MAX_IMPLS:
        raise _wrong("columns.impl", too_many_impls(named))
    text["variant"] = column(following(family, whole, text["variant"]))
    bad |= ~text["variant"].among(family.variants)
    text["kv_dtype"] = Words.joined([text["kv_dtype"], text["dtype"]], lambda kept, dtype: kept or dtype)
    bad |= _without_peak(text["device"], text["dtype"], family, catalogue)
    return Cases.in_words(family, text, threads, sizes, config), bad


def _given(name: str | None) -> str:
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


def _without_peak(device: Words, dtype: Words, family: KernelFamily, catalogue: Catalogue) -> Mask:
    """Which rows have a dtype that their device has no peak for, or lack one of the two."""

    def said(name: str, number_format: str) -> str:
        if UNFIT in (name, number_format):
            return "none"
        try:
            catalogue.get(name).peak_flops_per_s(number_format, family.unit)
        except SpecError:
            return "none"
        return "known"

    return Words.joined([device, dtype], said).is_word("none")


def _explained(table: _Table, catalogue: Catalogue, bad: Mask) -> ProblemError:
    """The problem that says what is wrong with the first rows that are not acceptable."""
    errors: dict[tuple[str, str], FieldProblem] = {}
    for i in np.flatnonzero(bad)[: MAX_LISTED * 2].tolist():
        try:
            read_spec(table.row(i), catalogue)
        except SpecError as error:
            path = _path(table, error.field, i)
            # What is wrong with a value that all rows share is said once.
            errors.setdefault((path, str(error)), field_problem(error, path))
        else:
            raise RuntimeError(f"row {i} is refused in columns and taken as a single spec")
        if len(errors) == MAX_LISTED:
            break
    return invalid(list(errors.values()))


def _path(table: _Table, field: str | None, i: int) -> str:
    """The address of what a row's error is about."""
    if not field or field in _GROUPS:
        return f"columns.{field}" if field else "columns"
    group, _, name = field.partition(".")
    value = table.columns.get(group)
    if name:
        # A name that the family does not have is wrong in every row.
        known = (*table.family.dim_names, *table.family.config)
        value = value.get(name) if isinstance(value, dict) and name in known else None
    return f"columns.{field}[{i}]" if isinstance(value, list) else f"columns.{field}"


def _family(name: Any) -> KernelFamily:
    if not isinstance(name, str):
        raise _wrong("family", f"family must be text, not {kind_of(name)}")
    try:
        return get_family(name[:MAX_TEXT])
    except SpecError as error:
        raise ProblemError(422, f"family: {error}", [field_problem(error, "family")]) from error


def _wrong(field: str, detail: str) -> ProblemError:
    return invalid([FieldProblem(field, detail)])
