"""Results as large as values say: exactly where these are known, else the most there can be. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from ....features.errors import SpecError
from ..operation import TensorInfo
from .stand_ins import line

_MOST_FOLLOWED = 1 << 16
"""Elements up to which values of whole numbers are followed: lengths, positions and masks, not activations."""

_FACTORIES = frozenset({"aten.arange", "aten.empty", "aten.full", "aten.ones", "aten.zeros"})
"""What makes tensors whose values are known, or are not read before they are written."""

_PACKS = "aten._pack_padded_sequence"
READS = frozenset({"aten._local_scalar_dense", "aten.equal"})
"""What reads values of tensors as numbers."""


class KnownValues:
    """Values of small tensors of whole numbers that a program was given or wrote down, and of what it makes of these alone."""

    def __init__(self) -> None:
        self._values: Any = WeakTensorKeyDictionary()

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a fake tensor; None where they are not known."""
        values: Tensor | None = self._values.get(tensor)
        return values if values is not None and values.untyped_storage().nbytes() else None

    def keep(self, tensor: Tensor, values: Tensor) -> None:
        """A fake tensor has values, unless there are many of them or they are no whole numbers."""
        if _is_followed(values):
            self._values[tensor] = values

    def give(self, stand_in: Tensor, tensor: Tensor) -> None:
        """A fake tensor stands for another one, or for the user's own, which is left as it is."""
        is_here = not isinstance(tensor, FakeTensor) and not tensor.is_meta and tensor.layout is torch.strided
        if (known := self.of(tensor)) is not None:
            self._values[stand_in] = known
        elif is_here and _is_followed(tensor) and stand_in not in self._values:
            with _disable_current_modes():
                self.keep(stand_in, tensor.detach().clone())

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator ran: what it made of known values alone is known, and what it wrote of others is no longer."""
        name, tensors = str(func._overloadpacket), tensors_in((*args, *kwargs.values()))
        if func.namespace != "aten" or (not self._values if tensors else name not in _FACTORIES):
            return
        if tensors and all(tensor.is_floating_point() for tensor in tensors):
            return
        outputs = tensors_in((result,))
        values = [self.of(tensor) for tensor in tensors]
        is_small = all(_is_followed(each) and not each.is_meta for each in outputs)
        if None not in values and is_small and torch.Tag.nondeterministic_seeded not in func.tags:
            # Values the host has no kernel for are not known.
            with suppress(RuntimeError):
                computed = tensors_in((self._computed(func, args, kwargs),))
                for tensor, now_known in zip(outputs, computed, strict=True):
                    self.keep(tensor, now_known)
                return
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in tensors_in((value,)) if argument.is_write else ():
                if (known := self.of(tensor)) is not None:
                    # Views of it are not known either.
                    known.untyped_storage().resize_(0)

    def computed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What an operator gives where all tensors it is given are known; None elsewhere."""
        tensors = tensors_in((*args, *kwargs.values()))
        is_known = bool(tensors) and all(self.of(tensor) is not None for tensor in tensors)
        return self._computed(func, args, kwargs) if is_known else None

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def plain(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.of(value)
            return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

        with _disable_current_modes():
            return func(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})


def _is_followed(tensor: Tensor) -> bool:
    return tensor.numel() <= _MOST_FOLLOWED and not tensor.is_floating_point() and not tensor.is_complex()


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among values and in their lists; schemas of operators nest no deeper than these."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += tensors_in(value)
    return tensors


@dataclass(frozen=True, slots=True)
class Sized:
    """What an operator gives whose result is as large as values say.

    Attributes:
        result: Its result.
        taken: What its size was taken as; empty where it is known.
        size: The size that values decide.
    """

    result: Any
    taken: str = ""
    size: int = 0


