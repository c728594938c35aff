"""The models that come with the product, one folder each."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

KERNELS = _HERE / "kernels"
MLIR_PROGRAMS = _HERE / "mlir"
TRITON_CODE = _HERE / "triton"
TUNING = _HERE / "tuning"
