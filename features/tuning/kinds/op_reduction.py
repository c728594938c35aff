"""Time of a sum, mean or maximum of a [rows, cols] array as it stands, along its rows or down its columns."""

from __future__ import annotations

from collections.abc import Mapping

from ..family_kinds import family_kind, row_features, work_features
from ..formula import Value, less, where


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    values = where(less(v["variant"], 3.0), v["rows"], v["cols"])
    moved_b = (elements + values) * v["element_b"]
    work = work_features(v, elements, moved_b, moved_b)
    return {
        **work,
        **row_features(v, work, v["rows"], v["cols"]),
        "kept": values,
        "variant": v["variant"],
    }


KIND = family_kind("reduction", __doc__, _features)
