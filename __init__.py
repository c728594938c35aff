"""kernelcast: what a kernel costs on a device (latency, power, energy, with an interval) without running it."""

from __future__ import annotations

__version__ = "0.1.0"
