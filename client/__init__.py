"""A client of the service: typed answers, kept connections, and nothing loaded but msgspec.

>>> from kernelcast.client import Client
>>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
...     client.predict("gemm", device="h100-sxm", dtype="bf16", m=4096, n=4096, k=4096).latency_s.value
"""

from __future__ import annotations

from .answers import Columns, Device, Interval, Intervals, Prediction, Program, Programs, Schema, Whole, Words
from .client import Client
from .errors import ClientError, FieldError
from .searches import Comparison, Ranking, Roofline, Sweep

__all__ = [
    "Client",
    "ClientError",
    "Columns",
    "Comparison",
    "Device",
    "FieldError",
    "Interval",
    "Intervals",
    "Prediction",
    "Program",
    "Programs",
    "Ranking",
    "Roofline",
    "Schema",
    "Sweep",
    "Whole",
    "Words",
]
