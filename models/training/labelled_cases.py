"""Measured cases with their labels: what models are trained on and judged by.

A device's measured descriptor gives rows too. Every fact that came from a kernel names the case it was measured by, so that a
rate is a latency again: operations or bytes over it. Facts of micro-kernels, which are no kernel of any family, give none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...datasets.form.form import TEXT_COLUMNS, read_form
from ...datasets.rows.table_columns import numbers, read_table, text
from ...features.batch.cases import Cases, Floats, Strings
from ...features.cost.bounds import Work, work
from ...features.device import Catalogue, Device, catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelFamily, KernelSpec, families, get_family

CASE_WORDS = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "timing")
"""Columns of words of `Cases` that stored rows have."""

_OWN_SOURCE = "kernelcast"
"""How the source of rows begins that this project's collectors measured."""


@dataclass(frozen=True, slots=True)
class LabelledCases:
    """Measured cases of one family with their labels; every column has shape `(n,)`.

    Attributes:
        cases: What was measured.
        latency_s: In seconds.
        power_w: In watts, NaN where it was not measured.
        source: Where each row comes from, for evaluation; None where no row says.
    """

    cases: Cases
    latency_s: Floats
    power_w: Floats
    source: Strings | None = None

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, index: Any) -> LabelledCases:
        """The rows at `index`, in that order."""
        source = None if self.source is None else self.source[index]
        return LabelledCases(self.cases.take(index), self.latency_s[index], self.power_w[index], source)

    def is_collected(self) -> Any:
        """Whether this project's collectors measured each row, shape `(n,)`."""
        if self.source is None:
            return np.zeros(len(self), dtype=np.bool_)
        return np.char.startswith(self.source, _OWN_SOURCE)


def labelled_table(table: pa.Table, family: str, devices: Catalogue | None = None) -> LabelledCases:
    """The rows of a stored table (columns of `datasets.rows.schema.arrow_schema`) that were measured, status `ok`.

    Raises:
        SpecError: a device is not in the catalogue.
    """
    fam, known = get_family(family), devices or catalogue()
    good = np.flatnonzero(text(table, "status") == "ok")
    table = table.take(pa.array(good))
    words = {name: text(table, name) for name in CASE_WORDS}
    source = text(table, "source")
    cases = stored_cases(fam, words, source, lambda name: numbers(table, name).values, known)
    return LabelledCases(cases, numbers(table, "latency_s").values, numbers(table, "power_w").values, source)


def stored_cases(
    family: KernelFamily,
    words: Mapping[str, Strings],
    source: Strings,
    column: Callable[[str], Floats],
    devices: Catalogue,
) -> Cases:
    """Cases from stored columns, with devices by the catalogue's names and what rows leave out filled in.

    Args:
        family: of all rows.
        words: columns of `CASE_WORDS`, shape `(n,)`, empty where a row has none.
        source: who measured each row, shape `(n,)`.
        column: gives a numeric column by name, shape `(n,)`.
        devices: the catalogue devices must be in.

    Raises:
        SpecError: a device is not in the catalogue.
    """
    names, inverse = np.unique(words["device"], return_inverse=True)
    filled = {
        # Collectors time the device, without the host; what others time is known as far as their rows say it.
        "timing": np.where(
            (words["timing"] == "") & np.char.startswith(source, _OWN_SOURCE), "device", words["timing"]
        ),
        "device": np.array([devices.get(name).name for name in names.tolist()] or [""], dtype=np.str_)[inverse],
        "kv_dtype": np.where(words["kv_dtype"] == "", words["dtype"], words["kv_dtype"]),
        "cache_state": np.where(words["cache_state"] == "", "hot", words["cache_state"]),
    }
    return Cases(
        family=family, threads=column("threads"), sizes={name: column(name) for name in family.dim_names},
        config={name: column(name) for name in family.config}, **{**words, **filled},
    ).with_core_counts(devices)  # fmt: skip


def labelled_tables(tables: Mapping[str, pa.Table]) -> list[LabelledCases]:
    """`labelled_table` of every family's table that has measured rows, in the order of the names."""
    labelled = [labelled_table(tables[family], family) for family in sorted(tables)]
    return [rows for rows in labelled if len(rows)]


