"""Predictions made in columns, as the metrics count them."""

from __future__ import annotations

import numpy as np

from ..features.coded import Words
from ..models.prediction import Predictions


def counted(family: str, devices: Words, found: Predictions) -> dict[tuple[str, str, bool], int]:
    """Predictions of one family by family, device and whether they are in domain; `devices` are those of the rows."""
    names = devices.words
    counts = np.bincount(2 * devices.code + found.in_domain, minlength=2 * len(names)).tolist()
    return {(family, names[i // 2], bool(i % 2)): count for i, count in enumerate(counts) if count}
