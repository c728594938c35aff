"""What operations cost on paper: one function per kind of operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import log2, prod
from types import MappingProxyType

from ..types.graph import ValueType
from .dynamic_sizes import keeps_order
from .op_rule import Cost, CostOf, Loops, Site
from .operators import arithmetic, combiner, is_its_operand, operator

_SPLAT = re.compile(r'(?:^|[ ,{])values?\s*=\s*dense<\s*[^\s\["_>]')
_CONSTANT = Cost("constant")
_SPLAT_CONSTANT = Cost("constant", detail=MappingProxyType({"splat": True}))


def dtype_of(types: Iterable[ValueType]) -> str:
    """The dtype of the first array that holds numbers; booleans only where there is nothing else."""
    match = [kind.dtype for kind in types if kind.is_array and kind.dtype] or [
        kind.dtype for kind in types if kind.dtype
    ]
    return next((dtype for dtype in match if dtype not in ("i1", "index")), match[0] if match else "")


def nbytes(types: Iterable[ValueType]) -> float:
    """Bytes of arrays in memory; vectors are in registers, scalars anywhere."""
    return sum(kind.nbytes for kind in types if kind.kind in ("tensor", "memref"))


def view(site: Site) -> Cost:  # noqa: ARG001  a rule like any other
    """Other sizes or places for the same memory."""
    return Cost("view")


def constant(site: Site) -> Cost:
    """Data that is there before anything runs; `splat` in its detail says that it is one number everywhere."""
    return _SPLAT_CONSTANT if _SPLAT.search(site.text) else _CONSTANT


def control(site: Site) -> Cost:  # noqa: ARG001
    """What steers, and computes no data: indices, sizes, barriers."""
    return Cost("control")


def unknown(note: str) -> Cost:
    """What was not understood, and why."""
    return Cost("unknown", note=note)


def not_costed(why: str) -> CostOf:
    """The rule of operations that are known and not costed; `why` follows their name."""
    return lambda site: unknown(f"{site.name}{why}")


def loop(
    kind: str, dtype: str, elements: float, operator: str, *, flops: float = 0.0, transcendentals: float = 0.0,
    bytes_in: float = 0.0, bytes_out: float = 0.0, **detail: object,
) -> Cost:  # fmt: skip
    """A node of `kind` that loops over `elements`; `flops`, `transcendentals` and bytes are those of all of them together."""
    return Cost(
        kind, dtype, flops, transcendentals, bytes_in, bytes_out, (1.0, elements, 1.0, 1.0), {"operator": operator, **detail}
    )  # fmt: skip


def elementwise(site: Site, name: str, flops: float | None = None, transcendentals: float | None = None) -> Cost:
    """An operation on every element of its result; `flops` and `transcendentals` are of one element, None is the operator's."""
    if is_its_operand(site.op, name):
        return view(site)
    results = [kind for kind in site.results if kind.is_array] or list(site.results)
    elements = max((kind.elements for kind in results), default=1.0)
    per, special = arithmetic(name)
    return loop(
        "elementwise", dtype_of((*results, *site.operands)), elements, name,
        flops=elements * (per if flops is None else flops),
        transcendentals=elements * (special if transcendentals is None else transcendentals),
        bytes_in=nbytes(site.operands), bytes_out=nbytes(site.results),
    )  # fmt: skip


def by_name(site: Site) -> Cost:
    """An element operation that its own name tells."""
    return elementwise(site, operator(site.short))


def by_body(site: Site) -> Cost:
    """An element operation that its body tells."""
    return elementwise(site, site.computed.name, site.computed.flops, site.computed.transcendentals)


def per_element(name: str, flops: float) -> CostOf:
    """The rule of element operations that take so many operations for each, none of them transcendental."""
    return lambda site: elementwise(site, name, flops, 0.0)


def cumulative(site: Site) -> Cost:
    """A sum, product or the like of all elements up to each; by its body, of one operation where it has none."""
    return elementwise(site, "cumulative", max(site.computed.flops, 1.0), site.computed.transcendentals)


def movement(site: Site, name: str, bytes_in: float | None = None, bytes_out: float | None = None) -> Cost:
    """An operation that only moves data; `bytes_out` None is the size of its results, `bytes_in` None as many as it writes."""
    out = nbytes(site.results) if bytes_out is None else bytes_out
    elements = max((kind.elements for kind in site.results), default=1.0)
    return loop(
        "movement", dtype_of((*site.results, *site.operands)), elements, name,
        bytes_in=out if bytes_in is None else bytes_in, bytes_out=out,
    )  # fmt: skip


