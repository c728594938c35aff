"""Measured rows from a user's files, split by split: which splits a name or a pattern means, and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from ..datasets.form_columns import TEXT_COLUMNS
from ..datasets.tables import read_table, text
from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from .labelled import Labelled
from .tables import labelled_files


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The rows of one family in one split of one file; `split` is empty where the file does not say."""

    rows: Labelled
    split: str
    path: Path


def read_splits(
    paths: Sequence[Path],
    asked: Sequence[str] = (),
    *,
    family: str | None = None,
    keep_good: bool = False,
    devices: Catalogue | None = None,
) -> list[SplitRows]:
    """The measured rows of form files, kept apart by file, split and family.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        asked: names or patterns (`val_*`) of the splits to take; none for all rows.
        family: the family of all rows, for files without that column.
        keep_good: go on with the good rows when others are refused.
        devices: the catalogue devices must be in; default: the shipped one.

    Raises:
        SpecError: a file or row breaks the form, a device is unknown, or no row has a split that was asked for.
    """
    there = {path: _splits_of(path) for path in dict.fromkeys(paths)}
    wanted = {path: matching(found, asked) if asked else found for path, found in there.items()}
    every = sorted({name for found in there.values() for name in found})
    missing = [one for one in asked if not matching(every, [one])]
    if missing or not any(wanted.values()):
        given = ", ".join(str(path) for path in paths) or "no file"
        raise SpecError(
            f"no row of {given} has split {listed(missing or asked)!r}; splits there: "
            f"{listed(name or '(none given)' for name in every)}",
            field="split",
        )
    found = []
    for path, names in wanted.items():
        for name in names:
            tables = labelled_files(
                [path], split=name if there[path] != [""] else None, family=family, keep_good=keep_good, devices=devices
            )
            found += [SplitRows(rows, name, path) for rows in tables]
    return found


def matching(names: Iterable[str], asked: Iterable[str]) -> list[str]:
    """The names that a name or pattern asked for means, in their own order; case counts."""
    patterns = list(asked)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _splits_of(path: Path) -> list[str]:
    """The words of a file's split column, sorted, the empty one for rows without; `[""]` where there is no column."""
    table = read_table(path, TEXT_COLUMNS)
    return np.unique(text(table, "split")).tolist() if "split" in table.column_names else [""]
