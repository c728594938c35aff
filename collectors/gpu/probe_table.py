"""The fixed cases a GPU is characterised by, in the order they are measured: what is most wanted comes first."""

from __future__ import annotations

from ...features.kernel import KernelSpec
from .micro import Chain, Throng
from .probes import Latency, Launching, Power, Probe, Rate, SensorPeriod, ThrongRate

GIB = 2**30

TRITON_TILES = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "warps": 8, "stages": 3, "group_m": 8, "split_k": 1}
"""A configuration of Triton's matrix product that does well on data-centre GPUs; it needs 147 KB of shared memory."""

_TRITON_SMALLEST = {"tile_m": 32, "tile_n": 32, "tile_k": 32, "warps": 4, "stages": 2, "group_m": 1, "split_k": 1}


def _gemm(dtype: str, size: int, impl: str = "torch", config: dict[str, int] | None = None) -> KernelSpec:
    return KernelSpec.of("gemm", dtype, impl=impl, config=config, m=size, n=size, k=size)


def _matrix(dtype: str, small: int = 4096, impl: str = "torch", config: dict[str, int] | None = None) -> Rate:
    first, second = (_gemm(dtype, size, impl, config) for size in (small, 2 * small))
    return Rate(f"matrix_{dtype}_{impl}_flops_per_s", first, second)


def _negate(size_b: int) -> KernelSpec:
    """Read one array and write another of `size_b` each: a kernel, where a copy would be the driver's choice.

    PyTorch's copies were seen to reach 2.75 or 4.25 TB/s on one H200, depending on their size and not on how large it is.
    """
    return KernelSpec.of("elementwise", "fp32", variant="neg", impl="torch", rows=size_b // 65536, cols=16384)


def _sum(size_b: int) -> KernelSpec:
    return KernelSpec.of("reduction", "fp32", variant="sum", impl="torch", rows=size_b // 2**16, cols=2**14)


MATRIX = (
    # fp64 runs at a 64th of fp32 on some GPUs, where larger products would take seconds.
    _matrix("bf16"), _matrix("fp16"), _matrix("tf32"), _matrix("fp32"), _matrix("fp8"), _matrix("int8"),
    _matrix("fp64", 2048), _matrix("bf16", impl="triton", config=TRITON_TILES),
)  # fmt: skip

# Flops per step and thread: eight chains, two flops each, and two numbers in a word of half-width formats.
VECTOR = (
    ThrongRate("vector_fp32_cupy_flops_per_s", Throng("fma_fp32", 16.0, 1024)),
    ThrongRate("vector_bf16_cupy_flops_per_s", Throng("fma_bf16", 32.0, 1024, compute_capability=80)),
    ThrongRate("vector_fp16_cupy_flops_per_s", Throng("fma_fp16", 32.0, 1024)),
    # A 64th of fp32's rate on some GPUs.
    ThrongRate("vector_fp64_cupy_flops_per_s", Throng("fma_fp64", 16.0, 64)),
)

BANDWIDTH = (
    Rate("bandwidth_dram_b_per_s", _negate(GIB), _negate(2 * GIB), in_bytes=True),
    Rate("bandwidth_dram_read_b_per_s", _sum(2 * GIB), _sum(4 * GIB), in_bytes=True),
    # 16 bytes per step and thread. Sets that lie in the L2 of every GPU since 2017, past L1 by the kind of load.
    ThrongRate("bandwidth_l2_b_per_s", Throng("read_l2", 16.0, 128, spans_b=(2**21, 2**22))),
    ThrongRate("bandwidth_l1_b_per_s", Throng("read_l1", 16.0, 512, spans_b=(2**13, 2**14))),
    ThrongRate("bandwidth_shared_b_per_s", Throng("read_shared", 16.0, 512, spans_b=(2**14, 2**14))),
)

LATENCY = (
    Latency("latency_l1_s", Chain("chase_l1", 2**16, span_b=2**13)),
    Latency("latency_shared_s", Chain("chase_shared", 2**16)),
    Latency("latency_l2_s", Chain("chase_l2", 2**14, span_b=2**20)),
    # Lines four apart, so that none comes along with the one before.
    Latency("latency_dram_s", Chain("chase_l2", 2**13, span_b=2**22, stride_b=512, cold=True)),
    Latency("latency_ffma_s", Chain("chain_ffma", 2**19)),
    Latency("latency_mma_bf16_s", Chain("chain_mma_bf16", 2**16, threads=32, compute_capability=80)),
    Latency("latency_barrier_s", Chain("chain_barrier", 2**16, threads=256)),
    Latency("latency_atomic_l2_s", Chain("chain_atomic_l2", 2**14)),
    Latency("latency_atomic_shared_s", Chain("chain_atomic_shared", 2**16)),
)

# 32: int8 products of torch need more than 16 rows, fp8 ones sizes that are multiples of 16.
SMALLEST = {
    **{f"torch_{dtype}": _gemm(dtype, 32) for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")},
    "torch_add_fp32": KernelSpec.of("elementwise", "fp32", variant="addu", impl="torch", rows=1, cols=1),
    "torch_sdpa_bf16": KernelSpec.of(
        "attention", "bf16", impl="torch", batch=1, heads=1, kv_heads=1, q_len=16, kv_len=16, head_dim=64
    ),
    "triton_bf16": _gemm("bf16", 32, "triton", _TRITON_SMALLEST),
    "cupy_fp32": _gemm("fp32", 32, "cupy-tiled", {"tile_m": 16, "tile_n": 16, "tile_k": 16}),
}

LAUNCH = tuple(
    Launching(f"launch_{where}_{label}_s", spec, on_host)
    for where, on_host in (("graph", False), ("host", True))
    for label, spec in SMALLEST.items()
)

# At rest first: a GPU that has worked stays warm for minutes.
AT_REST = (Power("power_idle_w", None), SensorPeriod())
POWER = (
    Power("power_compute_w", _gemm("bf16", 8192)),
    Power("power_bandwidth_w", _negate(2 * GIB)),
)

PROBES: tuple[Probe, ...] = (*AT_REST, *MATRIX, *BANDWIDTH, *VECTOR, *LATENCY, *LAUNCH, *POWER)
"""Every fact `kernelcast characterize` measures on a GPU."""
