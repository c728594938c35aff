"""PyTorch on a GPU: the family's own call, what it does not do right there, attention backends and grouped experts.

Weights of quantised products lie column by column, as every Hopper fp8 kernel wants them and as models store them
transposed anyway; they are brought there before the first call.

Mixture-of-experts blocks by PyTorch's grouped product run all experts in one kernel, as serving engines do:

    tokens ─ gather by expert ─ grouped product ─ silu(gate) · up ─ grouped product ─ add back to each token

Routing is drawn once, from a seed, and lies on the device before the first call; nothing is read back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....features.families.moe import expert_shares
from ....features.kernel import KernelSpec, get_family
from ....version import required_versions
from ...runner import GpuRunner, Launch, Tensor, UnsupportedCaseError
from ..measure.bench import expected_attention
from ..plan.strata import masked

Call = Callable[[], Tensor]

BACKENDS: Mapping[str, str] = MappingProxyType({
    "torch-flash": "FLASH_ATTENTION",
    "torch-efficient": "EFFICIENT_ATTENTION",
    "torch-cudnn": "CUDNN_ATTENTION",
    "torch-math": "MATH",
})  # fmt: skip
"""The name in `torch.nn.attention.SDPBackend` of each impl."""

_FAMILY = {**dict.fromkeys(BACKENDS, "attention"), "torch-grouped": "moe"}
"""The one family that an impl runs."""


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    family = get_family(spec.family)
    if spec.family != (only := _FAMILY.get(spec.impl, spec.family)):
        raise UnsupportedCaseError(f"{spec.impl} runs {only}, not {spec.family}")
    if "torch" not in family.run:
        raise UnsupportedCaseError(f"{family.name} has no torch kernel")
    if spec.kv_dtype is not None:
        raise UnsupportedCaseError(f"torch's attention takes keys in the dtype of the queries, not {spec.kv_dtype}")
    if spec.config:
        raise UnsupportedCaseError(f"torch picks its own tiles, it takes no configuration; got {dict(spec.config)}")
    if spec.impl in BACKENDS:
        return _attention(torch, spec, *operands)
    if spec.impl == "torch-grouped":
        return _grouped(torch, spec, *operands)
    return Launch(special_launch(torch, spec, operands) or family.run["torch"](torch, spec, *operands))


_FP8_CAPABILITY = (8, 9)
"""Least compute capability with fp8 tensor cores (CUDA C++ Programming Guide, "Alternate Floating-Point")."""

_TF32_CAPABILITY = (8, 0)
"""Least compute capability with tf32 tensor cores (CUDA C++ Programming Guide, the same section)."""

_ALIGNMENT = 16
"""Both libraries want n and k in multiples of this (torch._scaled_mm's and cublasLt's IMMA checks)."""

_LEAST_INT8_ROWS = 17
"""torch._int_mm refuses products of 16 rows and fewer on CUDA."""

_WEIGHT_LAYOUTS = ("", "bias", "nt")
"""Variants whose first operand lies row by row; what is not quantised can have others."""

_PRECISION = {"tf32": "tf32", "fp32": "ieee"}
"""torch's words for both (torch.backends, `fp32_precision`, since 2.9)."""


def special_launch(torch: Any, spec: KernelSpec, operands: tuple[Tensor, ...]) -> Call | None:
    """The call of a case that the family's own call does not do right on a GPU; None where it does.

    That is a product in fp8 (unit scales, bf16 result) or int8 (int32 result), and products and convolutions in fp32 or
    tf32, which torch tells apart by a global switch: set around each call and put back.

    Raises:
        UnsupportedCaseError: the variant, a size or the device is one the quantised product does not take.
    """
    if spec.family == "gemm" and spec.dtype in _QUANTISED:
        _check_quantised(torch, spec, operands[0])
        return _QUANTISED[spec.dtype](torch, *operands)
    switches = {"gemm": torch.backends.cuda.matmul, "conv2d": torch.backends.cudnn.conv}
    if spec.dtype not in _PRECISION or spec.family not in switches:
        return None
    if spec.dtype == "tf32" and operands[0].is_cuda:
        capability = tuple(torch.cuda.get_device_capability(operands[0].device))
        if capability < _TF32_CAPABILITY:
            # torch would run it in fp32 without a word, and the row would be an fp32 one under another name.
            raise UnsupportedCaseError(f"tf32 needs compute capability 8.0 or more, this device has {capability}")
    local = get_family(spec.family).run["torch"](torch, spec, *operands)
    return _switched(switches[spec.family], _PRECISION[spec.dtype], local)