class ByValues:
    """Answers of operators that depend on values.

    Attributes:
        known: Values that are known.
        assumed: What a check of PyTorch's own that reads values finds; None where none runs.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        """The answers; `note` is told what sizes were taken as."""
        self.known = KnownValues()
        self.assumed: bool | None = None
        self._note = note
        self._noted: set[tuple[str, str]] = set()
        self._sizes: dict[int, frozenset[int]] = {}
        self._latest: frozenset[int] = frozenset()

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sized | None:
        """What an operator gives whose result cannot be told from shapes alone; None where nothing bounds it.

        Raises:
            SpecError: an argument that says the size was left out.
        """
        name = str(func._overloadpacket)
        if name in READS and self.assumed is not None:
            return Sized(self.assumed)
        if name in READS or name in _SIZED:
            result = self.known.computed(func, args, kwargs)
            if result is not None and name != _PACKS:
                return Sized(_like(tensors_in((*args, *kwargs.values()))[0], result))
        if name not in _SIZED:
            return None
        arguments = func._schema.arguments
        defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
        named = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
        sized = _SIZED[name](self.known, {**defaults, **named, **kwargs})
        if sized.taken:
            self._latest = frozenset((sized.size,) if sized.size > 1 else ())
            if (place := (line(), name)) not in self._noted:
                self._noted.add(place)
                self._note(
                    f"{place[0]} calls {name.partition('.')[2]}, whose result is as large as values say: taken are "
                    f"{sized.taken}; with fewer it and what follows of it take less, as the lower end of the interval has it"
                )
        return sized

    def is_upper_bound(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> bool:
        """Whether a call works on tensors of sizes that are the most there can be; its results have these where they divide one
        of their sizes.
        """
        sizes, self._latest = self._latest, frozenset()
        if self._sizes:
            sizes = sizes.union(*(self._sizes.get(tensor.storage, ()) for tensor in inputs))
        for tensor in outputs if sizes else ():
            if left := frozenset(size for size in sizes if any(each and each % size == 0 for each in tensor.shape)):
                self._sizes[tensor.storage] = left
        return bool(sizes)


def _like(fake: Tensor, answer: Any) -> Any:
    """Fake tensors in the place of those with values; numbers as they are."""
    if isinstance(answer, Tensor):
        return fake.new_empty(answer.shape, dtype=answer.dtype)
    return tuple(_like(fake, each) for each in answer) if isinstance(answer, tuple) else answer


def _numbers(values: Tensor) -> list[int]:
    with _disable_current_modes():
        return [int(value) for value in values.tolist()]


def _count(known: KnownValues, mask: Tensor) -> tuple[int, str]:
    """How many elements a mask leaves, and what that was taken as."""
    values = known.of(mask)
    if values is not None:
        with _disable_current_modes():
            return int(values.count_nonzero()), ""
    return mask.numel(), f"all {mask.numel()} of {mask.numel()} elements"


_Arguments = Mapping[str, Any]


def _index(known: KnownValues, named: _Arguments) -> Sized:
    """Elements at the places that masks leave."""
    places: list[Tensor | None] = []
    taken = ""
    for index in named["indices"]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
            continue
        count, counted = _count(known, index)
        taken = taken or counted
        places += [index.new_empty(count, dtype=torch.int64) for _ in range(index.dim())]
    size = max((place.numel() for place in places if place is not None), default=0)
    return Sized(torch.ops.aten.index.Tensor(named["self"], places), taken, size)


def _nonzero(known: KnownValues, named: _Arguments) -> Sized:
    source = named["self"]
    count, taken = _count(known, source)
    return Sized(source.new_empty((source.dim(), count), dtype=torch.int64).t(), taken, count)


def _masked_select(known: KnownValues, named: _Arguments) -> Sized:
    source, mask = named["self"], named["mask"]
    count, taken = _count(known, mask)
    every = torch.Size(torch.broadcast_shapes(source.shape, mask.shape)).numel()  # type: ignore[no-untyped-call]
    return Sized(source.new_empty(count * (every // max(1, mask.numel()))), taken, count)


def _unique(_: KnownValues, named: _Arguments) -> Sized:
    """Different elements, or slices along a dimension, with the places and counts that are asked for."""
    source, dim = named["self"], named.get("dim")
    most = source.numel() if dim is None else source.shape[dim]
    places_shape = (source.shape if dim is None else (most,)) if named["return_inverse"] else (0,)
    different = source.new_empty(most if dim is None else source.shape)
    places = source.new_empty(places_shape, dtype=torch.int64)
    counts = source.new_empty(most if named.get("return_counts") else 0, dtype=torch.int64)
    result = (different, places, counts) if "return_counts" in named else (different, places)
    return Sized(result, f"all {most} of {most} as different", most)


def _bincount(_: KnownValues, named: _Arguments) -> Sized:
    count, weights = named["minlength"], named["weights"]
    if not count:
        raise SpecError(
            f"{line()} calls torch.bincount, whose result is as long as its largest value says, and an estimate computes none; "
            "pass minlength=, which is then taken as its length",
            field="program",
        )
    dtype = torch.int64 if weights is None else weights.dtype if weights.dtype == torch.float32 else torch.float64
    return Sized(named["self"].new_empty(count, dtype=dtype), f"the {count} counts of its minlength", count)


def _repeats(_: KnownValues, __: _Arguments) -> Sized:
    raise SpecError(
        f"{line()} calls torch.repeat_interleave, whose result is as long as the sum of its repeats, and an estimate computes "
        "none; pass output_size=",
        field="program",
    )


def _alignments(known: KnownValues, named: _Arguments) -> Sized:
    """The loss of CTC, and the sums over alignments that its backward reads: two for each label of the longest target and one
    more.
    """
    scores, targets, lengths = named["log_probs"], named["targets"], named["target_lengths"]
    batch = scores.shape[1] if scores.dim() == 3 else 1
    values = known.of(lengths) if isinstance(lengths, Tensor) else torch.as_tensor(lengths)
    taken = ""
    if values is not None:
        longest = max(_numbers(values), default=0)
    elif targets.dim() > 1:
        longest = targets.shape[1]
        taken = f"all targets as long as the longest there can be, {longest}"
    else:
        longest = -(-targets.numel() // batch)
        taken = f"all targets as long as each other, {longest}"
    sums = scores.new_empty((batch, scores.shape[0], 2 * longest + 1))
    return Sized((scores.new_empty((batch,)), sums), taken, 2 * longest + 1)


def _gradient_of_alignments(_: KnownValues, named: _Arguments) -> Sized:
    return Sized(torch.empty_like(named["log_probs"]))


def _least_squares(_: KnownValues, named: _Arguments) -> Sized:
    """The solution does not depend on the rank; residuals are there where that is full, as it is taken to be."""
    matrix, right, driver = named["self"], named["b"], named["driver"] or "gelsy"
    *batch, rows, cols = matrix.shape
    columns = [] if right.dim() == 1 or right.shape == matrix.shape[:-1] else [right.shape[-1]]
    real = torch.float64 if matrix.dtype in (torch.float64, torch.complex128) else torch.float32
    return Sized((
        matrix.new_empty((*batch, cols, *columns)),
        matrix.new_empty((*batch, *columns) if rows > cols and driver != "gelsy" else (0,), dtype=real),
        matrix.new_empty(batch if driver != "gels" else (0,), dtype=torch.int64),
        matrix.new_empty((*batch, min(rows, cols)) if driver in ("gelsd", "gelss") else (0,), dtype=real),
    ))  # fmt: skip


def _pack(known: KnownValues, named: _Arguments) -> Sized:
    """Sequences without what pads them, and how many of them each step has, which PyTorch's layers read."""
    padded, values = named["input"], known.of(named["lengths"])
    batch, steps = padded.shape[:2] if named["batch_first"] else padded.shape[1::-1]
    lengths = [steps] * batch if values is None else _numbers(values)
    sizes = [sum(length > step for length in lengths) for step in range(max(lengths))]
    with _disable_current_modes():
        batch_sizes = torch.tensor(sizes, dtype=torch.int64)
    taken = "" if values is not None else f"all {batch} sequences as long as the longest there can be, {steps}"
    return Sized((padded.new_empty((sum(sizes), *padded.shape[2:])), batch_sizes), taken, sum(sizes))


