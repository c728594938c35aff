"""The bring-your-own-measurements form: a user's CSV or Parquet table, judged row by row, as columns ready for models.

table = read_form(Path("mine.csv"), skip_bad_rows=True)
for family, rows in table.parts.items():
    train(rows.cases, rows.latency_s)
for refused in table.refused:
    print(refused)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...features.batch.cases import Cases, Floats, Indices, Strings
from ...features.errors import MAX_REMARK, SpecError, is_plain, listed
from ...features.kernel import KernelFamily, families, get_family
from ..rows.checks import Refusals, Refused
from ..rows.schema import all_columns
from ..rows.table_columns import read_table, text_codes
from .row_checks import Columns, judged_cases, judged_labels

_SHOWN = 10

PLAIN = f"text has at most {MAX_REMARK} characters, all of which can be printed"


@dataclass(frozen=True, slots=True)
class FormRows:
    """The accepted rows of one family, in the order of the table; every column has shape `(n,)`.

    Labels are float64 in SI units, NaN where the table has none (always, when it was read without labels).

    Attributes:
        cases: The kernels and devices.
        rows: Positions in the table, from 0.
        latency_s: Latency in seconds.
        power_w: Power in watts.
        power_limit_w: Power limit in force, in watts; an input, no label.
        clock_hz: Clock that the compute units are locked to, in hertz; likewise.
        energy_j: Energy in joules.
        source: Who measured the row, empty where the table does not say.
        split: The row's split, empty where the table does not say.
    """

    cases: Cases
    rows: Indices
    latency_s: Floats
    power_w: Floats
    power_limit_w: Floats
    clock_hz: Floats
    energy_j: Floats
    source: Strings
    split: Strings

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Any) -> FormRows:
        """The rows at `index` (integers or a mask), in that order."""
        columns = {name: getattr(self, name)[index] for name in self.__slots__ if name != "cases"}
        return FormRows(cases=self.cases.take(index), **columns)


@dataclass(frozen=True, slots=True)
class FormTable:
    """A form file after judgement.

    Attributes:
        table: The file as read, for output beside predictions: all rows and columns, also those that mean nothing here.
        parts: Accepted rows by family.
        refused: Rows that were not accepted.
        unmeasured: Positions of rows whose `status` says that there is no measurement.
    """

    table: pa.Table
    parts: Mapping[str, FormRows]
    refused: tuple[Refused, ...]
    unmeasured: Indices


def read_form(
    path: Path | str,
    *,
    family: str | None = None,
    skip_bad_rows: bool = False,
    need_labels: bool = True,
    known_devices: Callable[[str], str] | None = None,
) -> FormTable:
    """Read and judge a CSV or Parquet file.

    Args:
        path: the file; its suffix says which format.
        family: the family of all rows, for tables without a `family` column.
        skip_bad_rows: go on with the good rows when others are refused.
        need_labels: latencies are required and labels are read; otherwise no label column is looked at.
        known_devices: returns the canonical name of a device or raises SpecError; without it any name goes.

    Raises:
        SpecError: the file cannot be read, lacks columns, or has bad rows (none good, or `skip_bad_rows` not set).
    """
    table = read_table(Path(path), TEXT_COLUMNS)
    return judge_form(table, origin=str(path), family=family, skip_bad_rows=skip_bad_rows, need_labels=need_labels,
                      known_devices=known_devices)  # fmt: skip


def judge_form(
    table: pa.Table,
    *,
    origin: str = "the table",
    family: str | None = None,
    skip_bad_rows: bool = False,
    need_labels: bool = True,
    known_devices: Callable[[str], str] | None = None,
) -> FormTable:
    """What `read_form` does with a table that is already in memory (from the store, for example).

    Args:
        table: The table.
        origin: What messages call it.
        family: Family of all rows, for tables without such a column.
        skip_bad_rows: Whether refused rows are left out instead of raising.
        need_labels: Whether rows without a measurement are refused.
        known_devices: From a device's name to its catalogue name; None is the shipped catalogue.

    Raises:
        SpecError: see `read_form`; `origin` names the table in messages.
    """
    if need_labels:
        check_units(table.column_names)
    columns, refusals = Columns(table), Refusals(table.num_rows)
    named = _family_of_rows(columns, family, refusals, origin)
    unmeasured = np.zeros(table.num_rows, dtype=np.bool_)
    if need_labels and "status" in table.column_names:
        # Rows of the store that tell why there is no measurement: nothing to learn from, nothing wrong with them.
        unmeasured = ~np.isin(columns.text("status"), ("ok", ""))
    for name in TEXT_COLUMNS.intersection(table.column_names):
        # Kept and shown later: by this rule alone, whatever format they came in.
        codes, words = text_codes(table, name)
        odd = np.array([*(not is_plain(word) for word in words), False])
        refusals.add(odd[codes] & ~unmeasured, name, lambda i, w=words, c=codes: f"is {w[c[i]][:60]!r}; {PLAIN}")  # type: ignore[misc]
    parts = {}
    for name in sorted(set(named[~refusals.bad].tolist())):
        fam = get_family(name)
        check_columns(fam, table.column_names, need_labels=need_labels, origin=origin)
        rows = np.flatnonzero((named == name) & ~refusals.bad & ~unmeasured)
        here = columns.at(rows)
        part_refusals = Refusals(len(rows))
        cases = judged_cases(fam, here, part_refusals, known_devices)
        labels = judged_labels(here, part_refusals, need_labels=need_labels)
        refusals.merge(part_refusals, rows)
        part = FormRows(cases=cases, rows=rows, source=here.text("source"), split=here.text("split"), **labels)
        if not part_refusals.bad.all():
            parts[name] = part.take(~part_refusals.bad)
    _complain(refusals, origin, skip_bad_rows=skip_bad_rows, any_good=bool(parts))
    return FormTable(table, parts, tuple(refusals), np.flatnonzero(unmeasured & ~refusals.bad))


def _family_of_rows(columns: Columns, family: str | None, refusals: Refusals, origin: str) -> Strings:
    if family is not None:
        get_family(family)
    elif "family" not in columns.names:
        raise no_family(columns.names, origin)
    named = columns.text("family")
    if family is not None:
        named = np.where(named == "", family, named)
        refusals.add(named != family, "family", lambda i: f"is {named[i]!r}, but the family asked for is {family!r}")
    refusals.add(named == "", "family", f"is missing; families: {listed(families())}")
    unknown = ~np.isin(named, list(families()))
    refusals.add(unknown, "family", lambda i: f"is {str(named[i])!r}, which is none of {listed(families())}")
    return named


def _complain(refusals: Refusals, origin: str, *, skip_bad_rows: bool, any_good: bool) -> None:
    if any_good and (skip_bad_rows or len(refusals) == 0):
        return
    if len(refusals) == 0:
        raise SpecError(f"{origin} has no row with a measurement (status ok)", field="status")
    refused = list(refusals)
    shown = "\n".join(f"  {row}" for row in refused[:_SHOWN])
    # Once, as it is long, and the same for every row.
    shared = "".join(
        f"\n  {text}" for text in dict.fromkeys(f"{row.column}: {row.advice}" for row in refused if row.advice)
    )
    more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    what = "none of the rows can be used" if not any_good else f"{len(refused)} of {len(refusals.bad)} rows are refused"
    advice = (
        "Correct them"
        if not any_good
        else "Correct them, or skip them with --skip-bad-rows (skip_bad_rows=True in Python)"
    )
    raise SpecError(
        f"{origin}: {what} (rows count from 1, below the header):\n{shown}{more}{shared}\n{advice}.",
        field=refused[0].column,
    )


TEXT_COLUMNS = frozenset({"family", "device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "timing", "status",
                          "source", "split", "energy_source", "message", "measured_at", "block", "case_id"})  # fmt: skip

_TIME = re.compile(r"(?:.*_)?(?:latency|time|duration|runtime|elapsed)(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_POWER = re.compile(r"power(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_ENERGY = re.compile(r"energy(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_PER_SECOND = {"s": "1", "sec": "1", "secs": "1", "seconds": "1", "ms": "1e3", "msec": "1e3", "milliseconds": "1e3",
               "us": "1e6", "µs": "1e6", "μs": "1e6", "usec": "1e6", "microseconds": "1e6", "ns": "1e9",
               "nsec": "1e9", "nanoseconds": "1e9"}  # fmt: skip
_PER_WATT = {"w": "1", "watt": "1", "watts": "1", "mw": "1e3", "milliwatts": "1e3", "uw": "1e6", "kw": "1e-3"}
_PER_JOULE = {"j": "1", "joule": "1", "joules": "1", "mj": "1e3", "millijoules": "1e3", "uj": "1e6", "kj": "1e-3",
              "wh": "1 / 3600"}  # fmt: skip
_QUANTITIES = (
    ("latency_s", "times are in seconds", _TIME, _PER_SECOND),
    ("power_w", "power is in watts", _POWER, _PER_WATT),
    ("energy_j", "energy is in joules", _ENERGY, _PER_JOULE),
)


def required_columns(family: KernelFamily, *, need_labels: bool) -> list[str]:
    """Columns a table of the family cannot do without."""
    sizes = [dim.name for dim in family.dims if dim.default is None]
    return ["device", "dtype", *sizes, *(["latency_s"] if need_labels else [])]


def check_units(columns: Sequence[str]) -> None:
    """Refuse a table whose times, power or energy have another unit's name and no column in SI units.

    Raises:
        SpecError: names the column, the right one, and how to convert.
    """
    for right, rule, pattern, factors in _QUANTITIES:
        if right in columns:
            continue
        for name in columns:
            match = pattern.fullmatch(name)
            unit = match and (match.group("unit") or "").lower()
            if match is None or (unit and unit not in factors) or name in all_columns():
                continue
            how = f"{right} = {name} / {factors[unit]}" if unit and factors[unit] != "1" else f"rename it to {right}"
            unless = "" if unit else ", if it is in that unit"
            raise SpecError(f"column {name}: {rule} (SI) in a column called {right}; {how}{unless}", field=name)


def check_columns(family: KernelFamily, columns: Sequence[str], *, need_labels: bool, origin: str) -> None:
    """Refuse a table without a column the family needs.

    Raises:
        SpecError: lists what is missing with near matches, what is required and what was found.
    """
    required = required_columns(family, need_labels=need_labels)
    missing = [name for name in required if name not in columns]
    if missing:
        spare = [name for name in columns if name not in all_columns()]
        lacking = [f"{name}{_near(name, spare)}" for name in missing]
        raise SpecError(
            f"{origin} lacks {listed(lacking)}; {family.name} needs: {listed(required)}; found: {listed(columns)}",
            field=missing[0],
        )


def no_family(columns: Sequence[str], origin: str) -> SpecError:
    """The error for a table that does not say which family its rows are of."""
    near = _near("family", [name for name in columns if name not in all_columns()])
    return SpecError(
        f"{origin} lacks family{near}; give a column family or name one (--family); families: {listed(families())}; "
        f"found: {listed(columns)}",
        field="family",
    )


def _near(name: str, spare: Iterable[str]) -> str:
    by_lower = {word.lower(): word for word in spare}
    close = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.6)
    return f" (is {by_lower[close[0]]!r} meant?)" if close else ""
