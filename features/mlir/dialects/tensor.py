"""tensor and bufferization: views, padding, concatenation and single elements of tensors."""

from __future__ import annotations

from ..semantics import costs
from ..semantics.dynamic_sizes import conserved, of_first, of_operands
from ..semantics.op_rule import Cost, Dialect, Known, Shape, Site, rules
from ..semantics.operators import read_body
from ..types import attributes

_DYNAMIC = -(2**63)


def _dim(site: Site) -> Known:
    shape, axis = site.operands[0].shape, site.known(1)
    return shape[axis] if shape is not None and isinstance(axis, int) and 0 <= axis < len(shape) else None


def _elements(site: Site) -> Known:
    if site.results[0].shape is None or len(site.results[0].shape) > 1:
        return None
    return tuple(site.known(position) for position in range(len(site.operands)))


def _element(site: Site) -> Known:
    known, place = site.known(0), site.known(1) if len(site.operands) > 1 else 0
    return known[place] if isinstance(known, tuple) and isinstance(place, int) and 0 <= place < len(known) else None


def _passed(site: Site) -> Known:
    return site.known(0)


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


def of_sizes(site: Site) -> tuple[Shape | None, ...] | None:
    """Results whose open sizes are the operands, in order: `tensor.empty(%n)`."""
    shape = site.results[0].shape
    if shape is None:
        return None
    rest = iter([site.known(position) for position, kind in enumerate(site.operands) if kind.kind == "scalar"])
    numbers = [next(rest, None) if size is None else size for size in shape]
    return (tuple(number if isinstance(number, int) else None for number in numbers),)


def sliced_shape(site: Site) -> tuple[Shape | None, ...] | None:
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


def _padded_shape(site: Site) -> tuple[Shape | None, ...] | None:
    shape, segments = site.operands[0].shape, site.ints("operandSegmentSizes") or (1, 0, 0)
    known = [site.known(position) for position in range(len(site.operands))]
    low = mixed(site.ints("static_low"), known[segments[0] : segments[0] + segments[1]])
    high = mixed(site.ints("static_high"), known[segments[0] + segments[1] :])
    if shape is None or low is None or high is None:
        return None
    sizes = zip(shape, low, high, strict=True)
    return (tuple(None if None in three else sum(size or 0 for size in three) for three in sizes),)


def reassociated(site: Site) -> tuple[Shape | None, ...] | None:
    """The result of a collapse or an expansion: products of groups of sizes, or the one size open in each group."""
    written = attributes.value(site.text, "reassociation")
    source, result = site.operands[0].shape, site.results[0].shape
    if written is None or source is None or result is None:
        return conserved(site)
    groups = attributes.groups(written)
    if len(result) <= len(source):
        sizes = [[source[axis] for axis in group] for group in groups]
        return (tuple(None if None in group else _product(group) for group in sizes),)
    shape = list(result)
    static = mixed(
        site.ints("static_output_shape"), [site.known(position) for position in range(1, len(site.operands))]
    )
    if static is not None:
        shape = [a if a is not None else b for a, b in zip(shape, static, strict=True)]
    for total, group in zip(source, groups, strict=True):
        missing = [axis for axis in group if shape[axis] is None]
        rest = _product([shape[axis] for axis in group if shape[axis] is not None])
        if len(missing) == 1 and total is not None and rest and total % rest == 0:
            shape[missing[0]] = total // rest
    return (tuple(shape),)


def _product(sizes: list[int | None]) -> int:
    total = 1
    for size in sizes:
        total *= size if size is not None else 1
    return total


def _joined_shape(site: Site) -> tuple[Shape | None, ...] | None:
    axis, shapes = site.int_of("dim"), [kind.shape for kind in site.operands]
    if axis is None or any(shape is None for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    first = list(shapes[0] or ())
    first[axis] = None if None in sizes else sum(size or 0 for size in sizes)
    return (tuple(first),)


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
    return Cost("movement", source.dtype, 0.0, 0.0, moved, 0.0, detail={"operator": "slice"})


def _generate(site: Site) -> Cost:
    body = read_body(site.body, site.body_arguments)
    return costs.elementwise(site, body.name, body.flops, body.transcendentals)


def _gather(site: Site) -> Cost:
    return costs.gathered("gather", site.operands[1:2], site.results[0])


def _scatter(site: Site) -> Cost:
    return costs.gathered("scatter", site.operands[2:3], site.operands[0])


DIALECT = Dialect(
    "tensor",
    {
        **rules("empty", costs.view, dialect="tensor", shapes=of_sizes),
        **rules("cast bitcast", costs.view, dialect="tensor", shapes=of_first),
        **rules("expand_shape collapse_shape", costs.view, dialect="tensor", shapes=reassociated),
        **rules(
            "reshape",
            costs.view,
            dialect="tensor",
            shapes=lambda site: None if (known := site.listed(1)) is None else (known,),
        ),
        **rules("extract_slice", costs.view, dialect="tensor", shapes=sliced_shape),
        **rules("insert_slice insert", _insert, dialect="tensor", shapes=lambda site: (site.operands[1].shape,)),
        **rules(
            "pad",
            lambda site: costs.movement(site, "pad", site.operands[0].nbytes),
            dialect="tensor",
            shapes=_padded_shape,
        ),
        **rules("concat", lambda site: costs.movement(site, "concatenate"), dialect="tensor", shapes=_joined_shape),
        **rules("splat", costs.broadcast, dialect="tensor", shapes=of_sizes),
        **rules("generate", _generate, dialect="tensor", shapes=of_sizes),
        **rules("extract", _extract, dialect="tensor", fold=_element, reads="runs"),
        **rules("gather", _gather, dialect="tensor"),
        **rules("scatter", _scatter, dialect="tensor"),
        **rules("dim", costs.control, dialect="tensor", fold=_dim),
        **rules("rank", costs.control, dialect="tensor"),
        **rules("from_elements", costs.view, dialect="tensor", fold=_elements),
        **rules("alloc_tensor", costs.view, dialect="bufferization", shapes=of_sizes),
        **rules("to_tensor to_memref to_buffer clone", costs.view, dialect="bufferization", shapes=of_first),
        **rules(
            "materialize_in_destination",
            lambda site: costs.movement(site, "copy", site.operands[0].nbytes, site.operands[0].nbytes),
            dialect="bufferization",
            shapes=of_operands,
        ),
        **rules("dealloc_tensor dealloc", costs.control, dialect="bufferization"),
    },
)
