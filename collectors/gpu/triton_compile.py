"""Compiling and launching the Triton kernels without Triton's own just-in-time path.

Triton's launcher derives types and divisibility from the first arguments it meets. Here `triton_steps` decides both from
the spec, so that a process without a GPU can fill the disk cache (TRITON_CACHE_DIR) with the binaries that the measuring
process then finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from .triton_steps import ALIGNMENT, Binary, Steps

WARP_SIZE = 32

Kernel = Any
"""What `kernel[grid](*arguments)` launches: a compiled binary, or Triton's interpreter in tests."""


def kernel_function(name: str) -> Kernel:
    """The decorated function a binary is compiled from."""
    from . import triton_attention, triton_gemm

    return {
        "gemm": triton_gemm.gemm,
        "sum_partials": triton_gemm.sum_partials,
        "attention": triton_attention.attention,
    }[name]


@cache
def compiled(binary: Binary, capability: int) -> Kernel:
    """`build`, kept for the life of this process."""
    return build(binary, capability)


def build(binary: Binary, capability: int) -> Kernel:
    """The binary for a compute capability such as 90; compiled, or read from Triton's disk cache. Needs no GPU.

    Raises:
        triton.errors.TritonError, triton.compiler.errors.CompilationError: Triton or ptxas refuses it.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = kernel_function(binary.kernel)
    constants = dict(binary.constants)
    source = ASTSource(
        function,
        signature=dict(binary.types) | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(function.arg_names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in binary.aligned},
    )
    options = {"num_warps": binary.warps, "num_stages": binary.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP_SIZE), options=options)


def bound(steps: Steps, tensors: Mapping[str, Any], kernel_of: Callable[[Binary], Kernel]) -> list[Callable[[], Any]]:
    """Every step as a call that enqueues it on torch's current stream; `tensors` by the names the steps use.

    A compiled binary is loaded onto the device here, which a CUDA graph being captured could not do.

    Raises:
        triton.runtime.errors.OutOfResources: a binary needs more shared memory or threads than the device has.
    """
    calls: list[Callable[[], Any]] = []
    for step in steps.steps:
        arguments = [tensors[arg] if isinstance(arg, str) else arg for arg in step.arguments]
        constants = [value for _, value in step.binary.constants]
        calls.append(partial(kernel_of(step.binary)[step.grid], *arguments, *constants))
    return calls
