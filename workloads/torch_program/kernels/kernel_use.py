"""How an operator of PyTorch runs as kernels of the families, and what it costs where there is none: its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....features.device import Device
from ....features.errors import SpecError
from ....features.kernel import MAX_DIM, KernelSpec
from ....models.predict.prediction import Interval, Prediction
from ...savings import IDLE_SHARE
from ...serving.engine.collectives import most_ranks, shipped_laws
from ...serving.host_experts import LINK_SHARE
from ..operation import Operation, TensorInfo, float_dtype, itemsize_b

ALIKE = 1.25
"""How much further the ends of an interval lie where the kernel is only like what the operator does, as in
`workloads/mlir/composition.py`."""

SCATTERED = 3.0
"""The same where elements lie at computed places: a gather of rows streams, one of single elements fetches a line for each."""

UNKNOWN = 10.0
"""The same for an operator of which nothing is known but what it reads and writes."""

LOOPED = 5.0
"""The same for loops of a CPU over single numbers, each of which was measured at one size."""

FACTORISATION = 300.0
"""The same for factorisations of which nothing is known but their bytes: arithmetic grows faster, in steps that wait for each
other."""

LINK = "link"
"""What binds collectives and copies between host and device."""

HOST = "host"
"""The exchange with the host's memory, over PCI Express."""

_OF_PINNED = Interval(1.7, 0.95, 5.0)
"""How many times as long a copy between host and device takes as one of pinned memory at `LINK_SHARE` of the slot's rate.

From memory that the system may move, which the driver copies to a pinned buffer first, it is 1.1 to 2.5 times (NVIDIA, How to
Optimize Data Transfers in CUDA C/C++, 2012: 5.4 of 6.2 GB/s on a workstation, 2.3 of 5.8 on a laptop), and up to five where the
link is five times as fast as one core of the host. Which memory a tensor is in is not recorded; the value is between both, and
the lower end a host that is 5 % faster than the one measured."""

_ON_UNKNOWN_LINK = Interval(1.7 / 24.9e9, 1 / 450e9, 5 / 12.4e9)
"""Seconds a byte takes over a link to the host of which nothing is known: the value as over PCI Express 4.0, the ends from
NVLink-C2C (NVIDIA, GH200 data sheet: 450 GB/s in one direction) to pageable memory over PCI Express 3.0."""


def host_link_b_per_s(device: Device) -> float | None:
    """Bytes a second of the slot that joins a device to its host; None where it is not known."""
    return device.fact("pcie_bandwidth_b_per_s")


_LEAST_S = 1e-7
"""Seconds of a kernel on a CPU that has nothing to do: the tenth part of a call of one."""

BETWEEN_MACHINES = 9.0
"""What a collective between machines takes of one within, at most: 450 GB/s of NVLink a GPU over 50 of its network adapter
(NVIDIA, DGX H100 User Guide: 18 NVLinks, eight ConnectX-7 of 400 Gb/s for eight GPUs)."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What goes over links: between ranks, or between a device and its host.

    Attributes:
        kind: One of `serving/engine/collectives.py`, such as `all_reduce`, or `HOST`.
        ranks: Devices that take part; 1 of a copy between device and host.
        size_b: Bytes that each of them holds before it.
        overlaps: Whether it runs beside kernels of its pass.
    """

    kind: str
    ranks: int
    size_b: int
    overlaps: bool = False

    def time_on(self, device: Device) -> Interval | None:
        """What ranks take to send each other so much; None where the device's links are not known.

        More ranks than a machine has take at least the time of as many bytes within one.
        """
        if self.kind == HOST:
            return self._with_host(device)
        ranks = min(self.ranks, most_ranks(device))
        size_b = self.size_b * (self.ranks / ranks if self.kind == "all_gather" else 1.0)
        try:
            times, spreads = shipped_laws().seconds(device, "", self.kind, ranks, np.array([float(size_b)]))
        except SpecError:
            return None
        value, factor = float(times[0]), float(np.exp(spreads[0]))
        between = BETWEEN_MACHINES if ranks < self.ranks else 1.0
        return Interval(value, value / factor, value * factor * between)

    def _with_host(self, device: Device) -> Interval:
        slot = host_link_b_per_s(device)
        return (_ON_UNKNOWN_LINK if slot is None else _OF_PINNED.scaled(1 / (LINK_SHARE * slot))).scaled(self.size_b)


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel that an operator runs.

    Attributes:
        spec: The kernel.
        count: How many times it runs.
        scale: How many times the kernel's time one run takes.
        widening: How much further the ends of the interval lie than the kernel's.
        stand_in: What the kernel stands for where it is not the operator's own; empty where it is.
        exchange: The collective in whose place the kernel stands, which counts where the device's links are not known.
        otherwise: What answers in its place where the model is surer of that (`device_estimate.py`).
        at_most: Whether it takes no longer than `otherwise`, which then answers where that is faster.
        upper_bound: Whether it is the most that may run, so that it may take next to nothing.
        fetched_b: Bytes that one run fetches from a CPU's memory, since the program touched them long before.
    """

    spec: KernelSpec
    count: int = 1
    scale: float = 1.0
    widening: float = 1.0
    stand_in: str = ""
    exchange: Exchange | None = None
    otherwise: tuple[KernelUse, ...] = ()
    at_most: bool = False
    upper_bound: bool = False
    fetched_b: float = 0.0

    def upper(self) -> KernelUse:
        """The same as the most that may run."""
        return replace(self, upper_bound=True, otherwise=tuple(use.upper() for use in self.otherwise))

    def adjusted(self, prediction: Prediction, device: Device) -> Prediction:
        """The kernel's prediction as that of what it stands for."""
        if self.exchange is not None and (time := self.exchange.time_on(device)) is not None:
            return self._exchanged(prediction, time, device)
        if self.scale == 1.0 and self.widening == 1.0 and not self.upper_bound:
            return prediction
        # What stands for another kernel may take less time than it, but a product not less than its own arithmetic: one that
        # is said to take less than another (a scale below 1) does not do that arithmetic.
        below = self.widening
        if self.spec.family == "gemm" and self.scale >= 1:
            below = min(below, max(1.0, self.scale * prediction.latency_s.lower / prediction.breakdown["compute"]))
        if self.upper_bound:
            below = max(below, prediction.latency_s.lower / max(prediction.breakdown.get("launch", 0.0), _LEAST_S))
        return replace(
            prediction,
            latency_s=self._scaled(prediction.latency_s, below),
            energy_j=None if prediction.energy_j is None else self._scaled(prediction.energy_j, below),
            breakdown={name: seconds * self.scale for name, seconds in prediction.breakdown.items()},
        )

    def _exchanged(self, prediction: Prediction, time: Interval, device: Device) -> Prediction:
        """A prediction as that of an exchange. One with the host also takes a launch, and the device idles meanwhile."""
        power_w = energy_j = None
        if self.exchange is not None and self.exchange.kind == HOST:
            time = time + prediction.breakdown.get("launch", 0.0)
            if prediction.power_w is not None and (limit_w := device.fact("tdp_w")) is not None:
                power_w = IDLE_SHARE.scaled(limit_w)
                energy_j = Interval(time.value * power_w.value, time.lower * power_w.lower, time.upper * power_w.upper)
        return replace(
            prediction, latency_s=time, power_w=power_w, energy_j=energy_j, bound=LINK, breakdown={LINK: time.lower}
        )

    def _scaled(self, interval: Interval, below: float) -> Interval:
        return Interval(
            interval.value * self.scale,
            interval.lower * self.scale / below,
            interval.upper * self.scale * self.widening,
        )