def _switched(switch: Any, precision: str, inner: Call) -> Call:
    def call() -> Tensor:
        before = switch.fp32_precision
        switch.fp32_precision = precision
        try:
            return inner()
        finally:
            switch.fp32_precision = before

    return call


def _fp8(torch: Any, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Call:
    left, right, unit_scale = a[0], _by_columns(b[0]), torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(left, right, unit_scale, unit_scale, bias=bias, out_dtype=torch.bfloat16)


def _int8(torch: Any, a: Tensor, b: Tensor) -> Call:
    left, right = a[0], _by_columns(b[0])
    return lambda: torch._int_mm(left, right)


_QUANTISED: dict[str, Callable[..., Call]] = {"fp8": _fp8, "int8": _int8}


def _by_columns(weights: Tensor) -> Tensor:
    return weights.t().contiguous().t()


def _check_quantised(torch: Any, spec: KernelSpec, a: Tensor) -> None:
    variants = _WEIGHT_LAYOUTS if spec.dtype == "fp8" else tuple(v for v in _WEIGHT_LAYOUTS if v != "bias")
    if spec["batch"] > 1 or spec.variant not in variants:
        raise UnsupportedCaseError(
            f"torch multiplies {spec.dtype} one product at a time, as {', '.join(v or 'plain' for v in variants)}; "
            f"got batch {spec['batch']} and variant {spec.variant or 'plain'}"
        )
    if spec["n"] % _ALIGNMENT or spec["k"] % _ALIGNMENT:
        raise UnsupportedCaseError(
            f"torch multiplies {spec.dtype} with n and k in multiples of {_ALIGNMENT}, got {spec['n']} and {spec['k']}"
        )
    if not a.is_cuda:
        return
    if spec.dtype == "int8" and spec["m"] < _LEAST_INT8_ROWS:
        raise UnsupportedCaseError(f"torch multiplies int8 from {_LEAST_INT8_ROWS} rows on, got {spec['m']}")
    capability = torch.cuda.get_device_capability(a.device)
    if spec.dtype == "fp8" and tuple(capability) < _FP8_CAPABILITY:
        raise UnsupportedCaseError(f"fp8 needs compute capability 8.9 or more, this device has {capability}")


_LOWER_RIGHT = ("torch-flash", "torch-efficient")
"""Backends with a kernel for causal masks whose queries are the last of the keys; the others take a mask as a tensor."""

_ATTENTION_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-3, "bf16": 1e-2}
"""Largest relative error in the Frobenius norm: about five times what rounding probabilities and result gives."""


def _attention(torch: Any, spec: KernelSpec, q: Tensor, k: Tensor, v: Tensor) -> Launch:
    lower_right = masked(spec) and not spec["window"] and spec.impl in _LOWER_RIGHT
    attend = _lower_right if lower_right else get_family("attention").run["torch"]
    call = with_backend(torch, spec.impl, attend(torch, spec, q, k, v))
    _try(torch, spec.impl, call)
    expected = None if spec.impl == "torch-math" else expected_attention(spec, q, k, v)
    return Launch(call, expected, _ATTENTION_TOLERANCE.get(spec.dtype, 1e-2))


def with_backend(torch: Any, impl: str, inner: Call) -> Call:
    """`inner` with only the backend of `impl` allowed; what is switched is the host's, so a CUDA graph captures it."""
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[impl])
    only = torch.nn.attention.sdpa_kernel

    def call() -> Tensor:
        with only(backend):
            return inner()

    return call


