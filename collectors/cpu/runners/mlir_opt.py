"""mlir-opt on the CPU: a matrix product cut into tiles, lowered to plain loops, and compiled by LLVM.

What `kernelcast-tile` of the plug-in for mlir-opt (`plugins/mlir_opt`) makes of a product, timed: the pass cuts it into the
tiles that the configuration names and peels remainders, `convert-linalg-to-loops` writes the loops inside, LLVM does the
rest. Nothing here asks for vectors; whether LLVM finds them, and keeps results in registers, is up to the tiles.

    tile_m, tile_n, tile_k   sizes of the tiles, in the order of the loops around them; no configuration is no tiling

LLVM 19's tools and a C compiler (for linking) must be installed and the plug-in built (`make mlir-plugin`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ....features.kernel import KernelSpec
from ...runner import Prepared, Runner, UnsupportedCaseError
from .iree import check_result

KNOBS = ("tile_m", "tile_n", "tile_k")
"""Knobs a configuration names together, each at least 1."""

PLUGIN_VARIABLE = "KERNELCAST_MLIR_PLUGIN"
"""Environment variable that says where the built plug-in is; without it, where `make mlir-plugin` puts it."""

COMPILE_LIMIT_S = 20.0
"""Longest run of one tool allowed; sensible tiles take well under a second."""

LOWERING = (
    "canonicalize,cse,func.func(convert-linalg-to-loops),canonicalize,fold-memref-alias-ops,convert-scf-to-cf,"
    "expand-strided-metadata,lower-affine,convert-arith-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},convert-cf-to-llvm,reconcile-unrealized-casts"
)
"""The passes after tiling: mlir-opt's own way from linalg to LLVM's dialect, by plain loops."""

_VARIANTS = MappingProxyType({"": "", "batched": "", "nt": "_transpose_b", "tn": "_transpose_a"})
_TOOLS = ("mlir-opt-19", "mlir-translate-19", "opt-19", "llc-19", "cc")
_TARGET = ("-O3", "-mcpu=native", "-mtriple=x86_64-linux-gnu")

Matrix = np.ndarray[Any, np.dtype[np.float32]]


def _prepare(spec: KernelSpec) -> Prepared:
    _check(spec)
    shapes = _shapes(spec)
    # Seeded: the same operands for every configuration of a shape.
    rng = np.random.default_rng(int(spec.shape_id, 16))
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes[:2])
    c = np.zeros(shapes[2], np.float32)
    began = time.perf_counter()
    function = _compile(spec)
    setup_s = time.perf_counter() - began
    operands = (a, b, c)
    # data_as, not a bare address: these pointers keep their arrays alive as long as the call.
    pointers = [operand.ctypes.data_as(ctypes.c_void_p) for operand in operands]
    function(*pointers)
    # linalg adds the product to what is there, so only the first call's result is the product.
    check_result(c, _transposed(a, spec.variant == "tn") @ _transposed(b, spec.variant == "nt"))

    def call() -> None:
        function(*pointers)

    return Prepared(call, setup_s)


def _transposed(operand: Matrix, turned: bool) -> Matrix:
    return operand.swapaxes(-1, -2) if turned else operand


def _check(spec: KernelSpec) -> None:
    """Refuse what this runner does not measure."""
    config = dict(spec.config)
    if spec.family != "gemm" or spec.variant not in _VARIANTS:
        raise UnsupportedCaseError(f"mlir-opt runs gemm, plain or as batched, nt or tn; not {spec}")
    if spec.dtype != "fp32" or spec.threads != 1:
        raise UnsupportedCaseError(f"mlir-opt is measured in fp32 on one thread, not {spec.dtype} on {spec.threads}")
    if config and (set(config) != set(KNOBS) or min(config.values()) < 1):
        raise UnsupportedCaseError(
            f"mlir-opt takes {', '.join(KNOBS)} together, each at least 1, or none; got {config}"
        )


def _shapes(spec: KernelSpec) -> tuple[tuple[int, ...], ...]:
    """Shapes of A, B and C as they lie in memory."""
    m, n, k = spec["m"], spec["n"], spec["k"]
    shapes = ((k, m) if spec.variant == "tn" else (m, k), (n, k) if spec.variant == "nt" else (k, n), (m, n))
    return tuple((spec["batch"], *shape) for shape in shapes) if spec["batch"] > 1 else shapes


def matmul_mlir(spec: KernelSpec) -> str:
    """MLIR of C += A · B in fp32 on buffers that do not overlap."""
    types = [f"memref<{'x'.join(map(str, shape))}xf32>" for shape in _shapes(spec)]
    arguments = ", ".join(f"%{name}: {type_} {{llvm.noalias}}" for name, type_ in zip("abc", types, strict=True))
    operation = f"linalg.{'batch_' if spec['batch'] > 1 else ''}matmul{_VARIANTS[spec.variant]}"
    return (
        f"func.func @matmul({arguments}) {{\n"
        f"  {operation} ins(%a, %b : {types[0]}, {types[1]}) outs(%c : {types[2]})\n  return\n}}\n"
    )


def _compile(spec: KernelSpec) -> Any:
    """The compiled function, taking three pointers.

    Raises:
        UnsupportedCaseError: a tool or the plug-in is missing, or a tool refused, died or took too long.
    """
    config = dict(spec.config)
    tile, load = "", tuple[str, ...]()
    if config:
        tile = f"func.func(kernelcast-tile{{tile-sizes={','.join(str(config[knob]) for knob in KNOBS)}}}),"
        load = (f"--load-pass-plugin={_plugin()}",)
    mlir_opt, translate, opt, llc, cc = _tools()
    lowered = _run((mlir_opt, *load, f"--pass-pipeline=builtin.module({tile}{LOWERING})"), matmul_mlir(spec).encode())
    llvm = _run((opt, *_TARGET), _run((translate, "--mlir-to-llvmir"), lowered))
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        compiled, library = (str(Path(folder) / name) for name in ("matmul.o", "matmul.so"))
        options = ("-fp-contract=fast", "-filetype=obj", "-relocation-model=pic")
        _run((llc, *_TARGET, *options, "-o", compiled), llvm)
        _run((cc, "-shared", "-o", library, compiled), b"")
        # The mapping outlives the file.
        function = ctypes.CDLL(library).matmul
    function.restype = None
    return function


def _run(command: tuple[str, ...], text: bytes) -> bytes:
    name = Path(command[0]).name
    try:
        done = subprocess.run(  # noqa: S603  installed tools and our own text
            command, input=text, capture_output=True, timeout=COMPILE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedCaseError(f"{name} took longer than {COMPILE_LIMIT_S:g} s") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines() or ["no diagnostic"]
        raise UnsupportedCaseError(f"{name}: {errors[0]}")
    return done.stdout


def _plugin() -> Path:
    path = Path(os.environ.get(PLUGIN_VARIABLE) or Path(__file__).parents[3] / "build" / "libkernelcast-mlir.so")
    if not path.is_file():
        raise UnsupportedCaseError(f"{path} is not there; build the plug-in for mlir-opt with: make mlir-plugin")
    return path


@cache
def _tools() -> tuple[str, ...]:
    results = [shutil.which(tool) for tool in _TOOLS]
    if None in results:
        missing = _TOOLS[results.index(None)]
        raise UnsupportedCaseError(f"{missing} is not installed; packages: mlir-19-tools, llvm-19, gcc")
    return tuple(str(tool) for tool in results)


def _use_threads(_threads: int) -> None:
    """One thread always; cases that ask for another count are refused one by one."""


def _versions() -> Mapping[str, str]:
    output = subprocess.run((_tools()[2], "--version"), capture_output=True, check=False)  # noqa: S603
    words = output.stdout.decode(errors="replace").split("version ")
    return {"llvm": words[1].split()[0] if len(words) > 1 else "unknown"}


RUNNER = Runner(name="mlir-opt", prepare=_prepare, use_threads=_use_threads, versions=_versions)