def moving(name: str, *, reads_first: bool = False) -> CostOf:
    """The rule of operations that only move data; `reads_first`: they read their first operand once, whatever they write."""
    return lambda site: movement(site, name, nbytes(site.operands[:1]) if reads_first else None)


def copied(position: int) -> CostOf:
    """The rule of operations that read and write one array among their operands."""
    return lambda site: movement(site, "copy", site.arrays[position].nbytes, site.arrays[position].nbytes)


def filled(site: Site) -> Cost:
    """An array filled with numbers that come from nowhere in memory."""
    return movement(site, "broadcast", 0.0)


def loaded(kind: ValueType, elements: float, amount: float) -> Cost:
    """A load of `amount` bytes, `elements` of the type `kind`."""
    return loop("movement", kind.dtype, elements, "load", bytes_in=amount)


def load(site: Site) -> Cost:
    """A load of as many elements as the result has."""
    result = site.results[0]
    return loaded(result, result.elements, result.elements * result.itemsize_b)


def stored(kind: ValueType, elements: float, amount: float) -> Cost:
    """A store, likewise."""
    return loop("movement", kind.dtype, elements, "store", bytes_out=amount)


def permuted(cost: Cost, order: Sequence[int] | None) -> Cost:
    """A transpose of which the order of axes is known: axis i of the result is axis `order[i]` of the operand."""
    return cost if order is None else cost._replace(detail={**cost.detail, "permutation": tuple(order)})


def transpose(site: Site, order: Sequence[int] | None) -> Cost:
    """Axes in another order, see `permuted`; None where that is not known. Where only axes of size 1 move, nothing does."""
    if order is not None and keeps_order(site.operands[0].shape or (), order):
        return view(site)
    return permuted(movement(site, "transpose"), order)


def reverse(site: Site) -> Cost:
    """Axes from their end to their start; of axes of size 1 nothing moves."""
    axes, shape = site.ints("dimensions", "axis"), site.operands[0].shape
    return view(site) if axes and shape and {shape[axis] for axis in axes} == {1} else movement(site, "copy")


def broadcast(site: Site) -> Cost:
    """Elements repeated: the operand is read once. Where none is, only axes of size 1 are added, which moves nothing."""
    if len(site.operands) == 1 and site.operands[0].shape:
        source, result = ([n for n in kind.shape or () if n != 1] for kind in (site.operands[0], site.results[0]))
        if source == result and site.operands[0].elements == site.results[0].elements:
            return view(site)
    return movement(site, "broadcast", nbytes(site.operands))


def gathered(name: str, indices: Sequence[ValueType], moved: ValueType) -> Cost:
    """Reads or writes at computed places: the places are read, the elements moved are read and written once."""
    return loop(
        "gather", moved.dtype, moved.elements, name, bytes_in=nbytes(indices) + moved.nbytes, bytes_out=moved.nbytes
    )


def scatter(places: int, updates: int) -> CostOf:
    """The rule of writes of operand `updates` at the places that operand `places` tells."""
    return lambda site: gathered("scatter", site.operands[places : places + 1], site.operands[updates])


def gather(site: Site) -> Cost:
    """Reads of the first operand at the places that the second one tells."""
    return gathered("gather", site.operands[1:2], site.results[0])


def axis_of(shape: Sequence[int | None], axes: Iterable[int]) -> str:
    """Where reduced axes are: `inner` at the end, `outer` at the front, else `middle`. Axes of size 1 are nowhere."""
    missing = {axis % len(shape) for axis in axes} if shape else set()
    items = [axis for axis, size in enumerate(shape) if size != 1 and axis not in missing]
    reduced = [axis for axis, size in enumerate(shape) if size != 1 and axis in missing]
    if not reduced or not items or reduced[0] > items[-1]:
        return "inner"
    return "outer" if reduced[-1] < items[0] else "middle"


def reduction(
    site: Site, name: str, source: ValueType, axes: Iterable[int], per_element: float = 1.0, special: float = 0.0
) -> Cost:
    """`axes` of `source` reduced; each of its elements takes `per_element` operations and `special` transcendental ones."""
    shape = source.shape or ()
    axes = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)} if shape else set()
    reduced = prod(float(shape[axis] or 0) for axis in axes)
    rows = source.elements / reduced if reduced else 0.0
    return Cost(
        "reduction", source.dtype, source.elements * per_element, source.elements * special, nbytes(site.operands),
        nbytes(site.results), (1.0, rows, 1.0, reduced), {"operator": name, "axis": axis_of(shape, axes)},
    )  # fmt: skip


