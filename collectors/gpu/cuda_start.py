"""What every child process that uses torch on a GPU does first."""

from __future__ import annotations

import sys
from typing import Any

_entered: list[Any] = []
"""The inference mode entered, kept alive: a guard that is garbage collected ends its mode at once."""


def need_cuda(torch: Any) -> None:
    """End this process with one sentence where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device; install a CUDA build of torch and check nvidia-smi")


def enter_inference(torch: Any) -> None:
    """Turn inference mode on for the life of the process: around every call it would cost more than a short kernel."""
    guard = torch.inference_mode()
    guard.__enter__()
    _entered.append(guard)
