"""From what a worker measured to the row that is stored: machine code counted, results compared with another compiler's."""

from __future__ import annotations

import subprocess
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ....datasets.records.mlir_modules import ModuleRun, ModuleText
from ..compilers.iree import Compiled
from ..machine_code import CodeCounts, count_files
from .bench import ALLOWED_ERROR, Measured, Sample, relative_error

Samples = MutableMapping[str, tuple[str, Sample]]
"""By module id: the compiler that ran it first in this campaign, and a sample of what it computed."""


def finished(measured: Measured, compiled: Compiled | None, samples: Samples) -> ModuleRun:
    """The row with all that is known of its build; `failed` where its results are not those of the first compiler in `samples`.

    Files of machine code are removed.
    """
    row = measured.row
    objects = [Path(path) for path in measured.objects]
    if compiled is not None:
        row = replace(row, compile_s=compiled.compile_s, binary_b=compiled.binary_b, dispatches=compiled.dispatches)
    counts = _counts(objects) if compiled is None else compiled.counts
    for path in objects:
        path.unlink(missing_ok=True)
    if counts is not None:
        row = replace(row, code_b=counts.code_b, code_instructions=counts.instructions,
                      vector_instructions=counts.vector_instructions, spills=counts.spills)  # fmt: skip
    return _compared(row, measured.sample, samples)


def _counts(objects: list[Path]) -> CodeCounts | None:
    try:
        return count_files(objects)
    except (subprocess.SubprocessError, OSError):  # what cannot be disassembled is not counted
        return None


def _compared(row: ModuleRun, seen: Sample | None, samples: Samples) -> ModuleRun:
    if seen is None or row.status != "ok":
        return row
    first, wanted = samples.setdefault(row.module_id, (row.compiler, seen))
    error = relative_error(seen.values, wanted.values) if first != row.compiler else None
    if error is None or error <= ALLOWED_ERROR:
        return row
    return replace(
        row, status="failed", latency_s=None, latency_q1_s=None, latency_q3_s=None, latency_min_s=None,
        power_w=None, energy_j=None, energy_source=None,
        message=f"results differ from those of {first}: relative error {error:.2g}, allowed {ALLOWED_ERROR:g}",
    )  # fmt: skip


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
