"""What integers StableHLO operations fold to, and the sizes of their results where the text leaves them open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ..types import attributes
from .dynamic_sizes import Shapes
from .op_rule import Known, ShapesOf, Site

Axes = tuple[tuple[int, ...], tuple[int, ...]]


def dot_axes(site: Site) -> tuple[Axes, Axes]:
    """Axes of the left and of the right operand that are summed over, and those that are batches."""
    contracted, batched = (
        _written_pair(site.text, f"{word}ing_dims")
        or (site.ints(f"lhs_{word}ing_dimensions") or (), site.ints(f"rhs_{word}ing_dimensions") or ())
        for word in ("contract", "batch")
    )
    if site.short == "dot" and not contracted[0]:
        contracted = ((len(site.operands[0].shape or ()) - 1,), (0,))
    return contracted, batched


def _written_pair(text: str, name: str) -> Axes | None:
    match = re.search(rf"(?<!\w){name} = (\[[\d, ]*\]) x (\[[\d, ]*\])", text)
    return None if match is None else (attributes.numbers(match[1]) or (), attributes.numbers(match[2]) or ())


def constant(site: Site) -> Known:
    """The integers of a constant: one, or a list; None for floating-point and for larger arrays."""
    kind = site.results[0]
    if (
        not kind.is_array
        or kind.shape is None
        or len(kind.shape) > 1
        or not (kind.dtype.startswith("int") or kind.dtype in ("index", "i1", "i16"))
    ):
        return None
    written = attributes.value(site.text, "value") or site.text
    numbers = attributes.numbers(written)
    if numbers is None:
        return None
    return numbers if kind.shape else numbers[0]


def same(site: Site) -> Known:
    """What is handed on, as a number or as a list of one."""
    known = site.known(0)
    shape = site.results[0].shape
    if isinstance(known, tuple) and shape == () and len(known) == 1:
        return known[0]
    return (known,) if isinstance(known, int) and shape == (1,) else known


def joined(site: Site) -> Known:
    """Lists one after the other."""
    items: list[Known] = []
    for position in range(len(site.operands)):
        known = site.known(position)
        items += known if isinstance(known, tuple) else [known]
    return tuple(items)


def sliced(site: Site) -> Known:
    """A part of a list."""
    known, start, limit = site.known(0), site.int_of("start_indices"), site.int_of("limit_indices")
    return known[start:limit] if isinstance(known, tuple) and start is not None and limit is not None else None


_FOLDED: Mapping[str, Callable[[int, int], int | None]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b if b else None,
    "maximum": max,
    "minimum": min,
}


def folded(site: Site) -> Known:
    """Arithmetic on integers or on lists of them."""
    left, right = site.known(0), site.known(1)
    act = _FOLDED[site.short]
    if isinstance(left, int) and isinstance(right, int):
        return act(left, right)
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        return tuple(
            act(a, b) if isinstance(a, int) and isinstance(b, int) else None for a, b in zip(left, right, strict=True)
        )
    return None


def dimension_size(site: Site) -> Known:
    """A size of the operand."""
    axis = site.int_of("dimension", "dim")
    shape = site.operands[0].shape
    return shape[axis] if shape is not None and axis is not None and axis < len(shape) else None


def by_operand(position: int) -> ShapesOf:
    """Sizes that an operand says, counted from the end where `position` is negative."""

    def shapes(site: Site) -> Shapes:
        known = site.listed(position if position >= 0 else len(site.operands) + position)
        return None if known is None else (known,)

    return shapes


def dot_sizes(site: Site) -> Shapes:
    """Batches, rows, columns."""
    lhs, rhs = site.operands[0].shape, site.operands[1].shape
    if lhs is None or rhs is None:
        return None
    (left, right), (batch_left, batch_right) = dot_axes(site)
    rows = [size for axis, size in enumerate(lhs) if axis not in (*batch_left, *left)]
    columns = [size for axis, size in enumerate(rhs) if axis not in (*batch_right, *right)]
    return ((*(lhs[axis] for axis in batch_left), *rows, *columns),)


def reduced_sizes(site: Site) -> Shapes:
    """Reduced axes gone."""
    shape, axes = site.operands[0].shape, site.ints("dimensions")
    if shape is None or axes is None:
        return None
    return tuple(tuple(size for axis, size in enumerate(shape) if axis not in axes) for _ in site.results)


def transposed_sizes(site: Site) -> Shapes:
    """Axes in the order asked for."""
    shape, order = site.operands[0].shape, site.ints("permutation", "dims")
    return None if shape is None or order is None else (tuple(shape[axis] for axis in order),)


def joined_sizes(site: Site) -> Shapes:
    """Sizes added along an axis."""
    axis, shapes = site.int_of("dimension", "dim"), [kind.shape for kind in site.operands]
    if axis is None or not shapes or any(shape is None or axis >= len(shape) for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    first = list(shapes[0] or ())
    first[axis] = total
    return (tuple(first),)


def first_sizes(site: Site) -> Shapes:
    """As large as the first operands."""
    return tuple(kind.shape for kind in site.operands[: len(site.results)])


def sliced_sizes(site: Site) -> Shapes:
    """From start, limit and step of every axis, which are operands."""
    start, limit, step = (site.listed(position) for position in (1, 2, 3))
    if start is None or limit is None or step is None:
        return None
    return (tuple(-(-(last - first) // by) for first, last, by in zip(start, limit, step, strict=True)),)


def gathered_sizes(site: Site) -> Shapes:
    """Offsets from the slice sizes, all others from the indices, in order (StableHLO specification, gather)."""
    rank, places, sizes = len(site.results[0].shape or ()), site.operands[1].shape, site.ints("slice_sizes")
    offsets, collapsed = site.ints("offset_dims") or (), site.ints("collapsed_slice_dims") or ()
    if places is None or sizes is None:
        return None
    vector = site.int_of("index_vector_dim")
    batch = iter([size for axis, size in enumerate(places) if axis != vector])
    remaining = iter(
        [
            size
            for axis, size in enumerate(sizes)
            if axis not in (*collapsed, *(site.ints("operand_batching_dims") or ()))
        ]
    )
    return (tuple(next(remaining if axis in offsets else batch, None) for axis in range(rank)),)
