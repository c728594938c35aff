"""What a thread needs for a Triton function as it stands: registers for the values alive at the same time, and instructions
for each operation.

Instructions are rules of thumb for NVIDIA's GPUs, from the PTX that Triton writes (third_party/nvidia and libdevice) and what
ptxas makes of it: one for what the machine has, a handful for roots, logarithms and quotients, tens for what goes through
libdevice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ...batch.cases import Floats
from ..types.graph import Op, ValueType
from .axis_info import Axis
from .layouts import Layouts
from .program_order import Flow, is_pointer, itemsize_b, roots_of, shape_of

VIEWS = frozenset(("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "arith.bitcast", "tt.unsplat"))
"""What they give is in the registers of what they take."""

_WIDENINGS = frozenset(("arith.extf", "arith.extsi", "arith.extui", "tt.fp_to_fp"))
"""A compiler that is short of registers keeps what these take and widens it where it is used."""

_FREE = frozenset(("arith.constant", "tt.make_range", "tt.get_program_id", "tt.get_num_programs"))
"""Computed anew wherever it is needed."""

_SOURCES = frozenset((
    "tt.load", "tt.dot", "tt.reduce", "tt.scan", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.gather",
    "tt.histogram",
))  # fmt: skip
"""What gives data: it cannot be computed again for less than it costs to keep."""

REGISTER_B = 4.0
"""Bytes of a register: GPU registers have 32 bits."""


def distinct(value: int, types: Sequence[ValueType], axes: Mapping[int, Axis], layouts: Layouts) -> float:
    """Different elements of a value that a thread holds: along dimensions where all are equal, one."""
    shape = shape_of(types[value])
    spread = layouts.spreads.get(value)
    if not shape or spread is None:
        return 1.0
    axis = axes.get(value)
    match = 1.0
    for i, item in enumerate(spread.per_thread):
        if axis is None or len(axis.constancy) != len(shape) or axis.constancy[i] < shape[i]:
            match *= item
    return match


def liveness_of(
    flow: Flow, types: Sequence[ValueType], axes: Mapping[int, Axis], layouts: Layouts, arguments: Sequence[int],
    data: set[int], *, packed: bool = False,
) -> Floats:  # fmt: skip
    """Live registers per thread before each step, shape `(8, n_steps)`; `packed`: what is only widened counts as it was.

    The rows: data that was read or accumulated, positions and offsets, addresses of accesses, predicates (32 to a
    register), the number of values with more than one element per thread, results of products, data with addresses, and
    all together.

    Args:
        flow: The function's operations in order.
        types: Types by value.
        axes: What is known of values along each dimension.
        layouts: How blocks are spread over threads.
        arguments: Values the function is called with.
        data: Values that were read from memory or accumulated.
        packed: Whether a value that is only widened counts in its narrow format.
    """
    n = len(flow.steps)
    root = roots_of(flow, VIEWS | _WIDENINGS if packed else VIEWS)
    begin, end = _ranges(flow, root, arguments)
    columns = np.zeros((6, n + 1))
    free = {value for op in flow.steps if op.name in _FREE for value in op.results}
    for value, start in begin.items():
        last = end.get(value, start)
        if value in free or last <= start:
            continue
        place, amount = _amount(value, types, axes, layouts, data)
        columns[place, start] += amount
        columns[place, min(last, n)] -= amount
        if value in layouts.from_product:
            columns[5, start] += amount
            columns[5, min(last, n)] -= amount
        elif amount > 1:
            columns[4, start] += 1
            columns[4, min(last, n)] -= 1
    live = np.cumsum(columns, axis=1)[:, :n]
    with_addresses = live[0] + live[2]
    return np.vstack([live, with_addresses, with_addresses + live[1] + live[3]])


def data_of(flow: Flow) -> set[int]:
    """Values that depend on what was read or accumulated; all others are made of arguments and positions."""
    match: set[int] = set()
    for _ in range(_PASSES):
        for op in flow.steps:
            if op.name in _SOURCES or (not op.regions and not match.isdisjoint(op.operands)):
                match.update(op.results)
        for loop in flow.loops:
            for carried, before, after, result in zip(
                loop.carried, loop.inits, loop.yields, loop.results, strict=False
            ):
                if before in match or after in match:
                    match.update((carried, result))
        for results, sides in flow.branches:
            for position, result in enumerate(results):
                if any(position < len(side) and side[position] in match for side in sides):
                    match.add(result)
    return match


_PASSES = 3
"""What one loop makes data of may be carried into the next."""


def _ranges(flow: Flow, root: Mapping[int, int], arguments: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The step each value is made at, and the last that uses it; loops keep what they use from outside to their end."""
    begin = dict.fromkeys(arguments, 0)
    home = dict.fromkeys(arguments, -1)
    end: dict[int, int] = {}
    for loop_number, loop in enumerate(flow.loops):
        local = loop.carried
        if loop.op.name == "scf.for" and loop.op.regions[0].blocks:
            local = loop.op.regions[0].blocks[0].arguments
        for value in local:
            begin[value], home[value], end[value] = loop.start, loop_number, loop.end
        for value in loop.results:
            begin[value], home[value] = loop.end - 1, loop.parent
    for i, op in enumerate(flow.steps):
        for value in op.results:
            if value not in root:
                begin.setdefault(value, i)
                home.setdefault(value, flow.loop_of[i])
        for used in op.operands:
            value = root.get(used, used)
            last, around = i, flow.loop_of[i]
            while around >= 0 and around != home.get(value, -1):
                last, around = flow.loops[around].end, flow.loops[around].parent
            end[value] = max(end.get(value, 0), last)
    return begin, end