def _lower_right(torch: Any, spec: KernelSpec, q: Tensor, k: Tensor, v: Tensor) -> Call:
    from torch.nn.attention.bias import causal_lower_right

    attend, grouped = torch.nn.functional.scaled_dot_product_attention, spec["heads"] != spec["kv_heads"]
    bias = causal_lower_right(spec["q_len"], spec["kv_len"])
    return lambda: attend(q, k, v, attn_mask=bias, enable_gqa=grouped)


def _try(torch: Any, impl: str, call: Call) -> None:
    """One call, thrown away.

    Raises:
        UnsupportedCaseError: the backend does not take the case, with torch's reasons.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # torch gives its reasons as warnings before it gives up.
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in caught]
            why = "; ".join(dict.fromkeys(reasons)) or str(error).strip().split("\n")[0]
            raise UnsupportedCaseError(f"{impl} does not take this case: {why}") from None


_ALIGNED = 8
"""Elements of bf16 in 16 bytes: strides of grouped operands are multiples of it (torch's own check)."""

_GROUPED_TOLERANCE = 2e-2
"""Relative error in the Frobenius norm against one product per expert: both round to bf16 twice and add up in bf16."""


def _grouped(torch: Any, spec: KernelSpec, tokens: Tensor, gate_up: Tensor, down: Tensor) -> Launch:
    if spec.dtype != "bf16":
        raise UnsupportedCaseError(f"torch's grouped product takes bf16, not {spec.dtype}")
    for name, size in (("hidden", tokens.shape[1]), ("inter over tp", down.shape[1])):
        if size % _ALIGNED:
            raise UnsupportedCaseError(f"torch's grouped product wants {name} in multiples of {_ALIGNED}, got {size}")
    product = grouped_product(torch)
    rows, ends = (part.to(tokens.device) for part in routing(torch, spec, gate_up.shape[0]))
    silu = torch.nn.functional.silu

    def call() -> Tensor:
        gate, up = product(tokens.index_select(0, rows), gate_up, offs=ends).chunk(2, dim=-1)
        return torch.zeros_like(tokens).index_add_(0, rows, product(silu(gate) * up, down, offs=ends))

    return Launch(call, get_family("moe").run["torch"](torch, spec, tokens, gate_up, down), _GROUPED_TOLERANCE)


def grouped_product(torch: Any) -> Callable[..., Tensor]:
    """PyTorch's grouped product: the public function since 2.10, the private one before.

    Raises:
        UnsupportedCaseError: this torch has neither.
    """
    product: Callable[..., Tensor] | None = getattr(torch.nn.functional, "grouped_mm", None)
    product = product or getattr(torch, "_grouped_mm", None)
    if product is None:
        raise UnsupportedCaseError(f"torch {torch.__version__} has no grouped product; install torch 2.8 or newer")
    return product


def routing(torch: Any, spec: KernelSpec, experts: int) -> tuple[Tensor, Tensor]:
    """Which token each copy is of, copies sorted by expert, and where each expert's copies end (int32), on the CPU.

    The same as the family's own: shares by `expert_shares`, counts and tokens drawn from seed 0.
    """
    copies = max(1, spec["tokens"] * spec["topk"] // spec["ep"])
    counts = np.random.default_rng(0).multinomial(copies, expert_shares(spec.variant, experts))
    rows = torch.randint(0, spec["tokens"], (copies,), generator=torch.Generator().manual_seed(0))
    return rows, torch.tensor(np.cumsum(counts), dtype=torch.int32)


def _versions() -> Mapping[str, str]:
    import torch

    backends: Any = torch.backends
    # torch for ROCm calls MIOpen cudnn.
    deep = "miopen" if torch.version.hip else "cudnn"
    parts = {library: getattr(torch.version, library, None) for library in ("cuda", "hip", "xpu")}
    known = {**parts, deep: backends.cudnn.version()}
    return {**required_versions("torch"), **{name: str(version) for name, version in known.items() if version}}


RUNNER = GpuRunner(
    name="torch", impls=("torch", *BACKENDS, "torch-grouped"), launch=_launch, versions=_versions,
    also_on=("amd", "intel"),
)  # fmt: skip
