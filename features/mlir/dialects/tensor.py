"""tensor and bufferization: views, padding, concatenation and single elements of tensors."""

from __future__ import annotations

from math import prod

from ..semantics import costs
from ..semantics.costs import copied, moving
from ..semantics.dynamic_sizes import Shapes, conserved, joined, of_first, of_known, of_operands
from ..semantics.folding import extent, listed
from ..semantics.op_rule import Cost, Dialect, Known, Shape, Site, rules
from ..types import attributes

_DYNAMIC = -(2**63)


def _elements(site: Site) -> Known:
    rank = len(site.results[0].shape or ())
    return listed(site) if site.results[0].shape is not None and rank < 2 else None


def _element(site: Site) -> Known:
    known, place = site.known(0), site.known(1) if len(site.operands) > 1 else 0
    return known[place] if isinstance(known, tuple) and isinstance(place, int) and 0 <= place < len(known) else None


def mixed(static: tuple[int, ...] | None, known: list[Known]) -> Shape | None:
    """Sizes of which some are written and some are operands, in order."""
    if static is None:
        return None
    rest = iter(known)
    sizes: list[int | None] = []
    for size in static:
        number = next(rest, None) if size in (_DYNAMIC, -1) else size
        sizes.append(number if isinstance(number, int) else None)
    return tuple(sizes)


def of_sizes(site: Site) -> Shapes:
    """Results whose open sizes are the operands, in order: `tensor.empty(%n)`."""
    shape = site.results[0].shape
    if shape is None:
        return None
    rest = iter([site.known(position) for position, kind in enumerate(site.operands) if kind.kind == "scalar"])
    numbers = [next(rest, None) if size is None else size for size in shape]
    return (tuple(number if isinstance(number, int) else None for number in numbers),)


def sliced_shape(site: Site) -> Shapes:
    """The result of a slice whose sizes are attributes and operands."""
    segments = site.ints("operandSegmentSizes")
    static = site.ints("static_sizes")
    if segments is None or len(segments) < 3:
        return None
    start = segments[0] + segments[1]
    full = mixed(static, [site.known(position) for position in range(start, start + segments[2])])
    rank = len(site.results[0].shape or ())
    if full is None or len(full) == rank:
        return None if full is None else (full,)
    items = [size for size in full if size != 1]
    return (tuple(items),) if len(items) == rank else None


def _padded_shape(site: Site) -> Shapes:
    shape, segments = site.operands[0].shape, site.ints("operandSegmentSizes") or (1, 0, 0)
    known = [site.known(position) for position in range(len(site.operands))]
    low = mixed(site.ints("static_low"), known[segments[0] : segments[0] + segments[1]])
    high = mixed(site.ints("static_high"), known[segments[0] + segments[1] :])
    if shape is None or low is None or high is None:
        return None
    sizes = zip(shape, low, high, strict=True)
    return (tuple(None if None in three else sum(size or 0 for size in three) for three in sizes),)


def reassociated(site: Site) -> Shapes:
    """The result of a collapse or an expansion: products of groups of sizes, or the one size open in each group."""
    written = attributes.value(site.text, "reassociation")
    source, result = site.operands[0].shape, site.results[0].shape
    if written is None or source is None or result is None:
        return conserved(site)
    groups = attributes.groups(written)
    if len(result) <= len(source):
        sizes = [[source[axis] for axis in group] for group in groups]
        return (tuple(None if None in group else prod(size or 0 for size in group) for group in sizes),)
    shape = list(result)
    static = mixed(
        site.ints("static_output_shape"), [site.known(position) for position in range(1, len(site.operands))]
    )
    if static is not None:
        shape = [a if a is not None else b for a, b in zip(shape, static, strict=True)]
    for total, group in zip(source, groups, strict=True):
        missing = [axis for axis in group if shape[axis] is None]
        rest = prod(size for axis in group if (size := shape[axis]) is not None)
        if len(missing) == 1 and total is not None and rest and total % rest == 0:
            shape[missing[0]] = total // rest
    return (tuple(shape),)


def _insert(site: Site) -> Cost:
    source = site.operands[0]
    if source.kind == "scalar":
        return costs.movement(site, "copy", 0.0, source.itemsize_b)
    return costs.movement(site, "copy", source.nbytes, source.nbytes)


def element_bytes(site: Site, memory_b: float, itemsize_b: float) -> float:
    """Bytes of one access to an element in a loop: the memory is counted once for the whole loop, not once per access."""
    return min(itemsize_b, memory_b / max(site.runs, 1.0))


def _extract(site: Site) -> Cost:
    source = site.operands[0]
    if source.dtype in ("index", "int64", "int32") and site.runs <= 1:
        return costs.control(site)
    moved = element_bytes(site, source.nbytes, source.itemsize_b)
    return costs.loop("movement", source.dtype, 1.0, "slice", bytes_in=moved)


DIALECT = Dialect(
    "tensor",
    {
        **rules("tensor", "empty", costs.view, of_sizes),
        **rules("tensor", "cast bitcast", costs.view, of_first),
        **rules("tensor", "expand_shape collapse_shape", costs.view, reassociated),
        **rules("tensor", "reshape", costs.view, of_known(1)),
        **rules("tensor", "extract_slice", costs.view, sliced_shape),
        **rules("tensor", "insert_slice insert", _insert, lambda site: (site.operands[1].shape,)),
        **rules("tensor", "pad", moving("pad", reads_first=True), _padded_shape),
        **rules("tensor", "concat", moving("concatenate"), lambda site: joined(site.operands, site.int_of("dim"))),
        **rules("tensor", "splat", costs.broadcast, of_sizes),
        **rules("tensor", "generate", costs.by_body, of_sizes),
        **rules("tensor", "extract", _extract, fold=_element, reads="runs"),
        **rules("tensor", "gather", costs.gather),
        **rules("tensor", "scatter", costs.scatter(2, 0)),
        **rules("tensor", "dim", costs.control, fold=extent),
        **rules("tensor", "rank", costs.control),
        **rules("tensor", "from_elements", costs.view, fold=_elements),
        **rules("bufferization", "alloc_tensor", costs.view, of_sizes),
        **rules("bufferization", "to_tensor to_memref to_buffer clone", costs.view, of_first),
        **rules("bufferization", "materialize_in_destination", copied(0), of_operands),
        **rules("bufferization", "dealloc_tensor dealloc", costs.control),
    },
)