def labelled_files(
    paths: Sequence[Path],
    *,
    split: str | None = None,
    family: str | None = None,
    skip_bad_rows: bool = False,
    devices: Catalogue | None = None,
) -> list[LabelledCases]:
    """The measured rows of form files, one table per family in the order of the names; devices by catalogue name.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        split: take only the rows whose `split` column says so.
        family: the family of all rows, for files without that column.
        skip_bad_rows: go on with the good rows when others are refused.
        devices: the catalogue devices must be in; default: the shipped one.

    Raises:
        SpecError: a file or row breaks the form, a device is unknown, or no row has the split.
    """
    known = devices or catalogue()
    parts: list[LabelledCases] = []
    splits: set[str] = set()
    for path in paths:
        form = read_form(
            path, family=family, skip_bad_rows=skip_bad_rows, known_devices=lambda name: known.get(name).name
        )
        for rows in form.parts.values():
            splits.update(np.unique(rows.split).tolist())
            chosen = rows if split is None else rows.take(rows.split == split)
            if len(chosen):
                cases = chosen.cases.with_core_counts(known)
                parts.append(LabelledCases(cases, chosen.latency_s, chosen.power_w, chosen.source))
    if not parts:
        file_names = ", ".join(str(path) for path in paths) or "no file"
        raise SpecError(f"no row of {file_names} has split {split!r}; splits there: {sorted(splits)}", field="split")
    return joined_by_family(parts)


def joined_by_family(tables: Iterable[LabelledCases]) -> list[LabelledCases]:
    """One table a family, in the order of the names."""
    parts: dict[str, list[LabelledCases]] = {}
    for rows in tables:
        parts.setdefault(rows.cases.family.name, []).append(rows)
    return [joined(parts[name]) for name in sorted(parts)]


def joined(tables: Sequence[LabelledCases]) -> LabelledCases:
    """Rows of one family from several tables, one after the other."""
    first = tables[0].cases
    text_columns = {name: np.concatenate([getattr(table.cases, name) for table in tables]) for name in CASE_WORDS}
    cases = Cases(
        family=first.family,
        threads=np.concatenate([table.cases.threads for table in tables]),
        sizes={name: np.concatenate([table.cases.sizes[name] for table in tables]) for name in first.sizes},
        config={name: np.concatenate([table.cases.config[name] for table in tables]) for name in first.config},
        **text_columns,
    )
    latency, power = (np.concatenate([getattr(table, name) for table in tables]) for name in ("latency_s", "power_w"))
    sources = [table.source for table in tables if table.source is not None]
    return LabelledCases(cases, latency, power, np.concatenate(sources) if len(sources) == len(tables) else None)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The rows of one family in one split of one file.

    Attributes:
        rows: The rows.
        split: Name of the split; empty where the file does not say.
    """

    rows: LabelledCases
    split: str


def read_splits(
    paths: Sequence[Path],
    patterns: Sequence[str] = (),
    *,
    family: str | None = None,
    skip_bad_rows: bool = False,
    devices: Catalogue | None = None,
) -> list[SplitRows]:
    """The measured rows of form files, kept apart by file, split and family.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        patterns: names or patterns (`val_*`) of the splits to take; none for all rows.
        family: the family of all rows, for files without that column.
        skip_bad_rows: go on with the good rows when others are refused.
        devices: the catalogue devices must be in; default: the shipped one.

    Raises:
        SpecError: a file or row breaks the form, a device is unknown, or no row has a split that was asked for.
    """
    there = {path: _splits_of(path) for path in dict.fromkeys(paths)}
    wanted = {path: matching(splits, patterns) if patterns else splits for path, splits in there.items()}
    every = sorted({name for splits in there.values() for name in splits})
    missing = [pattern for pattern in patterns if not matching(every, [pattern])]
    if missing or not any(wanted.values()):
        file_names = ", ".join(str(path) for path in paths) or "no file"
        raise SpecError(
            f"no row of {file_names} has split {listed(missing or patterns)!r}; splits there: "
            f"{listed(name or '(none given)' for name in every)}",
            field="split",
        )
    labelled = []
    for path, names in wanted.items():
        for name in names:
            tables = labelled_files(
                [path],
                split=name if there[path] != [""] else None,
                family=family,
                skip_bad_rows=skip_bad_rows,
                devices=devices,
            )
            labelled += [SplitRows(rows, name) for rows in tables]
    return labelled


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that a name or pattern means, in their own order; case counts."""
    patterns = list(patterns)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _splits_of(path: Path) -> list[str]:
    """The words of a file's split column, sorted, the empty one for rows without; `[""]` where there is no column."""
    table = read_table(path, TEXT_COLUMNS)
    return np.unique(text(table, "split")).tolist() if "split" in table.column_names else [""]


