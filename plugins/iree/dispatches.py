"""Matrix products and convolutions among the dispatches of a module that IREE has cut up, read with IREE's own parser.

A dispatch is a kernel: one product or convolution with what is fused into it. What is read is the phase `flow`, where
dispatches exist as functions over tensors and where it can still be seen which operands are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ...features.errors import SpecError

CONTRACTION, CONVOLUTION = "iree-contraction", "iree-conv2d"

ELEMENT = "f32"
"""The one element type that is tuned, as MLIR spells it: what the cost models are trained on."""

DTYPE = "fp32"

_UNNAMED = ("linalg.fill", "linalg.yield", "linalg.index")
_WORDS = {"iree_linalg_ext.attention": "attention", "iree_linalg_ext.online_attention": "attention"}


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A product or convolution and where it runs.

    Attributes:
        names: Functions it is in.
        kind: Kind of tuning problem.
        sizes: Sizes of the kind, without `threads`.
        roles: Names of the loops of the operation as it is configured, outermost first: `b m n k` of a product, where one
            may be missing; `n h w c y x k` of a convolution (batch, rows, columns and channels of the result, rows and
            columns of the filter, channels of the input) in the order of its layout.
        maps: Indexing maps over these loops.
        types: Types of its operands in the phase `executable-sources`.
        calls: How many times the module calls it.
        constant_calls: Calls whose second operand (weights) is a constant of the module.
        fused: Whether other operations run in the same kernel.
    """

    names: tuple[str, ...]
    kind: str
    sizes: Mapping[str, int]
    roles: tuple[str, ...]
    maps: tuple[str, ...]
    types: tuple[str, ...]
    calls: int = 1
    constant_calls: int = 0
    fused: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What the compiler tells operations apart by: equal ones are configured alike."""
        return self.kind, tuple(self.sizes.items()), self.roles, self.maps

    @property
    def title(self) -> str:
        """One line for a person."""
        s = self.sizes
        if self.kind == CONTRACTION:
            layout = {(0, 0): "", (1, 0): ", A transposed", (0, 1): ", B transposed", (1, 1): ", A and B transposed"}
            batch = f"{s['batch']} x " if s["batch"] > 1 else ""
            return f"product {batch}{s['m']} x {s['n']} x {s['k']}{layout[s['a_transposed'], s['b_transposed']]}"
        order = "NCHW" if s["layout"] else "NHWC"
        return (
            f"convolution {s['kernel_h']} x {s['kernel_w']} x {s['in_c']} to {s['batch']} x {s['out_h']} x {s['out_w']} x "
            f"{s['out_c']}, stride {s['stride']}, {order}"
        )


@dataclass(frozen=True, slots=True)
class UntunedDispatch:
    """A product or convolution that is left to the compiler.

    Attributes:
        name: Function it is in.
        reason: Why it is left alone.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dispatches:
    """What a module is made of.

    Attributes:
        tunable: Dispatches that can be tuned.
        left: Dispatches that are left to the compiler.
        total: Number of dispatches in all.
    """

    tunable: tuple[Dispatch, ...]
    left: tuple[UntunedDispatch, ...]
    total: int


class _LeftError(Exception):
    """Why an operation is left to the compiler."""


def read_dispatches(flow: str) -> Dispatches:
    """The dispatches of a module in the text of IREE's phase `flow`; equal operations are one, with all their names.

    Raises:
        SpecError: IREE's parser does not take the text.
        ImportError: IREE's compiler is not installed.
    """
    from iree.compiler import ir

    try:
        module = ir.Module.parse(flow, ir.Context())
    except ir.MLIRError as error:
        raise SpecError(f"IREE does not read its own phase `flow`: {str(error).splitlines()[0]}") from error
    calls = _calls(module.operation)
    result: dict[tuple[object, ...], Dispatch] = {}
    left: list[UntunedDispatch] = []
    total = 0
    for executable in module.body.operations:
        if executable.operation.name != "flow.executable":
            continue
        total += 1
        created = calls.get(symbol(executable), ())
        for function in walk(executable.operation, "func.func"):
            for item in _of_function(function, created):
                if isinstance(item, UntunedDispatch):
                    left.append(item)
                    continue
                other = result.get(item.key)
                result[item.key] = item if other is None else _together(other, item)
    return Dispatches(tuple(result.values()), tuple(left), total)


def _together(dispatch: Dispatch, other: Dispatch) -> Dispatch:
    return replace(
        dispatch, names=dispatch.names + other.names, calls=dispatch.calls + other.calls,
        constant_calls=dispatch.constant_calls + other.constant_calls, fused=dispatch.fused or other.fused,
    )  # fmt: skip


