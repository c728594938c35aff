"""torch-mlir: today's torch, and tosa and linalg of a day other than IREE's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Callable[[], Any], Callable[[str, Any], Any]]:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo
    from torch_mlir.dialects import torch

    def make_context() -> Any:
        context = ir.Context()
        context.allow_unregistered_dialects = True
        torch.register_dialect(context)
        _stablehlo.register_dialect(context)
        return context

    return make_context, ir.Module.parse


READER = Reader("torch-mlir", 30, lambda: is_importable("torch_mlir"), lambda text: True, Bindings(_load).to_generic)
