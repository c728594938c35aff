"""kernelcast: what a kernel costs on a device (latency, power, energy, with an interval) without running it.

>>> import kernelcast
>>> answer = kernelcast.predict("gemm", device="amd-epyc-9005-vm-2c", dtype="fp32", m=512, n=512, k=512, threads=1)
>>> answer.latency_s.lower <= answer.latency_s.value <= answer.latency_s.upper
True
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from .python import torch_programs as torch
from .version import __version__

if _TYPE_CHECKING:
    from .client.client import Client
    from .client.connection import ClientError
    from .features.errors import SpecError
    from .features.kernel import KernelSpec
    from .models.family_model.artifact_files import ArtifactError
    from .models.family_model.intervals import Interval
    from .models.tuning.model_file import ModelFileError
    from .python.answer import Answer, Ratio, Total
    from .python.kernels import compare, devices, families, predict, rank, roofline, sweep
    from .python.model_cache import load
    from .python.power import best_cap, footprint
    from .python.workloads import estimate_model, llm_fleet, llm_plan, llm_predict, predict_mlir, predict_model

__all__ = [
    "Answer", "ArtifactError", "Client", "ClientError", "Interval", "KernelSpec", "ModelFileError", "Ratio", "SpecError",
    "Total", "__version__", "best_cap", "compare", "devices", "estimate_model", "families", "footprint", "llm_fleet",
    "llm_plan", "llm_predict", "load", "predict", "predict_mlir", "predict_model", "rank", "roofline", "sweep", "torch",
]  # fmt: skip

_MODULES = {
    ".client.client": ("Client",),
    ".client.connection": ("ClientError",),
    ".features.errors": ("SpecError",),
    ".features.kernel": ("KernelSpec",),
    ".models.family_model.artifact_files": ("ArtifactError",),
    ".models.family_model.intervals": ("Interval",),
    ".models.tuning.model_file": ("ModelFileError",),
    ".python.answer": ("Answer", "Ratio", "Total"),
    ".python.kernels": ("compare", "devices", "families", "predict", "rank", "roofline", "sweep"),
    ".python.model_cache": ("load",),
    ".python.power": ("best_cap", "footprint"),
    ".python.workloads": ("estimate_model", "llm_fleet", "llm_plan", "llm_predict", "predict_mlir", "predict_model"),
}
"""Where names are, imported when they are first used: importing all of it would take a third of a second."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

# `import kernelcast.torch` finds it by this name. A file torch.py would take PyTorch's place in programs run from this folder.
_sys.modules[f"{__name__}.torch"] = torch

# From 1.29 on onnxruntime reports its use to its makers, and keeps a file of it in the home, unless this is set before it loads
# (its Privacy.md). kernelcast contacts nobody.
_os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