def _of_function(function: Any, run_by: Sequence[Any]) -> Iterator[Dispatch | UntunedDispatch]:
    """The operations of one dispatch function, which the calls `run_by` run."""
    from iree.compiler.dialects import linalg

    name = symbol(function)
    ops = [
        op for op in walk(function) if op.name in _WORDS or (op.name.startswith("linalg.") and op.name not in _UNNAMED)
    ]
    for op in ops:
        if op.name in _WORDS:
            yield UntunedDispatch(name, f"{_WORDS[op.name]} has no kind of tuning problem")
            continue
        read: Dispatch | None
        try:
            if linalg.isa_contraction_op(op):
                read = _contraction(op)
            elif linalg.isa_convolution_op(op) and len(op.operands) > 2 and "pool" not in op.name:
                read = _convolution(op)
            elif "quantized" in op.name:
                raise _LeftError("it is quantised")
            else:
                continue
        except _LeftError as why:
            yield UntunedDispatch(name, str(why))
            continue
        if read is not None:
            constant = [_is_constant(op.operands[1], call) for call in run_by]
            yield replace(read, names=(name,), calls=len(run_by), constant_calls=sum(constant), fused=len(ops) > 1)


def _roles(n: int, named: Iterable[tuple[str, Sequence[int], str]]) -> tuple[str, ...]:
    """The role of each of `n` loops, from the loops of each role and why there may not be several."""
    roles: dict[int, str] = {}
    for role, loops, why_several in named:
        if len(loops) > 1:
            raise _LeftError(why_several)
        roles |= dict.fromkeys(loops, role)
    if len(roles) != n:
        raise _LeftError("it has loops that are neither rows, columns, sums nor a batch")
    return tuple(roles[i] for i in range(n))


def _contraction(op: Any) -> Dispatch:
    from iree.compiler.dialects import linalg

    _check_types(op)
    maps = [each.value for each in linalg.get_indexing_maps(op)]
    dims = linalg.infer_contraction_dimensions(op)
    named = zip("bmnk", (dims.batch, dims.m, dims.n, dims.k), strict=True)
    why = "it has several loops of the kind {}"
    roles = _roles(maps[0].n_dims, [(role, list(loops), why.format(role)) for role, loops in named])
    orders = [[roles[each.position] for each in map_.results] for map_ in maps]
    a, b, c = ("".join(order) for order in orders)
    if [*c] != [role for role in "bmn" if role in c] or any("b" in order and order[0] != "b" for order in (a, b)):
        raise _LeftError("its operands or result lie in an order that was never measured")
    extent = _extents(op, orders)
    sizes = {"batch": extent.get("b", 1), **{role: extent.get(role, 1) for role in "mnk"}}
    sizes |= {"a_transposed": int("km" in a), "b_transposed": int("nk" in b)}
    return Dispatch(
        (), CONTRACTION, MappingProxyType(sizes), roles, tuple(f"affine_map<{map_}>" for map_ in maps), _types(op)
    )


_LAYOUTS = {("nhwk", "yxkc", "nhwc"): 0, ("nkhw", "ckyx", "nchw"): 1}
"""Orders of input, filter and result over the roles of a convolution, and the layout they are."""


def _convolution(op: Any) -> Dispatch | None:
    from iree.compiler.dialects import linalg

    dims = linalg.infer_convolution_dimensions(op)
    if dims is None or not any(map(list, (dims.output_channel, dims.depth, dims.input_channel))):
        # Windows that are reduced without weights: pooling.
        return None
    _check_types(op)
    if list(dims.depth):
        raise _LeftError("it is a depthwise or grouped convolution")
    if len(list(dims.output_image)) != 2 or len(list(dims.filter_loop)) != 2:
        raise _LeftError("it is no two-dimensional convolution with a window in both directions")
    strides, dilations = list(dims.strides), list(dims.dilations)
    if dilations != [1, 1] or strides[0] != strides[1]:
        raise _LeftError("its window is dilated, or its strides differ")
    maps = [each.value for each in linalg.get_indexing_maps(op)]
    (h, w), (y, x) = list(dims.output_image), list(dims.filter_loop)
    named = {"n": dims.batch, "h": [h], "w": [w], "c": dims.output_channel, "y": [y], "x": [x], "k": dims.input_channel}
    grouped = "it is a grouped convolution"
    roles = _roles(maps[0].n_dims, [(role, list(loops), grouped) for role, loops in named.items()])
    # The compiler folds a batch of one and puts it back, outermost, before it configures the operation.
    restored = "n" not in roles
    texts = [_with_batch(map_, image=i != 1) if restored else str(map_) for i, map_ in enumerate(maps)]
    roles = ("n", *roles) if restored else roles
    orders = [_order(text, roles) for text in texts]
    layout = _LAYOUTS.get((orders[0], orders[1], orders[2]))
    if layout is None:
        raise _LeftError("its operands lie in an order that was never measured")
    shapes = [list(_shape(operand)) for operand in op.operands]
    if restored:
        shapes[0], shapes[2] = [1, *shapes[0]], [1, *shapes[2]]
    extent = dict(zip(orders[1] + orders[2], shapes[1] + shapes[2], strict=True))
    sizes = {
        "batch": extent["n"], "out_h": extent["h"], "out_w": extent["w"], "out_c": extent["c"], "kernel_h": extent["y"],
        "kernel_w": extent["x"], "in_c": extent["k"], "stride": strides[0], "layout": layout,
    }  # fmt: skip
    maps_text = tuple(f"affine_map<{text}>" for text in texts)
    return Dispatch((), CONVOLUTION, MappingProxyType(sizes), roles, maps_text, _types(op))


