"""Scripts of `benchmarks/` import what lies beside them, and so do their tests."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)
