"""Names of torch operations, the integers they fold to, and sizes of their results where the text leaves them open."""

from __future__ import annotations

from collections.abc import Iterable

from ..types import attributes
from .dynamic_sizes import Shapes, broadcast_shape, completed, conserved, joined, of_operands, permuted
from .op_rule import CostOf, Known, Rule, ShapesOf, Site, rules


def name_of(site: Site) -> str:
    """The operation's name without dialect and overload: `add` of `torch.aten.add.Tensor`."""
    return site.name.split(".")[2].rstrip("_") if site.name.count(".") > 1 else site.short


def each(prefix: str, names: str | Iterable[str], cost: CostOf, shapes: ShapesOf | None = None) -> dict[str, Rule]:
    """Rules by the name without overload, in place or not; their costs depend on integers that are operands."""
    plain = names.split() if isinstance(names, str) else list(names)
    both = [*plain, *(f"{name}_" for name in plain)]
    return rules(prefix, both, cost, shapes, reads="values")


def constant(site: Site) -> Known:
    """The number a constant is."""
    written = attributes.value(site.text, "value") or site.text
    if site.short == "float":
        try:
            return float(written.partition(":")[0])
        except ValueError:
            return None
    numbers = attributes.numbers(written)
    return numbers[0] if numbers is not None and len(numbers) == 1 else None


def item(site: Site) -> Known:
    """One element of a list."""
    known, place = site.known(0), site.known(1)
    return (
        known[place]
        if isinstance(known, tuple) and isinstance(place, int) and -len(known) <= place < len(known)
        else None
    )


def passed(site: Site) -> Known:
    """The number handed on, rounded towards zero where it becomes an integer."""
    known = site.known(0)
    return int(known) if isinstance(known, float) and site.short == "Scalar" else known


def size(site: Site) -> Known:
    """A size of a tensor, or all of them."""
    shape = site.operands[0].shape
    if shape is None or len(site.operands) < 2:
        return shape
    axis = site.known(1)
    return shape[axis] if isinstance(axis, int) and -len(shape) <= axis < len(shape) else None


def length(site: Site) -> Known:
    """Length of a list, or number of axes of a tensor."""
    known = site.known(0)
    return len(known) if isinstance(known, tuple) else len(site.operands[0].shape or ())


def viewed_sizes(site: Site) -> Shapes:
    """The sizes asked for, -1 from the number of elements."""
    wanted = site.known(1)
    if not isinstance(wanted, tuple):
        return conserved(site)
    sizes = [size if isinstance(size, int) and size >= 0 else None for size in wanted]
    return completed(sizes, site.operands[0].shape)


def permuted_sizes(site: Site) -> Shapes:
    """Axes in the order asked for; of transpose and t two of them swapped."""
    return permuted(site, order_of(site))


def order_of(site: Site) -> tuple[int, ...] | None:
    """The axis of the operand that each axis of a transpose's result is; None where it is not known."""
    rank = len(site.operands[0].shape or ())
    order = list(range(rank))
    if name_of(site) == "permute":
        order = [axis % rank for axis in site.listed(1) or ()]
    elif rank > 1:
        first, second = (site.known(1), site.known(2)) if len(site.operands) > 2 else (0, 1)
        if not isinstance(first, int) or not isinstance(second, int):
            return None
        order[first], order[second] = order[second], order[first]
    return tuple(order)


def expanded_sizes(site: Site) -> Shapes:
    """The sizes asked for, -1 as they were."""
    wanted, shape = site.known(1), site.operands[0].shape
    if not isinstance(wanted, tuple) or shape is None:
        return None
    lead = (1,) * (len(wanted) - len(shape))
    return (
        tuple(
            old if new == -1 else (new if isinstance(new, int) else None)
            for new, old in zip(wanted, (*lead, *shape), strict=True)
        ),
    )


def unsqueezed_sizes(site: Site) -> Shapes:
    """An axis of size 1 put in."""
    shape, axis = site.operands[0].shape, site.known(1)
    if shape is None or not isinstance(axis, int):
        return None
    at = axis % (len(shape) + 1)
    return ((*shape[:at], 1, *shape[at:]),)


