"""IREE on the CPU: a matrix product or a convolution compiled per case, with the tile sizes its configuration names.

One operation becomes one dispatch (`collectors/cpu/plans/iree_texts.py` writes it;
`--compile-to=executable-configurations` prints what IREE makes of it). Of a product:

    tile_m, tile_n     distribution             block of C that one workgroup computes
    tile_k             cache_reduction          slice of K that a block works through before the next (left out: all)
    inner_m, inner_n   vector_common_parallel   register tile of C
    inner_k            vector_reduction         unrolled steps of K inside it

Of a convolution: tile_h, tile_w, tile_c (rows, columns and channels of the result that one workgroup computes), inner_w,
inner_c (its register tile) and inner_k (unrolled input channels).

No configuration is IREE's own choice; `data_tiling = 1` is its other path, which packs the operands (in every call)
for a register-tiled kernel, the baseline a tuned configuration has to beat.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from ....features.kernel import KernelSpec, View, get_family
from ....process import first_diagnostic
from ....version import required_versions
from ...runner import Prepared, Runner, UnsupportedCaseError
from ..plans.iree_texts import CONV_KNOBS, GEMM_KNOBS, LAYOUTS, conv_mlir, matmul_mlir, with_conv_config

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


@dataclass(frozen=True, slots=True)
class _Kernel:
    """How a family is run: variants, knobs that come together and knobs that may join them, its text, and its result."""

    variants: tuple[str, ...]
    knobs: tuple[str, ...]
    optional: tuple[str, ...]
    mlir: Callable[[KernelSpec], str]
    wanted: Callable[[KernelSpec, Matrix, Matrix], Matrix]


def _product(spec: KernelSpec, a: Matrix, b: Matrix) -> Matrix:
    return (a.T if spec.variant == "tn" else a) @ (b.T if spec.variant == "nt" else b)


def _convolution(spec: KernelSpec, x: Matrix, weights: Matrix) -> Matrix:
    """The result by numpy: windows of the input, each a row of a product."""
    if spec.variant == "nhwc":
        x, weights = x.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)
    side, step = spec["kernel"], spec["stride"]
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(2, 3))[:, :, ::step, ::step]
    result = np.tensordot(windows, weights, axes=((1, 4, 5), (1, 2, 3)))
    return result if spec.variant == "nhwc" else result.transpose(0, 3, 1, 2)


_KERNELS = MappingProxyType({
    "gemm": _Kernel(tuple(LAYOUTS), GEMM_KNOBS, ("tile_k",), matmul_mlir, _product),
    "conv2d": _Kernel(("", "nhwc"), CONV_KNOBS, (), conv_mlir, _convolution),
})  # fmt: skip


def _prepare(spec: KernelSpec) -> Prepared:
    kernel = _checked(spec)
    inputs, output = _operands(spec), _shapes(spec)[-1]
    began = time.perf_counter()
    context, function = _load(_compiled(spec, kernel))
    setup_s = time.perf_counter() - began
    call, result = _bind(context, function, *inputs, np.zeros(output, np.float32))
    call()
    check_result(result(), kernel.wanted(spec, *inputs))
    return Prepared(call, setup_s)


def _compiled(spec: KernelSpec, kernel: _Kernel) -> bytes:
    text = kernel.mlir(spec)
    flags = ["--iree-opt-data-tiling"] if "data_tiling" in dict(spec.config) else []
    if spec.family == "conv2d" and "tile_h" in dict(spec.config):
        configured = _compile(text, "--compile-to=executable-configurations").decode()
        text, flags = with_conv_config(configured, spec), ["--compile-from=executable-configurations"]
    return _compile(text, *flags)


def _checked(spec: KernelSpec) -> _Kernel:
    """How the case is run; what this runner does not measure is refused."""
    kernel = _KERNELS.get(spec.family)
    if kernel is None or spec.variant not in kernel.variants:
        runs = "; ".join(f"{name} {', '.join(filter(None, each.variants))}" for name, each in _KERNELS.items())
        raise UnsupportedCaseError(f"iree runs plain kernels and these variants of them: {runs}; not {spec}")
    if spec.family == "gemm" and spec.variant != "batched" and spec["batch"] != 1:
        raise UnsupportedCaseError(f"iree runs products of batch 1, or the variant batched; not {spec}")
    if spec.family == "conv2d" and spec["padding"]:
        raise UnsupportedCaseError(
            f"iree runs convolutions without padding, which it makes a kernel of its own; not {spec}"
        )
    if spec.dtype != "fp32":
        # Its tiled bf16 kernels widen to fp32 first and end up slower than fp32 (512³ on Zen 5: 180 against 255 GFLOP/s).
        raise UnsupportedCaseError(f"iree is measured in fp32, not {spec.dtype}")
    _check_config(kernel, dict(spec.config))
    return kernel


def _check_config(kernel: _Kernel, config: Mapping[str, int]) -> None:
    if not config or config == {"data_tiling": 1}:
        return
    if unknown := sorted(set(config) - {*kernel.knobs, *kernel.optional}):
        joining = f" (and {', '.join(kernel.optional)})" if kernel.optional else ""
        raise UnsupportedCaseError(
            f"iree takes {', '.join(kernel.knobs)}{joining}, or data_tiling=1 alone; got {unknown[0]}"
        )
    if missing := [knob for knob in kernel.knobs if config.get(knob, 0) < 1]:
        raise UnsupportedCaseError(
            f"iree needs {', '.join(kernel.knobs)} together, each at least 1; {missing[0]} is not"
        )


def _compile(mlir: str, *flags: str) -> bytes:
    """What the compiler writes: the module, or the text of the phase that `flags` name.

    It runs in a process of its own: bad tiles can make the compiler abort or never end.

    Raises:
        UnsupportedCaseError: the compiler refused, died, or took longer than `COMPILE_LIMIT_S`.
    """
    command = [*compiler(), *_FLAGS, *flags]
    try:
        done = subprocess.run(  # noqa: S603  the installed compiler and our own text
            command, input=mlir.encode(), capture_output=True, timeout=COMPILE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedCaseError(f"iree-compile took longer than {COMPILE_LIMIT_S:g} s") from None
    if done.returncode:
        raise UnsupportedCaseError(f"iree-compile: {first_diagnostic(done.stderr.decode(), done.returncode)}")
    return done.stdout


@cache
def compiler() -> tuple[str, ...]:
    """The beginning of a command line of `iree-compile`, which reads standard input."""
    from iree.compiler.tools.binaries import find_tool

    return (find_tool("iree-compile"), "-", f"--iree-llvmcpu-embedded-linker-path={find_tool('iree-lld')}")


_DEVICE = SimpleNamespace(library=None, instance=None, device=None, threads=None)
"""IREE's runtime with one instance and one device, for the life of the process."""


