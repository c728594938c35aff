"""Time of an element-by-element operator as it stands: on one tensor, two tensors, or a tensor and a number."""

from __future__ import annotations

from collections.abc import Mapping

from ...families.elementwise import FLOPS_PER_ELEMENT
from ..family_kinds import VARIANT_CODES, chosen, family_kind, row_features, work_features
from ..formula import Value, less, where

_CODES = VARIANT_CODES["elementwise"]
_FLOPS = {_CODES[name]: float(flops) for name, flops in FLOPS_PER_ELEMENT.items() if flops != 1}
_FIRST_OF_TWO = float(_CODES["add"])


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    each = chosen(v["variant"], _FLOPS, 1.0)
    arrays = where(less(v["variant"], _FIRST_OF_TWO), 2.0, 3.0)
    moved_b = arrays * elements * v["element_b"]
    work = work_features(v, each * elements, moved_b, moved_b)
    return {
        **work,
        **row_features(v, work, v["rows"], v["cols"]),
        "arrays": arrays,
        "flops_per_element": each,
        "variant": v["variant"],
    }


KIND = family_kind("elementwise", __doc__, _features)
