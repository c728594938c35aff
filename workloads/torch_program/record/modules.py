"""Which module runs an operator, in the forward pass and in the backward. Needs torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch
from torch._dynamo.eval_frame import _TorchDynamoContext


class ModulePaths:
    """Follows which modules are being called.

    A node of autograd has the number that was next when its operator ran forwards, so that the module of that number is the
    one whose backward it is.
    """

    def __init__(self, enters: Callable[[torch.nn.Module], None]) -> None:
        """Nothing is followed yet; `enters` is told of each call."""
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._modules: list[torch.nn.Module] = []
        self._by_node: dict[int, tuple[str, bool]] = {}
        self._enters = enters
        self._patch: Any = None

    def start(self) -> None:
        """Follow calls of modules from now on; global hooks would have compiled modules warn and call them twice."""
        call = torch.nn.Module.__call__

        def followed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._enter(module)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._stack.pop()

        self._patch = mock.patch.object(torch.nn.Module, "__call__", followed)
        self._patch.start()

    def stop(self) -> None:
        """Follow them no longer."""
        self._patch.stop()

    def now(self) -> tuple[str, bool]:
        """The path of the module whose operator is to run, such as `GPT.blocks.0`, and whether it is compiled."""
        node = torch._C._current_autograd_node()
        if node is not None and not self._stack:
            return self._by_node.get(node._sequence_nr(), ("", False))
        here = (self._stack[-1] if self._stack else "", in_compiled())
        self._by_node[torch._C._autograd._get_sequence_nr() - 1] = here
        return here

    def _enter(self, module: torch.nn.Module) -> None:
        if id(module) not in self._names:
            root = type(module).__name__
            for name, part in module.named_modules():
                self._names.setdefault(id(part), f"{root}.{name}" if name else root)
            # Kept, so that its address is not another's.
            self._modules.append(module)
        self._stack.append(self._names[id(module)])
        self._enters(module)


def in_compiled() -> bool:
    """Whether what calls this was called by something that `torch.compile` wrapped: a function, a module or its `compile`."""
    code = _wrapper()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@cache
def _wrapper() -> CodeType:
    """The code of the functions that `torch.compile` returns, which all of them share.

    It is not asked for one: that builds tables of functions, and here some are stood in for (`runtime.py`).
    """
    codes = (part for part in _TorchDynamoContext.__call__.__code__.co_consts if isinstance(part, CodeType))
    return next(code for code in codes if code.co_name == "compile_wrapper")
