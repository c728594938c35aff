"""IREE on the CPU: a matrix product compiled per case, with the tile sizes its configuration names.

One `linalg.matmul` becomes one dispatch. Its tile sizes travel as the op attribute `compilation_info`, which IREE takes
in place of its own choice (`--compile-to=executable-configurations` prints either):

    tile_m, tile_n     distribution             block of C that one workgroup computes
    tile_k             cache_reduction          slice of K that a block works through before the next (left out: all)
    inner_m, inner_n   vector_common_parallel   register tile of C
    inner_k            vector_reduction         unrolled steps of K inside it

No configuration is IREE's own choice; `data_tiling = 1` is its other path, which packs the operands (in every call)
for a register-tiled kernel, the baseline a tuned configuration has to beat.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...features.kernel import KernelSpec
from ..runner import Prepared, Runner, UnsupportedCaseError

TILE_KNOBS = ("tile_m", "tile_n", "inner_m", "inner_n", "inner_k")
"""Knobs a configuration names together; `tile_k` may join them."""

COMPILE_LIMIT_S = 15.0
"""Longest compilation allowed. Sensible configurations take 0.2–0.6 s, seconds mean unrolled code without end."""

MAX_RELATIVE_ERROR = 1e-5
"""Largest ‖C − C_numpy‖ / ‖C_numpy‖ (Frobenius) of a right fp32 result: rounding leaves about 2**-24 · sqrt(k)."""

_FLAGS = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    # The rest changes how the compiler works, not the code it makes: nothing to share out on one core, no debug
    # information, and no veto on large vectors, which meets the zero fill of a whole block that tile_k asks for.
    "--mlir-disable-threading",
    "--iree-llvmcpu-debug-symbols=false",
    "--iree-llvmcpu-fail-on-large-vector=false",
)

Matrix = np.ndarray[Any, np.dtype[np.float32]]


def _prepare(spec: KernelSpec) -> Prepared:
    config = dict(spec.config)
    _check(spec, config)
    a, b = _operands(spec)
    began = time.perf_counter()
    module = _compile(matmul_mlir(spec["m"], spec["n"], spec["k"], config), data_tiling="data_tiling" in config)
    context, function = _load(module)
    setup_s = time.perf_counter() - began
    call, result = _bind(context, function, a, b)
    call()
    _check_result(result(), a @ b)
    return Prepared(call, setup_s, float(a.nbytes + b.nbytes + 4 * spec["m"] * spec["n"]))


def _check(spec: KernelSpec, config: Mapping[str, int]) -> None:
    """Refuse what this runner does not measure."""
    if spec.family != "gemm" or spec.variant or spec["batch"] != 1:
        raise UnsupportedCaseError(f"iree runs the family gemm with batch 1 and no variant, not {spec}")
    if spec.dtype != "fp32":
        # Its tiled bf16 kernels widen to fp32 first and end up slower than fp32 (512³ on Zen 5: 180 against 255 GFLOP/s).
        raise UnsupportedCaseError(f"iree is measured in fp32, not {spec.dtype}")
    if spec.threads != 1:
        raise UnsupportedCaseError(f"iree is measured on one thread (device local-sync), not {spec.threads}")
    if not config or config == {"data_tiling": 1}:
        return
    if unknown := sorted(set(config) - {*TILE_KNOBS, "tile_k"}):
        raise UnsupportedCaseError(
            f"iree takes {', '.join(TILE_KNOBS)} (and tile_k), or data_tiling=1 alone; got {unknown[0]}"
        )
    if missing := [knob for knob in TILE_KNOBS if config.get(knob, 0) < 1]:
        raise UnsupportedCaseError(f"iree needs {', '.join(TILE_KNOBS)} together, each at least 1; {missing[0]} is not")


def matmul_mlir(m: int, n: int, k: int, config: Mapping[str, int]) -> str:
    """MLIR of C = A · B in fp32, C written into the caller's third operand.

    Without `iree.abi.output` every call would allocate C, and the first touch of its pages would be part of the time.
    """
    a, b, c = f"tensor<{m}x{k}xf32>", f"tensor<{k}x{n}xf32>", f"tensor<{m}x{n}xf32>"
    return f"""
