"""Fixed modules measured with every chunk: what a call costs at least, and whether the machine is what it was."""

from __future__ import annotations

from types import MappingProxyType

from ...datasets.modules import ModuleText

_EMPTY = """func.func @main(%a: tensor<1xf32>) -> tensor<1xf32> {
  return %a : tensor<1xf32>
}
"""

_ADD = """func.func @main(%a: tensor<1xf32>) -> tensor<1xf32> {
  %sum = stablehlo.add %a, %a : tensor<1xf32>
  return %sum : tensor<1xf32>
}
"""

_PRODUCT = """func.func @main(%a: tensor<256x256xf32>, %b: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %c : tensor<256x256xf32>
}
"""

REFERENCES = MappingProxyType({
    ModuleText(text, f"kernelcast/{name}", "kernelcast", "stablehlo").module_id: ModuleText(
        text, f"kernelcast/{name}", "kernelcast", "stablehlo"
    )
    for name, text in (("empty", _EMPTY), ("add-one-number", _ADD), ("product-256", _PRODUCT))
})  # fmt: skip
"""By module id. `empty` is a runtime's floor, `add-one-number` that of a module with one kernel, `product-256` does work."""
