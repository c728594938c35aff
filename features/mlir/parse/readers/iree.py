"""IREE's compiler: the parser with the most dialects; takes unregistered ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Callable[[], Any], Callable[[str, Any], Any]]:
    from iree.compiler import ir

    def make_context() -> Any:
        context = ir.Context()
        context.allow_unregistered_dialects = True
        return context

    return make_context, ir.Module.parse


READER = Reader(
    "iree", 20, lambda: is_importable("iree", "iree.compiler"), lambda text: True, Bindings(_load).to_generic
)
