"""Has a program run on fake tensors of the host as it would on a GPU: devices, numbers read, autocast. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..operation import UnknownValueError
from .fused import FUSED, FUSED_ON_GPUS
from .recorder import Recorder
from .stand_ins import line

ACCELERATORS = frozenset({"cuda", "xpu", "mps", "hip"})

_ONE_DEVICE = (
    "the program names several devices, and all of it is taken to be on one; give each a process of a process group"
)
_AS_ARRAY = (torch.Tensor.numpy, torch.Tensor.__array__)

_CHECKS = frozenset({
    torch.istft, torch.Tensor.istft, torch.cov, torch.Tensor.cov, torch.corrcoef, torch.Tensor.corrcoef,
    functional.gaussian_nll_loss,
})  # fmt: skip
"""Functions that look for what is wrong with values they were given, and find nothing."""

_NO_DATA = "its data is not allocated yet"
"""What PyTorch says of a function of its own that reads the values of a fake tensor."""

_SIZE_ARGUMENTS: Mapping[Any, str] = {
    functional.one_hot: "calls one_hot, which has as many columns as the largest value says; pass num_classes=",
}
"""Functions that have an argument for what they else read of values."""


class AsOnDevice(TorchFunctionMode):
    """Hands functions of PyTorch on as the devices that are asked for would run them.

    * A device that this machine's torch has no support for is the host: tensors are fake either way. A tensor moved there, or
      to the host, is a copy over the link between them.
    * What is one kernel there is one operator (`fused.py`).
    """

    def __init__(self, recorder: Recorder | None, *, gpu: bool) -> None:
        """The mode; the recorder is told of tensors that go between host and device, None where nothing is recorded."""
        super().__init__()
        self._recorder = recorder
        self._away = not torch.accelerator.is_available()
        self._fused = {**FUSED, **(FUSED_ON_GPUS if gpu else {})}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, or what takes its place."""
        kwargs = kwargs or {}
        if func is torch.Tensor.item or (func is torch.Tensor.__format__ and args[0].dim() == 0):
            return _scalar(func, args, in_optimizer=self._recorder is not None and self._recorder.in_optimizer)
        if func in _AS_ARRAY and isinstance(args[0], FakeTensor):
            raise UnknownValueError(
                f"{line()} takes the values of a tensor to numpy, and an estimate computes none; leave it out",
                field="program",
            )
        if not self._away:
            return self._called(func, args, kwargs)
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs.pop("pin_memory", None)
        words = (*args[1:], *kwargs.values()) if func is torch.Tensor.to else ()
        device = kwargs.get("device")
        if self._recorder is not None and any(map(_is_another, (*words, device))):
            self._recorder.note(_ONE_DEVICE)
        to_device, to_host = any(map(self._is_there, words)), "cpu" in [word for word in words if isinstance(word, str)]
        if self._recorder is not None and (func in (torch.Tensor.cuda, torch.Tensor.cpu) or to_device or to_host):
            self._recorder.host_copy(args[0], to_device=func is torch.Tensor.cuda or to_device)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(_here(word) for word in args)
        if device is not None:
            kwargs["device"] = _here(device)
        result = self._called(func, args, kwargs)
        if self._recorder is not None and isinstance(result, torch.Tensor) and _is_away(device):
            self._recorder.place(result)
        return result

    def _is_there(self, word: Any) -> bool:
        """Whether `Tensor.to` is told a device that is not here, by its name or by a tensor on it."""
        if isinstance(word, torch.Tensor):
            return self._recorder is not None and self._recorder.is_there(word)
        return _is_away(word)

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function, or what takes its place; what it checks of values is taken to be right."""
        if self._recorder is not None and func in _CHECKS:
            self._recorder.by_values.assumed = False
        try:
            return self._fused.get(func, func)(*args, **kwargs)
        except UnknownValueError as error:
            if func not in _SIZE_ARGUMENTS:
                raise
            raise UnknownValueError(f"{line()} {_SIZE_ARGUMENTS[func]}", field="program") from error
        except (IndexError, TypeError) as error:
            number = next(filter(_is_unknown, _flat((*args, *kwargs.values()))), None)
            if number is None:
                raise
            raise number.reason from error
        except RuntimeError as error:
            if _NO_DATA not in str(error):
                raise
            name = getattr(func, "__name__", str(func))
            raise UnknownValueError(
                f"{line()} calls {name}, which reads values of a tensor, and an estimate computes none; give it numbers "
                "in place of the tensor, or leave it out",
                field="program",
            ) from error
        finally:
            if self._recorder is not None and func in _CHECKS:
                self._recorder.by_values.assumed = None


class UnknownNumber(float):
    """A number that a program reads of a tensor, to print or to add up; what depends on it raises the reason."""

    def __new__(cls, reason: UnknownValueError) -> UnknownNumber:
        """The number, which passes checks that it is finite, such as `math.isfinite`."""
        number = super().__new__(cls, 1.0)
        number.reason = reason
        return number

    reason: UnknownValueError

    def __repr__(self) -> str:
        return "unknown"

    def __format__(self, _: str) -> str:
        return "unknown"

    def _refuse(self, *_: Any) -> Any:
        raise self.reason

    def _calculate(self, *_: Any) -> UnknownNumber:
        return self

    __hash__ = float.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __int__ = __round__ = __trunc__ = _refuse
    __floor__ = __ceil__ = is_integer = as_integer_ratio = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _calculate
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __rshift__ = _calculate
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _calculate


class OptimizerNumber(UnknownNumber):
    """One that an optimiser reads to bound its step, as `max(1.0, norm)` does: either bound costs the same."""

    def _compare(self, _: Any) -> bool:
        return False

    __hash__ = float.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = _compare


def _scalar(func: Any, args: tuple[Any, ...], *, in_optimizer: bool) -> Any:
    """The value of a tensor of one element, or its text: unknown where it is computed."""
    try:
        value = torch.Tensor.item(args[0])
    except UnknownValueError as error:
        value = (OptimizerNumber if in_optimizer else UnknownNumber)(error)
    return value if func is torch.Tensor.item else format(value, *args[1:])


def _is_unknown(value: Any) -> bool:
    return isinstance(value, UnknownNumber)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Values and those of their lists."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _is_away(word: Any) -> bool:
    """Whether it is a device that is not here, or the name or number of one."""
    if isinstance(word, int) and not isinstance(word, bool):
        return True
    name = word.type if isinstance(word, torch.device) else word
    return isinstance(name, str) and name.split(":")[0] in ACCELERATORS


def _is_another(word: Any) -> bool:
    """Whether it is a device with a number above 0."""
    if not _is_away(word):
        return False
    return bool((word if isinstance(word, int) else torch.device(word).index) or 0)


def _here(word: Any) -> Any:
    return torch.device("cpu") if _is_away(word) else word


@contextmanager
def autocast_here() -> Iterator[None]:
    """`torch.autocast` of a device that is not there is the host's, whose tensors stand for the device's."""
    cast = torch.amp.autocast_mode.autocast
    original = cast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type in ACCELERATORS:
            dtype, device_type = dtype or torch.get_autocast_dtype(device_type), "cpu"
        original(self, device_type, dtype, *args, **kwargs)

    with mock.patch.object(cast, "__init__", init):
        yield


_LOWER = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addbmm", "baddbmm", "chain_matmul", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "lstm", "gru", "rnn_tanh", "rnn_relu", "prelu",
})  # fmt: skip
"""Functions that run in the lower precision."""
_FULL = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "nll_loss_nd", "cross_entropy_loss", "cross_entropy",
    "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss",
    "margin_ranking_loss", "hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "ctc_loss", "avg_pool3d", "cdist", "prod", "trace",
})  # fmt: skip
"""Functions that run in fp32. Source of both: the host's lists in PyTorch's aten/src/ATen/autocast_mode.h."""


def _no(*_: Any) -> bool:
    """No mode is on. A mock would keep the tensors that it is called with."""
    return False


class MetaAutocast(TorchFunctionMode):
    """Casts floating tensors on the meta device where autocast is on; elsewhere PyTorch does it itself.

    Casts of parameters are made once as long as autocast stays on, as PyTorch's cache has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._casts: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, with its arguments cast where autocast would."""
        kwargs = kwargs or {}
        if not torch.is_autocast_enabled("cpu"):
            self._casts.clear()
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _LOWER or name in _FULL:
            dtype = torch.get_autocast_dtype("cpu") if name in _LOWER else torch.float32
            args = tuple(self._cast(each, dtype) for each in args)
            kwargs = {key: self._cast(each, dtype) for key, each in kwargs.items()}
            return func(*args, **kwargs)
        if isinstance(func, FunctionType) and func.__module__ == functional.__name__:
            return self._inside(func, args, kwargs)
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._cast(each, dtype) for each in value)
        if not isinstance(value, torch.Tensor) or value.device.type != "meta" or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self._casts:
            # The parameter is kept with its cast, so that its address is not another's.
            self._casts[key] = (value, value.to(dtype))
        return self._casts[key][1]

    def _inside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of `torch.nn.functional` that is made of others, which come here in turn.

        It would hand itself to this mode again before it starts, unless it sees no mode.
        """
        with ExitStack() as stack:
            for check in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                stack.enter_context(mock.patch.object(functional, check, _no))
            stack.enter_context(self)
            return func(*args, **kwargs)
