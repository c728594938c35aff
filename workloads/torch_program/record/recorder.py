"""Records the operators of a program while fake tensors answer them, so that nothing is computed. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass_type
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ....features.errors import SpecError
from ..kernels.table import arithmetic
from ..operation import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Operation,
    Recording,
    TensorInfo,
    UnknownValueError,
)
from .arguments import named_arguments
from .modules import ModulePaths, in_compiled
from .stand_ins import StandIns, is_on_meta, line
from .value_sizes import NOT_FAKE, READS, ByValues, tensors_in

_NOT_RECORDED = frozenset({"prim", "profiler"})
_FREE = frozenset({
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided",
    "aten._local_scalar_dense", "aten._unsafe_view", "aten._reshape_alias", "aten.is_same_size", "aten.resize_", "aten.set_",
    "aten._has_same_storage_numel", "aten._efficientzerotensor", "_c10d_functional.wait_tensor",
})  # fmt: skip
"""What neither computes nor moves a tensor's elements, beside views. Reading a scalar waits, but moves nothing."""

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""The kernel of operators that are made of others, which come whole under `inference_mode` alone."""

_READS_VALUES = READS | {"aten.allclose"}
"""What conditions of a program come to."""

_HIGHER_ORDER = {
    "cond": "chooses between functions by a value (torch.cond), and an estimate computes none; call the one to be priced",
    "while_loop": "repeats a function as long as values say (while_loop), and an estimate computes none; call it as often as "
    "is to be priced",
    "triton_kernel_wrapper_mutation": "launches a kernel by wrap_triton outside an operator; launch the kernel itself, or make "
    "an operator of the function that does (torch.library.triton_op)",
}
_OTHER_HIGHER_ORDER = "hands a function to an operator that only compilers run; call the function itself"

_BUILT_IN = frozenset({"aten", "prims", "c10d", "_c10d_functional"})
_LIFTS = frozenset({"aten.lift", "aten.lift_fresh", "aten.lift_fresh_copy"})

_ATTENTION_FLOPS: Mapping[str, Callable[..., int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": lambda query, key, value, *_, **__: sdpa_flop_count(  # type: ignore[no-untyped-call]
        query.shape, key.shape, value.shape
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        lambda grad, query, key, value, *_, **__: sdpa_backward_flop_count(  # type: ignore[no-untyped-call]
            grad.shape, query.shape, key.shape, value.shape
        )
    ),
}
"""Counted as PyTorch counts the fused attention of GPUs; it leaves out that of CPUs."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that sees every operator below autograd, writes it down and hands it on to the fake mode below it.

    Attributes:
        recording: What was written down.
        fake: The mode that answers.
        leaves: Tensors with gradients that the program was given, with the gradient each had.
        in_optimizer: Whether a step of an optimiser runs.
        is_paused: Whether what runs is no work of the program.
        by_values: Answers of operators that depend on values.
    """

    supports_higher_order_operators = True

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(
            tf32=torch.get_float32_matmul_precision() != "highest",
            tf32_convolutions=torch.backends.cudnn.allow_tf32,
        )
        self.fake = fake
        self.leaves: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.in_optimizer = self.is_paused = False
        self.by_values = ByValues(self.note)
        self._modules = ModulePaths(self._enter_module)
        self._tensors = StandIns(fake, self.recording)
        self._hooks: list[Any] = []
        self._entered: set[int] = set()
        self._parts: set[torch.nn.Module] = set()

    def start(self) -> None:
        """Follow which module runs; the mode itself is entered more than once in a run."""
        self._modules.start()

    def stop(self) -> None:
        """Follow them no longer."""
        for hook in self._hooks:
            hook.remove()
        self._modules.stop()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Write down one call and let the fake mode answer it."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise SpecError(f"{line()} {_HIGHER_ORDER.get(str(func), _OTHER_HIGHER_ORDER)}", field="program")
        if any(map(_is_wrapper, types)):
            # Such as a DTensor: it calls what runs on this rank's part, which comes here next.
            return NotImplemented
        if self.is_paused or func.namespace in _NOT_RECORDED:
            return _answer(func, args, kwargs)
        if _is_made_of_others(func.name()):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self._call(func, args, kwargs)

    def label(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """Say what the storages of tensors hold."""
        for tensor in tensors:
            self.recording.roles[self._tensors.storages.number(tensor)] = role

    def label_own(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """The same of tensors that may be the user's own, which fake ones stand for, or the part here of ones spread out."""
        parts = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
        self.label([self._tensors.identity(part) for part in parts], role)

    def host_copy(self, tensor: torch.Tensor, *, to_device: bool) -> None:
        """A tensor goes from the host to a device, or back; nothing moves where it is there. Weights are on the device."""
        info = self._tensors.info(self._tensors.identity(tensor))
        self._tensors.places.has_moves |= to_device
        if self._tensors.places.is_on_device(info) != to_device:
            self._note_host_copy(info, info)
        if to_device:
            self._tensors.places.put.add(info.storage)

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is where the program has put things: on its device."""
        return self._tensors.places.is_on_device(self._tensors.info(self._tensors.identity(tensor)))

    def _note_host_copy(self, source: TensorInfo, target: TensorInfo) -> None:
        note = Operation("host.copy", {}, (source,), (target,), module=self._modules.now()[0], phase=self._phase())
        self.recording.operations.append(note)

    def note_launch(self, name: str, arguments: Iterable[Any]) -> None:
        """A kernel that the program brings with it was launched; it reads or writes each tensor it is given."""
        inputs = tuple(self._tensors.info(self._tensors.identity(tensor)) for tensor in tensors_in(arguments))
        module, compiled = self._place()
        self.recording.operations.append(
            Operation(name, {}, inputs, (), module=module, phase=self._phase(), compiled=compiled)
        )

    def note(self, text: str) -> None:
        """Say once what to know of the recording."""
        if text not in self.recording.notes:
            self.recording.notes.append(text)

    def place(self, tensor: torch.Tensor) -> None:
        """A tensor was made on a device."""
        self._tensors.places.has_moves = True
        self._tensors.places.put.add(self._tensors.storages.number(tensor))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(func._overloadpacket)
        if name == "aten._local_scalar_dense" and not isinstance(args[0], FakeTensor) and not args[0].is_meta:
            with _disable_current_modes():
                return func(*args)
        if name in _LIFTS:
            # A tensor written down in the program: the fake mode keeps its value, as long as that stays known.
            result = _answer(func, args, kwargs)
            self.by_values.known.give(result, args[0])
            return result
        tensors = tensors_in((*args, *kwargs.values()))
        for tensor in tensors:
            self._notice(tensor)
        inputs = {id(tensor): self._tensors.info(self._tensors.identity(tensor)) for tensor in tensors}
        if name == "aten.copy_" and self._tensors.places.differ(*(inputs[id(tensor)] for tensor in args[:2])):
            self._note_host_copy(inputs[id(args[1])], inputs[id(args[0])])
            return _answered(self._tensors, self.by_values, func, args, kwargs, tensors)[2]
        came = len(self.recording.operations)
        module, compiled = self._place()
        called, named, result = _answered(self._tensors, self.by_values, func, args, kwargs, tensors)
        self.by_values.known.follow(func, called, named, result)
        outputs = tuple(self._tensors.info(tensor, came) for tensor in tensors_in((result,)))
        known = {info.storage for info in inputs.values()}
        if any(map(self._tensors.places.is_on_device, inputs.values())):
            self._tensors.places.put.update(info.storage for info in outputs)
        changes = func._schema.is_mutable
        # Schemas of collectives do not say that they write.
        may_be_view = not changes and func.namespace == "aten" and bool(outputs)
        is_view = may_be_view and all(info.storage in known for info in outputs)
        if is_view or name in _FREE or torch.Tag.inplace_view in func.tags:
            # What is compiled makes its views beforehand.
            self.recording.views += not compiled
            return result
        if not outputs and changes:
            # Operators on lists that work in place return nothing. Fused optimisers write gradients only to unscale them.
            mutable = [argument.is_write and argument.name != "grads" for argument in func._schema.arguments]
            written = tensors_in(value for value, is_written in zip(args, mutable, strict=False) if is_written)
            outputs = tuple(inputs[id(tensor)] for tensor in written)
        operation = Operation(
            name=name,
            arguments=named_arguments(func, args, kwargs, inputs),
            inputs=tuple(inputs[id(tensor)] for tensor in tensors),
            outputs=outputs,
            module=module,
            phase=self._phase(),
            pointwise=torch.Tag.pointwise in func.tags,
            compiled=compiled,
            upper_bound=self.by_values.is_upper_bound([*inputs.values()], outputs),
        )
        flops = float(_flops(name, func, called, named, result)) or arithmetic(operation)
        self.recording.operations.append(replace(operation, flops=flops) if flops else operation)
        return result

    def _notice(self, tensor: torch.Tensor) -> None:
        """Keep what a step changes of a leaf: its gradient, which is put back afterwards."""
        if not tensor.requires_grad or not tensor.is_leaf or id(tensor) in self.leaves:
            return
        self.leaves[id(tensor)] = (tensor, tensor.grad)
        self._hooks.append(tensor.register_post_accumulate_grad_hook(self._label_gradient))  # type: ignore[no-untyped-call]

    def _label_gradient(self, leaf: torch.Tensor) -> None:
        if leaf.grad is not None:
            self.label_own([leaf.grad], GRADIENTS)

    def _enter_module(self, module: torch.nn.Module) -> None:
        if id(module) not in self._entered:
            self._entered.add(id(module))
            self._keep_parts(module)
        for buffer in module.buffers(recurse=False):
            self.label([self._tensors.identity(buffer)], WEIGHTS)

    def _keep_parts(self, module: torch.nn.Module) -> None:
        """Parameters spread over ranks are weights by their part here, and their gradients are put back as those of others."""
        parts = [part for part in module.modules() if part not in self._parts]
        self._parts.update(parts)
        for parameter in (parameter for part in parts for parameter in part.parameters(recurse=False)):
            if _is_wrapper(type(parameter)):
                self.leaves.setdefault(id(parameter), (parameter, parameter.grad))
                self.label_own([parameter], WEIGHTS)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage was freed or filled again in place, as those of gathered parameters are."""
        self._tensors.storages.forget(storage)

    def _place(self) -> tuple[str, bool]:
        """The module that calls an operator, or the optimiser, and whether that is compiled."""
        return (OPTIMIZER, in_compiled()) if self.in_optimizer else self._modules.now()

    def _phase(self) -> str:
        if self.in_optimizer:
            return OPTIMIZER
        return FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD


