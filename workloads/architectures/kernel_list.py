"""The kernels that one rank runs in a step, listed part by part, with what stands in for kernels no family describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ...features.device import Device
from ...features.dtypes import DTYPES
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, View, get_family
from ..whole_model import Kernel
from .plan import Collective, ParallelPlan
from .step import ACTIVATIONS, BLOCK_SCALED, NATIVE_AS, Formats, Step, weight_size_b

ROUTING = "power_law_1.01"
"""How evenly tokens choose experts where nothing is said. Decode steps of vLLM with Qwen3.6-35B-A3B on a B300 are met within
7 % (median) with it, within 16 % with even choices, which reach more experts (`benchmarks/llm_steps.py`)."""

LOGITS_ITEM_B = 4
"""Logits are sampled in fp32 (vLLM's sampler, `vllm/v1/sample/sampler.py`)."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """A kernel that no family describes, estimated as another.

    Attributes:
        reason: What is estimated as what.
        factor: How far the time may be from the other's: the interval is wider by it at both ends.
        scale: How many times the other's time it takes.
    """

    reason: str
    factor: float
    scale: float = 1.0


MOVED = 1.5
"""Factor of kernels that only move rows: the other kernel reads and writes as many bytes. A judgement."""

_UNPACKED = StandIn(
    "products that unpack quantised weights are estimated as unquantised ones, narrower by what reading fewer bytes saves",
    2.0,
)
"""Public times per token of gpt-oss-120b in vLLM on an H100, which unpacks its experts, are met within 18 % (median of 32)."""
_COLUMNS = 64
"""Narrowed products keep a multiple of so many columns, as real ones have."""

_OF_ENGINES = ("quantize", "causal_conv1d")
"""Families on vector units that public tables have in engines' own kernels."""
_DROPOUT = StandIn("dropout is estimated by what it reads and writes, without its mask of a byte an element", MOVED)
ROPE = StandIn("rotary positions are estimated by what they read and write", MOVED)


class Part(Protocol):
    """One part of a layer: attention, a state-space mixer, a feed-forward network …; sizes are those of the whole model."""

    @property
    def name(self) -> str:
        """Its part of a kernel's name."""

    def check(self, plan: ParallelPlan) -> None:
        """That the plan can split it; raises SpecError."""

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters that one rank holds."""

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Append what one layer's part runs."""

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Bytes that one rank keeps for a sequence of `length` positions."""

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Elements per token that are in memory at its widest place on one rank, beside the residual stream."""


class Weights:
    """Numbers of parameters, by what may quantise them.

    Attributes:
        products: In matrices of layers.
        experts: In matrices of routed experts.
        others: In all that is never quantised.
    """

    __slots__ = ("experts", "others", "products")

    def __init__(self, products: float = 0, experts: float = 0, others: float = 0) -> None:
        self.products, self.experts, self.others = products, experts, others

    def __add__(self, other: Weights) -> Weights:
        return Weights(
            self.products + other.products, self.experts + other.experts, self.others + other.others
        )  # fmt: skip

    def times(self, count: float) -> Weights:
        """Those of `count` such parts."""
        return Weights(self.products * count, self.experts * count, self.others * count)

    @property
    def total(self) -> float:
        """All parameters."""
        return self.products + self.experts + self.others

    def size_b(self, formats: Formats) -> float:
        """Bytes in memory, scales of block formats included."""
        return (
            self.products * weight_size_b(formats.weights) + self.experts * weight_size_b(formats.experts)
            + self.others * formats.itemsize_b
        )  # fmt: skip


class KernelList:
    """What one rank runs, in order; kernels alike under one name are one line with a count.

    Attributes:
        step: What the rank's group of ranks works on now.
        plan: How the model is split.
        formats: Number formats.
        routing: How evenly tokens choose experts, a variant of `moe`.
        fused_attention: Whether scores, softmax and context are one kernel.
        training: Whether every position is trained on, and nothing is kept for later steps.
        dropout: Whether elements are dropped.
        stand_ins: By name, what a kernel that no family describes is estimated as.
        collectives: What ranks send each other.
    """

    def __init__(
        self, step: Step, plan: ParallelPlan, formats: Formats, *, impl: str = "", threads: int | None = None, timing: str = "",
        fused_attention: bool = True, routing: str = ROUTING, device: Device | None = None, training: bool = False,
        dropout: bool = False, unpack: bool = False,
    ) -> None:  # fmt: skip
        """An empty list.

        Args:
            step: what all groups of ranks together work on.
            plan: how the model is split.
            formats: number formats.
            impl: what runs the families that engines were measured with; the others keep their usual library.
            threads: CPU threads; None is all, or a GPU.
            timing: as in `KernelSpec`.
            routing: variant of `moe`: how evenly tokens choose experts.
            device: what runs them; None: some device with hardware for the formats.
            fused_attention: False lists the products and the softmax of attention apart.
            training: the forward part of a training step.
            dropout: elements are dropped, as some models train.
            unpack: products unpack quantised weights even where the device multiplies their format.
        """
        self.training, self.dropout = training, dropout
        self.step, self.plan, self.formats, self.fused_attention = step.share(plan.dp), plan, formats, fused_attention
        self.routing = routing
        self.stand_ins: dict[str, StandIn] = {}
        self.collectives: list[Collective] = []
        self._device, self._unpack = device, unpack
        self._impl, self._threads, self._timing = impl, threads, timing
        self._lines: dict[tuple[str, KernelSpec], int] = {}
        self._times, self._prefix = 1, ""

    @property
    def lines(self) -> list[Kernel]:
        """The kernels with names and counts."""
        return [Kernel(spec, count, name) for (name, spec), count in self._lines.items()]

    @property
    def tokens(self) -> int:
        """Rows of the residual stream."""
        return self.step.tokens

    @property
    def eager(self) -> bool:
        """Whether PyTorch runs operator by operator, so that biases and activations are kernels as measured there."""
        return self._impl == "torch"

    @contextmanager
    def repeated(self, times: int, prefix: str) -> Iterator[None]:
        """What is listed inside runs `times` times, under names with this prefix."""
        before = self._times, self._prefix
        self._times, self._prefix = self._times * times, f"{self._prefix}{prefix}."
        yield
        self._times, self._prefix = before

    @contextmanager
    def running(self, step: Step) -> Iterator[None]:
        """What is listed inside works on another step of the same group of ranks, such as an encoder's."""
        before, self.step = self.step, step
        yield
        self.step = before

    def add(
        self, name: str, family: str, dtype: str, *, stands_for: StandIn | None = None, variant: str = "",
        kv_dtype: str | None = None, times: int = 1, **sizes: int,
    ) -> None:  # fmt: skip
        """Append a kernel; `stands_for` says what it stands in for, where it is not itself what runs."""
        spec = self._spec(family, dtype, variant, sizes, kv_dtype)
        name = self._prefix + name
        self._lines[name, spec] = self._lines.get((name, spec), 0) + self._times * times
        if stands_for is not None:
            self.stand_ins[name] = stands_for

    def _spec(
        self, family: str, dtype: str, variant: str, sizes: Mapping[str, int], kv_dtype: str | None = None
    ) -> KernelSpec:
        impl = self._impl if get_family(family).unit == "matrix" or family in _OF_ENGINES else ""
        return _spec_of(family, dtype, variant, impl, kv_dtype, self._threads, self._timing, tuple(sizes.items()))

    def product(
        self, name: str, n: int, k: int, *, rows: int | None = None, quantised: bool = True, bias: bool = False
    ) -> None:
        """A product of activations with weights of [k, n], and before it what quantises its activations."""
        rows = self.tokens if rows is None else rows
        weights = self.formats.weights if quantised else self.formats.dtype
        if weights != self.formats.dtype and self._multiplies(weights):
            self.add(f"{name}.quantise", "quantize", NATIVE_AS.get(weights, weights), rows=rows, cols=k)
            if weights not in BLOCK_SCALED:
                # A scale for each row, found before; blocks are small enough to stay in registers.
                self.add(
                    f"{name}.scale", "quantize", NATIVE_AS.get(weights, weights), variant="scale", rows=rows, cols=k
                )
        variant = "bias" if bias and self.eager else ""
        self.add_weighted(name, "gemm", weights, "n", variant=variant, m=rows, n=n, k=k)

    def add_weighted(
        self, name: str, family: str, weights: str, narrowed: str, *, variant: str = "", stands_for: StandIn | None = None,
        **sizes: int,
    ) -> None:  # fmt: skip
        """Append a kernel that reads weights of a format; `narrowed` is the size that is less where it unpacks them.

        Raises:
            SpecError: it unpacks them, and no device is given.
        """
        if self._multiplies(weights):
            dtype = NATIVE_AS.get(weights, weights)
            self.add(name, family, dtype, variant=variant, stands_for=stands_for, kv_dtype=None, **sizes)
            return
        share = self._unpacked_share(family, weights, variant, sizes)
        columns = max(_COLUMNS, round(sizes[narrowed] * share / _COLUMNS) * _COLUMNS)
        sizes = sizes | {narrowed: min(sizes[narrowed], columns)}
        self.add(name, family, self.formats.dtype, variant=variant, stands_for=_UNPACKED, kv_dtype=None, **sizes)

    def add_part(self, name: str, family: str, weights: str, *, variant: str = "", **sizes: int) -> None:
        """Append a kernel that is a whole part of a layer, with a cache of the format given and weights of another.

        Where the device does not multiply the format of weights, the part runs in that of activations.
        """
        native = self._multiplies(weights)
        dtype = NATIVE_AS.get(weights, weights) if native else self.formats.dtype
        self.add(name, family, dtype, variant=variant, kv_dtype=self.formats.kv, stands_for=None if native else _UNPACKED,
                 **sizes)  # fmt: skip

    def _multiplies(self, weights: str) -> bool:
        """Whether the device multiplies weights of a format; else a product unpacks them to the format of activations."""
        dtype = NATIVE_AS.get(weights, weights)
        if self._unpack and weights not in ACTIVATIONS:
            return False
        return dtype in DTYPES and (self._device is None or self._device.runs(dtype, "matrix"))

    def _unpacked_share(self, family_name: str, weights: str, variant: str, sizes: Mapping[str, int]) -> float:
        """Least time of a kernel that reads quantised weights over that of one that reads them as activations are.

        Both do the same arithmetic; each takes the longer of it and of its bytes at the device's bandwidth.
        """
        if self._device is None:
            raise SpecError(
                f"what products with {weights} weights cost depends on the device; give one", field="device"
            )
        family, dtype = get_family(family_name), self.formats.dtype
        view = View.of(self._spec(family_name, dtype, variant, sizes))
        whole_b = family.bytes_moved(view)
        activations_b = family.inputs(view)[0].nbytes + family.outputs(view)[0].nbytes
        read_b = activations_b + (whole_b - activations_b) * weight_size_b(weights) / self.formats.itemsize_b
        compute_s = family.flops(view) / self._device.peak_flops_per_s(dtype, "matrix")[0]
        bandwidth = self._device.required("memory_bandwidth_b_per_s")
        return float(max(read_b / bandwidth, compute_s) / max(whole_b / bandwidth, compute_s))

    def batched(
        self, name: str, batch: int, m: int, n: int, k: int, *, times: int = 1, stands_for: StandIn | None = None
    ) -> None:
        """Products of activations with each other."""
        self.add(name, "gemm", self.formats.dtype, variant="batched", batch=batch, m=m, n=n, k=k, times=times,
                 stands_for=stands_for)  # fmt: skip

    def norm(self, name: str, kind: str, rows: int, cols: int) -> None:
        """A normalisation of rows."""
        self.add(name, "layernorm", self.formats.dtype, variant=kind, rows=rows, cols=cols)

    def elementwise(self, name: str, variant: str, cols: int, *, rows: int | None = None, times: int = 1,
                    stands_for: StandIn | None = None) -> None:  # fmt: skip
        """An element-by-element kernel on the rows of the step."""
        rows = self.tokens if rows is None else rows
        self.add(name, "elementwise", self.formats.dtype, variant=variant, rows=rows, cols=cols, times=times,
                 stands_for=stands_for)  # fmt: skip

    def drop(self, cols: int, *, rows: int | None = None) -> None:
        """Dropout, where there is any: a pass that also writes a mask of a byte for each element."""
        if self.dropout:
            self.elementwise("dropout", "mulu", cols, rows=rows, stands_for=_DROPOUT)

    def copy(self, name: str, cols: int, *, rows: int | None = None, dtype: str | None = None,
             stands_for: StandIn | None = None) -> None:  # fmt: skip
        """A kernel that reads and writes rows."""
        rows = self.tokens if rows is None else rows
        self.add(name, "copy", dtype or self.formats.dtype, rows=rows, cols=cols, stands_for=stands_for)

    def collective(self, name: str, kind: str, ranks: int, elements: float) -> None:
        """Record what ranks send each other, where there are several."""
        if ranks > 1:
            size_b = elements * self.formats.itemsize_b
            self.collectives.append(Collective(self._prefix + name, kind, ranks, size_b, self._times))  # type: ignore[arg-type]

    def all_reduce(self, name: str, hidden: int) -> None:
        """The sum over the ranks of `tp` that follows a product split by rows."""
        self.collective(name, "all_reduce", self.plan.tp, self.tokens * hidden)


@lru_cache(maxsize=1 << 16)
def _spec_of(
    family: str, dtype: str, variant: str, impl: str, kv_dtype: str | None, threads: int | None, timing: str,
    sizes: tuple[tuple[str, int], ...],
) -> KernelSpec:  # fmt: skip
    """A checked spec; steps of one model have most of theirs in common."""
    return KernelSpec.of(
        family, dtype, variant=variant, impl=impl, kv_dtype=kv_dtype, config=None, threads=threads, cache_state="hot",
        timing=timing, **dict(sizes),
    )  # fmt: skip
