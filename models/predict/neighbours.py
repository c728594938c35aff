"""Kernels beside each other on one device: how much longer each takes than alone.

On a CPU each kernel has cores of its own, and shares the last-level cache and the memory behind it. With f the bytes of a
kernel's operands and r its bytes per second alone, on a device with a last-level cache of L bytes and B bytes per second of
memory, it wants of the memory

    n = min(1, r / B) min(1, f / L)

and beside others a kernel takes exp(a n N) times as long as alone, with N the sum of the others' n. The number a is fitted to
pairs that were measured on one CPU (`neighbours.yaml`). Errors, other forms and where it fails: decision 018, neighbours.

On a GPU two kernels on two streams of one process take turns, launch by launch: a call of k launches that takes t alone has
launches of d = t / k. While the longer launch runs, n of the shorter get on the device,

    n = 1 + p (D / d - 1) / K

with capitals for the kernel of the longer launches: one after it, and others where its last blocks leave room. Of each launch i
seconds leave the device to others, so that D and d are taken longer by i than they are. The call of the shorter launches takes
1 + (D - i) / (n d) times as long as alone, the other 1 + n (d - i) / D times. A neighbour whose blocks fill a share f of the
device leaves the rest of it all the time, so that no kernel takes more than 1 / (1 - f) times as long beside it.
The numbers p and i are fitted to pairs that were measured on one GPU. Of more kernels there are bounds only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from ...features.device import Device
from ...features.errors import SpecError, listed
from ...features.families.moe import touched_experts
from ...features.kernel import KernelSpec, View, get_family
from .prediction import Interval, Prediction


@dataclass(frozen=True, slots=True)
class MeasuredLaw:
    """What laws of neighbours have in common.

    Attributes:
        devices: Catalogue names of the devices whose pairs the numbers are fitted to.
        source: Where the numbers are from.
        least_error: Deviation of ln of the slowdown where it is none.
        error: What is added to it for each unit of ln of the slowdown.
        elsewhere: How many times as large the deviation is taken on other devices, or beyond what was measured on this one.
    """

    devices: Sequence[str]
    source: str
    least_error: float
    error: float
    elsewhere: float

    def deviation(self, log_slowdown: Any) -> Any:
        """Standard deviation of ln of a slowdown."""
        return self.least_error + self.error * log_slowdown


@dataclass(frozen=True, slots=True)
class NeighbourLaw(MeasuredLaw):
    """The law of CPUs, by pairs of one-thread kernels.

    Attributes:
        strength: a, ln of the slowdown of two kernels that want all of the memory.
    """

    strength: float

    def log_slowdown(self, want: Any, others: Any) -> Any:
        """Ln of how many times as long a kernel takes, by its n and the sum of its neighbours'."""
        return self.strength * want * others


@dataclass(frozen=True, slots=True)
class StreamLaw(MeasuredLaw):
    """The law of GPUs, by pairs of kernels on two streams.

    Attributes:
        passed: p, how many launches get on the device during one that is longer by the length of one.
        idle_s: i, seconds of each launch that leave the device to others.
    """

    passed: float
    idle_s: float

    def log_slowdown(self, own_s: Any, launches: Any, other_s: Any, other_launches: Any, other_share: Any = 1.0) -> Any:
        """Ln of how many times as long a kernel takes, by seconds alone and launches of it and of its neighbour.

        `other_share` is that of the device which the neighbour fills (`filled_share`).
        """
        neighbour_s = np.divide(other_s, other_launches) + self.idle_s
        ratio = neighbour_s / (np.divide(own_s, launches) + self.idle_s)
        of_longer = np.where(ratio > 1, other_launches, launches)
        during = 1 + self.passed * (np.maximum(ratio, 1 / ratio) - 1) / of_longer
        wait = np.where(ratio > 1, ratio / during, ratio * during)
        with np.errstate(divide="ignore"):
            most = -np.log1p(-np.asarray(other_share, dtype=np.float64))
        return np.minimum(np.log1p(wait * (1 - self.idle_s / neighbour_s)), most)


def _attention_launches(spec: KernelSpec) -> float:
    if spec.dtype != "fp32":
        # cuDNN clears a counter before a prompt.
        return 2 if spec.variant == "prefill" else 1
    # Heads that share keys are computed step by step; a mask is written before.
    return 16 if spec["heads"] != spec["kv_heads"] else 6 if spec["window"] else 1