def _with_batch(affine_map: Any, *, image: bool) -> str:
    """A map over one more loop, outermost, which images (not filters) are indexed by."""
    from iree.compiler import ir

    n, context = affine_map.n_dims, affine_map.context
    moved = [each.compose(_shifted(n, context)) for each in affine_map.results]
    first = [ir.AffineDimExpr.get(0, context)] if image else []
    return str(ir.AffineMap.get(n + 1, 0, [*first, *moved], context))


def _shifted(n: int, context: Any) -> Any:
    from iree.compiler import ir

    return ir.AffineMap.get(n + 1, 0, [ir.AffineDimExpr.get(i + 1, context) for i in range(n)], context)


def _order(affine_map: str, roles: Sequence[str]) -> str:
    """Roles that the results of a map are indexed by, its first loop where windows add two."""
    results = affine_map.partition("->")[2].strip(" ()").split(",")
    return "".join(roles[int(each.split()[0].lstrip("d"))] for each in results)


def _check_types(op: Any) -> None:
    elements = [str(operand.type.element_type) for operand in op.operands]
    if len(elements) != 3:
        raise _LeftError("it has more operands than two inputs and a result")
    if set(elements) != {ELEMENT}:
        raise _LeftError(
            f"it computes {elements[0]} x {elements[1]} into {elements[2]}, and only {ELEMENT} was measured"
        )
    if any(not operand.type.has_static_shape for operand in op.operands):
        raise _LeftError("its sizes are only known when it runs")


def _shape(value: Any) -> Sequence[int]:
    return tuple(value.type.shape)


def _types(op: Any) -> tuple[str, ...]:
    return tuple(str(operand.type) for operand in op.operands)


def _extents(op: Any, orders: Sequence[Sequence[str]]) -> dict[str, int]:
    """Size of every role, from the shapes of the operands it indexes."""
    return {
        role: size
        for operand, order in zip(op.operands, orders, strict=True)
        for role, size in zip(order, _shape(operand), strict=True)
    }


def walk(op: Any, name: str = "") -> Iterator[Any]:
    """Operations inside `op`, outer ones first; those called `name` where one is given."""
    for region in op.regions:
        for block in region.blocks:
            for operation in block.operations:
                if not name or operation.operation.name == name:
                    yield operation.operation
                yield from walk(operation.operation, name)


def symbol(op: Any) -> str:
    """The name of a function or an executable."""
    return str(op.operation.attributes["sym_name"].value)


def _calls(module: Any) -> dict[str, list[Any]]:
    """The calls of every executable, by its name; those that only run when the module is loaded are left out."""
    result: dict[str, list[Any]] = {}
    for top in module.regions[0].blocks[0].operations:
        if top.operation.name == "util.initializer":
            continue
        for call in walk(top.operation, "flow.dispatch"):
            for entry in call.attributes["entry_points"]:
                result.setdefault(str(entry).lstrip("@").partition("::")[0], []).append(call)
    return result


_VIEWS = ("flow.tensor.reshape", "flow.tensor.bitcast", "flow.tensor.transfer", "tensor.expand_shape", "tensor.collapse_shape",
          "tensor.cast", "iree_tensor_ext.dispatch.tensor.load", "flow.tensor.barrier", "iree_tensor_ext.bitcast")  # fmt: skip
_CONSTANTS = ("arith.constant", "flow.tensor.constant")


def _is_constant(value: Any, call: Any) -> bool:
    """Whether an operand of a dispatch is a constant of the module: followed through views to what the call hands in."""
    source = _source(value)
    if isinstance(source, int):
        # Operands come in segments: what sizes the launch, arguments, and sizes that only a run knows.
        workload, arguments, *_ = call.attributes["operandSegmentSizes"]
        if source >= arguments:
            return False
        source = _source(call.operands[workload + source])
    if source is None or isinstance(source, int):
        return False
    if source.name == "util.global.load":
        return "global_immutable" in source.attributes or "is_immutable" in source.attributes
    return source.name in _CONSTANTS


def _source(value: Any) -> Any:
    """The operation a value comes from through views, or the number of the block argument it is."""
    from iree.compiler import ir

    for _ in range(64):
        owner = value.owner
        if isinstance(owner, ir.Block):
            return ir.BlockArgument(value).arg_number
        op = owner.operation if hasattr(owner, "operation") else owner
        if op.name not in _VIEWS:
            return op
        value = op.operands[0]
    return None
