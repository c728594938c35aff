"""What stands for a program's tensors where it is recorded, and which storage is which. Needs torch."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ....features.errors import SpecError
from ..operation import INPUTS, WEIGHTS, Recording, TensorInfo

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class StandIns:
    """Tensors without data in the place of a program's: fake ones, or plain ones on the meta device where a tensor is there.

    Attributes:
        storages: Numbers of the storages.
        places: Which of them would be on a device.
    """

    def __init__(self, fake: FakeTensorMode, recording: Recording) -> None:
        self.storages = Storages(recording)
        self.places = Places(recording.roles)
        self._fake, self._roles = fake, recording.roles
        self._substitutes: dict[tuple[int, bool, bool], torch.Tensor] = {}

    def called(self, tensor: torch.Tensor, *, on_meta: bool, plain: bool = False) -> torch.Tensor:
        """The tensor that an operator is called with.

        Args:
            tensor: the program's.
            on_meta: whether a tensor of the call is on the meta device.
            plain: whether it is to be no fake one there.
        """
        is_fake = self._is_ours(tensor)
        if (plain and is_plain_meta(tensor)) or (is_fake and not plain and (is_on_meta(tensor) or not on_meta)):
            return tensor
        key = (id(tensor), on_meta, plain)
        if key not in self._substitutes:
            self._substitutes[key] = substitute = self._make(tensor, on_meta=on_meta, plain=plain)
            # Its address may be another's afterwards.
            weakref.finalize(tensor, self._substitutes.pop, key, None).atexit = False
            if on_meta:
                self.storages.same(substitute, self.identity(tensor))
        return self._substitutes[key]

    def identity(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor whose storage has the number: the program's, or of one with data what stands for it.

        What the program was given holds weights or inputs.
        """
        if is_plain_meta(tensor):
            known = self.storages.is_known(tensor)
            result = tensor
        else:
            result = self.called(tensor, on_meta=False)
            known = result is tensor
        is_weight = isinstance(tensor, torch.nn.Parameter)
        if not known or (is_weight and result is tensor):
            self._roles.setdefault(self.storages.number(result), WEIGHTS if is_weight else INPUTS)
        return result

    def info(self, tensor: torch.Tensor, came: int = 0) -> TensorInfo:
        """What is written down of a tensor; `came` is the operation that made it where it is new."""
        storage = self.storages.number(tensor, came)
        return TensorInfo(
            shape=tuple(map(int, tensor.shape)), strides=tuple(map(int, tensor.stride())), dtype=_dtype_name(tensor.dtype),
            itemsize_b=tensor.dtype.itemsize, storage=storage,
        )  # fmt: skip

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.fake_mode is self._fake

    def _make(self, tensor: torch.Tensor, *, on_meta: bool, plain: bool) -> torch.Tensor:
        if not on_meta and not isinstance(tensor, FakeTensor):
            return self._fake.from_tensor(tensor)
        device = "meta" if on_meta else tensor.device
        with _disable_current_modes():
            if plain:
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            with self._fake:
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def is_plain_meta(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the meta device and no fake one."""
    return tensor.is_meta and not isinstance(tensor, FakeTensor)


def is_on_meta(tensor: torch.Tensor) -> bool:
    """Whether it is on the meta device to its program."""
    return tensor.fake_device.type == "meta" if isinstance(tensor, FakeTensor) else tensor.is_meta


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Places:
    """Which storages would be on a device: what a program moves to one that is not here stays where it is.

    Attributes:
        put: Storages that were put there, or come of what is there.
        has_moves: Whether the program says what is on a device.
    """

    def __init__(self, roles: Mapping[int, str]) -> None:
        self._roles = roles
        self.put: set[int] = set()
        self.has_moves = False

    def is_on_device(self, tensor: TensorInfo) -> bool:
        """Whether a tensor is there; weights are."""
        return tensor.storage in self.put or self._roles.get(tensor.storage) == WEIGHTS

    def differ(self, target: TensorInfo, source: TensorInfo) -> bool:
        """Whether one of two tensors was put on a device and the other is not there."""
        there = {self.is_on_device(tensor) for tensor in (target, source)}
        return self.has_moves and len(there) == 2 and any(tensor.storage in self.put for tensor in (target, source))


class Storages:
    """Gives storages their numbers, and writes down when they come and go."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._numbers: dict[int, int] = {}

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's storage has a number."""
        return tensor.untyped_storage()._cdata in self._numbers

    def same(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """A tensor stands for another one, and so does its storage."""
        storage = tensor.untyped_storage()
        self._numbers[storage._cdata] = self.number(other)
        weakref.finalize(storage, self._numbers.pop, storage._cdata, None).atexit = False

    def number(self, tensor: torch.Tensor, came: int = 0) -> int:
        """The number of a tensor's storage; a storage not seen before is one that comes now."""
        if tensor.layout is not torch.strided:
            raise SpecError(
                f"{line()} uses a tensor of layout {tensor.layout}, and only strided ones are priced; estimate a program with "
                "dense tensors",
                field="program",
            )
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._numbers:
            number = len(self._recording.lifetimes)
            self._numbers[address] = number
            self._recording.lifetimes[number] = (int(storage.nbytes()), came, None)
            weakref.finalize(storage, self._goes, address, number).atexit = False
        return self._numbers[address]

    def forget(self, storage: torch.UntypedStorage) -> None:
        """What a storage held is gone, and so was no weight that stays; what it holds next is another one."""
        address = storage._cdata
        if address in self._numbers:
            self._recording.roles.pop(self._numbers[address], None)
            self._goes(address, self._numbers[address])

    def _goes(self, address: int, number: int) -> None:
        size_b, came, went = self._recording.lifetimes[number]
        if went is None:
            self._recording.lifetimes[number] = (size_b, came, max(len(self._recording.operations), came + 1))
        if self._numbers.get(address) == number:
            del self._numbers[address]


def line() -> str:
    """The file and line of the user's program that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", *_INSIDE)):
            return f"{name}, line {frame.f_lineno},"
        frame = frame.f_back  # type: ignore[assignment]
    return "the program"
