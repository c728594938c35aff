"""arith, math, complex and index: arithmetic on numbers, vectors and tensors; on indices it is addressing, and is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..semantics import costs
from ..semantics.dynamic_sizes import of_operands
from ..semantics.folding import constant, folded, folding, passed
from ..semantics.op_rule import Cost, Dialect, FoldOf, Known, Site, rules
from ..types import attributes
from ..types.attributes import parse_map

_ARITH = (
    "addf addui_extended bitcast cmpf divf extf fptosi fptoui maximumf maxnumf minimumf minnumf mulf mulsi_extended "
    "mului_extended negf remf scaling_extf scaling_truncf shli shrsi shrui sitofp subf truncf uitofp xori convertf "
    "flush_denormals"
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


def _number(site: Site) -> Cost:
    """Arithmetic; on indices it only says where data is."""
    if (
        site.results
        and site.results[0].kind == "scalar"
        and (site.results[0].dtype == "index" or any(kind.dtype == "index" for kind in site.operands))
    ):
        return costs.control(site)
    return costs.by_name(site)


_PREDICATES = tuple(map(folded, ("eq", "ne", "lt", "le", "gt", "ge", "lt", "le", "gt", "ge")))
"""By the values of `arith.cmpi`'s predicate (ArithBase.td), signed and unsigned."""


def _compared(site: Site) -> Known:
    predicate = site.int_of("predicate")
    return None if predicate is None else _PREDICATES[predicate](site)


def _selected(site: Site) -> Known:
    chosen = site.known(0)
    return site.known(1 if chosen else 2) if isinstance(chosen, int) else None


def _of_map(choose: Callable[[Iterable[float]], float]) -> FoldOf:
    """The one result of a map, or one of those that are known: of `min(32, n - i)` the full tile."""

    def fold(site: Site) -> Known:
        written = attributes.value(site.text, "map")
        result = parse_map(written if written is not None else site.text)
        if result is None:
            return None
        known = [site.known(position) for position in range(len(site.operands))]
        values = result.values([number if isinstance(number, int) else None for number in known])
        items = [value for value in values if value is not None]
        return int(choose(items)) if items else None

    return fold


DIALECT = Dialect(
    "arith",
    {
        **rules("arith", _ARITH, _number, of_operands),
        **folding(
            "arith",
            _number,
            {
                "add": "addi",
                "sub": "subi",
                "mul": "muli",
                "truncdiv": "divsi",
                "floordiv": "divui floordivsi",
                "ceildiv": "ceildivsi ceildivui",
                "mod": "remsi remui",
                "max": "maxsi maxui",
                "min": "minsi minui",
                "and": "andi",
                "or": "ori",
            },
            of_operands,
        ),
        **rules("arith", "index_cast index_castui extsi extui trunci", _number, of_operands, fold=passed),
        **rules("arith", "cmpi", _number, of_operands, fold=_compared),
        **rules("arith", "select", _number, of_operands, fold=_selected),
        **rules("arith", "constant", costs.constant, fold=constant),
        **rules("math", _MATH, _number, of_operands),
        **rules("complex", _COMPLEX, _number, of_operands),
        **rules("complex", "constant", costs.constant),
        **rules("index", "and bool.constant cmp or shl shrs shru xor sizeof", costs.control),
        **folding(
            "index",
            costs.control,
            {
                "add": "add",
                "sub": "sub",
                "mul": "mul",
                "truncdiv": "divs",
                "floordiv": "divu floordivs",
                "ceildiv": "ceildivs ceildivu",
                "mod": "rems remu",
                "max": "maxs maxu",
                "min": "mins minu",
            },
        ),
        **rules("index", "casts castu", costs.control, fold=passed),
        **rules("index", "constant", costs.constant, fold=constant),
        **rules("affine", "apply min", costs.control, fold=_of_map(min)),
        **rules("affine", "max", costs.control, fold=_of_map(max)),
        **rules("affine", "delinearize_index linearize_index", costs.control),
    },
)
