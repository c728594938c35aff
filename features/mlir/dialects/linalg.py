"""linalg: generic operations read from their maps and bodies, named ones by what their names stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import keeps_order, of_destinations
from ..semantics.linalg_products import (
    CONVOLUTIONS,
    LAYOUTS,
    PRODUCTS,
    convolution,
    destinations,
    dimension_sizes,
    named_product,
    product,
    read_b,
)
from ..semantics.op_rule import Cost, CostOf, Dialect, Site, rules
from ..semantics.operators import Body, arithmetic, combiner, is_its_operand, operator
from ..types import attributes
from ..types.attributes import AffineMap, parse_maps
from ..types.graph import ValueType


def _generic(site: Site) -> Cost:
    count = destinations(site)
    inputs, outs = site.operands[:-count], site.operands[-count:]
    maps = parse_maps(attributes.value(site.text, "indexing_maps") or site.text)
    if len(maps) < len(site.operands):
        return unknown(f"{site.name} without an indexing map for each operand")
    sizes = dimension_sizes(maps, site.operands)
    if None in sizes:
        return unknown(f"{site.name} over sizes that its operands do not tell")
    space = tuple(float(size or 0) for size in sizes)
    written = re.findall(r"\b(parallel|reduction|window)\b", attributes.value(site.text, "iterator_types") or "")
    summed = {dim for dim, word in enumerate(written) if word != "parallel"}
    if not written:
        summed = set(range(len(space))) - {
            dim for map_ in maps[-count:] for result in range(len(map_.results)) for dim in map_.used(result)
        }
    body = site.computed
    if not summed:
        return _parallel(site, inputs, outs, maps, space, body)
    if len(inputs) >= 2 and _is_product(body, site):
        return product(site, inputs, outs, maps, space, summed)
    if not inputs:
        return unknown(f"{site.name} that reduces nothing")
    axes = [axis for axis, dim in enumerate(maps[0].positions()) if dim in summed]
    remaining = prod((space[dim] for dim in range(len(space)) if dim not in summed), start=1.0)
    missing = prod((space[dim] for dim in summed), start=1.0)
    cost = costs.reduction(site, combiner(site.body), inputs[0], axes)
    points = remaining * missing
    per = max(body.flops, 1.0)
    window = {"window": tuple(int(space[dim]) for dim in sorted(summed))} if len(axes) < len(summed) else {}
    return cost._replace(
        flops=points * per,
        transcendentals=points * body.transcendentals,
        bytes_in=costs.nbytes(inputs),
        bytes_out=costs.nbytes(outs),
        loops=(1.0, remaining, 1.0, missing),
        detail={**cost.detail, **window, "operators": body.operators},
    )


def _is_product(body: Body, site: Site) -> bool:
    return (
        "mul" in body.operators and "add" in body.operators and set(body.operators) <= {"mul", "add", "convert", "sub"}
    ) or (not site.body and site.name != "linalg.generic")


def _parallel(
    site: Site,
    inputs: Sequence[ValueType],
    outs: Sequence[ValueType],
    maps: Sequence[AffineMap],
    space: Sequence[float],
    body: Body,
) -> Cost:
    is_one_map = len({map_.results for map_ in maps}) == 1
    if site.results and is_one_map and len(site.body) == 2 and is_its_operand(site.body[0], body.name):
        return costs.view(site)
    points = prod(space, start=1.0)
    out_b, flops, special = costs.nbytes(outs), points * body.flops, points * body.transcendentals
    picked = [op for op in site.body if op.name in ("tensor.extract", "memref.load")]
    if picked:
        return costs.loop(
            "gather", outs[0].dtype, points, "gather", flops=flops, transcendentals=special,
            bytes_in=costs.nbytes(inputs) + out_b * len(picked), bytes_out=out_b,
        )  # fmt: skip
    used = _used(site, len(inputs))
    read = costs.nbytes(inputs) + (read_b(site, (), outs) if used else 0.0)
    unread = 0 if used else len(outs)
    if body.operators:
        return costs.loop(
            "elementwise", costs.dtype_of((*outs, *inputs)), points, body.name, flops=flops, transcendentals=special,
            bytes_in=read, bytes_out=out_b, operators=body.operators, unread=unread,
        )  # fmt: skip
    detail = {**_moved(inputs, maps), "unread": unread}
    return Cost("movement", outs[0].dtype, 0.0, 0.0, read, out_b, (1.0, points, 1.0, 1.0), detail)


def _used(site: Site, first_out: int) -> bool:
    """Whether the body reads a destination."""
    blocks = [block for region in site.op.regions for block in region.blocks]
    if not blocks:
        return False
    outs = set(blocks[0].arguments[first_out:])
    return any(value in outs for op in blocks[0].ops for value in op.operands)


def _moved(inputs: Sequence[ValueType], maps: Sequence[AffineMap]) -> dict[str, object]:
    """What a body that only hands on amounts to, from how the input is indexed: the detail of its node."""
    if not inputs or inputs[0].shape == () or not inputs[0].is_array:
        return {"operator": "broadcast"}
    source, result = maps[0].positions(), maps[-1].positions()
    if source == result:
        return {"operator": "copy"}
    if len(source) != len(result) or set(source) != set(result):
        return {"operator": "broadcast"}
    order = tuple(source.index(dim) for dim in result)
    return {"operator": "transpose"} if None in source else {"operator": "transpose", "permutation": order}


def _pooling(site: Site) -> Cost:
    layout = LAYOUTS[re.sub(r"_(sum|max|min|max_unsigned|min_unsigned)$", "", site.short)]
    name = site.short.replace("_unsigned", "").rpartition("_")[2]
    window = [size or 0 for size in site.operands[1].shape or ()]
    result = site.results[0] if site.results else site.operands[-1]
    cost = costs.window_reduction(site, name, site.operands[0], result, window)
    return cost._replace(
        bytes_in=site.operands[0].nbytes, bytes_out=result.nbytes, detail={**cost.detail, "layout": layout}
    )


def _reduce(site: Site) -> Cost:
    axes = site.ints("dimensions") or ()
    count = destinations(site)
    body = site.computed
    match = re.search(r"\{\s*([\w.]+)", site.text)
    name = combiner(site.body) if site.body else operator((match[1] if match else "reduce").rpartition(".")[2])
    cost = costs.reduction(site, name, site.operands[0], axes, max(body.flops, 1.0), body.transcendentals)
    return cost._replace(bytes_in=costs.nbytes(site.operands[:-count]), bytes_out=costs.nbytes(site.operands[-count:]))


def _map(site: Site) -> Cost:
    body = site.computed
    if site.results and is_its_operand(site.op, body.name):
        return costs.view(site)
    return _on_elements(site, body.name, body.flops, body.transcendentals)._replace(
        detail={"operator": body.name, "operators": body.operators, "unread": 1}
    )


def _elementwise(site: Site) -> Cost:
    name = operator(attributes.word(site.text, "kind") or site.short)
    return _on_elements(site, name, *arithmetic(name))


def _on_elements(site: Site, name: str, flops: float, transcendentals: float) -> Cost:
    """So many operations for every element of the destination."""
    out = site.operands[-1]
    return costs.loop(
        "elementwise", out.dtype, out.elements, name, flops=out.elements * flops,
        transcendentals=out.elements * transcendentals, bytes_in=costs.nbytes(site.operands[:-1]), bytes_out=out.nbytes,
        unread=1,
    )  # fmt: skip


def _moving(name: str) -> CostOf:
    def cost(site: Site) -> Cost:
        source, out = site.operands[0], site.operands[-1]
        read = source.nbytes if source.is_array else 0.0
        return costs.loop("movement", out.dtype, out.elements, name, bytes_in=read, bytes_out=out.nbytes, unread=1)

    return cost


def _transpose(site: Site) -> Cost:
    order = site.ints("permutation")
    if order is not None and site.results and keeps_order(site.operands[0].shape or (), order):
        return costs.view(site)
    return costs.permuted(_moving("transpose")(site), order)


def _softmax(site: Site) -> Cost:
    cost = costs.softmax(site, site.int_of("dimension"))
    return cost._replace(bytes_out=site.operands[-1].nbytes, detail={**cost.detail, "unread": 1})


_ELEMENTWISE = (
    "abs add ceil copy_elements div div_unsigned erf exp floor log max min mul negf powf reciprocal round rsqrt "
    "select sqrt square sub tanh elementwise"
)

_POOLS = [f"{name}_{word}" for name in LAYOUTS for word in ("sum", "max", "min", "max_unsigned", "min_unsigned")]

DIALECT = Dialect(
    "linalg",
    {
        **rules("linalg", "generic", _generic, of_destinations, reads="makers"),
        **rules("linalg", (*PRODUCTS, "contract"), named_product, of_destinations, reads="makers"),
        **rules("linalg", CONVOLUTIONS, convolution, of_destinations, reads="makers"),
        **rules("linalg", _POOLS, _pooling, of_destinations),
        **rules("linalg", "reduce", _reduce, of_destinations),
        **rules("linalg", "map", _map, of_destinations),
        **rules("linalg", _ELEMENTWISE, _elementwise, of_destinations),
        **rules("linalg", "transpose", _transpose, of_destinations),
        **rules("linalg", "broadcast fill", _moving("broadcast"), of_destinations),
        **rules("linalg", "copy", _moving("copy"), of_destinations),
        **rules("linalg", "pack unpack", _moving("transpose"), of_destinations),
        **rules("linalg", "softmax", _softmax, of_destinations),
        **rules("linalg", "fill_rng_2d", costs.random, of_destinations),
        **rules("linalg", "index", costs.control),
        **rules("tensor", "pack unpack", _moving("transpose"), of_destinations),
    },
    {"end": "linalg.yield"},
)