_EAGER: Mapping[str, Callable[[KernelSpec], float]] = MappingProxyType({
    "attention": _attention_launches,
    # Tensor cores want channels last: images are transposed to that and back (NVIDIA Convolutional Layers User's Guide, "Tensor
    # Layouts In Memory: NCHW vs NHWC"), and weights too; a kernel of one pixel is a product.
    "conv2d": lambda spec: 1 if spec.dtype in ("fp32", "tf32") or spec["kernel"] * spec["stride"] == 1 else 5,
    # Of each expert its rows, two products, the gate's activation, its product with the other half, and the sum.
    "moe": lambda spec: 1 + 6 * float(np.max(touched_experts(View.of(spec)))),
    # Sums over rows are cleared before blocks add to them.
    "reduction": lambda spec: 2 if spec.variant.endswith("_rows") and spec["rows"] > 1000 else 1,
})  # fmt: skip
"""Launches of a call of eager PyTorch where they are not one, as torch's profiler counts them on an H200 (torch 2.11)."""

_GROUPED = 7
"""Of experts in one product: rows, two products, an activation, its product, zeros and the sum (`collectors.gpu.runners`)."""


def launches_of(spec: KernelSpec) -> float:
    """Launches of a call whose time is predicted: of families that engines alone have run on a GPU, those of engines."""
    family = get_family(spec.family)
    if family.launches is not None:
        return family.launches(View.of(spec))
    if spec.impl not in ("", "torch"):
        return _GROUPED if spec.family == "moe" else 1
    count = _EAGER.get(spec.family)
    return count(spec) if count else 1


def _attention_units(spec: KernelSpec) -> float:
    if spec.dtype != "fp32":
        return float(spec["batch"] * spec["heads"] * math.ceil(spec["q_len"] / 128))
    # Heads that share keys are computed step by step, in products that fill the device.
    is_one_kernel = spec["heads"] == spec["kv_heads"]
    return spec["batch"] * spec["heads"] * math.ceil(spec["q_len"] / 64) / 6 if is_one_kernel else math.inf


