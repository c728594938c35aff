"""torch-mlir: today's torch, and tosa and linalg of a day other than IREE's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Any, Sequence[Callable[[Any], None]]]:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo
    from torch_mlir.dialects import torch

    return ir, (torch.register_dialect, _stablehlo.register_dialect)


READER = Reader("torch-mlir", 30, lambda: is_importable("torch_mlir"), lambda text: True, Bindings(_load).to_generic)
