"""jaxlib: what JAX prints beyond StableHLO (mhlo, Shardy), and StableHLO newer than IREE's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Callable[[], Any], Callable[[str, Any], Any]]:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    # What jax._src.interpreters.mlir.make_ir_context registers; jax itself takes a second to import.
    upstream = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(upstream)

    def make_context() -> Any:
        context = ir.Context()
        context.append_dialect_registry(upstream)
        context.load_all_available_dialects()
        for register in (
            chlo.register_dialect,
            mhlo.register_mhlo_dialect,
            sdy.register_dialect,
            stablehlo.register_dialect,
        ):
            register(context)
        context.allow_unregistered_dialects = True
        return context

    return make_context, ir.Module.parse


READER = Reader("jaxlib", 40, lambda: is_importable("jaxlib"), lambda text: True, Bindings(_load).to_generic)
