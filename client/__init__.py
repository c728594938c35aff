"""A client of the service: typed answers, kept connections, and nothing loaded but msgspec.

>>> from kernelcast.client import Client
>>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
...     client.predict("gemm", device="h100-sxm", dtype="bf16", m=4096, n=4096, k=4096).latency_s.value
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .answers import (
    Columns,
    Comparison,
    Device,
    Interval,
    Intervals,
    Prediction,
    Program,
    Programs,
    Ranking,
    Roofline,
    Schema,
    Sweep,
    WholeModelPrediction,
    Words,
)
from .estimate_answers import Estimates, ModelSummary

if TYPE_CHECKING:
    from .client import Client
    from .connection import ClientError, FieldError

__all__ = [
    "Client", "ClientError", "Columns", "Comparison", "Device", "Estimates", "FieldError", "Interval", "Intervals",
    "ModelSummary", "Prediction", "Program", "Programs", "Ranking", "Roofline", "Schema", "Sweep", "WholeModelPrediction",
    "Words",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What asks a service is loaded when it is first used: the service itself needs the answers only."""
    if name == "Client":
        from .client import Client

        return Client
    if name in ("ClientError", "FieldError"):
        from . import connection

        return getattr(connection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
