"""Machine instructions that one element of a Triton operation takes, by class: rules of thumb for NVIDIA's GPUs.

From the PTX that Triton writes (third_party/nvidia and libdevice) and what ptxas makes of it: one instruction for
what the machine has, a handful for roots, logarithms and quotients, tens for what goes through libdevice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..types.graph import Op, ValueType
from .axis_info import Axis
from .program_order import is_pointer

CLASSES = ("float", "integer", "long", "compare", "select", "convert", "fp8", "quotient", "modulo", "exponential",
    "logarithm", "root",
           "angle", "library", "half")  # fmt: skip
"""Kinds of instructions. `long` are integers of 64 bits and addresses, `half` arithmetic in 16 bits, `angle` sines
and cosines, whose slow path keeps a table of 28 bytes on the stack, `library` other functions of libdevice."""

_PLACE = {name: i for i, name in enumerate(CLASSES)}

_TABLE: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("addf", "subf", "mulf", "maxnumf", "minnumf", "maximumf", "minimumf", "negf", "fma", "absf",
        "clampf"), ("float", 1.0)),
    **dict.fromkeys(("floor", "ceil", "round", "roundeven", "trunc"), ("convert", 1.0)),
    **dict.fromkeys(("addi", "subi", "muli", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori", "shli", "shrsi",
        "shrui",
                     "absi", "mulhiui", "ctlz", "cttz", "ctpop"), ("integer", 1.0)),
    **dict.fromkeys(("cmpi", "cmpf"), ("compare", 1.0)),
    "select": ("select", 1.0),
    **dict.fromkeys(("extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui", "extsi", "extui", "trunci"), ("convert",
        1.0)),
    "fp_to_fp": ("fp8", 4.0),
    "divf": ("quotient", 8.0), "precise_divf": ("quotient", 16.0),
    **dict.fromkeys(("divsi", "divui", "remsi", "remui"), ("modulo", 20.0)),
    "exp": ("exponential", 4.0), "exp2": ("exponential", 2.0),
    "log": ("logarithm", 18.0), "log2": ("logarithm", 5.0), "log1p": ("logarithm", 22.0),
    "sqrt": ("root", 5.0), "rsqrt": ("root", 4.0), "precise_sqrt": ("root", 14.0),
    "sin": ("angle", 90.0), "cos": ("angle", 90.0),
    "erf": ("library", 24.0), "tanh": ("library", 16.0), "extern_elementwise": ("library", 20.0),
    "elementwise_inline_asm": ("library", 4.0),
}  # fmt: skip
"""Class and instructions per element by the operation's short name. A signed quotient of unknown whole numbers takes
about twenty, by a known power of two three."""

_SYMBOLS = re.compile(r"__nv_([a-z0-9_]+)")
_LIBRARY: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("sinf", "cosf", "tanf", "sincosf"), ("angle", 90.0)), "powf": ("library", 40.0),
        "tanhf": ("library", 16.0),
    "fmodf": ("library", 30.0), "atan2f": ("library", 40.0), "expm1f": ("library", 14.0), "log1pf": ("logarithm", 22.0),
    "rsqrtf": ("root", 4.0), "erff": ("library", 24.0),
}  # fmt: skip
_BY_KNOWN = 3.0
_FREE = frozenset((
    "constant", "splat", "broadcast", "expand_dims", "make_range", "reshape", "trans", "bitcast", "get_program_id",
    "get_num_programs",
    "load", "store", "dot", "reduce", "scan", "for", "if", "while", "atomic_rmw", "atomic_cas", "yield", "return",
    "gather", "histogram",
    "descriptor_load", "descriptor_store", "make_tensor_descriptor", "join", "split", "cat", "condition", "unsplat",
    "int_to_ptr",
    "ptr_to_int", "index_cast", "assert", "print", "map_elementwise", "call", "dot_scaled",
))  # fmt: skip
"""Counted elsewhere, or free."""


def cost_of(op: Op, types: Sequence[ValueType], axes: Mapping[int, Axis]) -> tuple[bool, int, float]:
    """Whether an operation is known, its class as a place in `CLASSES`, and instructions per element."""
    short = op.name.partition(".")[2]
    if short == "addptr":
        return True, _PLACE["long"], 2.0
    if short in _FREE or not op.results:
        return short in _FREE, 0, 0.0
    kind, each = _TABLE.get(short, ("library", 10.0))
    dtype = types[op.results[0]].dtype
    operand = types[op.operands[0]].dtype if op.operands else dtype
    if short == "extern_elementwise":
        symbol = _SYMBOLS.search(op.attributes)
        kind, each = _LIBRARY.get(symbol[1] if symbol else "", (kind, each))
    if kind == "modulo":
        divisor = axes.get(op.operands[1]) if len(op.operands) > 1 else None
        each = _BY_KNOWN if divisor is not None and divisor.value is not None else each
    if kind == "integer" and dtype == "i1":
        return True, _PLACE["compare"], 0.5
    if dtype == "int64" or is_pointer(types[op.results[0]]):
        kind, each = ("long" if kind in ("integer", "convert") else kind), each * 2.0
    if kind == "float" and dtype in ("fp16", "bf16"):
        kind, each = "half", 0.5
    if kind == "convert" and "fp8" in (dtype, operand):
        kind, each = "fp8", 4.0
    return short in _TABLE, _PLACE[kind], each