def _convolution_units(spec: KernelSpec) -> float:
    sides = ((spec[name] + 2 * spec["padding"] - spec["kernel"]) // spec["stride"] + 1 for name in ("height", "width"))
    return math.ceil(spec["batch"] * math.prod(sides) / 128) * math.ceil(spec["out_channels"] / 128) / 4


_UNITS: Mapping[str, Callable[[KernelSpec], float]] = MappingProxyType({
    "attention": _attention_units,
    "conv2d": _convolution_units,
    "gemm": lambda spec: spec["batch"] * math.ceil(spec["m"] / 64) * math.ceil(spec["n"] / 64),
})  # fmt: skip
"""Multiprocessors that the blocks of a launch fill: of usual tiles, as many to a multiprocessor as errs least on the pairs of
the H200. The others' blocks are many, or not known."""


def filled_share(spec: KernelSpec, device: Device) -> float:
    """Share of a GPU that a launch of a kernel fills; 1 where it is not known to leave room."""
    units = _UNITS.get(spec.family)
    return 1.0 if units is None else min(units(spec) / device.required("compute_units"), 1.0)


def memory_want(footprint_b: Any, b_per_s: Any, device: Device) -> Any:
    """The n of kernels on a device, by the bytes of their operands and what they move in a second alone."""
    share = np.minimum(np.asarray(b_per_s) / device.required("memory_bandwidth_b_per_s"), 1.0)
    return share * np.minimum(np.asarray(footprint_b) / device.last_level_cache_b, 1.0)


@cache
def law() -> NeighbourLaw:
    """The law of CPUs as it ships."""
    return NeighbourLaw(**_numbers()["cpu"])


@cache
def stream_law() -> StreamLaw:
    """The law of GPUs as it ships."""
    return StreamLaw(**_numbers()["gpu"])


def _numbers() -> Mapping[str, Any]:
    raw: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return raw


@dataclass(frozen=True, slots=True)
class BesideOthers:
    """A kernel beside the others of a `Colocation`.

    Attributes:
        spec: The kernel.
        alone: What it costs alone.
        slowdown: Time of a run over that alone; None where only bounds are known.
        latency_s: Time of a run in seconds; None likewise.
        shortest_s: Least time of a run in seconds: the lower end of the interval, or of it alone.
        longest_s: Longest time: the upper end, or with a run of every other kernel for each launch.
    """

    spec: KernelSpec
    alone: Prediction
    slowdown: Interval | None
    latency_s: Interval | None
    shortest_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Colocation:
    """Kernels that run on one device at the same time, over and over.

    Attributes:
        device: Catalogue name of the device.
        kernels: Each of them, in the order of the question.
        coverage: Share of cases the intervals are built to contain.
        method: `law`, or `bounds` of more than two kernels on a GPU.
        source: Where the law's numbers are from; None for bounds.
        all_shortest_s: Least time in seconds until one run of each has ended, where all start together.
        all_longest_s: Longest time likewise.
        notes: How far to trust it.
    """

    device: str
    kernels: tuple[BesideOthers, ...]
    coverage: float
    method: str
    source: str | None
    all_shortest_s: float
    all_longest_s: float
    notes: tuple[str, ...]


_BOUNDS = (
    "pairs of kernels were measured on a GPU, not more: each takes at least its time alone, and at most about that and, for "
    "each of its launches, a run of every other"
)
_STREAMS = "kernels on streams of one process; processes that take turns share otherwise"


def check_fit(specs: Sequence[KernelSpec], device: Device) -> None:
    """That kernels fit a device together.

    Raises:
        SpecError: they want more threads than it has cores, or more memory than it has; or one starts with cold caches.
    """
    if cold := [spec for spec in specs if spec.cache_state == "cold"]:
        raise SpecError(
            f"{cold[0]} starts with cold caches, and kernels beside each other run over and over; ask with cache_state hot",
            field="cache_state",
        )
    if device.kind == "cpu":
        cores = int(device.required("compute_units"))
        threads = [spec.threads or cores for spec in specs]
        if sum(threads) > cores:
            wanted = " and ".join(
                f"{spec.family} {f'on {spec.threads}' if spec.threads else f'on all {cores} (threads not given)'}"
                for spec in specs
            )
            raise SpecError(
                f"{wanted} make {sum(threads)} threads, and {device.name} has {cores} cores; give threads of at most {cores} "
                "together, such as threads=1 each",
                field="threads",
            )
    memory_b, need_b = device.fact("memory_b"), sum(map(_footprint_b, specs))
    if memory_b is not None and need_b > memory_b:
        raise SpecError(
            f"their operands are {need_b / 1e9:.3g} GB together, and {device.name} has {memory_b / 1e9:.3g} GB of memory; "
            "leave a kernel out, or make them smaller",
            field="sizes",
        )


def _footprint_b(spec: KernelSpec) -> float:
    return float(get_family(spec.family).footprint_b(View.of(spec)))


def _moved_b(spec: KernelSpec) -> float:
    return float(get_family(spec.family).bytes_moved(View.of(spec)))


def beside_each_other(specs: Sequence[KernelSpec], alone: Sequence[Prediction], device: Device) -> Colocation:
    """What kernels cost beside each other, from what each costs alone.

    Args:
        specs: The kernels, at least two.
        alone: Their predictions, of one coverage.
        device: The device on which all of them run.

    Raises:
        SpecError: there are fewer than two, or they do not fit, see `check_fit`.
    """
    if len(specs) < 2:
        raise SpecError("a kernel by itself has no neighbour; give at least two kernels", field="beside")
    check_fit(specs, device)
    if device.kind != "gpu":
        kernels, notes = _by_law(specs, alone, device)
        ends = max(item.shortest_s for item in kernels), max(item.longest_s for item in kernels)
        source: str | None = law().source
    else:
        in_pairs = len(specs) == 2
        kernels, notes = _on_streams(specs, alone, device) if in_pairs else _within_bounds(specs, alone)
        ends = max(item.latency_s.lower for item in alone), sum(item.latency_s.upper for item in alone)
        source = stream_law().source if in_pairs else None
    return Colocation(
        device=device.name, kernels=tuple(kernels), coverage=alone[0].coverage, method="law" if source else "bounds",
        source=source, all_shortest_s=ends[0], all_longest_s=ends[1], notes=tuple(notes),
    )  # fmt: skip


def _within_bounds(specs: Sequence[KernelSpec], alone: Sequence[Prediction]) -> tuple[list[BesideOthers], list[str]]:
    uppers = [item.latency_s.upper for item in alone]
    kernels = []
    for spec, item, upper in zip(specs, alone, uppers, strict=True):
        longest_s = upper + launches_of(spec) * (sum(uppers) - upper)
        kernels.append(BesideOthers(spec, item, None, None, item.latency_s.lower, longest_s))
    return kernels, [_BOUNDS, _STREAMS]


def _on_streams(
    specs: Sequence[KernelSpec], alone: Sequence[Prediction], device: Device
) -> tuple[list[BesideOthers], list[str]]:
    numbers = stream_law()
    seconds = np.array([item.latency_s.value for item in alone])
    launches = np.array([launches_of(spec) for spec in specs])
    shares = np.array([filled_share(spec, device) for spec in specs])
    logs = numbers.log_slowdown(seconds, launches, seconds[::-1], launches[::-1], shares[::-1])
    below, above = np.log([[item.latency_s.value / item.latency_s.lower, item.latency_s.upper / item.latency_s.value]
                           for item in alone]).T  # fmt: skip
    # A slowdown of s follows the ratio of both times with the exponent 1 - 1 / s.
    ends = -np.expm1(-logs) * np.hypot([below[::-1], above[::-1]], [above, below])
    notes = [_STREAMS]
    if is_elsewhere := device.name not in numbers.devices:
        notes.insert(0, _elsewhere(numbers, device))
    return [
        _slowed(spec, item, numbers, log, is_elsewhere, end)
        for spec, item, log, end in zip(specs, alone, logs.tolist(), ends.T.tolist(), strict=True)
    ], notes


def _elsewhere(numbers: MeasuredLaw, device: Device) -> str:
    return f"pairs were measured on {listed(numbers.devices)} only, never on {device.name}: intervals are wider"


def _by_law(
    specs: Sequence[KernelSpec], alone: Sequence[Prediction], device: Device
) -> tuple[list[BesideOthers], list[str]]:
    numbers = law()
    rates = [_moved_b(spec) / item.latency_s.value for spec, item in zip(specs, alone, strict=True)]
    wants = memory_want([_footprint_b(spec) for spec in specs], rates, device).tolist()
    notes = []
    if device.name not in numbers.devices:
        notes.append(_elsewhere(numbers, device))
    if len(specs) > 2 or any(spec.threads != 1 for spec in specs):
        notes.append("pairs of one thread each were measured, not more kernels or threads: intervals are wider")
    logs = [numbers.log_slowdown(want, sum(wants) - want) for want in wants]
    return [
        _slowed(spec, item, numbers, log, bool(notes)) for spec, item, log in zip(specs, alone, logs, strict=True)
    ], notes


def _slowed(
    spec: KernelSpec, item: Prediction, numbers: MeasuredLaw, log_slowdown: float, is_elsewhere: bool,
    ends: Sequence[float] = (0.0, 0.0),
) -> BesideOthers:  # fmt: skip
    """The kernel with its slowdown: the interval of its time is that of it alone, widened by the error of the law.

    `ends` is how far below and above in ln the slowdown may be since times alone are uncertain.
    """
    width = NormalDist().inv_cdf((1 + item.coverage) / 2) * (numbers.elsewhere if is_elsewhere else 1.0)
    value, half = math.exp(log_slowdown), width * numbers.deviation(log_slowdown)
    below, above = (math.hypot(half, end) for end in ends)
    slowdown = Interval(value, max(1.0, value * math.exp(-below)), value * math.exp(above))
    time, beside_s = item.latency_s, item.latency_s.value * value
    down = math.hypot(math.log(time.value / time.lower), math.log(value / slowdown.lower))
    up = math.hypot(math.log(time.upper / time.value), above)
    latency_s = Interval(beside_s, beside_s * math.exp(-down), beside_s * math.exp(up))
    return BesideOthers(spec, item, slowdown, latency_s, latency_s.lower, latency_s.upper)
