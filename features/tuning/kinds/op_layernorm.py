"""Time of a normalisation of each row of a [rows, cols] array as it stands: LayerNorm or RMSNorm."""

from __future__ import annotations

from collections.abc import Mapping

from ..family_kinds import family_kind, row_features, work_features
from ..formula import Value, where


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    vectors = where(v["variant"], 1.0, 2.0)
    moved_b = (2.0 * elements + vectors * v["cols"]) * v["element_b"]
    work = work_features(v, where(v["variant"], 4.0, 7.0) * elements, moved_b, moved_b)
    return {
        **work,
        **row_features(v, work, v["rows"], v["cols"]),
        "variant": v["variant"],
    }


KIND = family_kind("layernorm", __doc__, _features)
