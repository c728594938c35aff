"""Which Triton binaries a case needs and how they are launched; decided from the spec alone, without Triton or torch.

Compiling ahead of time and launching both ask here, so they build the same binary. Only what changes the code is part of
a binary: k and n by whether 16 divides them, m, `group_m` and the number of parts not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...features.errors import listed
from ...features.families.gemm import output_dtype
from ...features.kernel import KernelSpec, View
from ..runner import UnsupportedCaseError

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
    """One compiled kernel: its function's name, its parameters in order, and how many warps and pipeline stages.

    `types` are `(parameter, Triton type)` of what is passed at launch, `constants` `(parameter, value)` of what is
    compiled in, `aligned` the parameters that 16 divides.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Scalar], ...]
    aligned: tuple[str, ...]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: a binary, its grid, and its arguments, names of tensors or whole numbers, in order of `types`."""

    binary: Binary
    grid: tuple[int, int, int]
    arguments: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The launches of a case in order, and the partial products between them: shape `(parts, m, n)`, None for none."""

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
    given = dict(spec.config)
    if missing := [name for name in needed if name not in given]:
        raise UnsupportedCaseError(
            f"the Triton {spec.family} needs {listed(needed)} in its configuration; missing: {listed(missing)}"
        )
    if unknown := sorted(set(given) - set(needed)):
        raise UnsupportedCaseError(f"the Triton {spec.family} has no {unknown[0]}; it takes {listed(needed)}")
    _check_powers(given, {"warps": 1})
    for name, most in (("warps", _MAX_WARPS), ("stages", _MAX_STAGES)):
        _check_range(given, name, most)
    return given


def _check_powers(knobs: Mapping[str, int], least: Mapping[str, int]) -> None:
    for name, low in least.items():
        if knobs[name] < low or knobs[name] & (knobs[name] - 1):
            raise UnsupportedCaseError(f"{name} must be a power of two of at least {low}, got {knobs[name]}")


def _check_range(knobs: Mapping[str, int], name: str, most: int) -> None:
    if not 1 <= knobs[name] <= most:
        raise UnsupportedCaseError(f"{name} must be between 1 and {most}, got {knobs[name]}")