def _answered(
    stand_ins: StandIns, by_values: ByValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:  # fmt: skip
    """A call with what stands for its tensors: its arguments and its result."""
    on_meta = any(map(is_on_meta, tensors)) if tensors else _makes_on_meta(kwargs)

    def exchanged(*, plain: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        by_id = {id(each): stand_ins.called(each, on_meta=on_meta, plain=plain) for each in tensors}
        return _exchanged(args, by_id), {name: _exchanged(value, by_id) for name, value in kwargs.items()}

    if on_meta:
        called, named = exchanged(plain=True)
        # What is on the meta device needs no fake mode, which takes several times as long. That knows more operators, and
        # says why it has no answer. Some operators ask a tensor there for what only a fake one has.
        with suppress(RuntimeError, AttributeError), fake_tensor.unset_fake_temporarily():
            return called, named, func(*called, **named)
    called, named = exchanged(plain=False)
    for each in tensors:
        if not each.is_floating_point():
            by_values.known.give(stand_ins.called(each, on_meta=on_meta), each)
    return called, named, _answer(func, called, named, by_values)


def _answer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], by_values: ByValues | None = None) -> Any:
    """What the fake mode below answers, or `by_values` where that depends on values.

    Raises:
        SpecError: it cannot without values, or without knowing the operator.
    """
    try:
        if (
            by_values is not None
            and str(func._overloadpacket) in NOT_FAKE
            and (sized := by_values.answer(func, args, kwargs))
        ):
            return sized.result
        return func(*args, **kwargs)
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException) as error:
        if by_values is not None and (sized := by_values.answer(func, args, kwargs)) is not None:
            return sized.result
        if str(func._overloadpacket) not in _READS_VALUES:
            raise SpecError(
                f"{line()} calls {func.name()}, and what shape it gives cannot be told without values; leave it out, or "
                "estimate the part before and the part behind it",
                field="program",
            ) from error
        raise UnknownValueError(
            f"{line()} needs the values of a tensor ({func.name()}), and an estimate computes none; "
            "leave out what depends on values (`if` and `while` on a tensor; `x.item()` may be added up, `float(x)` not), or "
            "estimate the part before and the part behind it",
            field="program",
        ) from error
    except (fake_tensor.UnsupportedOperatorException, NotImplementedError) as error:
        raise SpecError(
            f"{line()} calls {func.name()}, which does not say the shape of its result without running; register one with "
            f"torch.library.register_fake('{func.name().split('.')[0]}')",
            field="program",
        ) from error
    except RuntimeError as error:
        if func.namespace in _BUILT_IN:
            raise
        raise SpecError(
            f"{line()} calls {func.name()}, which cannot be answered without running: {error}", field="program"
        ) from error


