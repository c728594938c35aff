"""Tiled matrix products and attention in Triton, with every tuning knob given by the case.

Triton's launcher derives types and divisibility from the first arguments it meets. Here `triton_steps` decides both from the
spec alone, so that a process without a GPU can fill the disk cache (TRITON_CACHE_DIR) with the binaries that the measuring
process then reads. Only what changes the code is part of a binary: k and n by whether 16 divides them; m, `group_m` and the
number of parts not at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ....features.cost.occupancy import WARP_SIZE
from ....features.errors import listed
from ....features.families.gemm import output_dtype
from ....features.kernel import KernelSpec, View, get_family
from ...runner import GpuRunner, Launch, Tensor, UnsupportedCaseError
from ..measure.bench import TOLERANCE, expected_attention, expected_product

_WAVEFRONT = 64
"""Threads of a warp on AMD's data-centre GPUs (GCN and CDNA); RDNA has 32."""

ALIGNMENT = 16
"""What Triton calls divisible: bytes of an address, elements of a size."""

_REDUCE_BLOCK = 1024
_INT32_ELEMENTS = 2**31
_TYPES = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8e4nv",
    "int8": "i8",
    "int32": "i32",
}
_GEMM_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_ATTENTION_DTYPES = ("bf16", "fp16")
_GEMM_KNOBS = ("tile_m", "tile_n", "tile_k", "warps", "stages", "group_m", "split_k")
_ATTENTION_KNOBS = ("tile_m", "tile_n", "warps", "stages")
_MAX_WARPS = 32
_MAX_STAGES = 8
_MAX_GROUP = 4096

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled kernel.

    Attributes:
        kernel: Its function's name.
        types: `(parameter, Triton type)` of what is passed at launch.
        constants: `(parameter, value)` of what is compiled in.
        aligned: The parameters that 16 divides.
        warps: Warps of a block.
        stages: Pipeline stages.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Scalar], ...]
    aligned: tuple[str, ...]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Step:
    """One launch.

    Attributes:
        binary: What is launched.
        grid: Blocks in each direction.
        arguments: Names of tensors or whole numbers, in the order of `types`.
    """

    binary: Binary
    grid: tuple[int, int, int]
    arguments: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The launches of a case.

    Attributes:
        steps: In order.
        partials: Shape `(parts, m, n)` of the partial products between them; None for none.
    """

    steps: tuple[Step, ...]
    partials: tuple[int, ...] | None = None


def triton_steps(spec: KernelSpec) -> Steps:
    """The launches of a case.

    Raises:
        UnsupportedCaseError: these kernels cannot run it; the message says what they can.
    """
    if spec.family not in _FAMILIES:
        raise UnsupportedCaseError(f"the Triton kernels are {listed(_FAMILIES)}, not {spec.family}")
    return _FAMILIES[spec.family](spec)


def triton_binaries(spec: KernelSpec) -> tuple[Binary, ...]:
    """The different binaries of a case.

    Raises:
        UnsupportedCaseError: see `triton_steps`.
    """
    return tuple(step.binary for step in triton_steps(spec).steps)


def _gemm(spec: KernelSpec) -> Steps:
    if spec.dtype not in _GEMM_DTYPES:
        raise UnsupportedCaseError(f"the Triton gemm takes {listed(_GEMM_DTYPES)}, not {spec.dtype}")
    if spec["batch"] != 1 or spec.variant:
        raise UnsupportedCaseError(
            f"the Triton gemm is one plain product; batch is {spec['batch']}, variant {spec.variant!r}"
        )
    knobs = _knobs(spec, _GEMM_KNOBS)
    eight_bit = spec.dtype in ("fp8", "int8")
    _check_powers(knobs, {"tile_m": 16, "tile_n": 16, "tile_k": 32 if eight_bit else 16})
    _check_range(knobs, "group_m", _MAX_GROUP)
    _check_range(knobs, "split_k", 2**16 - 1)
    m, n, k, parts = spec["m"], spec["n"], spec["k"], knobs["split_k"]
    if max(m, n, k) >= _INT32_ELEMENTS:
        raise UnsupportedCaseError(f"the Triton gemm counts rows and columns in 32 bits: {spec}")
    out = _TYPES[output_dtype(View.of(spec))]
    partial = "i32" if spec.dtype == "int8" else "fp32"
    operand = _TYPES[spec.dtype]
    product = Binary(
        kernel="gemm",
        types=(("a", f"*{operand}"), ("b", f"*{operand}"), ("out", f"*{partial if parts > 1 else out}"),
               ("m", "i32"), ("n", "i32"), ("k", "i32"), ("k_part", "i32"), ("group_m", "i32")),
        constants=(("TILE_M", knobs["tile_m"]), ("TILE_N", knobs["tile_n"]), ("TILE_K", knobs["tile_k"]),
                   ("SPLIT", parts > 1), ("INTEGER", spec.dtype == "int8"),
                   ("PRECISION", "tf32" if spec.dtype == "tf32" else "ieee"),
                   ("WIDE", max(m * k, k * n, m * n) >= _INT32_ELEMENTS)),
        aligned=("a", "b", "out", "k_part", *(name for name in ("k", "n") if spec[name] % ALIGNMENT == 0)),
        warps=knobs["warps"], stages=knobs["stages"],
    )  # fmt: skip
    tiles = -(-m // knobs["tile_m"]) * -(-n // knobs["tile_n"])
    k_part = -(-k // (knobs["tile_k"] * parts)) * knobs["tile_k"]
    first = Step(product, (tiles, parts, 1), ("a", "b", "out" if parts == 1 else "partials",
                                              m, n, k, k_part, knobs["group_m"]))  # fmt: skip
    if parts == 1:
        return Steps((first,))
    reduction = Binary(
        kernel="sum_partials",
        types=(("partials", f"*{partial}"), ("out", f"*{out}"), ("size", "i64"), ("parts", "i32")),
        constants=(("BLOCK", _REDUCE_BLOCK),),
        aligned=("partials", "out", *(["size"] if m * n % ALIGNMENT == 0 else [])),
        warps=4, stages=1,
    )  # fmt: skip
    second = Step(reduction, (-(-m * n // _REDUCE_BLOCK), 1, 1), ("partials", "out", m * n, parts))
    return Steps((first, second), (parts, m, n))


def _attention(spec: KernelSpec) -> Steps:
    if spec.dtype not in _ATTENTION_DTYPES or spec.kv_dtype is not None:
        have = f"{spec.dtype} with keys in {spec.kv_dtype}" if spec.kv_dtype else spec.dtype
        raise UnsupportedCaseError(f"the Triton attention takes one of {listed(_ATTENTION_DTYPES)}, not {have}")
    if spec["window"]:
        raise UnsupportedCaseError(f"the Triton attention has no sliding window; window is {spec['window']}, not 0")
    knobs = _knobs(spec, _ATTENTION_KNOBS)
    _check_powers(knobs, {"tile_m": 16, "tile_n": 16})
    group, head_dim = spec["heads"] // spec["kv_heads"], spec["head_dim"]
    rows = spec["q_len"] * group
    if max(rows, spec["kv_len"]) * head_dim >= _INT32_ELEMENTS:
        raise UnsupportedCaseError(f"the Triton attention counts the elements of one key head in 32 bits: {spec}")
    operand = f"*{_TYPES[spec.dtype]}"
    binary = Binary(
        kernel="attention",
        types=(("q", operand), ("k", operand), ("v", operand), ("out", operand),
               ("group", "i32"), ("q_len", "i32"), ("kv_len", "i32")),
        constants=(("SCALE", math.log2(math.e) / math.sqrt(head_dim)), ("HEAD_DIM", head_dim),
                   ("WIDTH", max(16, 1 << (head_dim - 1).bit_length())),
                   ("TILE_M", knobs["tile_m"]), ("TILE_N", knobs["tile_n"])),
        aligned=("q", "k", "v", "out"),
        warps=knobs["warps"], stages=knobs["stages"],
    )  # fmt: skip
    programs = spec["batch"] * spec["kv_heads"] * -(-rows // knobs["tile_m"])
    arguments = ("q", "k", "v", "out", group, spec["q_len"], spec["kv_len"])
    return Steps((Step(binary, (programs, 1, 1), arguments),))


_FAMILIES: Mapping[str, Callable[[KernelSpec], Steps]] = {"gemm": _gemm, "attention": _attention}


def _knobs(spec: KernelSpec, needed: tuple[str, ...]) -> dict[str, int]:
    raw = dict(spec.config)
    if missing := [name for name in needed if name not in raw]:
        raise UnsupportedCaseError(
            f"the Triton {spec.family} needs {listed(needed)} in its configuration; missing: {listed(missing)}"
        )
    if unknown := sorted(set(raw) - set(needed)):
        raise UnsupportedCaseError(f"the Triton {spec.family} has no {unknown[0]}; it takes {listed(needed)}")
    _check_powers(raw, {"warps": 1})
    for name, most in (("warps", _MAX_WARPS), ("stages", _MAX_STAGES)):
        _check_range(raw, name, most)
    return raw


def _check_powers(knobs: Mapping[str, int], least: Mapping[str, int]) -> None:
    for name, low in least.items():
        if knobs[name] < low or knobs[name] & (knobs[name] - 1):
            raise UnsupportedCaseError(f"{name} must be a power of two of at least {low}, got {knobs[name]}")


def _check_range(knobs: Mapping[str, int], name: str, most: int) -> None:
    if not 1 <= knobs[name] <= most:
        raise UnsupportedCaseError(f"{name} must be between 1 and {most}, got {knobs[name]}")


Kernel = Any
"""What `kernel[grid](*arguments)` launches: a compiled binary, or Triton's interpreter in tests."""


