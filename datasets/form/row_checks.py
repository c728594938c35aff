"""Judging the rows of one family in a form table: every rule looks at whole columns, so 100,000 rows take a moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...features.batch.cases import Cases, Floats, Indices, Strings
from ...features.dtypes import parse_dtype
from ...features.errors import SpecError, listed
from ...features.kernel import CACHE_STATES, MAX_DIM, MAX_THREADS, TIMINGS, KernelFamily
from ..rows.checks import Refusals, check_labels
from ..rows.splits import column_hashes
from ..rows.table_columns import Numbers, cell, numbers, text

LONGEST_S = 3600.0
"""A kernel that takes an hour is one whose latency was given in another unit."""
SHORTEST_S = 1e-9
"""About two clock cycles: below it, too, the unit must be another."""
MOST_POWER_W = 20e3
"""No single processor draws this much; milliwatts do look like it."""

_SETTING = ("power_limit_w", "clock_hz")


class Columns:
    """Columns of a table, converted once, seen at the rows of one family."""

    def __init__(self, table: pa.Table) -> None:
        self.names: list[str] = table.column_names
        self.rows: Indices = np.arange(table.num_rows)
        self._table = table
        self._texts: dict[str, Strings] = {}
        self._numbers: dict[str, Numbers] = {}

    def at(self, rows: Indices) -> Columns:
        """The same columns at `rows`; conversions are shared."""
        seen = Columns.__new__(Columns)
        seen.names, seen.rows, seen._table = self.names, rows, self._table
        seen._texts, seen._numbers = self._texts, self._numbers
        return seen

    def text(self, name: str) -> Strings:
        """A text column, empty where missing."""
        if name not in self._texts:
            self._texts[name] = text(self._table, name)
        return self._texts[name][self.rows]

    def numbers(self, name: str) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """A numeric column, NaN where missing, and the mask of cells that are no number."""
        if name not in self._numbers:
            self._numbers[name] = numbers(self._table, name)
        column = self._numbers[name]
        return column.values[self.rows], column.not_a_number[self.rows]

    def cell(self, name: str, row: int) -> object:
        """One cell as it stands in the table; `row` counts the rows seen."""
        return cell(self._table, name, int(self.rows[row]))


def judged_cases(
    family: KernelFamily, columns: Columns, refusals: Refusals, known_devices: Callable[[str], str] | None
) -> Cases:
    """The cases the rows describe; rows in `refusals` hold nothing to rely on."""
    device = _named(columns, "device", known_devices or str, refusals)
    dtype = _named(columns, "dtype", parse_dtype, refusals)
    kv_dtype = _named(columns, "kv_dtype", partial(parse_dtype, field="kv_dtype"), refusals, default=dtype)
    sizes = {
        dim.name: _whole(columns, dim.name, refusals, at_least=dim.minimum, default=dim.default, required=True)
        for dim in family.dims
    }
    config = {name: _whole(columns, name, refusals, at_least=0) for name in family.config}
    threads = _whole(columns, "threads", refusals, at_least=1, at_most=MAX_THREADS)
    variant = _variants(family, columns, sizes, refusals)
    _check_sizes(family, sizes, variant, refusals)
    cache_state = columns.text("cache_state")
    cache_state = np.where(cache_state == "", CACHE_STATES[0], cache_state)
    refusals.add(
        ~np.isin(cache_state, CACHE_STATES), "cache_state",
        lambda i: f"is {str(cache_state[i])!r}; it is one of {listed(CACHE_STATES)}",
    )  # fmt: skip
    timing = columns.text("timing")
    refusals.add(
        ~np.isin(timing, ("", *TIMINGS)), "timing", lambda i: f"is {str(timing[i])!r}; it is one of {listed(TIMINGS)}"
    )
    return Cases(
        family=family, device=device, dtype=dtype, kv_dtype=kv_dtype, impl=columns.text("impl"),
        cache_state=cache_state, timing=timing, variant=variant, threads=threads,
        sizes=sizes, config=config,
    )  # fmt: skip


def judged_labels(columns: Columns, refusals: Refusals, *, need_labels: bool) -> dict[str, Floats]:
    """The measured columns and the board's setting in SI units, NaN where missing; without labels only the setting is read."""
    names = ("latency_s", "power_w", *_SETTING, "energy_j")
    labels: dict[str, Floats] = {}
    for name in names:
        if not need_labels and name not in _SETTING:
            labels[name] = np.full(len(columns.rows), np.nan)
            continue
        labels[name], not_a_number = columns.numbers(name)
        refusals.add(not_a_number, name, lambda i, n=name: f"must be a number, got {columns.cell(n, i)!r}")  # type: ignore[misc]
    latency, power = labels["latency_s"], labels["power_w"]
    if need_labels:
        refusals.add(np.isnan(latency), "latency_s", "is missing")
    check_labels(labels, refusals)
    refusals.add(
        latency > LONGEST_S, "latency_s",
        lambda i: f"is {latency[i]:g}, longer than an hour; latencies are in seconds, is this in ms, us or ns?",
    )  # fmt: skip
    refusals.add(
        latency < SHORTEST_S, "latency_s", lambda i: f"is {latency[i]:g}, below a nanosecond; latencies are in seconds"
    )
    refusals.add(
        power > MOST_POWER_W, "power_w", lambda i: f"is {power[i]:g}; power is in watts, is this in milliwatts?"
    )
    return labels


