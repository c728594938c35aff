"""Dynamic sizes: what those of the arguments are called, binding them to numbers, and the sizes that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...errors import SpecError
from ...kernel import MAX_DIM
from ..types.graph import ValueType, value_type
from .op_rule import Known, Shape, Site

Shapes = tuple[Shape | None, ...] | None

_SHOWN = 12
"""Sizes listed in one message; more would bury what to do."""


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A dynamic size of an argument.

    Attributes:
        name: `dim0`, `dim1` … in order of appearance.
        place: The same by argument and axis, such as `arg0.1`.
        argument: Position of the argument.
        axis: Axis of the argument.
        type: Type of the argument, as written.
    """

    name: str
    place: str
    argument: int
    axis: int
    type: str

    def __str__(self) -> str:
        return f"{self.name} (or {self.place}): size {self.axis} of argument {self.argument}, {self.type}"


def open_sizes(arguments: Sequence[ValueType]) -> tuple[OpenSize, ...]:
    """The dynamic sizes of a function's arguments, in order."""
    items: list[OpenSize] = []
    for position, kind in enumerate(arguments):
        for axis, size in enumerate(kind.shape or ()):
            if size is None and kind.is_array:
                items.append(OpenSize(f"dim{len(items)}", f"arg{position}.{axis}", position, axis, kind.text))
    return tuple(items)


def bound(arguments: Sequence[ValueType], bind: Mapping[str, int]) -> tuple[list[ValueType], dict[int, int]]:
    """Types of the arguments with their dynamic sizes bound, and the values given to integer arguments.

    Keys are `dim0`, `dim1` … or `arg0.1` for sizes, `arg2` for an argument that is itself an integer or index.

    Raises:
        SpecError: a size is left open, a key names nothing that is open, or a value is no possible size.
    """
    sizes = open_sizes(arguments)
    integers = {
        f"arg{p}": p
        for p, kind in enumerate(arguments)
        if kind.kind == "scalar" and kind.dtype.startswith(("i", "int"))
    }
    by_key = {key: size for size in sizes for key in (size.name, size.place)}
    raw: dict[tuple[int, int], int] = {}
    scalars: dict[int, int] = {}
    for key, number in bind.items():
        _check_number(key, number)
        if key in by_key:
            place = by_key[key].argument, by_key[key].axis
            if raw.setdefault(place, number) != number:
                raise SpecError(f"{by_key[key]} is bound to both {raw[place]} and {number}", field="bind")
        elif key in integers:
            scalars[integers[key]] = number
        else:
            raise SpecError(f"no dynamic size {key!r}; {_choices(sizes, integers)}", field="bind")
    missing = [size for size in sizes if (size.argument, size.axis) not in raw]
    if missing:
        more = f", and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise SpecError(
            f"dynamic sizes must be bound: {'; '.join(map(str, missing[:_SHOWN]))}{more}. "
            f"Give each a number, for instance --bind {missing[0].name}=128",
            field="bind",
        )
    return [with_shape(kind, tuple(raw.get((position, axis), size) for axis, size in enumerate(kind.shape)))
            if kind.shape is not None else kind for position, kind in enumerate(arguments)], scalars  # fmt: skip