def sliced_sizes(site: Site) -> Shapes:
    """One axis cut to start, end and step."""
    shape, (axis, start, end, step) = site.operands[0].shape, (site.known(position) for position in range(1, 5))
    if shape is None or not isinstance(axis, int) or not isinstance(step, int):
        return None
    length = shape[axis]
    if length is None:
        return None
    first, last, _ = slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None).indices(
        length
    )
    at = axis % len(shape)
    return ((*shape[:at], max(-(-(last - first) // step), 0), *shape[at + 1 :]),)


def squeezed_sizes(site: Site) -> Shapes:
    """Axes of size 1 left out: those named, or all."""
    shape, rank = site.operands[0].shape, len(site.results[0].shape or ())
    if shape is None:
        return None
    named = {axis % len(shape) for axis in (site.listed(1) or ())} if len(site.operands) > 1 else set(range(len(shape)))
    remaining = tuple(size for axis, size in enumerate(shape) if axis not in named or size != 1)
    return (remaining,) if len(remaining) == rank else conserved(site)


def selected_sizes(site: Site) -> Shapes:
    """One place along an axis: select, and unbind's results."""
    shape, axis = site.operands[0].shape, site.known(1)
    if shape is None or not isinstance(axis, int):
        return None
    at = axis % len(shape)
    return ((*shape[:at], *shape[at + 1 :]),) * len(site.results)


def joined_sizes(site: Site) -> Shapes:
    """cat: sizes added along an axis; stack: a new axis as long as the list."""
    kinds, axis = site.parts(0), site.known(1)
    if name_of(site) != "stack":
        return joined(kinds, axis)
    if not isinstance(axis, int) or any(kind.shape is None for kind in kinds):
        return None
    first = kinds[0].shape or ()
    at = axis % (len(first) + 1)
    return ((*first[:at], len(kinds), *first[at:]),)


def product_sizes(site: Site) -> Shapes:
    """Sizes of a matrix product."""
    left, right = site.operands[0].shape, site.operands[1].shape
    if left is None or right is None:
        return None
    if name_of(site) == "linear":
        return ((*left[:-1], right[0]),)
    if name_of(site) in ("addmm", "baddbmm"):
        left, right = site.operands[1].shape or (), site.operands[2].shape or ()
    batch = broadcast_shape([left[:-2], right[:-2]]) or ()
    return ((*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())),)


def reduced_sizes(site: Site) -> Shapes:
    """Reduced axes gone, or of size 1 where the result keeps them."""
    shape = site.operands[0].shape
    if shape is None or len(site.arrays) > 1:
        return of_operands(site)
    axes = {axis % len(shape) for axis in (site.listed(1) or range(len(shape)))}
    rank = len(site.results[0].shape or ())
    remaining = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return (
        (remaining if rank == len(shape) else tuple(size for axis, size in enumerate(shape) if axis not in axes)),
    ) * len(site.results)


def embedded_sizes(site: Site) -> Shapes:
    """Sizes of the indices, then those of a row of the table."""
    table, places = site.operands[0].shape, site.operands[1].shape
    return None if table is None or places is None else ((*places, *table[1:]),)


def convolved_sizes(site: Site) -> Shapes:
    """Output sizes by PyTorch's formula for convolutions."""
    image, kernel, result = site.operands[0].shape, site.operands[1].shape, site.results[0].shape
    if image is None or kernel is None or result is None:
        return None
    stride, padding, dilation = (site.listed(position) for position in (3, 4, 5))
    sides: list[int | None] = [None] * (len(image) - 2)
    if stride and padding and dilation and site.known(6) != 1:
        for side, (size, tap) in enumerate(zip(image[2:], kernel[2:], strict=True)):
            if size is not None and tap is not None:
                sides[side] = (size + 2 * padding[side] - dilation[side] * (tap - 1) - 1) // stride[side] + 1
    return ((image[0], kernel[0], *sides),)


def ranged_sizes(site: Site) -> Shapes:
    """arange: its end alone, or start, end and step."""
    whole = "start" in site.name
    start, end = (site.known(0), site.known(1)) if whole else (0, site.known(0))
    step = site.known(2) if site.name.endswith("start_step") else 1
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int) or not step:
        return None
    return ((max(-(-(end - start) // step), 0),),)