_CASE = re.compile(r"(?P<family>\w+)\[(?P<dims>[\w=,]+)\]:(?P<dtype>\w+)(?P<rest>[^;(]*)")
"""A spec as it prints itself, in the source of a fact."""

_SECONDS: Mapping[str, Callable[[Work, float], float]] = {
    "_flops_per_s": lambda paper, rate: float(paper.flops[0]) / rate,
    "_b_per_s": lambda paper, rate: float(paper.bytes[0]) / rate,
}
"""How a rate becomes the seconds of its case, by the end of the fact's name; a `launch_graph_…_s` is those seconds itself."""


def descriptor_rows(device: Device, devices: Catalogue) -> list[LabelledCases]:
    """The rows a device's measured facts were made of, one table per family; empty where none came from a kernel."""
    rows: dict[str, list[tuple[KernelSpec, float]]] = {}
    for name, fact in device.measured.items():
        spec = _spec(fact.source)
        latency_s = None if spec is None else _latency_s(name, fact.value, spec, device, devices)
        if spec is not None and latency_s is not None:
            rows.setdefault(spec.family, []).append((spec, latency_s))
    tables = []
    for result in rows.values():
        specs = [replace(spec, timing="device") for spec, _ in result]
        cases = Cases.from_specs(specs, [device.name] * len(result))
        latency = np.array([latency_s for _, latency_s in result])
        source = np.full(len(result), f"measured facts of {device.name}")
        tables.append(LabelledCases(cases, latency, np.full(len(result), np.nan), source))
    return tables


def with_descriptors(
    tables: Sequence[LabelledCases], names: Iterable[str], devices: Catalogue, families_known: Container[str]
) -> list[LabelledCases]:
    """The tables, and the rows of the named devices' measured facts beside them, of families the model knows.

    Raises:
        SpecError: an unknown device, or one whose file has no measured fact that came from such a kernel.
    """
    parts = list(tables)
    for name in names:
        device = devices.get(name)
        device_rows = [rows for rows in descriptor_rows(device, devices) if rows.cases.family.name in families_known]
        if not device_rows:
            raise SpecError(
                f"the file of {device.name} has no measured facts of kernels the model knows; "
                "make one with `kernelcast measure machine`, or give rows with --data",
                field="descriptor",
            )
        parts += device_rows
    return joined_by_family(parts)


def _spec(source: str) -> KernelSpec | None:
    """The case a fact's source names, or None where it names none of a family."""
    spec = _CASE.search(source)
    if spec is None or spec["family"] not in families():
        return None
    dims = dict(pair.split("=") for pair in spec["dims"].split(","))
    words = spec["rest"].split()
    knobs = dict(word.split("=") for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    variants = families()[spec["family"]].variants
    variant = plain.pop(0) if plain and plain[0] in variants else ""
    sizes: dict[str, Any] = {name: int(value) for name, value in dims.items()}
    config = {name: int(value) for name, value in knobs.items()}
    try:
        return KernelSpec.of(
            spec["family"], spec["dtype"], variant=variant, impl=plain[0] if plain else "", config=config, **sizes
        )
    except SpecError:
        # Written by another version, with sizes or knobs that this one does not have.
        return None


def _latency_s(name: str, value: float, spec: KernelSpec, device: Device, devices: Catalogue) -> float | None:
    if name.startswith("launch_graph_"):
        return value
    for end, seconds in _SECONDS.items():
        if name.endswith(end):
            return seconds(work(Cases.from_specs([spec], [device.name]), devices), value)
    return None
