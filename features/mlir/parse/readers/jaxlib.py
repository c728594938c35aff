"""jaxlib: what JAX prints beyond StableHLO (mhlo, Shardy), and StableHLO newer than IREE's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..native_parsers import Bindings, Reader, is_importable


def _load() -> tuple[Any, Sequence[Callable[[Any], None]]]:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    # What jax._src.interpreters.mlir.make_ir_context registers; jax itself takes a second to import.
    upstream = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(upstream)

    def load_upstream(context: Any) -> None:
        context.append_dialect_registry(upstream)
        context.load_all_available_dialects()

    registers = (chlo.register_dialect, mhlo.register_mhlo_dialect, sdy.register_dialect, stablehlo.register_dialect)
    return ir, (load_upstream, *registers)


READER = Reader("jaxlib", 40, lambda: is_importable("jaxlib"), lambda text: True, Bindings(_load).to_generic)
