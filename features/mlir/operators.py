"""Operations on elements: their names by kernelcast's, and the arithmetic per element.

Counts follow one convention. A multiply-add is two operations. Everything else done to an element is one, transcendental
or not, comparisons, selections and conversions included, as XLA's HloCostAnalysis counts (it keeps exponentials,
logarithms, roots and trigonometry in a figure of their own, `transcendentals`; here they are in both). Operators that are
formulas count as `features.families.elementwise` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..families.elementwise import FLOPS_PER_ELEMENT

_FORMULAS = {name: FLOPS_PER_ELEMENT[name] for name in ("sigmoid", "gelu", "silu")}
"""As kernelcast's elementwise kernels count them."""

ELEMENT_FLOPS: Mapping[str, int] = MappingProxyType(
    {
        # relu6 and clamp compare twice; a fused multiply-add is two. Of formulas the arithmetic of their definitions is
        # counted: softplus log(1+exp(x)), mish x·tanh(softplus(x)), hardsigmoid clamp(x/6+1/2), elu and its kin a
        # selection over exp(x)-1.
        **_FORMULAS,
        "clamp": 2,
        "relu6": 2,
        "fma": 2,
        "softplus": 3,
        "mish": 5,
        "hardsigmoid": 4,
        "hardswish": 5,
        "elu": 3,
        "selu": 4,
        "celu": 4,
        "leaky_relu": 2,
        "prelu": 2,
        "logit": 3,
        "addcmul": 3,
        "addcdiv": 3,
        "lerp": 3,
        # What changes no bits.
        "bitcast": 0,
        "copy": 0,
        "real": 0,
        "imag": 0,
        "complex": 0,
    }
)
"""Arithmetic per element where it is not 1."""

TRANSCENDENTAL = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "tanh",
        "erf",
        "erfc",
        "erf_inv",
        "sqrt",
        "rsqrt",
        "cbrt",
        "pow",
        "powu",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "lgamma",
        "digamma",
        "div",
        "divu",
        "reciprocal",
        "remainder",
        "sigmoid",
        "gelu",
        "silu",
        "softplus",
        "mish",
        "elu",
        "selu",
        "celu",
        "hardswish",
        "logit",
        "addcdiv",
    ]
)
"""Operators with one exponential, logarithm, root, division or the like per element. Divisions are among them because every
processor takes several times as long for one as for a product."""

_SAME = {
    "add": "addf addi add_",
    "sub": "subf subi subtract sub_",
    "mul": "mulf muli multiply mul_ mulsi_extended mului_extended",
    "div": "divf divsi divui divide intdiv floordivsi ceildivsi ceildivui true_divide div_ floor_divide",
    "neg": "negf negate negative",
    "abs": "absf absi absolute",
    "maximum": "maximumf maxnumf maxsi maxui max maxf maximum",
    "minimum": "minimumf minnumf minsi minui min minf minimum",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log1p": "log_plus_one",
    "sin": "sine",
    "cos": "cosine",
    "pow": "power powf fpowi ipowi",
    "sigmoid": "logistic",
    "rsqrt": "rsqrtf",
    "silu": "swish",
    "remainder": "remf remsi remui remainder mod fmod",
    "sqrt": "sqrtf",
    "compare": "cmpf cmpi equal greater greater_equal not_equal less less_equal eq ne lt le gt ge isnan isinf isfinite "
    "is_finite",
    "select": "where masked_fill",
    "convert": "extf truncf sitofp uitofp fptosi fptoui extsi extui trunci index_cast index_castui cast to "
    "convert_element_type convertf scaling_extf scaling_truncf to_fp fp_to_fp quantize dequantize uniform_quantize "
    "uniform_dequantize rescale reduce_precision _to_copy",
    "and": "andi bitwise_and logical_and __and__",
    "or": "ori bitwise_or logical_or",
    "xor": "xori bitwise_xor logical_xor",
    "not": "bitwise_not logical_not",
    "floor": "floorf",
    "ceil": "ceilf",
    "round": "roundeven round_nearest_even round_nearest_afz roundf",
    "fma": "multiply_add",
    "hardswish": "hardswish_",
    "square": "square_",
    "shift": "shli shrsi shrui logical_left_shift logical_right_shift arithmetic_right_shift shift_left "
    "shift_right_arithmetic shift_right_logical shift_right __lshift__ __rshift__",
    "clamp": "clampf clamp_min clamp_max clip hardtanh",
}
_CANONICAL = {other: name for name, others in _SAME.items() for other in others.split()}


def operator(short: str) -> str:
    """The name of an element operation that kernelcast uses, from its name in a dialect; its own where there is none."""
    return _CANONICAL.get(short, short)


def arithmetic(name: str) -> tuple[float, float]:
    """Operations and transcendental ones per element of an operator named by `operator`."""
    return float(ELEMENT_FLOPS.get(name, 1)), float(name in TRANSCENDENTAL)
