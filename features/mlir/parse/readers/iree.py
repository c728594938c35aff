"""IREE's compiler: the parser with the most dialects; takes unregistered ones too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Any, Sequence[Callable[[Any], None]]]:
    from iree.compiler import ir

    return ir, ()


READER = Reader(
    "iree", 20, lambda: is_importable("iree", "iree.compiler"), lambda text: True, Bindings(_load).to_generic
)
