"""Choices as torch 2.13 makes them, without torch: the same class names and fields, so that no test touches torch's state.

ChoiceCaller: torch/_inductor/ir.py (name, layout, input_nodes, description, failed, annotations). TritonTemplateCaller
(log_info with tile_shape, GROUP_M, allow_tf32, num_stages, num_warps; hint_override), ExternKernelCaller (kwargs) and
DataProcessorChoiceCallerWrapper (_wrapped): torch/_inductor/select_algorithm.py. CppTemplateCaller (template) and
CppGemmTemplate (m, n, k, has_bias, num_threads, register_blocking, cache_blocking): torch/_inductor/codegen/. That the real
classes have these fields is what test_real_inductor.py tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.plugins.inductor import session, torch_side
from kernelcast.plugins.inductor.choices import Surroundings
from kernelcast.plugins.inductor.ranking import Measured
from kernelcast.plugins.inductor.reporting import forget_shown

GPU = "nvidia-h200-sxm-141gb"
CPU = "amd-epyc-9005-vm-2c"


class Node:
    def __init__(self, size: Sequence[Any], stride: Sequence[Any] | None = None, dtype: str = "bfloat16") -> None:
        self.size, self.dtype = list(size), f"torch.{dtype}"
        self.stride = list(stride) if stride is not None else [math.prod(size[i + 1 :]) for i in range(len(size))]

    def get_size(self) -> list[Any]:
        return self.size

    def get_stride(self) -> list[Any]:
        return self.stride

    def get_dtype(self) -> str:
        return self.dtype


class Choice:
    def __init__(self, name: str, nodes: Sequence[Node], out: Sequence[Any], device: str, dtype: str) -> None:
        self.name, self.input_nodes, self.description = name, list(nodes), ""
        where = SimpleNamespace(type=device, index=None if device == "cpu" else 0)
        self.layout = SimpleNamespace(size=list(out), dtype=f"torch.{dtype}", device=where)
        self.failed = False
        self.annotations: dict[Any, Any] = {}


class TritonTemplateCaller(Choice):
    log_info: dict[str, Any]
    hint_override: int | None = None


class ExternKernelCaller(Choice):
    kwargs: dict[str, Any]


class CppTemplateCaller(Choice):
    template: Any


class ConvolutionCaller(Choice):
    """A class of choices that kernelcast has never heard of."""


class DataProcessorChoiceCallerWrapper:
    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Maker:
    """Makes lists of choices for C[m,n] = A[m,k] B[k,n], as `mm.py` of Inductor would."""

    Node = Node
    GPU = GPU
    CPU = CPU

    def operands(self, m: int, n: int, k: int, dtype: str = "bfloat16") -> list[Node]:
        return [Node((m, k), dtype=dtype), Node((k, n), dtype=dtype)]

    def triton(self, tile: tuple[int, int, int], nodes: Sequence[Node], out: Sequence[int], *, template: str = "mm",
               warps: int = 4, stages: int = 3, group: int = 8, tf32: bool = False, dtype: str = "bfloat16",
               number: int = 0) -> TritonTemplateCaller:  # fmt: skip
        made = TritonTemplateCaller(f"triton_{template}_{number}", nodes, out, "cuda", dtype)
        tile_m, tile_n, tile_k = tile
        made.log_info = {"backend": "Triton", "tile_shape": str((tile_m, tile_k, tile_n)), "num_stages": stages,
                         "num_warps": warps, "GROUP_M": group, "allow_tf32": str(tf32)}  # fmt: skip
        return made

    def extern(self, name: str, nodes: Sequence[Node], out: Sequence[int], *, device: str = "cuda",
               dtype: str = "bfloat16", **kwargs: Any) -> ExternKernelCaller:  # fmt: skip
        made = ExternKernelCaller(name, nodes, out, device, dtype)
        made.kwargs = kwargs
        return made

    def cpp(self, m: int, n: int, k: int, *, bias: bool = False, batch: int | None = None) -> Any:
        packed = [Node((m, k), dtype="float32"), Node((n // 16, k, 16), dtype="float32")]
        out = (m, n) if batch is None else (batch, m, n)
        made = CppTemplateCaller("cpp_CppMicroGemmFP32Vec_0", packed, out, "cpu", "float32")
        blocks = SimpleNamespace(block_m=16, block_n=16, block_k=1)
        made.template = SimpleNamespace(
            m=m, n=n, k=k, has_bias=bias, num_threads=1, register_blocking=blocks,
            cache_blocking=lambda threads: SimpleNamespace(block_m=3, block_n=1, block_k=k),
        )  # fmt: skip
        return DataProcessorChoiceCallerWrapper(made)

    def other(self, nodes: Sequence[Node], out: Sequence[int]) -> ConvolutionCaller:
        return ConvolutionCaller("conv_0", nodes, out, "cuda", "bfloat16")

    def mm_list(self, m: int, n: int, k: int, tiles: Sequence[tuple[int, int, int]]) -> list[Any]:
        """ATen first, then one Triton template per tile, as Inductor orders them."""
        nodes = self.operands(m, n, k)
        rest = [self.triton(tile, nodes, (m, n), number=at) for at, tile in enumerate(tiles)]
        return [self.extern("mm", nodes, (m, n)), *rest]

    def cpu_list(self, m: int, n: int, k: int) -> list[Any]:
        """Inductor's two choices for a linear layer on a CPU with frozen weights: the C++ template and MKL."""
        mkl = [Node((m, k), dtype="float32"), Node((99, 1), dtype="float32"), Node((n, k), dtype="float32")]
        return [self.cpp(m, n, k), self.extern("_mkl_linear", mkl, (m, n), device="cpu", dtype="float32")]