def _amount(
    value: int, types: Sequence[ValueType], axes: Mapping[int, Axis], layouts: Layouts, data: set[int]
) -> tuple[int, float]:
    """Which class a value is in, and its registers."""
    kind = types[value]
    elements = distinct(value, types, axes, layouts)
    registers = max(elements * itemsize_b(kind) / REGISTER_B, 1.0 / 32.0)
    if kind.dtype == "i1":
        return 3, registers
    shape = shape_of(kind)
    access = layouts.widths.get(shape)
    if is_pointer(kind):
        # One address serves neighbours: what is added is part of the instruction.
        return 2, registers / (access.run if access is not None and elements > 1 else 1.0)
    if value in data:
        return 0, max(registers, 1.0)
    # Neighbours that are equal or count up are one register and a constant; scrambled positions (random numbers) are
    # not.
    axis = axes.get(value)
    runs = max((max(c, e) for c, e in zip(axis.contiguity, axis.constancy, strict=True)), default=1) if axis else 1
    shared = min(access.run, runs) if access is not None and elements > 1 else 1
    return 1, max(registers / max(shared, 1), 1.0)


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
_COUNTED_ELSEWHERE = frozenset((
    "constant", "splat", "broadcast", "expand_dims", "make_range", "reshape", "trans", "bitcast", "get_program_id",
    "get_num_programs", "load", "store", "dot", "reduce", "scan", "for", "if", "while", "atomic_rmw", "atomic_cas",
    "yield", "return", "gather", "histogram", "descriptor_load", "descriptor_store", "make_tensor_descriptor", "join",
    "split", "cat", "condition", "unsplat", "int_to_ptr", "ptr_to_int", "index_cast", "assert", "print",
    "map_elementwise", "call", "dot_scaled",
))  # fmt: skip
"""Counted elsewhere, or free."""


def cost_of(op: Op, types: Sequence[ValueType], axes: Mapping[int, Axis]) -> tuple[bool, int, float]:
    """Whether an operation is known, its class as a place in `CLASSES`, and instructions per element."""
    short = op.name.partition(".")[2]
    if short == "addptr":
        return True, _PLACE["long"], 2.0
    if short in _COUNTED_ELSEWHERE or not op.results:
        return short in _COUNTED_ELSEWHERE, 0, 0.0
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
