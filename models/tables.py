"""Measured rows, from a user's files, the shipped tables or a store, as the labelled tables that models take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..datasets.form import FormRows, read_form
from ..datasets.tables import numbers, text
from ..features.cases import Cases, Strings
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from ..features.kernel import get_family
from .labelled import Labelled


def labelled_table(table: pa.Table, family: str, devices: Catalogue | None = None) -> Labelled:
    """The rows of a stored table (columns of `datasets.schema.arrow_schema`) that were measured, status `ok`.

    Raises:
        SpecError: a device is not in the catalogue.
    """
    fam, known = get_family(family), devices or catalogue()
    good = np.flatnonzero(text(table, "status") == "ok")
    table = table.take(pa.array(good))
    dtype, kv_dtype = text(table, "dtype"), text(table, "kv_dtype")
    cache_state = text(table, "cache_state")
    cases = Cases(
        family=fam,
        device=_canonical(text(table, "device"), known),
        dtype=dtype,
        kv_dtype=np.where(kv_dtype == "", dtype, kv_dtype),
        variant=text(table, "variant"),
        impl=text(table, "impl"),
        cache_state=np.where(cache_state == "", "hot", cache_state),
        threads=numbers(table, "threads").values,
        sizes={name: numbers(table, name).values for name in fam.dim_names},
        config={name: numbers(table, name).values for name in fam.config},
    )
    cases = cases.with_core_counts(known)
    return Labelled(cases, numbers(table, "latency_s").values, numbers(table, "power_w").values, text(table, "source"))


def labelled_tables(tables: Mapping[str, pa.Table]) -> list[Labelled]:
    """`labelled_table` of every family's table that has measured rows, in the order of the names."""
    found = [labelled_table(tables[family], family) for family in sorted(tables)]
    return [rows for rows in found if len(rows)]


def labelled_files(
    paths: Sequence[Path],
    *,
    split: str | None = None,
    family: str | None = None,
    keep_good: bool = False,
    devices: Catalogue | None = None,
) -> list[Labelled]:
    """The measured rows of form files, one table per family in the order of the names; devices by catalogue name.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        split: take only the rows whose `split` column says so.
        family: the family of all rows, for files without that column.
        keep_good: go on with the good rows when others are refused.
        devices: the catalogue devices must be in; default: the shipped one.

    Raises:
        SpecError: a file or row breaks the form, a device is unknown, or no row has the split.
    """
    known = devices or catalogue()
    parts: dict[str, list[FormRows]] = {}
    splits: set[str] = set()
    for path in paths:
        form = read_form(path, family=family, keep_good=keep_good, known_devices=lambda name: known.get(name).name)
        for name, rows in form.parts.items():
            splits.update(np.unique(rows.split).tolist())
            chosen = rows if split is None else rows.take(rows.split == split)
            if len(chosen):
                parts.setdefault(name, []).append(chosen)
    if not parts:
        given = ", ".join(str(path) for path in paths) or "no file"
        raise SpecError(f"no row of {given} has split {split!r}; splits there: {sorted(splits)}", field="split")
    return [joined([_labelled_form(rows, known) for rows in parts[name]]) for name in sorted(parts)]


def _canonical(names: Strings, devices: Catalogue) -> Strings:
    words, inverse = np.unique(names, return_inverse=True)
    return np.array([devices.get(word).name for word in words.tolist()] or [""], dtype=np.str_)[inverse]


def _labelled_form(rows: FormRows, devices: Catalogue) -> Labelled:
    return Labelled(rows.cases.with_core_counts(devices), rows.latency_s, rows.power_w, rows.source)


def joined(tables: Sequence[Labelled]) -> Labelled:
    """Rows of one family from several tables, one after the other."""
    first = tables[0].cases
    text_columns = {
        name: np.concatenate([getattr(table.cases, name) for table in tables])
        for name in ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")
    }
    cases = Cases(
        family=first.family,
        threads=np.concatenate([table.cases.threads for table in tables]),
        sizes={name: np.concatenate([table.cases.sizes[name] for table in tables]) for name in first.sizes},
        config={name: np.concatenate([table.cases.config[name] for table in tables]) for name in first.config},
        **text_columns,
    )
    latency, power = (np.concatenate([getattr(table, name) for table in tables]) for name in ("latency_s", "power_w"))
    sources = [table.source for table in tables if table.source is not None]
    return Labelled(cases, latency, power, np.concatenate(sources) if len(sources) == len(tables) else None)
