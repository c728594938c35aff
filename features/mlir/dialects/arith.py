"""arith, math, complex and index: arithmetic on numbers, vectors and tensors; on indices it is addressing, and is folded."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from ..semantics import costs
from ..semantics.dynamic_sizes import of_operands
from ..semantics.op_rule import Cost, Dialect, Known, Site, rules
from ..semantics.operators import operator
from ..types import attributes
from ..types.attributes import parse_map

_ARITH = (
    "addf addi addui_extended andi bitcast cmpf cmpi divf divsi divui ceildivsi ceildivui floordivsi extf extsi "
    "extui fptosi fptoui maximumf maxnumf maxsi maxui minimumf minnumf minsi minui mulf muli mulsi_extended "
    "mului_extended negf ori remf remsi remui scaling_extf scaling_truncf select shli shrsi shrui sitofp subf "
    "subi truncf trunci uitofp xori index_cast index_castui convertf flush_denormals"
)
_MATH = (
    "absf absi acos acosh asin asinh atan atan2 atanh cbrt ceil clampf copysign cos cosh ctlz ctpop cttz erf erfc "
    "exp exp2 expm1 floor fma fpowi ipowi isfinite isinf isnan isnormal log log10 log1p log2 powf round roundeven "
    "rsqrt sin sincos sinh sqrt tan tanh trunc"
)
_COMPLEX = (
    "abs add angle atan2 bitcast conj cos create div eq exp expm1 im log log1p mul neg neq pow powi re rsqrt sign "
    "sin sqrt sub tan tanh"
)
_INDEX = (
    "add and bool.constant casts castu ceildivs ceildivu cmp divs divu floordivs maxs maxu mins minu mul or rems "
    "remu shl shrs shru sub xor sizeof"
)


def _number(site: Site) -> Cost:
    """Arithmetic; on indices it only says where data is."""
    if (
        site.results
        and site.results[0].kind == "scalar"
        and (site.results[0].dtype == "index" or any(kind.dtype == "index" for kind in site.operands))
    ):
        return costs.control(site)
    return costs.elementwise(site, operator(site.short))


def constant_number(site: Site) -> Known:
    """The integer, or the list of them, that a constant is; None for floating-point and for larger arrays."""
    kind = site.results[0]
    if (
        kind.dtype.startswith("fp")
        or kind.dtype in ("bf16", "tf32")
        or (kind.shape is not None and len(kind.shape) > 1)
    ):
        return None
    written = attributes.value(site.text, "value") or site.text
    numbers = attributes.numbers(written)
    if numbers is None:
        return None
    return numbers if kind.shape else numbers[0]


def _both(act: Callable[[int, int], int]) -> Callable[[Site], Known]:
    def fold(site: Site) -> Known:
        left, right = site.known(0), site.known(1)
        return act(left, right) if isinstance(left, int) and isinstance(right, int) else None

    return fold


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": lambda a, b: int(a / b),
    "divui": lambda a, b: a // b,
    "floordivsi": lambda a, b: floor(a / b),
    "ceildivsi": lambda a, b: ceil(a / b),
    "ceildivui": lambda a, b: -(-a // b),
    "remsi": lambda a, b: a % b,
    "remui": lambda a, b: a % b,
    "maxsi": max,
    "maxui": max,
    "minsi": min,
    "minui": min,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
}
_FOLDED_INDEX = {
    "add": "addi",
    "sub": "subi",
    "mul": "muli",
    "divs": "divsi",
    "divu": "divui",
    "floordivs": "floordivsi",
    "ceildivs": "ceildivsi",
    "ceildivu": "ceildivui",
    "rems": "remsi",
    "remu": "remui",
    "maxs": "maxsi",
    "maxu": "maxui",
    "mins": "minsi",
    "minu": "minui",
}
_PASSED = ("index_cast", "index_castui", "extsi", "extui", "trunci")


def _passed(site: Site) -> Known:
    return site.known(0)


_COMPARED: tuple[Callable[[int, int], bool], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


def _compared(site: Site) -> Known:
    left, right, predicate = site.known(0), site.known(1), site.int_of("predicate")
    if isinstance(left, int) and isinstance(right, int) and predicate is not None:
        return int(_COMPARED[predicate](left, right))
    return None


def _selected(site: Site) -> Known:
    chosen = site.known(0)
    return site.known(1 if chosen else 2) if isinstance(chosen, int) else None


def _applied(site: Site) -> tuple[float | None, ...]:
    written = attributes.value(site.text, "map")
    result = parse_map(written if written is not None else site.text)
    if result is None:
        return ()
    known = [site.known(position) for position in range(len(site.operands))]
    return result.values([number if isinstance(number, int) else None for number in known])


def _apply(site: Site) -> Known:
    result = _applied(site)
    return int(result[0]) if len(result) == 1 and result[0] is not None else None


def _least(site: Site) -> Known:
    """The least of those results that are known: of `min(32, n - i)` the full tile."""
    items = [value for value in _applied(site) if value is not None]
    return int(min(items)) if items else None


def _most(site: Site) -> Known:
    items = [value for value in _applied(site) if value is not None]
    return int(max(items)) if items else None


DIALECT = Dialect(
    "arith",
    {
        **rules(_ARITH, _number, dialect="arith", shapes=of_operands),
        **{
            key: rule
            for name, act in _FOLDED.items()
            for key, rule in rules((name,), _number, dialect="arith", shapes=of_operands, fold=_both(act)).items()
        },
        **rules(_PASSED, _number, dialect="arith", shapes=of_operands, fold=_passed),
        **rules("cmpi", _number, dialect="arith", shapes=of_operands, fold=_compared),
        **rules("select", _number, dialect="arith", shapes=of_operands, fold=_selected),
        **rules("constant", costs.constant, dialect="arith", fold=constant_number),
        **rules(_MATH, _number, dialect="math", shapes=of_operands),
        **rules(_COMPLEX, _number, dialect="complex", shapes=of_operands),
        **rules("constant", costs.constant, dialect="complex"),
        **rules(_INDEX, costs.control, dialect="index"),
        **{
            key: rule
            for name, same in _FOLDED_INDEX.items()
            for key, rule in rules((name,), costs.control, dialect="index", fold=_both(_FOLDED[same])).items()
        },
        **rules("casts castu", costs.control, dialect="index", fold=_passed),
        **rules("constant", costs.constant, dialect="index", fold=constant_number),
        **rules("apply", costs.control, dialect="affine", fold=_apply),
        **rules("min", costs.control, dialect="affine", fold=_least),
        **rules("max", costs.control, dialect="affine", fold=_most),
        **rules("delinearize_index linearize_index", costs.control, dialect="affine"),
    },
)
