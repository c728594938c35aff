"""Operations on elements: their names by kernelcast's, and the arithmetic per element.

Counts follow one convention. A multiply-add is two operations. Everything else done to an element is one, transcendental
or not, comparisons, selections and conversions included, as XLA's HloCostAnalysis counts (it keeps exponentials,
logarithms, roots and trigonometry in a figure of their own, `transcendentals`; here they are in both). Operators that are
formulas count as `features.families.elementwise` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...families.elementwise import FLOPS_PER_ELEMENT
from ..types import attributes
from ..types.graph import Op, Region

_FORMULAS = {name: FLOPS_PER_ELEMENT[name] for name in ("sigmoid", "gelu", "silu")}
"""As kernelcast's elementwise kernels count them."""

ELEMENT_FLOPS: Mapping[str, int] = MappingProxyType({
    **_FORMULAS,
    **dict.fromkeys(("bitcast", "copy", "real", "imag", "complex"), 0),
    **dict.fromkeys(("clamp", "relu6", "fma", "leaky_relu", "prelu"), 2),
    **dict.fromkeys(("softplus", "elu", "logit", "addcmul", "addcdiv", "lerp"), 3),
    **dict.fromkeys(("hardsigmoid", "selu", "celu"), 4),
    **dict.fromkeys(("mish", "hardswish"), 5),
})  # fmt: skip
"""Arithmetic per element where it is not 1: none of what changes no bits; relu6 and clamp compare twice; a fused
multiply-add is two. Of formulas the arithmetic of their definitions is counted: softplus log(1+exp(x)), mish
x·tanh(softplus(x)), hardsigmoid clamp(x/6+1/2), elu and its kin a selection over exp(x)-1."""

TRANSCENDENTAL = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc", "erf_inv", "sqrt", "rsqrt", "cbrt",
    "pow", "powu", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh",
    "lgamma", "digamma", "div", "divu", "reciprocal", "remainder", "sigmoid", "gelu", "silu", "softplus", "mish", "elu",
    "selu", "celu", "hardswish", "logit", "addcdiv",
))  # fmt: skip
"""Operators with one exponential, logarithm, root, division or the like per element. Divisions are among them because every
processor takes several times as long for one as for a product."""