Uses = list[KernelUse]
Costing = Callable[[Operation, str], Uses]
"""The kernels that an operator runs on a kind of device, `gpu` or `cpu`."""

STREAMS = {"add": 3, "mul": 3, "div": 3, "sub": 3, "pow": 3, "maximum": 3}
"""Tensors an elementwise variant reads and writes; the others read one and write one."""


def rows_and_cols(elements: float, cols: int) -> dict[str, Any]:
    """`elements` as an array with rows of about `cols`, both at least 1."""
    rows = min(MAX_DIM, max(1, round(elements / max(1, cols))))
    return {"rows": rows, "cols": min(MAX_DIM, max(1, round(elements / rows)))}


def last_size(tensor: TensorInfo | None) -> int:
    """The size of the last dimension of a tensor, 1 of a scalar or where there is none."""
    return tensor.shape[-1] if tensor is not None and tensor.shape else 1


def streamed(
    bytes_moved: float, dtype: str, cols: int, variant: str = "mulu", *, widening: float = ALIKE, stand_in: str = ""
) -> Uses:
    """An elementwise kernel that moves so many bytes; nothing runs where there are none."""
    if bytes_moved <= 0:
        return []
    elements = bytes_moved / (STREAMS.get(variant, 2) * itemsize_b(dtype))
    spec = KernelSpec.of("elementwise", dtype, variant=variant, timing="device", **rows_and_cols(elements, cols))
    return [KernelUse(spec, widening=widening, stand_in=stand_in)]


def small_kernels(count: float, stand_in: str) -> Uses:
    """What as many kernels take that move next to nothing; they count as one launch."""
    return scaled(streamed(32.0, "fp32", 8), count, stand_in)


def by_bytes(operation: Operation, kind: str, *, widening: float = UNKNOWN) -> Uses:
    """What an operator without a family costs: what it reads and writes, as a copy of that many bytes."""
    moved = float(operation.bytes_in + operation.bytes_out)
    if moved <= 0:
        return []
    tensors = (*operation.outputs, *operation.inputs)
    dtype = float_dtype(*tensors)
    elements = moved / (2 * itemsize_b(dtype))
    spec = KernelSpec.of("copy", dtype, timing="device", **rows_and_cols(elements, last_size(tensors[0])))
    return [KernelUse(spec, widening=widening, stand_in=f"{operation.name} by the bytes it reads and writes")]


def program_kernel(operation: Operation, kind: str) -> Uses:
    """A kernel that the program brings with it: what it is given, once; a launch where that is no tensor."""
    return by_bytes(operation, kind) or small_kernels(1.0, f"{operation.name}, which is given no tensor, as a launch")


def scaled(uses: Uses, scale: float, stand_in: str, widening: float = ALIKE) -> Uses:
    """The same kernels that take longer by a factor, as a stand-in for another."""
    return [
        replace(
            use, scale=use.scale * scale, widening=max(use.widening, widening), stand_in=stand_in,
            otherwise=tuple(scaled([*use.otherwise], scale, stand_in, widening)),
        )
        for use in uses
    ]  # fmt: skip