def _runtime(threads: int = 1) -> SimpleNamespace:
    """The runtime, started on first use. One thread is the calling one, so that a call is over when it returns."""
    if _DEVICE.device is None:
        import iree.runtime as library

        if threads > 1:
            library.flags.parse_flags(f"--task_topology_group_count={threads}")
        _DEVICE.library, _DEVICE.instance = library, library.VmInstance()
        _DEVICE.device = library.get_device("local-sync" if threads == 1 else "local-task")
        _DEVICE.threads = threads
    return _DEVICE


def _load(module: bytes) -> tuple[Any, Any]:
    """A context with the module in it, and its function."""
    runtime = _runtime()
    code = runtime.library.VmModule.copy_buffer(runtime.instance, module)
    hal = runtime.library.create_hal_module(runtime.instance, runtime.device)
    return runtime.library.VmContext(runtime.instance, modules=[hal, code]), code.lookup_function("kernel")


def _bind(context: Any, function: Any, *operands: Matrix) -> tuple[Callable[[], None], Callable[[], Matrix]]:
    """The call on operands that live on the device, the last its result, and a reader of that."""
    runtime = _runtime()
    new_list = runtime.library.VmVariantList
    arrays = [runtime.library.asdevicearray(runtime.device, operand) for operand in operands]
    arguments = new_list(len(arrays))
    for array in arrays:
        arguments.push_ref(array._buffer_view)
    invoke = context.invoke

    def call() -> None:
        # The virtual machine directly: the Python wrapper around it packs and reflects arguments on every call.
        invoke(function, arguments, new_list(1))

    return call, arrays[-1].to_host


def _shapes(spec: KernelSpec) -> list[tuple[int, ...]]:
    """Shapes of the inputs and of the output, as the family says; a plain product without its batch of one."""
    family, view = get_family(spec.family), View.of(spec)
    shapes = [each.shape for each in (*family.inputs(view), *family.outputs(view))]
    if spec.family == "gemm":
        turned = {"nt": (1,), "tn": (0,)}.get(spec.variant, ())
        shapes = [
            shape[::-1] if i in turned else shape
            for i, shape in enumerate(s if spec.variant == "batched" else s[1:] for s in shapes)
        ]
    return shapes


def _operands(spec: KernelSpec) -> list[Matrix]:
    """Seeded standard normal inputs, the same for every configuration of a shape."""
    rng = np.random.default_rng(int(spec.shape_id, 16))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in _shapes(spec)[:-1]]


def check_result(got: Matrix, wanted: Matrix) -> None:
    """Refuse a result that is further off than `MAX_RELATIVE_ERROR`.

    Raises:
        ArithmeticError: it is.
    """
    error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    # Written so that NaN fails too.
    if not error <= MAX_RELATIVE_ERROR:
        raise ArithmeticError(f"wrong result: relative error {error:.2g}, allowed {MAX_RELATIVE_ERROR:g}")


def _use_threads(threads: int) -> None:
    _runtime(threads)
    # Data tiling allocates its packed operands in every call. Freeing one block just below glibc's largest mmap
    # threshold (32 MiB) raises the threshold to it, so that they come from the heap rather than from fresh pages,
    # as in any process that has run for a while.
    np.empty(32 * 2**20 - 2**16, dtype=np.uint8)


RUNNER = Runner(
    name="iree",
    prepare=_prepare,
    use_threads=_use_threads,
    versions=partial(required_versions, "iree-base-compiler", "iree-base-runtime"),
)