_SAME = {
    "add": "addf addi add_ fadd",
    "sub": "subf subi subtract sub_ fsub",
    "mul": "mulf muli multiply mul_ mulsi_extended mului_extended fmul",
    "div": "divf divsi divui divide intdiv floordivsi ceildivsi ceildivui true_divide div_ floor_divide fdiv sdiv udiv",
    "neg": "negf negate negative fneg",
    "abs": "absf absi absolute fabs",
    "maximum": "maximumf maxnumf maxsi maxui max maxf maximum maxnum",
    "minimum": "minimumf minnumf minsi minui min minf minimum minnum",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log1p": "log_plus_one",
    "sin": "sine",
    "cos": "cosine",
    "pow": "power powf fpowi ipowi",
    "sigmoid": "logistic",
    "rsqrt": "rsqrtf",
    "silu": "swish",
    "remainder": "remf remsi remui remainder mod fmod frem srem urem",
    "sqrt": "sqrtf",
    "compare": "cmpf cmpi icmp fcmp equal greater greater_equal not_equal less less_equal eq ne lt le gt ge isnan isinf "
    "isfinite is_finite",
    "select": "where masked_fill",
    "convert": "extf truncf sitofp uitofp fptosi fptoui extsi extui trunci index_cast index_castui cast to "
    "convert_element_type convertf scaling_extf scaling_truncf to_fp fp_to_fp quantize dequantize uniform_quantize "
    "uniform_dequantize rescale reduce_precision _to_copy "
    "sext zext fpext fptrunc",
    "and": "andi bitwise_and logical_and __and__",
    "or": "ori bitwise_or logical_or",
    "xor": "xori bitwise_xor logical_xor",
    "not": "bitwise_not logical_not",
    "floor": "floorf",
    "ceil": "ceilf",
    "round": "roundeven round_nearest_even round_nearest_afz roundf",
    "fma": "multiply_add fmuladd",
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


_NO_ARITHMETIC = frozenset((
    "constant", "yield", "return", "index", "index_cast", "assert", "apply", "extract", "delinearize_index",
    "linearize_index", "bitcast", "dim",
))  # fmt: skip
_COMBINERS = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod", "and": "all", "or": "any", "xor": "xor"}
_WITH_SCALAR = {"add": "addu", "mul": "mulu", "div": "divu", "pow": "powu"}


@dataclass(frozen=True, slots=True)
class Body:
    """What a body computes for one element.

    Attributes:
        operators: Its operators, in order.
        flops: Arithmetic operations.
        transcendentals: Exponentials, roots, divisions and the like.
        name: One name for all of it.
    """

    operators: tuple[str, ...]
    flops: float
    transcendentals: float
    name: str


def read_body(region_ops: Iterable[Op], arguments: Sequence[int] = ()) -> Body:
    """Count a body's operations; `arguments` are what it is entered with, where it matters which values are constants."""
    ops = tuple(region_ops)
    counted = [(operator(short), op) for op in ops if (short := op.name.rpartition(".")[2]) not in _NO_ARITHMETIC]
    names = tuple(name for name, _ in counted)
    costs = [arithmetic(name) for name in names]
    return Body(
        names, sum(cost[0] for cost in costs), sum(cost[1] for cost in costs), _named(names, counted, ops, arguments)
    )


def is_its_operand(op: Op, name: str) -> bool:
    """Whether an operation, whose operator is `name`, is the larger or the smaller of a value and itself: compilers fold it."""
    return name in ("maximum", "minimum", "and", "or") and len(op.operands) > 1 and op.operands[0] == op.operands[1]


def combiner(ops: Sequence[Op]) -> str:
    """The operator of a reduction, from its body: `sum`, `max` …; `argmax` where a place is kept along."""
    names = {operator(op.name.rpartition(".")[2]) for op in ops} - _NO_ARITHMETIC
    if "select" in names and sum(len(op.operands) for op in ops if op.name.endswith(("return", "yield"))) > 1:
        return "argmax"
    items = [_COMBINERS[name] for name in ("mul", "add", "maximum", "minimum", "and", "or", "xor") if name in names]
    return items[-1] if items else ("max" if "select" in names else "reduce")


def puts_larger_first(regions: Sequence[Region]) -> bool:
    """Whether the comparator of a sort is `first argument > second argument` and nothing else."""
    blocks = [block for region in regions for block in region.blocks]
    if len(blocks) != 1 or len(blocks[0].ops) != 2:
        return False
    (first, second, *_), (compared, returned) = blocks[0].arguments, blocks[0].ops
    direction = attributes.word(compared.attributes, "comparison_direction")
    return (
        compared.name.endswith("compare")
        and (direction == "GT" or compared.attributes.strip().startswith("GT"))
        and compared.operands == (first, second)
        and returned.operands == compared.results
    )


def combined_by(name: str) -> str:
    """The operator of a reduction that applies one operation, by that operation's name."""
    short = operator(name.rpartition(".")[2])
    return _COMBINERS.get(short, short)


def _named(
    names: tuple[str, ...], counted: Sequence[tuple[str, Op]], ops: Sequence[Op], arguments: Sequence[int]
) -> str:
    """The operator a body is, where kernelcast has a name for it; else its last operation's."""
    if not names:
        return "copy"
    if len(names) == 1:
        name, op = counted[0]
        one_constant = len(op.operands) == 2 and _has_constant(op, ops, arguments)
        return {**_WITH_SCALAR, "maximum": "relu"}.get(name, name) if one_constant else name
    distinct = frozenset(names)
    return next((name for name, parts in _WRITTEN_OUT if distinct in parts), names[-1])


_WRITTEN_OUT: tuple[tuple[str, tuple[frozenset[str], ...]], ...] = tuple(
    (name, tuple(frozenset(part.split()) for part in parts))
    for name, parts in (
        ("relu", ("compare select",)),
        ("sigmoid", ("neg exp add div", "neg exp addu div")),
        ("silu", ("neg exp add div mul", "sigmoid mul")),
        ("gelu", ("erf mul add", "erf mul add div", "tanh mul add", "tanh mul add pow")),
    )
)
"""Operators that are formulas, by the sets of operations their definitions are written in."""


def _has_constant(op: Op, ops: Sequence[Op], arguments: Sequence[int]) -> bool:
    """Whether an operand is a constant: made by one in the body, or from outside of it."""
    computed = {result for other in ops if not other.name.endswith("constant") for result in other.results}
    return any(value not in computed and value not in arguments for value in op.operands) if arguments else False
