"""What is measured of a GPU: the same fixed cases on every one, and the arithmetic from times to facts.

A probe knows its name and how to get its fact out of a bench. Peaks are taken over two sizes of a case, the better one kept;
where the larger is more than 5 % better, the fact says that the peak may lie higher still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ....features.kernel import KernelSpec, View, get_family
from .micro_kernels import Chain, ProbeBench, ProbeError, SaturatingKernel

LARGER_IS_BETTER = 0.05
"""A larger case better by more than this share says that the smaller did not reach the peak; so may the larger."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A measured value.

    Attributes:
        value: In SI units.
        note: What to know about it.
    """

    value: float
    note: str


@dataclass(frozen=True, slots=True)
class Rate:
    """Work per second of a kernel at two sizes.

    Attributes:
        name: Name of the fact.
        small: The smaller case.
        large: The larger case.
        in_bytes: Whether work is counted in bytes rather than in flops.
    """

    name: str
    small: KernelSpec
    large: KernelSpec
    in_bytes: bool = False

    def work(self, spec: KernelSpec) -> float:
        """Bytes or flops of one call."""
        family = get_family(spec.family)
        return float((family.bytes_moved if self.in_bytes else family.flops)(View.of(spec)))

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """The better rate of the two sizes."""

        def rate(spec: KernelSpec) -> float:
            return self.work(spec) / bench.graph_s(spec)

        return _better((str(spec), partial(rate, spec)) for spec in (self.small, self.large))


@dataclass(frozen=True, slots=True)
class SaturatedRate:
    """Work per second of a micro-kernel that fills the GPU, at two sizes.

    Attributes:
        name: Name of the fact.
        saturating_kernel: The micro-kernel.
    """

    name: str
    saturating_kernel: SaturatingKernel

    def work(self, blocks: int) -> float:
        """Bytes or flops of one launch."""
        return self.saturating_kernel.work * self.saturating_kernel.steps * 256.0 * blocks

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """The better rate of the two sizes."""
        micro = bench.micro()

        def rate(blocks: int, span_b: int) -> float:
            return self.work(blocks) / micro.throng_s(self.saturating_kernel, blocks, span_b)

        return _better(
            (f"{self.saturating_kernel.kernel}[{blocks} blocks, {span_b} B]", partial(rate, blocks, span_b))
            for blocks, span_b in zip(self.saturating_kernel.blocks, self.saturating_kernel.spans_b, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one step of a dependent chain, the lesser of two lengths.

    Attributes:
        name: Name of the fact.
        chain: The chain.
    """

    name: str
    chain: Chain

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """Seconds per step, with the SM clocks it took."""
        micro = bench.micro()
        seconds, clocks = min(micro.chain_s(self.chain, self.chain.steps * times) for times in (1, 2))
        if seconds <= 0:
            raise ProbeError("the GPU's nanosecond timer did not advance")
        return ProbeResult(seconds, f"{self.chain.kernel}, {clocks:.1f} clocks at {clocks / seconds / 1e6:.0f} MHz")


@dataclass(frozen=True, slots=True)
class Launching:
    """What the smallest case costs.

    Attributes:
        name: Name of the fact.
        spec: The case.
        on_host: Whether it is the host time of a call rather than GPU time in a graph.
    """

    name: str
    spec: KernelSpec
    on_host: bool

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """Seconds of one call."""
        return ProbeResult(bench.host_s(self.spec) if self.on_host else bench.graph_s(self.spec), str(self.spec))


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power under a steady loop of a case, or at rest.

    Attributes:
        name: Name of the fact.
        spec: The case; None: at rest.
    """

    name: str
    spec: KernelSpec | None

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """Watts."""
        return ProbeResult(bench.power_w(self.spec), "nothing running" if self.spec is None else str(self.spec))


@dataclass(frozen=True, slots=True)
class SensorPeriod:
    """How often the energy sensor has something new.

    Attributes:
        name: Name of the fact.
    """

    name: str = "sensor_period_s"

    def measure(self, bench: ProbeBench) -> ProbeResult:
        """Seconds."""
        return ProbeResult(bench.sensor_period_s(), "steps of the energy counter")


Probe = Rate | SaturatedRate | Latency | Launching | Power | SensorPeriod
"""One fact to measure; `measure` raises `ProbeError` where this GPU or these libraries cannot."""


def _better(cases: Iterable[tuple[str, Callable[[], float]]]) -> ProbeResult:
    """The better of two rates; one that fails leaves the other, with the reason in the note."""
    rates: list[float] = []
    notes: list[str] = []
    failures: list[str] = []
    for what, rate in cases:
        try:
            rates.append(rate())
            notes.append(what)
        except Exception as error:  # noqa: BLE001  out of memory has a class of its own in every library
            failures.append(f"{what} not run: {reason(error)}")
    if not rates:
        raise ProbeError("; ".join(failures))
    best = max(range(len(rates)), key=rates.__getitem__)
    remarks = [notes[best], *failures]
    if len(rates) == 2 and rates[1] > (1 + LARGER_IS_BETTER) * rates[0]:
        remarks.append(f"{rates[1] / rates[0] - 1:.0%} above the smaller case, so the peak may lie higher still")
    return ProbeResult(rates[best], "; ".join(remarks))


def reason(error: BaseException) -> str:
    """The first line of an error, with its kind where that is not the product's own."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    local = isinstance(error, ProbeError) or type(error).__module__.startswith("kernelcast")
    return (lines[0] if local else f"{type(error).__name__}: {lines[0]}")[:300]


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
    SaturatedRate("vector_fp32_cupy_flops_per_s", SaturatingKernel("fma_fp32", 16.0, 1024)),
    SaturatedRate("vector_bf16_cupy_flops_per_s", SaturatingKernel("fma_bf16", 32.0, 1024, compute_capability=80)),
    SaturatedRate("vector_fp16_cupy_flops_per_s", SaturatingKernel("fma_fp16", 32.0, 1024)),
    # A 64th of fp32's rate on some GPUs.
    SaturatedRate("vector_fp64_cupy_flops_per_s", SaturatingKernel("fma_fp64", 16.0, 64)),
)

BANDWIDTH = (
    Rate("bandwidth_dram_b_per_s", _negate(GIB), _negate(2 * GIB), in_bytes=True),
    Rate("bandwidth_dram_read_b_per_s", _sum(2 * GIB), _sum(4 * GIB), in_bytes=True),
    # 16 bytes per step and thread. Sets that lie in the L2 of every GPU since 2017, past L1 by the kind of load.
    SaturatedRate("bandwidth_l2_b_per_s", SaturatingKernel("read_l2", 16.0, 128, spans_b=(2**21, 2**22))),
    SaturatedRate("bandwidth_l1_b_per_s", SaturatingKernel("read_l1", 16.0, 512, spans_b=(2**13, 2**14))),
    SaturatedRate("bandwidth_shared_b_per_s", SaturatingKernel("read_shared", 16.0, 512, spans_b=(2**14, 2**14))),
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
"""Every fact `kernelcast measure machine` measures on a GPU."""
