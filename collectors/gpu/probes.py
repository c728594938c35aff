"""What is measured of a GPU: the same fixed cases on every one, and the arithmetic from times to facts.

A probe knows its name and how to get its fact out of a bench. Peaks are taken over two sizes of a case, the better one kept;
where the larger is more than 5 % better, the fact says that the peak may lie higher still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...features.kernel import KernelSpec, View, get_family
from .micro import Chain, Micro, Throng

LARGER_IS_BETTER = 0.05
"""A larger case better by more than this share says that the smaller did not reach the peak; so may the larger."""


class ProbeError(Exception):
    """A fact cannot be measured here; the message says why."""


class ProbeBench(Protocol):
    """What probes measure with: the GPU behind torch and CuPy, or a fake.

    Every method raises what its library raises; only the probe that asked has no value then.
    """

    def graph_s(self, spec: KernelSpec) -> float:
        """Seconds the GPU takes for one call, back to back in a CUDA graph."""
        ...

    def host_s(self, spec: KernelSpec) -> float:
        """Seconds the host takes to enqueue one call, in a loop that waits for none."""
        ...

    def micro(self) -> Micro:
        """What runs micro-kernels."""
        ...

    def power_w(self, spec: KernelSpec | None) -> float:
        """Mean power while the case runs in a steady loop, or while nothing runs."""
        ...

    def sensor_period_s(self) -> float:
        """How often the energy sensor has something new."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured value in SI units, and what to know about it."""

    value: float
    note: str


class Probe(Protocol):
    """One fact to measure."""

    @property
    def name(self) -> str:
        """The fact's name, with its unit."""
        ...

    def measure(self, bench: ProbeBench) -> Reading:
        """Measure it.

        Raises:
            ProbeError: it cannot be measured on this GPU or with these libraries.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Work per second of a kernel at two sizes, in flops or in bytes."""

    name: str
    small: KernelSpec
    large: KernelSpec
    in_bytes: bool = False

    def work(self, spec: KernelSpec) -> float:
        """Bytes or flops of one call."""
        family = get_family(spec.family)
        return float((family.bytes_moved if self.in_bytes else family.flops)(View.of(spec)))

    def measure(self, bench: ProbeBench) -> Reading:
        """The better rate of the two sizes."""

        def rate(spec: KernelSpec) -> float:
            return self.work(spec) / bench.graph_s(spec)

        return _better((str(spec), partial(rate, spec)) for spec in (self.small, self.large))


@dataclass(frozen=True, slots=True)
class ThrongRate:
    """Work per second of a micro-kernel that fills the GPU, at two sizes."""

    name: str
    throng: Throng

    def work(self, blocks: int) -> float:
        """Bytes or flops of one launch."""
        return self.throng.work * self.throng.steps * 256.0 * blocks

    def measure(self, bench: ProbeBench) -> Reading:
        """The better rate of the two sizes."""
        micro = bench.micro()

        def rate(blocks: int, span_b: int) -> float:
            return self.work(blocks) / micro.throng_s(self.throng, blocks, span_b)

        return _better(
            (f"{self.throng.kernel}[{blocks} blocks, {span_b} B]", partial(rate, blocks, span_b))
            for blocks, span_b in zip(self.throng.blocks, self.throng.spans_b, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one step of a dependent chain, the lesser of two lengths."""

    name: str
    chain: Chain

    def measure(self, bench: ProbeBench) -> Reading:
        """Seconds per step, with the SM clocks it took."""
        micro = bench.micro()
        seconds, clocks = min(micro.chain_s(self.chain, self.chain.steps * times) for times in (1, 2))
        if seconds <= 0:
            raise ProbeError("the GPU's nanosecond timer did not advance")
        return Reading(seconds, f"{self.chain.kernel}, {clocks:.1f} clocks at {clocks / seconds / 1e6:.0f} MHz")


@dataclass(frozen=True, slots=True)
class Launching:
    """What the smallest case costs: GPU time in a graph, or host time of a call where `on_host`."""

    name: str
    spec: KernelSpec
    on_host: bool

    def measure(self, bench: ProbeBench) -> Reading:
        """Seconds of one call."""
        return Reading(bench.host_s(self.spec) if self.on_host else bench.graph_s(self.spec), str(self.spec))


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power under a steady loop of a case, or at rest."""

    name: str
    spec: KernelSpec | None

    def measure(self, bench: ProbeBench) -> Reading:
        """Watts."""
        return Reading(bench.power_w(self.spec), "nothing running" if self.spec is None else str(self.spec))


@dataclass(frozen=True, slots=True)
class SensorPeriod:
    """How often the energy sensor has something new."""

    name: str = "sensor_period_s"

    def measure(self, bench: ProbeBench) -> Reading:
        """Seconds."""
        return Reading(bench.sensor_period_s(), "steps of the energy counter")


def _better(cases: Iterable[tuple[str, Callable[[], float]]]) -> Reading:
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
    said = [notes[best], *failures]
    if len(rates) == 2 and rates[1] > (1 + LARGER_IS_BETTER) * rates[0]:
        said.append(f"{rates[1] / rates[0] - 1:.0%} above the smaller case, so the peak may lie higher still")
    return Reading(rates[best], "; ".join(said))


def reason(error: BaseException) -> str:
    """The first line of an error, with its kind where that is not the product's own."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    own = isinstance(error, ProbeError) or type(error).__module__.startswith("kernelcast")
    return (lines[0] if own else f"{type(error).__name__}: {lines[0]}")[:300]