def kernel_function(name: str) -> Kernel:
    """The decorated function a binary is compiled from."""
    from ..kernels import triton_kernels

    return {
        "gemm": triton_kernels.gemm,
        "sum_partials": triton_kernels.sum_partials,
        "attention": triton_kernels.attention,
    }[name]


@cache
def compiled(binary: Binary, architecture: int | str) -> Kernel:
    """`build`, kept for the life of this process."""
    return build(binary, architecture)


def build(binary: Binary, architecture: int | str) -> Kernel:
    """The binary for a compute capability such as 90, or an AMD architecture such as `gfx942`.

    Compiled, or read from Triton's disk cache. Needs no GPU.

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
    library = "cuda" if isinstance(architecture, int) else "hip"
    warp_size = WARP_SIZE if not str(architecture).startswith("gfx9") else _WAVEFRONT
    return triton.compile(source, target=GPUTarget(library, architecture, warp_size), options=options)


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


_SPILL_B = 4
"""ptxas counts spilled registers, of four bytes."""

_PTXAS_SAYS = re.compile(r"ptxas fatal\s*: (.*)")

_NAMES = {"gemm": ("a", "b"), "attention": ("q", "k", "v")}
_EXPECTED: Mapping[str, Callable[..., Callable[[], Tensor] | None]] = {
    "gemm": expected_product,
    "attention": expected_attention,
}


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch
    from triton.runtime.errors import OutOfResources, PTXASError

    steps = triton_steps(spec)
    if spec.dtype == "fp8" and operands[0].dtype != torch.float8_e4m3fn:
        raise UnsupportedCaseError(f"the Triton gemm multiplies float8_e4m3fn, this device {operands[0].dtype}")
    tensors = dict(zip(_NAMES[spec.family], operands, strict=True)) | outputs(spec, operands[0].device)
    if any(tensor.data_ptr() % ALIGNMENT for tensor in tensors.values()):
        raise UnsupportedCaseError(f"the Triton kernels need operands aligned to {ALIGNMENT} bytes")
    architecture = _architecture(torch, operands[0].device)
    try:
        kernels = {binary: compiled(binary, architecture) for binary in triton_binaries(spec)}
        calls = bound(steps, tensors, kernels.__getitem__)
    except OutOfResources as error:
        raise UnsupportedCaseError(f"this configuration does not fit the device: {error}") from None
    except PTXASError as error:
        output = _PTXAS_SAYS.search(str(error))
        reason = "it gives no reason" if output is None else output.group(1)
        raise UnsupportedCaseError(f"ptxas cannot compile this configuration: {reason}") from None
    main, out = kernels[steps.steps[0].binary], tensors["out"]

    def call() -> Tensor:
        for enqueue in calls:
            enqueue()
        return out

    return Launch(
        call=call,
        expected=_EXPECTED[spec.family](spec, *operands),
        tolerance=TOLERANCE[spec.dtype],
        resources={"registers": main.n_regs, "spill_b": _SPILL_B * main.n_spills, "shared_b": main.metadata.shared},
    )


def _architecture(torch: Any, device: Any) -> int | str:
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * int(major) + int(minor)


def outputs(spec: KernelSpec, device: Any) -> dict[str, Tensor]:
    """Tensors the kernels write, by the names their steps use: the result and, for a split product, the partial ones."""
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int32": torch.int32}
    view = View.of(spec)
    (array,) = get_family(spec.family).outputs(view)
    shape = array.shape[1:] if spec.family == "gemm" else array.shape
    written = {"out": torch.empty(shape, dtype=dtypes[array.dtype], device=device)}
    if (partials := triton_steps(spec).partials) is not None:
        kind = torch.int32 if output_dtype(view) == "int32" else torch.float32
        written["partials"] = torch.empty(partials, dtype=kind, device=device)
    return written


def _compile(spec: KernelSpec, capability: int) -> None:
    for binary in triton_binaries(spec):
        compiled(binary, capability)


def _versions() -> Mapping[str, str]:
    import triton  # asked for its version, since its package for ROCm has another name

    return {"triton": triton.__version__}


RUNNER = GpuRunner(
    name="triton", impls=("triton",), launch=_launch, versions=_versions, compile=_compile,
    binaries=triton_binaries, also_on=("amd",),
)  # fmt: skip