def _check_number(key: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise SpecError(f"{key} is bound to {number!r}; a size is a whole number", field="bind")
    if not 1 <= number <= MAX_DIM:
        raise SpecError(f"{key} is bound to {number}; a size is from 1 to {MAX_DIM}", field="bind")


def _choices(sizes: Sequence[OpenSize], integers: Mapping[str, int]) -> str:
    names = [str(size) for size in sizes[:_SHOWN]] + [f"{key}: an integer argument" for key in list(integers)[:_SHOWN]]
    return f"there are: {'; '.join(names)}" if names else "this function has none, leave it out"


def bound_sizes(written: Sequence[ValueType], kinds: Sequence[ValueType]) -> set[int]:
    """The numbers that dynamic sizes of the arguments were bound to."""
    pairs = (
        pair
        for old, new in zip(written, kinds, strict=True)
        for pair in zip(old.shape or (), new.shape or (), strict=True)
    )
    return {new for old, new in pairs if old is None and new is not None}


def with_shape(kind: ValueType, shape: Shape) -> ValueType:
    """The same type with these sizes in place of its own."""
    if kind.shape == shape:
        return kind
    text = kind.text
    if kind.shape is not None and len(kind.shape) == len(shape):
        for old, new in zip(kind.shape, shape, strict=True):
            if old is None and new is not None:
                text = text.replace("?", str(new), 1)
        results = value_type(text)
        if results.shape == shape:
            return results
    return ValueType(
        kind.kind,
        shape,
        kind.dtype,
        f"{kind.kind}<{'x'.join('?' if n is None else str(n) for n in (*shape,))}x{kind.dtype}>",
    )


def inferred(site: Site, shapes: Sequence[Shape | None] | None, bound_sizes: frozenset[int]) -> list[ValueType]:
    """Types of an operation's results with the sizes that the text leaves open.

    `shapes` are what the operation's own rule says. Where it has none or leaves sizes open, and all dynamic sizes of the
    arguments were bound to one number, that number is taken. What then remains stays open.
    """
    results: list[ValueType] = []
    for position, result in enumerate(site.results):
        if not result.is_array or result.is_static:
            results.append(result)
            continue
        raw = shapes[position] if shapes is not None and position < len(shapes) else None
        shape = result.shape if raw is None else _merged(result.shape, _possible(raw))
        if shape is not None and None in shape and len(bound_sizes) == 1:
            shape = tuple(next(iter(bound_sizes)) if size is None else size for size in shape)
        results.append(result if shape is None else with_shape(result, shape))
    return results


def _possible(shape: Shape) -> Shape:
    """Sizes that cannot be are open: contradictory text can make them negative, or beyond all numbers."""
    return tuple(size if size is not None and 0 <= size <= MAX_DIM else None for size in shape)


def _merged(written: Shape | None, shape: Shape) -> Shape | None:
    """The sizes written, open ones as given; unchanged where the two contradict each other."""
    if written is None:
        return shape
    pairs = list(zip(written, shape, strict=False))
    if len(shape) != len(written) or any(a is not None and b is not None and a != b for a, b in pairs):
        return written
    return tuple(b if a is None else a for a, b in pairs)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that shapes broadcast to, aligned at the last axis; None where they do not."""
    rank = max((len(shape) for shape in shapes), default=0)
    joined: list[int | None] = []
    for axis in range(rank):
        sizes = {shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0} - {1}
        known = sizes - {None}
        if len(known) > 1:
            return None
        joined.append(known.pop() if known else (None if sizes else 1))
    return tuple(joined)


def static_sizes(kind: ValueType) -> tuple[int, ...]:
    """The sizes of an array, 0 or more.

    Raises:
        ValueError: one is dynamic, or how many there are is not known.
    """
    if kind.shape is None:
        raise ValueError(f"{kind.text} has a dynamic size")
    sizes = tuple(size for size in kind.shape if size is not None)
    if len(sizes) < len(kind.shape):
        raise ValueError(f"{kind.text} has a dynamic size")
    return sizes


def of_operands(site: Site) -> Shapes:
    """Results of an operation on elements: what its operands broadcast to."""
    joined = broadcast_shape([kind.shape for kind in site.operands if kind.is_array and kind.shape is not None])
    return None if joined is None else (joined,) * len(site.results)


def of_first(site: Site) -> Shapes:
    """Results as large as the first operand."""
    return (site.operands[0].shape,) * len(site.results)


def of_destinations(site: Site) -> Shapes:
    """Results of an operation with destinations: as large as its last operands."""
    return tuple(kind.shape for kind in site.operands[len(site.operands) - len(site.results) :])


def conserved(site: Site) -> Shapes:
    """The result of a reshape: the one size open in it, from the number of elements."""
    result = site.results[0].shape
    return None if result is None else completed(result, site.operands[0].shape)


def of_known(position: int) -> Callable[[Site], Shapes]:
    """The result of an operation whose sizes an operand says, counted from the end where `position` is negative."""

    def shapes(site: Site) -> Shapes:
        known = site.listed(position if position >= 0 else len(site.operands) + position)
        return None if known is None else (known,)

    return shapes


def permuted(site: Site, order: Sequence[int] | None) -> Shapes:
    """The result of a transpose: axis i is axis `order[i]` of the operand."""
    shape = site.operands[0].shape
    return None if shape is None or order is None else (tuple(shape[axis] for axis in order),)


def keeps_order(shape: Shape, order: Sequence[int]) -> bool:
    """Whether a transpose of `shape` leaves the axes that are not 1 in their order, so that nothing moves in memory."""
    if sorted(order) != list(range(len(shape))):
        return False
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)


def joined(kinds: Sequence[ValueType], axis: Known) -> Shapes:
    """The result of a concatenation: sizes added along an axis."""
    shapes = [kind.shape for kind in kinds if kind.shape is not None]
    if not isinstance(axis, int) or not shapes or len(shapes) < len(kinds):
        return None
    sizes = [shape[axis] for shape in shapes]
    first = list(shapes[0])
    first[axis] = None if None in sizes else sum(size or 0 for size in sizes)
    return (tuple(first),)


def completed(sizes: Sequence[int | None], source: Shape | None) -> Shapes:
    """The result of a reshape to `sizes`: the one that is None, from the number of elements of the source."""
    total, rest = prod(size or 0 for size in source or ()), prod(size for size in sizes if size is not None)
    if source is None or None in source or sizes.count(None) != 1 or not rest or total % rest:
        return (tuple(sizes),)
    return (tuple(total // rest if size is None else size for size in sizes),)