def reduction_by_body(site: Site, axes: Iterable[int]) -> Cost:
    """Axes of the first operand reduced by what the body computes."""
    body = site.computed
    return reduction(site, combiner(site.body), site.operands[0], axes, max(body.flops, 1.0), body.transcendentals)


def window_reduction(
    site: Site, name: str, source: ValueType, result: ValueType, window: Sequence[int], per_element: float = 1.0
) -> Cost:
    """A window slid over `source`, `per_element` operations for each element in it: pooling."""
    size = float(prod(window))
    flops = result.elements * size * per_element
    return Cost(
        "reduction", source.dtype, flops, 0.0, source.nbytes, nbytes(site.results), (1.0, result.elements, 1.0, size),
        {"operator": name, "axis": "middle", "window": tuple(window)},
    )  # fmt: skip


def contraction(
    site: Site, loops: Loops, inputs: Sequence[ValueType] = (), outputs: Sequence[ValueType] = (), *, dtype: str = "",
    lhs_transposed: bool = False, rhs_transposed: bool = False,
) -> Cost:  # fmt: skip
    """A product `(batch, m, n, k)`, two operations per point of it; in the dtype of the first operand unless said."""
    detail = {"operator": site.short, "lhs_transposed": lhs_transposed, "rhs_transposed": rhs_transposed}
    dtype = dtype or site.operands[0].dtype
    return Cost("contraction", dtype, 2.0 * prod(loops), 0.0, nbytes(inputs), nbytes(outputs), loops, detail)


def convolution(
    site: Site, inputs: Sequence[ValueType], result: ValueType, sizes: Mapping[str, int], transposed: bool = False
) -> Cost:
    """A convolution with the `sizes` that `Node.detail` is to hold, kernel and channels among them.

    Its product: a row per image and output position, a column per output channel of a group, one batch per group. A transposed
    one does for every input position what the plain one does for an output position.
    """
    groups = max(sizes["groups"], 1)
    channels = sizes["in_channels"] // groups
    taps = sizes["kernel_h"] * sizes["kernel_w"] * sizes.get("kernel_d", 1)
    outs = sizes["out_channels"] // groups
    places = result.elements / max(sizes["out_channels"], 1)
    if transposed:
        places = sizes["batch"] * float(sizes["height"]) * sizes["width"] * sizes.get("depth", 1)
    loops = (float(groups), places, float(outs), float(channels * taps))
    return Cost(
        "convolution",
        inputs[0].dtype,
        2.0 * prod(loops),
        0.0,
        nbytes(inputs),
        nbytes((result,)),
        loops,
        {"operator": site.short, **sizes},
    )


def conv_sizes(batch: int, in_channels: int, out_channels: int, sides: list[int], window: list[int], *, stride: int = 1,
               padding: int = 0, groups: int = 1, dilation: int = 1) -> dict[str, int]:  # fmt: skip
    """The sizes of a convolution by the names `Node.detail` has; one-dimensional ones have a height of 1."""
    sides, window = ([1] * (2 - len(part)) + part for part in (sides, window))
    deep = {"depth": sides[0], "kernel_d": window[0]} if len(sides) > 2 else {}
    return {
        "batch": batch,
        "in_channels": in_channels,
        "out_channels": out_channels,
        "height": sides[-2],
        "width": sides[-1],
        "kernel_h": window[-2],
        "kernel_w": window[-1],
        "stride": stride,
        "padding": padding,
        "groups": groups,
        "dilation": dilation,
        **deep,
    }


def softmax(site: Site, axis: int | None = None) -> Cost:
    """Softmax along one axis, the last unless said: 5 operations per element, as `features.families.softmax` counts them."""
    source, axis = site.operands[0], -1 if axis is None else axis
    shape = source.shape or (1,)
    cols = float(shape[axis] or 0)
    rows = source.elements / cols if cols else 0.0
    return Cost(
        "softmax",
        source.dtype,
        5.0 * source.elements,
        source.elements,
        source.nbytes,
        nbytes(site.results),
        (1.0, rows, 1.0, cols),
        {"rows": int(rows), "cols": int(cols), "axis": axis_of(shape, (axis,))},
    )