def _named(
    columns: Columns, name: str, canonical: Callable[[str], str], refusals: Refusals, default: Strings | None = None
) -> Strings:
    """A text column with every distinct word replaced by its canonical name."""
    cells = columns.text(name)
    words, codes = np.unique(cells, return_inverse=True)
    names, reasons, advice = [], {}, ""
    for word in words.tolist():
        try:
            names.append(canonical(word) if word else "")
        except SpecError as error:
            names.append(word)
            reasons[word], advice = error.reason, error.advice
    if default is None:
        refusals.add(cells == "", name, "is missing")
    refusals.add(np.isin(cells, list(reasons)), name, lambda i: reasons[str(cells[i])], advice)
    named = np.array(names, dtype=np.str_)[codes]
    return named if default is None else np.where(named == "", default, named)


def _whole(
    columns: Columns,
    name: str,
    refusals: Refusals,
    *,
    at_least: int,
    at_most: int = MAX_DIM,
    default: int | None = None,
    required: bool = False,
) -> Floats:
    """A column of whole numbers as float64; what is missing is the default, else NaN (refused when required)."""
    values, not_a_number = columns.numbers(name)
    refusals.add(not_a_number, name, lambda i: f"must be a whole number, got {columns.cell(name, i)!r}")
    missing = np.isnan(values)
    if default is not None:
        values = np.where(missing, float(default), values)
    elif required:
        refusals.add(missing, name, "is missing")
    filled = ~np.isnan(values)
    refusals.add(filled & (np.floor(values) != values), name, lambda i: f"must be a whole number, got {values[i]:g}")
    outside = (values < at_least) | (values > at_most)
    refusals.add(outside, name, lambda i: f"must be between {at_least} and {at_most}, got {values[i]:.16g}")
    return values


def _check_sizes(family: KernelFamily, sizes: Mapping[str, Floats], variant: Strings, refusals: Refusals) -> None:
    """Refuse impossible combinations of sizes; the family judges every distinct combination of a variant once."""
    for word in np.unique(variant[~refusals.bad]).tolist():
        rows = np.flatnonzero(~refusals.bad & (variant == word))
        combinations, which = _distinct(family, sizes, rows)
        reasons = [family.check(combination, word) or "" for combination in combinations]
        of_row = np.zeros(len(refusals.bad), dtype=np.intp)
        of_row[rows] = which
        # A reason begins with the size it is about.
        for column in {reason.split()[0] for reason in reasons if reason}:
            mask = np.zeros(len(refusals.bad), dtype=np.bool_)
            mask[rows] = np.array([reason.startswith(f"{column} ") for reason in reasons], dtype=np.bool_)[which]
            remarks = [reasons[at].partition(" ")[2] for at in of_row.tolist()] if mask.any() else []
            refusals.add(mask, column, remarks.__getitem__)


def _variants(family: KernelFamily, columns: Columns, sizes: Mapping[str, Floats], refusals: Refusals) -> Strings:
    """The variant column; where empty, what the sizes imply or the family's default."""
    variant = columns.text("variant")
    unsaid = (variant == "") & ~refusals.bad
    if "" not in family.variants and unsaid.any():
        variant = variant.astype(object)
        if family.variant_of is None:
            variant[unsaid] = family.default_variant
        else:
            combinations, which = _distinct(family, sizes, np.flatnonzero(unsaid))
            variants = np.array([family.variant_of(combination) for combination in combinations], dtype=object)
            variant[unsaid] = variants[which]
        variant = variant.astype(np.str_)
    refusals.add(
        ~np.isin(variant, family.variants), "variant",
        lambda i: f"{family.name} has no variant {str(variant[i])!r}; variants: {listed(family.variants)}",
    )  # fmt: skip
    return variant


def _distinct(family: KernelFamily, sizes: Mapping[str, Floats], rows: Indices) -> tuple[list[dict[str, int]], Indices]:
    """The distinct combinations of sizes among `rows`, as integers, and which of them each of `rows` has."""
    columns = [sizes[name][rows] for name in family.dim_names]
    _, first, which = np.unique(column_hashes(columns, len(rows)), return_index=True, return_inverse=True)
    whole = [column[first].astype(np.int64).tolist() for column in columns]
    return [dict(zip(family.dim_names, values, strict=True)) for values in zip(*whole, strict=True)], which
