"""Time of a softmax along the last dimension of a [rows, cols] array as it stands."""

from __future__ import annotations

from collections.abc import Mapping

from ..family_kinds import family_kind, row_features, work_features
from ..formula import Value


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    moved_b = 2.0 * elements * v["element_b"]
    work = work_features(v, 5.0 * elements, moved_b, moved_b)
    return {
        **work,
        **row_features(v, work, v["rows"], v["cols"]),
    }


KIND = family_kind("softmax", __doc__, _features)
