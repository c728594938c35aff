"""Other rankings of Triton's configurations of a product: nvMatmulHeuristics, and the performance model Triton had until 3.1.

Neither is a part of kernelcast, and neither is needed. `nvidia-matmul-heuristics` is NVIDIA's package on PyPI, under a licence
of its own; it needs no GPU. Triton's is the file `triton/ops/matmul_perf_model.py` of the 3.1.0 wheel, which later wheels lack;
it asks the GPU for its figures, so here it gets those of the device's datasheet.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.kind import Task
from kernelcast.features.tuning.kinds import triton_gemm
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Knobs = Mapping[str, NDArray[np.int64]]
Ranking = Callable[[Task, Knobs], Floats]
"""Seconds expected of configurations `(n,)` of a task; infinite where the model refuses one."""

_PRECISIONS = {"bf16": "TST", "fp16": "HSH", "fp8": "QQTST"}
"""nvMatmulHeuristics' names of operands, sums and results as our kernels have them (its header, "Supported precisions")."""

_INSTRUCTION = {2: (16, 8, 16), 1: (16, 8, 32)}
"""Tiles of its Triton back end's matrix instruction by bytes of an operand (PTX ISA 8.8, `mma.m16n8k16`, `mma.m16n8k32`)."""


def nv_matmul_heuristics(gpu: str = "H200_SXM") -> Ranking:
    """Run times by nvMatmulHeuristics' model of its Triton back end.

    It names the tile of a warp, which Triton chooses by itself: of the ways to deal a tile to the warps the fastest counts.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    nv = importlib.import_module("nvMatmulHeuristics")
    # Its destructor crashes at the end of the program (0.1.0.27); the library frees what it holds when the process ends.
    nv.NvMatmulHeuristicsInterface.__del__ = lambda _: None
    layout = nv.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
    engines: dict[str, tuple[Any, Any]] = {}

    def engine(precision: str) -> tuple[Any, Any]:
        if precision not in engines:
            made = nv.NvMatmulHeuristicsInterface(nv.NvMatmulHeuristicsTarget.TRITON, precision)
            board = made.createHardwareDescriptor()
            made.setHardwarePredefinedGpu(board, nv.NvMatmulHeuristicsNvidiaGpu[gpu])
            made.loadInternalDiscoverySet(layout, board)
            engines[precision] = made, board
        return engines[precision]

    def rank(task: Task, knobs: Knobs) -> Floats:
        precision = _PRECISIONS[task.dtype]
        made, board = engine(precision)
        problem = made.makeNvMatmulHeuristicsProblem(task.sizes["m"], task.sizes["n"], task.sizes["k"], layout)
        instruction = _INSTRUCTION[1 if task.dtype == "fp8" else 2]
        seconds = []
        for i in range(len(knobs["tile_m"])):
            knob = {name: int(column[i]) for name, column in knobs.items()}
            kernel = made.nvmmhKernelConfiguration()
            kernel.cta[:] = knob["tile_m"], knob["tile_n"], knob["tile_k"]
            kernel.instr[:] = instruction
            kernel.splitK, kernel.loadStages, kernel.gridSwizzle = knob["split_k"], knob["stages"], knob["group_m"]
            kernel.cluster[:] = 1, 1
            best = np.inf
            for down in (1 << power for power in range(knob["warps"].bit_length())):
                across = knob["warps"] // down
                rows, columns = knob["tile_m"] // down, knob["tile_n"] // across
                if rows < instruction[0] or columns < instruction[1]:
                    continue
                kernel.warp[:] = rows, columns, knob["tile_k"]
                answer = made.nvMatmulHeuristicsEstimateRuntime(
                    made.handle, precision.encode(), ctypes.c_int(made.target), ctypes.byref(problem), ctypes.byref(kernel),
                    board,
                )  # fmt: skip
                # It answers 0 for what it takes to be impossible.
                best = min(best, answer or np.inf)
            seconds.append(best)
        return np.array(seconds)

    return rank


def triton_perf_model(file: Path) -> Ranking:
    """Run times by `estimate_matmul_time` of `file`, Triton 3.1's `triton/ops/matmul_perf_model.py`."""
    facts: dict[str, float] = {}
    board = {"multiprocessor_count": 0}
    cuda = SimpleNamespace(current_device=lambda: 0, get_device_capability=lambda _=None: (9, 0))
    shims = {
        "torch": SimpleNamespace(cuda=cuda, float32="fp32"),
        "triton31": SimpleNamespace(cdiv=lambda a, b: -(-a // b), __path__=[]),
        "triton31.ops": SimpleNamespace(__path__=[]),
        "triton31.runtime": SimpleNamespace(
            driver=SimpleNamespace(active=SimpleNamespace(utils=SimpleNamespace(get_device_properties=lambda _: board)))
        ),
        "triton31.testing": SimpleNamespace(
            get_dram_gbps=lambda _: facts["dram_b_per_s"] / 1e9,
            get_max_simd_tflops=lambda *_: facts["peak_flops_per_s"] / 1e12,
            get_max_tensorcore_tflops=lambda *_: facts["peak_flops_per_s"] / 1e12,
            nvsmi=lambda _: [facts["clock_hz"] / 1e6],
        ),
    }
    estimate = _loaded("triton31.ops.matmul_perf_model", file, shims).estimate_matmul_time

    def rank(task: Task, knobs: Knobs) -> Floats:
        facts.update(triton_gemm.KIND.facts_of(catalogue().get(task.device), task.dtype))
        board["multiprocessor_count"] = int(facts["units"])
        operand = SimpleNamespace(dtype=task.dtype, element_size=lambda: facts["element_b"])
        columns = zip(*(knobs[name].tolist() for name in _PERF_KNOBS), strict=True)
        sizes = (task.sizes["m"], task.sizes["n"], task.sizes["k"])
        return np.array(
            [
                estimate(warps, stages, operand, operand, operand, *sizes, *tile) / 1e3
                for warps, stages, *tile in columns
            ]
        )

    return rank


_PERF_KNOBS = ("warps", "stages", "tile_m", "tile_n", "tile_k", "split_k")


def _loaded(name: str, file: Path, shims: Mapping[str, Any]) -> ModuleType:
    """The module in `file`, which imports `shims` and nothing else."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"{file} is no Python file"  # noqa: PT018 - both say the same
    module = importlib.util.module_from_spec(spec)
    before = {key: sys.modules.get(key) for key in shims}
    try:
        sys.modules.update(shims)
        spec.loader.exec_module(module)
    finally:
        for key, old in before.items():
            if old is None:
                del sys.modules[key]
            else:
                sys.modules[key] = old
    return module
