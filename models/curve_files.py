"""Learning curves from measurement files: which rows to train on, which to judge by, and what the rows record of their cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.form import FormTable, read_form
from ..datasets.tables import numbers
from ..features.cases import Floats
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from .learning_curve import LearningCurves, Pool, learning_curves
from .measuring_cost import measuring_seconds
from .split_files import read_splits
from .tables import labelled_files

TRAINING_SPLIT = "train"
"""The split that is trained on where others are judged, unless told otherwise."""


def learning_curve_files(
    paths: Sequence[Path],
    *,
    split: Sequence[str] = (),
    train_split: str | None = None,
    family: str | None = None,
    keep_good: bool = False,
    devices: Catalogue | None = None,
    **options: Any,
) -> LearningCurves:
    """Learning curves of measurement files.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        split: names or patterns of the splits to judge by; none to hold a tenth of the shapes out by hash.
        train_split: the split to train on; default: `train` where other splits are judged, else every row.
        family: the family of all rows, for files without that column.
        keep_good: go on with the good rows when others are refused.
        devices: the catalogue, default the shipped one.
        options: see `learning_curves`.

    Raises:
        SpecError: a file or row breaks the form, no row has a split asked for, one is to be trained on and judged by, or
            see `learning_curves`.
    """
    known = devices or catalogue()
    judged = read_splits(paths, split, family=family, keep_good=keep_good, devices=known) if split else []
    trained = train_split or (TRAINING_SPLIT if judged else None)
    names = sorted({part.split for part in judged})
    if trained in names:
        raise SpecError(f"split {trained!r} would be trained on and judged by; name another --split", field="split")
    tables = labelled_files(paths, split=trained, family=family, keep_good=keep_good, devices=known)
    forms = [read_form(path, family=family, keep_good=keep_good) for path in dict.fromkeys(paths)]
    pools, recorded = [], {}
    for rows in tables:
        name = rows.cases.family.name
        calls = np.concatenate([_first_calls(form, name, trained) for form in forms])
        recorded[name] = f"of {(~np.isnan(calls)).sum():,} rows of {len(calls):,}"
        own = tuple(part.rows for part in judged if part.rows.cases.family.name == name)
        if judged:
            pools.append(Pool(rows, measuring_seconds(rows, known, calls), own))
        else:
            pools.append(Pool.of(rows, known, calls))
    facts = {
        "data": ", ".join(path.name for path in paths),
        "judged by": ", ".join(names) or "a tenth of the shapes, by hash",
        "trained on": trained or "the other rows",
        "seconds of measuring": "estimated from latencies by the protocol of docs/measurement.md",
        "first calls recorded": recorded,
    }
    return learning_curves(pools, devices=known, facts=facts, **options)


def _first_calls(form: FormTable, family: str, split: str | None) -> Floats:
    """Recorded first calls in seconds of a file's rows of one family and split, NaN where there is no record."""
    if family not in form.parts:
        return np.empty(0)
    part = form.parts[family]
    own = part.rows if split is None else part.rows[part.split == split]
    return numbers(form.table, "first_call_s").values[own]