def normalization(
    site: Site, name: str, source: ValueType, cols: float, per_element: float, weights: Sequence[ValueType]
) -> Cost:
    """Normalisation over `cols` elements at a time, `per_element` operations each; `weights` are types of scale and shift."""
    rows = source.elements / cols if cols else 0.0
    detail = {"operator": name, "rows": int(rows), "cols": int(cols)}
    return Cost(
        "normalization", source.dtype, per_element * source.elements, rows, source.nbytes + nbytes(weights),
        nbytes(site.results[:1]), (1.0, rows, 1.0, cols), detail,
    )  # fmt: skip


def attention(
    site: Site,
    query: ValueType,
    key: ValueType,
    value: ValueType,
    result: ValueType,
    causal: bool,
    masks: Sequence[ValueType] = (),
) -> Cost:
    """Scaled dot-product attention of `(…, heads, length, head_dim)`: two products and a softmax.

    A causal mask lets through a part of the pairs; only those are counted, as `features.families.attention` does.
    """
    q, k, v = (kind.shape or () for kind in (query, key, value))
    if len(q) < 2 or len(k) < 2 or len(v) < 2:
        return unknown(f"{site.name} with operands of fewer than two dimensions")
    q_len, head_dim, kv_len, value_dim = (float(size or 0) for size in (q[-2], q[-1], k[-2], v[-1]))
    heads, kv_heads = (float((shape[-3] if len(shape) > 2 else 1) or 1) for shape in (q, k))
    batch = query.elements / (heads * q_len * head_dim)
    pairs = q_len * (2 * kv_len - q_len + 1) / 2 if causal and q_len <= kv_len else q_len * kv_len
    points = batch * heads * pairs
    detail = {
        "batch": int(batch),
        "heads": int(heads),
        "kv_heads": int(kv_heads),
        "q_len": int(q_len),
        "kv_len": int(kv_len),
        "head_dim": int(head_dim),
        "causal": causal,
    }
    return Cost(
        "attention",
        query.dtype,
        points * (2 * head_dim + 2 * value_dim + 5),
        points,
        nbytes((query, key, value, *masks)),
        nbytes((result,)),
        (batch * heads, q_len, value_dim, kv_len),
        detail,
    )


def sort(site: Site, axis: int | None = None) -> Cost:
    """A sort along one axis, the last unless said: n·log2(n) comparisons in each of the rows, which are independent.

    A top-k has k as its `window`.
    """
    source, shape = site.operands[0], site.operands[0].shape or (1,)
    axis = len(shape) - 1 if axis is None else axis
    length = max(float(shape[axis] or 1), 1.0)
    detail: dict[str, object] = {"along": axis, "axis": axis_of(shape, (axis,))}
    if "top" in site.short and site.results and source.elements:
        detail["window"] = (max(round(site.results[0].elements / source.elements * length), 1),)
    cost = loop(
        "sort", source.dtype, source.elements, site.short, flops=source.elements * max(log2(length), 1.0),
        bytes_in=nbytes(site.operands), bytes_out=nbytes(site.results),
    )  # fmt: skip
    return cost._replace(loops=(1.0, source.elements / length, 1.0, length), detail={**cost.detail, **detail})


def sort_along(site: Site) -> Cost:
    """A sort along the axis that the attribute `dimension` tells."""
    return sort(site, site.int_of("dimension"))


def fft(site: Site, elements: float, length: int) -> Cost:
    """Fourier transforms of so many elements, 5·n·log2(n) each of `length` (FFTW, "FFT Benchmark Methodology")."""
    flops = 5.0 * elements * max(length.bit_length() - 1, 1)
    return elementwise(site, "fft", 0.0, 0.0)._replace(flops=flops)


_RANDOM_FLOPS = 30.0
"""Operations per 32-bit random number: Threefry-2x32, which JAX uses, makes two of them in 20 rounds of an addition, a
rotation and an exclusive or (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011)."""


def random(site: Site) -> Cost:
    """Random numbers made."""
    elements = sum(kind.elements for kind in site.results if kind.is_array) or 1.0
    flops, written = _RANDOM_FLOPS * elements, nbytes(site.results)
    return Cost("random", dtype_of(site.results), flops, 0.0, 0.0, written, (1.0, elements, 1.0, 1.0))
