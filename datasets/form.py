"""The bring-your-own-measurements form: a user's CSV or Parquet table, judged row by row, as columns ready for models.

table = read_form(Path("mine.csv"), keep_good=True)
for family, rows in table.parts.items():
    train(rows.cases, rows.latency_s)
for refused in table.refused:
    print(refused)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..features.cases import Cases, Floats, Indices, Strings
from ..features.errors import SpecError, listed
from ..features.kernel import families, get_family
from .checks import Refusals, Refused
from .form_columns import TEXT_COLUMNS, check_columns, check_units, no_family
from .form_rows import Columns, judged_cases, judged_labels
from .schema import all_columns
from .tables import read_table

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class FormRows:
    """The accepted rows of one family, in the order of the table; every column has shape `(n,)`.

    `rows` are positions in the table, from 0. Labels are float64 in SI units, NaN where the table has none (always,
    when it was read without labels); the power limit is no label. `source` and `split` are empty where not given.
    """

    cases: Cases
    rows: Indices
    latency_s: Floats
    power_w: Floats
    power_limit_w: Floats
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

    `table` is the file as read, all columns and rows, for output beside predictions. `unmeasured` are positions of rows
    whose `status` says that there is no measurement. `ignored` names columns that mean nothing here (kept in `table`).
    """

    table: pa.Table
    parts: Mapping[str, FormRows]
    refused: tuple[Refused, ...]
    unmeasured: Indices
    ignored: tuple[str, ...]


def read_form(
    path: Path | str,
    *,
    family: str | None = None,
    keep_good: bool = False,
    need_labels: bool = True,
    known_devices: Callable[[str], str] | None = None,
) -> FormTable:
    """Read and judge a CSV or Parquet file.

    Args:
        path: the file; its suffix says which format.
        family: the family of all rows, for tables without a `family` column.
        keep_good: go on with the good rows when others are refused.
        need_labels: latencies are required and labels are read; otherwise no label column is looked at.
        known_devices: returns the canonical name of a device or raises SpecError; without it any name goes.

    Raises:
        SpecError: the file cannot be read, lacks columns, or has bad rows (none good, or `keep_good` not set).
    """
    table = read_table(Path(path), TEXT_COLUMNS)
    return judge_form(table, origin=str(path), family=family, keep_good=keep_good, need_labels=need_labels,
                      known_devices=known_devices)  # fmt: skip


def judge_form(
    table: pa.Table,
    *,
    origin: str = "the table",
    family: str | None = None,
    keep_good: bool = False,
    need_labels: bool = True,
    known_devices: Callable[[str], str] | None = None,
) -> FormTable:
    """What `read_form` does with a table that is already in memory (from the store, for example).

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
    parts = {}
    for name in sorted(set(named[~refusals.bad].tolist())):
        fam = get_family(name)
        check_columns(fam, table.column_names, need_labels=need_labels, origin=origin)
        rows = np.flatnonzero((named == name) & ~refusals.bad & ~unmeasured)
        here = columns.at(rows)
        found = Refusals(len(rows))
        cases = judged_cases(fam, here, found, known_devices)
        labels = judged_labels(here, found, need_labels=need_labels)
        refusals.merge(found, rows)
        part = FormRows(cases=cases, rows=rows, source=here.text("source"), split=here.text("split"), **labels)
        if not found.bad.all():
            parts[name] = part.take(~found.bad)
    _complain(refusals, origin, keep_good=keep_good, any_good=bool(parts))
    known = all_columns()
    return FormTable(table, parts, tuple(refusals), np.flatnonzero(unmeasured & ~refusals.bad),
                     tuple(name for name in table.column_names if name not in known))  # fmt: skip


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


def _complain(refusals: Refusals, origin: str, *, keep_good: bool, any_good: bool) -> None:
    if any_good and (keep_good or len(refusals) == 0):
        return
    if len(refusals) == 0:
        raise SpecError(f"{origin} has no row with a measurement (status ok)", field="status")
    found = list(refusals)
    shown = "\n".join(f"  {one}" for one in found[:_SHOWN])
    more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    what = "none of the rows can be used" if not any_good else f"{len(found)} of {len(refusals.bad)} rows are refused"
    advice = "Correct them" if not any_good else "Correct them, or keep the others with keep_good=True (--keep-good)"
    raise SpecError(
        f"{origin}: {what} (rows count from 1, below the header):\n{shown}{more}\n{advice}.", field=found[0].column
    )
