"""Which module runs an operator, in the forward pass and in the backward. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModulePaths:
    """Follows which modules are being called.

    A node of autograd has the number that was next when its operator ran forwards, so that the module of that number is the
    one whose backward it is.

    Attributes:
        compiled_depth: How many modules that `torch.compile` wrapped are being called.
    """

    def __init__(self) -> None:
        self.compiled_depth = 0
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._modules: list[torch.nn.Module] = []
        self._by_node: dict[int, tuple[str, bool]] = {}
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Follow calls of modules from now on."""
        self._hooks = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
        ]

    def stop(self) -> None:
        """Follow them no longer."""
        for hook in self._hooks:
            hook.remove()

    def now(self) -> tuple[str, bool]:
        """The path of the module whose operator is to run, such as `GPT.blocks.0`, and whether it is compiled."""
        node = torch._C._current_autograd_node()
        if node is not None and not self._stack:
            return self._by_node.get(node._sequence_nr(), ("", False))
        here = (self._stack[-1] if self._stack else "", self.compiled_depth > 0)
        self._by_node[torch._C._autograd._get_sequence_nr() - 1] = here
        return here

    def _enters(self, module: torch.nn.Module, _: Any) -> None:
        if id(module) not in self._names:
            root = type(module).__name__
            for name, part in module.named_modules():
                self._names.setdefault(id(part), f"{root}.{name}" if name else root)
            # Kept, so that its address is not another's.
            self._modules.append(module)
        self._stack.append(self._names[id(module)])
        self.compiled_depth += is_compiled(module)

    def _leaves(self, module: torch.nn.Module, *_: Any) -> None:
        self._stack.pop()
        self.compiled_depth -= is_compiled(module)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` wrapped it."""
    return isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