class PlayedModel:
    """A cost model that expects the larger tile to be faster, until it was told otherwise."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, list[float]]] = []
        self.asked: list[Any] = []

    def update(self, candidates: Any, measured_s: Any) -> None:
        self.told.append((candidates, [float(s) for s in measured_s]))

    def rank(self, candidates: Any, k: int) -> Any:
        self.asked.append(candidates)
        known = {tuple(sorted(messages.config(i).items())): s for messages, times in self.told for i, s in enumerate(times)
                 if messages.task == candidates.task}  # fmt: skip
        areas = candidates.knobs["tile_m"] * candidates.knobs["tile_n"]
        guess = [known.get(tuple(sorted(candidates.config(i).items())), 1.0 / areas[i]) for i in range(len(candidates))]
        return np.argsort(np.array(guess), kind="stable")[:k]


class PlayedTorch:
    """What `torch_side` asks torch, answered from here."""

    def __init__(self) -> None:
        self.stack = "2.13.0"
        self.comes_back = True

    def surroundings(self) -> Surroundings:
        return Surroundings()

    def device_name(self, device_type: str, index: int | None) -> tuple[str, str]:
        return (CPU, "AMD EPYC") if device_type == "cpu" else (GPU, "NVIDIA H200")

    def versions(self) -> dict[str, str]:
        return {"torch": self.stack, "triton": "3.6.0"}

    def timing_facts(self, device_type: str) -> dict[str, Any]:
        return {"statistic": "median" if device_type == "cpu" else "min"}

    def takes_minimum(self, device_type: str) -> bool:
        return device_type != "cpu"

    def times_come_back(self) -> bool:
        return self.comes_back


class KeptRows:
    """A keeper in memory."""

    def __init__(self, rows: Sequence[Measured] = ()) -> None:
        self.rows = list(rows)
        self.flushed = 0

    def keep(self, rows: Sequence[Measured], facts: Any) -> None:
        assert {row.device for row in rows} <= {facts["device"]}
        self.rows += rows

    def remembered(self, device: str) -> list[Measured]:
        return [row for row in self.rows if row.device == device]

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    forget_shown()
    yield
    if session._latest is not None:
        session._latest.remove()
        session._latest = None


@pytest.fixture
def make() -> Maker:
    return Maker()


@pytest.fixture
def torch_played(monkeypatch: pytest.MonkeyPatch) -> PlayedTorch:
    played = PlayedTorch()
    for name in ("surroundings", "device_name", "versions", "timing_facts", "takes_minimum",
                 "times_come_back"):  # fmt: skip
        monkeypatch.setattr(torch_side, name, getattr(played, name))
    return played


@pytest.fixture
def model() -> PlayedModel:
    return PlayedModel()


@pytest.fixture
def kept() -> KeptRows:
    return KeptRows()


@pytest.fixture
def no_model() -> Any:
    def load(device: str) -> Any:
        raise SpecError(f"there is no model for {device}")

    return load