def _exchanged(value: Any, fakes: Mapping[int, torch.Tensor]) -> Any:
    """The value with the fake tensors in the place of those they stand for."""
    if isinstance(value, torch.Tensor):
        return fakes[id(value)]
    if isinstance(value, list | tuple):
        return type(value)(_exchanged(item, fakes) for item in value)
    return value


def _makes_on_meta(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call without tensors makes one on the meta device."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


@cache
def _is_made_of_others(name: str) -> bool:
    """Whether an operator runs as others, and as no kernel of its own.

    `silu_backward`, `mish_backward` and `native_channel_shuffle` have both: a kernel of the host, the first two of CUDA, and
    a decomposition for other devices (aten/src/ATen/native/native_functions.yaml).
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(name, _COMPOSITE.name) and not has_kernel(name, "CPU"))


@cache
def _is_wrapper(kind: type) -> bool:
    """Whether tensors of a type are made of others, on which they call operators themselves."""
    return not issubclass(kind, FakeTensor) and is_traceable_wrapper_subclass_type(kind)


def _flops(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    if name in _ATTENTION_FLOPS:
        return _ATTENTION_FLOPS[name](*args, **kwargs)
    formula = flop_registry.get(func._overloadpacket)
    return 0.0 if formula is None else formula(*args, **kwargs, out_val=result)