func.func @matmul(%a: {a}, %b: {b}, %out: {c} {{iree.abi.output = 0 : index}}) -> {c} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {c}
  %filled = linalg.fill ins(%zero : f32) outs(%empty : {c}) -> {c}
  %product = linalg.matmul{_compilation_info(config)} ins(%a, %b : {a}, {b}) outs(%filled : {c}) -> {c}
  return %product : {c}
}}
"""


def _compilation_info(config: Mapping[str, int]) -> str:
    if "tile_m" not in config:
        return ""
    levels = {
        "distribution": (config["tile_m"], config["tile_n"], 0),
        "cache_reduction": (0, 0, config.get("tile_k", 0)),
        "vector_common_parallel": (config["inner_m"], config["inner_n"], 0),
        "vector_reduction": (0, 0, config["inner_k"]),
    }
    tiles = ", ".join(f"{level} = {list(sizes)}" for level, sizes in levels.items() if any(sizes))
    # Peeling splits remainder iterations off; sizes that tiles do not divide would otherwise run masked throughout,
    # at half the speed. Where tiles divide the sizes it changes nothing.
    return (
        f" {{compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<{tiles}>, "
        "translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, "
        "{enable_loop_peeling}>>}"
    )


def _compile(mlir: str, *, data_tiling: bool) -> bytes:
    """The compiled module, from a compiler process of its own: bad tiles can make the compiler abort or never end.

    Raises:
        UnsupportedCaseError: the compiler refused, died, or took longer than `COMPILE_LIMIT_S`.
    """
    command = [*_compiler(), *_FLAGS, *(["--iree-opt-data-tiling"] if data_tiling else [])]
    try:
        done = subprocess.run(  # noqa: S603  the installed compiler and our own text
            command, input=mlir.encode(), capture_output=True, timeout=COMPILE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedCaseError(f"iree-compile took longer than {COMPILE_LIMIT_S:g} s") from None
    if done.returncode:
        raise UnsupportedCaseError(f"iree-compile: {_first_diagnostic(done.stderr.decode(), done.returncode)}")
    return done.stdout


def _first_diagnostic(stderr: str, status: int) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    found = next((line for line in lines if "error:" in line), lines[0] if lines else "no diagnostic")
    # Signals (the compiler aborted) come as negative statuses.
    return found.rpartition("error: ")[2].strip() + (f" (killed by signal {-status})" if status < 0 else "")


@cache
def _compiler() -> tuple[str, ...]:
    from iree.compiler.tools.binaries import find_tool

    return (find_tool("iree-compile"), "-", f"--iree-llvmcpu-embedded-linker-path={find_tool('iree-lld')}")


@cache
def _runtime() -> SimpleNamespace:
    """IREE's runtime module with one instance and one device, for the life of the process."""
    import iree.runtime as library

    # local-sync runs every workgroup on the calling thread, so a call is over when it returns.
    return SimpleNamespace(library=library, instance=library.VmInstance(), device=library.get_device("local-sync"))


def _load(module: bytes) -> tuple[Any, Any]:
    """A context with the module in it, and its function."""
    runtime = _runtime()
    code = runtime.library.VmModule.copy_buffer(runtime.instance, module)
    hal = runtime.library.create_hal_module(runtime.instance, runtime.device)
    return runtime.library.VmContext(runtime.instance, modules=[hal, code]), code.lookup_function("matmul")


def _bind(context: Any, function: Any, a: Matrix, b: Matrix) -> tuple[Callable[[], None], Callable[[], Matrix]]:
    """The call on operands that live on the device, and a reader of its result."""
    runtime = _runtime()
    new_list = runtime.library.VmVariantList
    arrays = [runtime.library.asdevicearray(runtime.device, operand)
              for operand in (a, b, np.zeros((a.shape[0], b.shape[1]), np.float32))]  # fmt: skip
    arguments = new_list(len(arrays))
    for array in arrays:
        arguments.push_ref(array._buffer_view)
    invoke = context.invoke

    def call() -> None:
        # The virtual machine directly: the Python wrapper around it packs and reflects arguments on every call.
        invoke(function, arguments, new_list(1))

    return call, arrays[-1].to_host


def _operands(spec: KernelSpec) -> tuple[Matrix, Matrix]:
    """Seeded standard normal operands, the same for every configuration of a shape."""
    rng = np.random.default_rng(int(spec.shape_id, 16))
    m, n, k = spec["m"], spec["n"], spec["k"]
    return rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)


def _check_result(got: Matrix, wanted: Matrix) -> None:
    error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    # Written so that NaN fails too.
    if not error <= MAX_RELATIVE_ERROR:
        raise ArithmeticError(f"wrong product: relative error {error:.2g}, allowed {MAX_RELATIVE_ERROR:g}")


def _use_threads(_threads: int) -> None:
    # One thread always; cases that ask for another count are refused one by one.
    #
    # Data tiling allocates its packed operands in every call. Freeing one block just below glibc's largest mmap
    # threshold (32 MiB) raises the threshold to it, so that they come from the heap rather than from fresh pages,
    # as in any process that has run for a while.
    np.empty(32 * 2**20 - 2**16, dtype=np.uint8)


def _versions() -> Mapping[str, str]:
    return {name: version(name) for name in ("iree-base-compiler", "iree-base-runtime")}


RUNNER = Runner(name="iree", prepare=_prepare, use_threads=_use_threads, versions=_versions)
