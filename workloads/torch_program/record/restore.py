"""Puts back what a step changes of a model and its optimisers, and says when an optimiser runs. Needs torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..operation import OPTIMIZER_STATE
from .recorder import Recorder


class Restore:
    """Keeps the state of every optimiser that steps, and gives it and all gradients back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: dict[int, tuple[Optimizer, dict[Any, dict[str, Any]], list[Any]]] = {}

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimiser starts a step: keep its state, and have it work on lists of tensors, as is the default on GPUs."""
        if id(optimizer) not in self._states:
            state = {parameter: dict(values) for parameter, values in optimizer.state.items()}
            groups = [(group, group["foreach"]) for group in optimizer.param_groups if "foreach" in group]
            self._states[id(optimizer)] = (optimizer, state, groups)
            for group, chosen in groups:
                if chosen is None and not group.get("fused"):
                    group["foreach"] = True
        self._recorder.in_optimizer = True

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """It ended: what it keeps is its state."""
        self._recorder.in_optimizer = False
        tensors = [
            value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)
        ]
        self._recorder.label_own(tensors, OPTIMIZER_STATE)

    def put_back(self) -> None:
        """Gradients and states as they were."""
        for leaf, grad in self._recorder.leaves.values():
            leaf.grad = grad
        for optimizer, state, groups in self._states.values():
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, chosen in groups:
                group["foreach"] = chosen


@contextmanager
def fused_anywhere() -> Iterator[None]:
    """Fused and capturable optimisers take parameters on the host and the meta device too: they stand for those of a GPU."""
    answers = {
        "_device_dtype_check_for_fused": None,
        "_get_capturable_supported_devices": ["cpu", "meta", "cuda", "xpu"],
    }
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            for check in answers if name.startswith("torch.optim.") else ():
                if hasattr(module, check):
                    stack.enter_context(mock.patch.object(module, check, return_value=answers[check]))
        yield


@contextmanager
def conversions(*, put_back: bool) -> Iterator[None]:
    """Modules are moved and cast by taking new tensors in the place of theirs: fake ones cannot be changed in place.

    Args:
        put_back: modules have their own tensors again afterwards.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    # By tensor and conversion, so that shared weights stay shared; both are kept, so that no address is given to another.
    converted: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        for tensors in (self._parameters, self._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is not None:
                    key = (id(tensor), id(fn))
                    if key not in converted:
                        converted[key] = (tensor, fn, _conversion(tensor, fn))
                    before.append((tensors, name, tensor))
                    tensors[name] = converted[key][2]
        return self

    with mock.patch.object(torch.nn.Module, "_apply", apply):
        try:
            yield
        finally:
            if put_back:
                for tensors, name, tensor in reversed(before):
                    tensors[name] = tensor


def _conversion(tensor: torch.Tensor, fn: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = fn(tensor)
    if result is tensor or not isinstance(tensor, torch.nn.Parameter):
        return result
    return torch.nn.Parameter(result, tensor.requires_grad)


@contextmanager
def restored(recorder: Recorder) -> Iterator[None]:
    """What a step inside changes is as before afterwards."""
    restore = Restore(recorder)
    hooks = [
        register_optimizer_step_pre_hook(restore.before_step),
        register_optimizer_step_post_hook(restore.after_step),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        restore.put_back()
