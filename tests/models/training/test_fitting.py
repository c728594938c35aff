"""Holding rows out by shape: some rows of every target are, however the shapes are dealt."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kernelcast.datasets.rows.splits import shape_folds
from kernelcast.features.device import catalogue
from kernelcast.models.regressors.roofline import Roofline
from kernelcast.models.training import fitting
from kernelcast.models.training.labelled_cases import LabelledCases


@pytest.mark.parametrize("empty", [0, 3])
def test_a_large_table_is_held_out_by_the_folds_that_have_rows(
    made_up: Callable[..., LabelledCases], monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """Power is known in the last folds alone."""
    monkeypatch.setattr(fitting, "_LARGE_TABLE", 100)
    rows = made_up(600)
    folds = shape_folds(rows.cases, 10)
    rows.power_w[folds < 5] = np.nan
    table = fitting.TrainingTable.of(rows.take(np.flatnonzero(folds >= empty)), catalogue())
    with ThreadPoolExecutor(1) as pool:
        answers, most = fitting.hold_out(table, Roofline(), 0, pool)
    assert most.answers(table, slice(None)).keys() == answers.keys()
    for target, labels in table.log_labels.items():
        (column,) = answers[target].values()
        assert (~np.isnan(column) & ~np.isnan(labels)).sum() >= fitting.MIN_ROWS, target
