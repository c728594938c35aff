"""Kernels beside each other on one device: how much longer each takes than alone.

On a CPU each kernel has cores of its own, and shares the last-level cache and the memory behind it. With f the bytes of a
kernel's operands and r its bytes per second alone, on a device with a last-level cache of L bytes and B bytes per second of
memory, it wants of the memory

    n = min(1, r / B) min(1, f / L)

and beside others a kernel takes exp(a n N) times as long as alone, with N the sum of the others' n. The number a is fitted to
pairs that were measured on one CPU (`neighbours.yaml`). Errors, other forms and where it fails: decision 018, neighbours.

On a GPU nothing was measured: an answer is between the kernel alone and all kernels in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import yaml

from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, View, get_family
from .prediction import Interval, Prediction


@dataclass(frozen=True, slots=True)
class NeighbourLaw:
    """The numbers of the law, fitted to pairs of one-thread kernels on one CPU.

    Attributes:
        device: Catalogue name of that CPU.
        source: Where the numbers are from.
        strength: a, ln of the slowdown of two kernels that want all of the memory.
        least_error: Deviation of ln of the slowdown where it is none.
        error: What is added to it for each unit of ln of the slowdown.
        elsewhere: How many times as large the deviation is taken on other CPUs, or with more threads or neighbours.
    """

    device: str
    source: str
    strength: float
    least_error: float
    error: float
    elsewhere: float

    def log_slowdown(self, want: Any, others: Any) -> Any:
        """Ln of how many times as long a kernel takes, by its n and the sum of its neighbours'."""
        return self.strength * want * others

    def deviation(self, want: Any, others: Any) -> Any:
        """Standard deviation of `log_slowdown`."""
        return self.least_error + self.error * self.log_slowdown(want, others)


def memory_want(footprint_b: Any, b_per_s: Any, device: Device) -> Any:
    """The n of kernels on a device, by the bytes of their operands and what they move in a second alone."""
    share = np.minimum(np.asarray(b_per_s) / device.required("memory_bandwidth_b_per_s"), 1.0)
    return share * np.minimum(np.asarray(footprint_b) / device.last_level_cache_b, 1.0)


@cache
def law() -> NeighbourLaw:
    """The law as it ships."""
    raw: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return NeighbourLaw(**raw)


@dataclass(frozen=True, slots=True)
class BesideOthers:
    """A kernel beside the others of a `Colocation`.

    Attributes:
        spec: The kernel.
        alone: What it costs alone.
        slowdown: Time of a run over that alone; None on a GPU, where only bounds are known.
        latency_s: Time of a run in seconds; None likewise.
        shortest_s: Least time of a run in seconds: the lower end of the interval, or of it alone.
        longest_s: Longest time: the upper end, or of all kernels in turn.
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
        method: `law`, or `bounds` where nothing was measured.
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
    "no kernels were measured beside each other on a GPU: each takes at least its time alone, and at most that of one run of "
    "all in turn"
)


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
    kernels, notes = _within_bounds(specs, alone) if device.kind == "gpu" else _by_law(specs, alone, device)
    at_once = device.kind != "gpu"
    return Colocation(
        device=device.name, kernels=tuple(kernels), coverage=alone[0].coverage, method="law" if at_once else "bounds",
        source=law().source if at_once else None, all_shortest_s=max(item.shortest_s for item in kernels),
        all_longest_s=max(item.longest_s for item in kernels), notes=tuple(notes),
    )  # fmt: skip


def _within_bounds(specs: Sequence[KernelSpec], alone: Sequence[Prediction]) -> tuple[list[BesideOthers], list[str]]:
    longest_s = sum(item.latency_s.upper for item in alone)
    return [
        BesideOthers(spec, item, None, None, item.latency_s.lower, longest_s)
        for spec, item in zip(specs, alone, strict=True)
    ], [_BOUNDS]


def _by_law(
    specs: Sequence[KernelSpec], alone: Sequence[Prediction], device: Device
) -> tuple[list[BesideOthers], list[str]]:
    numbers = law()
    rates = [_moved_b(spec) / item.latency_s.value for spec, item in zip(specs, alone, strict=True)]
    wants = memory_want([_footprint_b(spec) for spec in specs], rates, device).tolist()
    notes = []
    if device.name != numbers.device:
        notes.append(f"pairs were measured on {numbers.device} only, never on {device.name}: intervals are wider")
    if len(specs) > 2 or any(spec.threads != 1 for spec in specs):
        notes.append("pairs of one thread each were measured, not more kernels or threads: intervals are wider")
    width = NormalDist().inv_cdf((1 + alone[0].coverage) / 2) * (numbers.elsewhere if notes else 1.0)
    kernels = []
    for spec, item, want in zip(specs, alone, wants, strict=True):
        others = sum(wants) - want
        log_slowdown, half = numbers.log_slowdown(want, others), width * numbers.deviation(want, others)
        value = math.exp(log_slowdown)
        slowdown = Interval(value, max(1.0, value * math.exp(-half)), value * math.exp(half))
        time = item.latency_s
        down = math.hypot(math.log(time.value / time.lower), math.log(value / slowdown.lower))
        up = math.hypot(math.log(time.upper / time.value), half)
        beside_s = time.value * value
        latency_s = Interval(beside_s, beside_s * math.exp(-down), beside_s * math.exp(up))
        kernels.append(BesideOthers(spec, item, slowdown, latency_s, latency_s.lower, latency_s.upper))
    return kernels, notes