def sizes_of(batch_sizes: Tensor) -> list[int]:
    """How many sequences each step of packed ones has.

    Raises:
        SpecError: this depends on values.
    """
    if isinstance(batch_sizes, FakeTensor) or batch_sizes.is_meta:
        raise SpecError(
            f"{line()} runs packed sequences whose lengths an estimate has computed nothing of; pack them with "
            "pack_padded_sequence",
            field="program",
        )
    return _numbers(batch_sizes)


def unpacked(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int) -> Any:
    """`_pad_packed_sequence` (aten/src/ATen/native/PackedSequence.cpp), which reads the sizes itself."""
    sizes = sizes_of(batch_sizes)
    steps = max(total_length, len(sizes))
    padded = data.new_full((steps, sizes[0], *data.shape[1:]), padding_value)
    at = begin = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or sizes[end] != sizes[begin]:
            size, count = sizes[begin], end - begin
            rows = data[at : at + size * count].view(count, size, *data.shape[1:])
            padded[begin:end, :size].copy_(rows)
            at, begin = at + size * count, end
    with _disable_current_modes():
        lengths = torch.tensor([sum(size > row for size in sizes) for row in range(sizes[0])], dtype=torch.int64)
    return padded.transpose(0, 1) if batch_first else padded, lengths


_SIZED: Mapping[str, Callable[[KnownValues, _Arguments], Sized]] = {
    "aten.index": _index, "aten.nonzero": _nonzero, "aten.masked_select": _masked_select, "aten.bincount": _bincount,
    **dict.fromkeys(
        ("aten._unique", "aten._unique2", "aten.unique_consecutive", "aten.unique_dim", "aten.unique_dim_consecutive"), _unique
    ),
    "aten.repeat_interleave": _repeats, "aten._ctc_loss": _alignments, "aten._ctc_loss_backward": _gradient_of_alignments,
    "aten.linalg_lstsq": _least_squares, _PACKS: _pack,
}  # fmt: skip
"""By operator, what it gives where shapes alone do not tell."""

NOT_FAKE = frozenset({"aten._ctc_loss_backward"})
"""Those that PyTorch would run with zeros, as it does not know their shapes, though these are clear."""
