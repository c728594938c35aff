"""A Triton function: what it is compiled for, and its operations in the order they run, with the loops around them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from ...errors import SpecError, listed
from ..types.graph import Function, Module, Op, Region, ValueType

WARP = 32
"""Threads of a warp."""

TARGETS: Mapping[str, int] = {"sm_80": 80, "sm_90": 90}
"""Targets that can be asked about, with their compute capability."""

WARP_COUNTS = (1, 2, 4, 8, 16, 32)
"""Warps of a block that Triton takes: powers of two."""

MOST_STAGES = 16
"""Most pipeline stages that are accepted."""

REGISTERS = 65536
MOST_REGISTERS = 255
"""Registers of a multiprocessor, and the most of a thread (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability")."""


def register_limit(num_warps: int) -> int:
    """The most registers a thread of a block of so many warps can have: one block must fit, in units of eight."""
    return min(MOST_REGISTERS, REGISTERS // (WARP * num_warps) // 8 * 8)


@dataclass(frozen=True, slots=True)
class Options:
    """What a Triton function is compiled for.

    Attributes:
        target: Compute capability, such as `sm_90`.
        num_warps: Warps of a block, a power of two.
        num_stages: Stages that loops keep in flight.

    Raises:
        SpecError: a target, a number of warps or of stages that does not exist.
    """

    target: str
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise SpecError(f"no target {self.target!r}; targets: {listed(TARGETS)}", field="target")
        if isinstance(self.num_warps, bool) or self.num_warps not in WARP_COUNTS:
            raise SpecError(
                f"num_warps is {self.num_warps!r}; it is one of {listed(map(str, WARP_COUNTS))}", field="num_warps"
            )
        whole = isinstance(self.num_stages, int) and not isinstance(self.num_stages, bool)
        if not whole or not 1 <= self.num_stages <= MOST_STAGES:
            raise SpecError(
                f"num_stages is {self.num_stages!r}; it is a whole number from 1 to {MOST_STAGES}", field="num_stages"
            )


def triton_function(module: Module, name: str | None) -> Function:
    """The function of that name, or the only public one, of a module in Triton IR.

    Raises:
        SpecError: there is none, more than one without a name given, or it is no Triton IR.
    """
    bodies = [function for function in module.functions if function.body is not None]
    items = [body for body in bodies if _is_triton(body)]
    if not items:
        raise SpecError(
            "the text is no Triton IR: no operation of it is one of Triton's (tt.…); give a .ttir", field="mlir"
        )
    if name is not None:
        result = [item for item in items if item.name == name]
        if not result:
            raise SpecError(
                f"no Triton function {name!r}; functions: {listed(item.name for item in items)}", field="function"
            )
        return result[0]
    public = [item for item in items if item.is_public] or items
    if len(public) > 1:
        raise SpecError(f"{len(public)} functions; name one: {listed(item.name for item in public)}", field="function")
    return public[0]


def _is_triton(function: Function) -> bool:
    return any(op.dialect == "tt" for op in flow_of(function).steps)


REGION_OPS = frozenset(("tt.reduce", "tt.scan", "tt.map_elementwise"))
"""Their regions say how two elements become one; they are read with the operation, not in the order things run."""

_LOOPS = frozenset(("scf.for", "scf.while"))
_POINTER = re.compile(r"!tt\.ptr<")
_POINTEE = re.compile(r"!tt\.ptr<\s*(?:tensor<(?:\d+x)*)?([A-Za-z]+?)(\d*)(?:E\dM\d\w*)?\s*[>,]")
POINTER_B = 8
"""Bytes of an address."""


@dataclass(slots=True)
class Loop:
    """A loop of a Triton function.

    Attributes:
        op: Its operation.
        start: Position of its first step.
        end: Position past its last step.
        parent: Position of the loop around it, -1 where there is none.
        carried: Values its body is entered with.
        inits: Their values before the first iteration.
        yields: Their values after each iteration.
        results: Their values after the last.
    """

    op: Op
    start: int
    end: int
    parent: int
    carried: tuple[int, ...]
    inits: tuple[int, ...]
    yields: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(slots=True)
class Flow:
    """The steps of a Triton function in order, with its loops and branches.

    Attributes:
        steps: Operations in order.
        loop_of: For each step the innermost loop around it, a position in `loops`, or -1.
        loops: Loops in order.
        branches: For each `scf.if` its results with the values of either side.
    """

    steps: list[Op] = field(default_factory=list)
    loop_of: list[int] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    branches: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = field(default_factory=list)

    def depth(self, loop: int) -> int:
        """Loops around a step whose innermost loop is `loop`."""
        result = 0
        while loop >= 0:
            result, loop = result + 1, self.loops[loop].parent
        return result


def flow_of(function: Function) -> Flow:
    """The steps of a function that has a body."""
    flow = Flow()
    if function.body is not None:
        _region(function.body, flow, -1)
    return flow


def _region(region: Region, flow: Flow, loop: int) -> None:
    for block in region.blocks:
        for op in block.ops:
            _step(op, flow, loop)


_LEAST = {
    "tt.load": (1, 1), "tt.store": (2, 0), "tt.dot": (3, 1), "tt.reduce": (1, 1), "tt.scan": (1, 1), "tt.splat": (1, 1),
    "tt.broadcast": (1, 1), "tt.expand_dims": (1, 1), "tt.trans": (1, 1), "tt.addptr": (2, 1), "tt.atomic_rmw": (2, 0),
    "tt.atomic_cas": (3, 0), "tt.make_range": (0, 1), "arith.constant": (0, 1),
}  # fmt: skip
"""Operands and results that operations have at the least; with fewer a reader did not understand them."""

_UNREAD = "unread."


def _step(op: Op, flow: Flow, loop: int) -> None:
    least = _LEAST.get(op.name, (0, 0))
    if len(op.operands) < least[0] or len(op.results) < least[1]:
        op = Op(_UNREAD + op.name, op.operands, op.results, op.attributes, (), op.line)
    flow.steps.append(op)
    flow.loop_of.append(loop)
    if not op.regions or op.name in REGION_OPS:
        return
    if op.name not in _LOOPS:
        for region in op.regions:
            _region(region, flow, loop)
        if op.results:
            flow.branches.append((op.results, [_yields(region) for region in op.regions]))
        return
    number = len(flow.loops)
    arguments = op.regions[0].blocks[0].arguments if op.regions[0].blocks else ()
    is_for = op.name == "scf.for"
    result = Loop(op, len(flow.steps), 0, loop, arguments[1:] if is_for else arguments,
        op.operands[3:] if is_for else op.operands,
                 _yields(op.regions[-1]), op.results)  # fmt: skip
    flow.loops.append(result)
    for region in op.regions:
        _region(region, flow, number)
    result.end = len(flow.steps)


def _yields(region: Region) -> tuple[int, ...]:
    for block in region.blocks:
        if block.ops and block.ops[-1].name == "scf.yield":
            return block.ops[-1].operands
    return ()


def roots_of(flow: Flow, views: frozenset[str]) -> dict[int, int]:
    """For what operations of `views` give, what they were given at the first of them in a row."""
    root: dict[int, int] = {}
    for op in flow.steps:
        if op.name in views and op.operands:
            for value in op.results:
                root[value] = root.get(op.operands[0], op.operands[0])
    return root


def is_pointer(kind: ValueType) -> bool:
    """Whether it is an address or an array of addresses."""
    return _POINTER.match(kind.dtype or kind.text) is not None


def pointee_b(kind: ValueType) -> float:
    """Bytes of what an address points at; 1 where it does not say."""
    match = _POINTEE.match(kind.dtype or kind.text)
    if match is None:
        return 1.0
    bits = _WORDS.get(match[1] + match[2]) or (int(match[2]) if match[2] else 8)
    return max(bits / 8.0, 1.0)


_WORDS = {"bf16": 16, "f8": 8}


def itemsize_b(kind: ValueType) -> float:
    """Bytes of an element in registers; an address takes eight, a truth value an eighth: they are packed in
    predicates.
    """
    if is_pointer(kind):
        return POINTER_B
    return 0.125 if kind.dtype == "i1" else kind.itemsize_b


def shape_of(kind: ValueType) -> tuple[int, ...]:
    """The sizes of a block; empty for what is none, or of sizes not known."""
    if kind.kind != "tensor" or not kind.shape or None in kind.shape:
        return ()
    return tuple(size or 1 for size in kind.shape)


def number_of(attributes: str, name: str) -> int | None:
    """The whole number an attribute is given as: 1 of `axis = 1 : i32`."""
    match = re.search(rf"\b{name} = (-?\d+)", attributes)
    return int(match[1]) if match else None


def body_ops(op: Op) -> list[Op]:
    """The operations in the regions of one of `REGION_OPS`, what ends them left off."""
    ops: list[Op] = []
    for inner in (inner for region in op.regions for block in region.blocks for inner in block.ops):
        if not inner.name.endswith((".return", ".yield")):
            ops.append(inner)
        ops += body_ops(inner)
    return ops


COUNTED = (
    "tt.splat", "tt.broadcast", "tt.addptr", "tt.expand_dims", "tt.load", "tt.store", "tt.make_range", "tt.dot",
    "tt.reduce", "tt.trans", "tt.reshape", "tt.scan", "tt.gather", "tt.histogram", "tt.atomic_rmw", "tt.atomic_cas",
    "tt.extern_elementwise", "tt.get_program_id", "tt.make_tensor_descriptor", "tt.descriptor_load",
    "tt.descriptor_store", "tt.precise_divf", "tt.precise_sqrt", "tt.join", "tt.split", "tt.clampf", "tt.fp_to_fp",
    "tt.elementwise_inline_asm", "scf.for", "scf.while", "scf.if", "arith.constant", "arith.muli", "arith.addi",
    "arith.cmpi", "arith.addf", "arith.mulf", "arith.subf", "arith.divf", "arith.extsi", "arith.andi", "arith.divsi",
    "arith.remsi", "arith.truncf", "arith.extf", "arith.maxnumf", "arith.select", "arith.cmpf", "arith.sitofp",
    "arith.xori", "math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.erf", "math.sin",
    "math.cos", "math.absf", "math.fma", "math.floor",
)  # fmt: skip
"""Operations that are counted by name."""

PAIRS = 24
"""Pairs of neighbouring operations are counted in so many buckets."""


def counts_of(flow: Flow) -> list[float]:
    """How often each of `COUNTED` stands in a function, then each bucket of pairs of neighbours."""
    names = [op.name for op in flow.steps]
    known = dict.fromkeys(COUNTED, 0.0)
    pairs = [0.0] * PAIRS
    for name in names:
        if name in known:
            known[name] += 1.0
    items = [name for name in names if name not in _PLAIN]
    for item, two in pairwise(items):
        pairs[_bucket(item, two)] += 1.0
    return [*known.values(), *pairs]


_PLAIN = frozenset(("arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "scf.yield", "tt.return"))


@lru_cache(maxsize=8192)
def _bucket(item: str, two: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{item} {two}".encode(), digest_size=4).digest()) % PAIRS
