"""The time of one operation of a kernel family as it stands: a kind for each family, without anything to tune."""

from __future__ import annotations

from collections.abc import Mapping

from ...families.elementwise import FLOPS_PER_ELEMENT
from ..family_kinds import VARIANT_CODES, chosen, family_kind, product_features, row_features, work_features
from ..formula import Value, equal, floor, less, maximum, minimum, where

_WINOGRAD_SAVING = 324 / 64
"""As in `families.conv2d`: Winograd's F(6x6, 3x3) needs 64 multiplications where the definition has 324 (Lavin and Gray, CVPR
2016, section 4)."""

_OPERATORS = VARIANT_CODES["elementwise"]
_FLOPS = {_OPERATORS[name]: float(flops) for name, flops in FLOPS_PER_ELEMENT.items() if flops != 1}
_FIRST_OF_TWO = float(_OPERATORS["add"])


def _conv2d(v: Mapping[str, Value]) -> dict[str, Value]:
    batch, kernel, stride = v["batch"], v["kernel"], v["stride"]
    out_h, out_w = _outputs(v["height"], v), _outputs(v["width"], v)
    weights = v["out_channels"] * v["in_channels"] * kernel * kernel
    results = batch * v["out_channels"] * out_h * out_w
    touched = batch * v["in_channels"] * _touched(v["height"], out_h, v) * _touched(v["width"], out_w, v)
    flops = 2.0 * results * v["in_channels"] * kernel * kernel
    winograd = equal(kernel, 3.0) * equal(stride, 1.0)
    moved_b = (touched + weights + results) * v["element_b"]
    footprint_b = (batch * v["in_channels"] * v["height"] * v["width"] + weights + results) * v["element_b"]
    work = work_features(v, flops, moved_b, footprint_b, flops / where(winograd, _WINOGRAD_SAVING, 1.0))
    product = (1.0, batch * out_h * out_w, v["out_channels"], v["in_channels"] * kernel * kernel)
    sizes = {name: v[name] for name in ("in_channels", "height", "width", "kernel", "stride", "padding")}
    return {**work, **product_features(v, work, product, (v["width"], v["width"])), "images": batch, **sizes}


def _outputs(size: Value, v: Mapping[str, Value]) -> Value:
    """As `families.conv2d.output_size`."""
    return floor((size + 2.0 * v["padding"] - v["kernel"]) / v["stride"]) + 1.0


def _touched(size: Value, outputs: Value, v: Mapping[str, Value]) -> Value:
    """Input positions along one side that some output position reads, as `families.conv2d` counts them."""
    apart, together = outputs * v["kernel"], (outputs - 1.0) * v["stride"] + v["kernel"]
    read = where(less(v["kernel"], v["stride"]), apart, together)
    return minimum(maximum(read - v["padding"], 1.0), size)


def _gemm(v: Mapping[str, Value]) -> dict[str, Value]:
    batch, m, n, k = v["batch"], v["m"], v["n"], v["k"]
    bias_b = where(equal(v["variant"], 1.0), n * v["output_b"], 0.0)
    moved_b = batch * (m * k + k * n) * v["element_b"] + batch * m * n * v["output_b"] + bias_b
    work = work_features(v, 2.0 * batch * m * n * k, moved_b, moved_b)
    # Codes 4 and 5 have a transposed, 3 and 5 have b.
    contiguous = (where(less(v["variant"], 4.0), k, m), where(chosen(v["variant"], {3: 1.0, 5: 1.0}, 0.0), k, n))
    return {**work, **product_features(v, work, (batch, m, n, k), contiguous), "variant": v["variant"]}


def _on_rows(v: Mapping[str, Value], flops: Value, moved_b: Value) -> dict[str, Value]:
    work = work_features(v, flops, moved_b, moved_b)
    return {**work, **row_features(v, work, v["rows"], v["cols"])}


def _copy(v: Mapping[str, Value]) -> dict[str, Value]:
    return {**_on_rows(v, 0.0, 2.0 * (v["rows"] * v["cols"]) * v["element_b"]), "variant": v["variant"]}


def _elementwise(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    each = chosen(v["variant"], _FLOPS, 1.0)
    arrays = where(less(v["variant"], _FIRST_OF_TWO), 2.0, 3.0)
    moved_b = arrays * elements * v["element_b"]
    return {
        **_on_rows(v, each * elements, moved_b),
        "arrays": arrays,
        "flops_per_element": each,
        "variant": v["variant"],
    }


def _layernorm(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    vectors = where(v["variant"], 1.0, 2.0)
    moved_b = (2.0 * elements + vectors * v["cols"]) * v["element_b"]
    return {**_on_rows(v, where(v["variant"], 4.0, 7.0) * elements, moved_b), "variant": v["variant"]}


def _reduction(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    values = where(less(v["variant"], 3.0), v["rows"], v["cols"])
    work = _on_rows(v, elements, (elements + values) * v["element_b"])
    return {**work, "kept": values, "variant": v["variant"]}


def _softmax(v: Mapping[str, Value]) -> dict[str, Value]:
    elements = v["rows"] * v["cols"]
    moved_b = 2.0 * elements * v["element_b"]
    return _on_rows(v, 5.0 * elements, moved_b)


KIND = tuple(
    family_kind(family, features)
    for family, features in {
        "conv2d": _conv2d,
        "copy": _copy,
        "elementwise": _elementwise,
        "gemm": _gemm,
        "layernorm": _layernorm,
        "reduction": _reduction,
        "softmax": _softmax,
    }.items()
)
