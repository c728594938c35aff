"""Timing of one kernel on a GPU: a graph of k calls replayed until the median is known to a percent.

    three calls | probe graph: time of one call | graph of k calls | warm up | replay, replay ... until settled

Hot calls run on the same operands again and again. Cold calls run on sets of operands that together outgrow the last-level
cache three times, each used in turn, with the cache flushed before every replay: no event or launch stands between a
flush and a short kernel, whose time they would exceed. Only what the GPU does is in the label; what the host needs to
launch is characterised apart. So is the very first call, with all it sets up: whoever samples has made it before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .torch_gpu import Call, TorchGpu, TorchGraph


@dataclass(frozen=True, slots=True)
class GraphRule:
    """When a case has been measured well enough; times in seconds.

    Replays go on until the 95 % confidence interval of their median is within ± `half_width` of it, there are `samples` of
    them and they cover `gpu_s` of GPU time. The 95 % are nominal: the interval is looked at after every replay and sampling
    ends the first time it is narrow enough, so it holds the true median less often than one taken once, after a number of
    samples fixed beforehand.

    Attributes:
        sample_s: A graph holds enough calls to last this long,
        max_calls: but at most so many.
        samples: Least number of replays.
        gpu_s: Least GPU time of all replays.
        half_width: Half the width of the confidence interval over the median, at most.
        case_s: Wall time after which sampling ends in any case.
        warm_up_s: Least time of running before the first sample.
        warm_up_calls: Least calls before the first sample.
        probe_calls: Size of the graph that measures the time of one call.
    """

    sample_s: float = 2e-3
    max_calls: int = 2000
    samples: int = 10
    gpu_s: float = 0.02
    half_width: float = 0.01
    case_s: float = 0.5
    warm_up_s: float = 0.01
    warm_up_calls: int = 3
    probe_calls: int = 16

    def calls_for(self, call_s: float) -> int:
        """Calls in a graph, so that it lasts `sample_s`."""
        return max(1, min(self.max_calls, math.ceil(self.sample_s / max(call_s, 1e-9))))

    def settled(self, samples_s: Sequence[float], calls: int) -> bool:
        """Whether samples (seconds per call, of `calls` calls each) say enough."""
        enough = len(samples_s) >= self.samples and sum(samples_s) * calls >= self.gpu_s
        return enough and median_half_width(samples_s) <= self.half_width


HOT = GraphRule()
# Every call of a cold graph has operands of its own: fewer calls, or most of the time would go into making them.
COLD = GraphRule(sample_s=1e-3, max_calls=256, gpu_s=0.01)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What replaying gave.

    Attributes:
        samples_s: Seconds per call, one value a replay.
        calls: Calls per replay.
        converged: Whether the confidence interval became narrow enough.
        graph: The graph, still usable.
    """

    samples_s: npt.NDArray[np.float64]
    calls: int
    converged: bool
    graph: TorchGraph

    @property
    def median_s(self) -> float:
        """The label."""
        return float(np.median(self.samples_s))

    @property
    def noisy(self) -> bool:
        """Whether the middle half of the samples spreads over more than 5 % of the median."""
        q1, q3 = np.percentile(self.samples_s, (25, 75))
        return bool(q3 - q1 > 0.05 * self.median_s)


def median_half_width(samples: Sequence[float]) -> float:
    """Half the 95 % confidence interval of the median, relative to it, from order statistics; infinite under 6 samples.

    The interval runs between the order statistics n/2 ± 1.96·√n/2 (Conover, Practical Nonparametric Statistics, 3.2).
    """
    n = len(samples)
    if n < 6:
        return math.inf
    ordered = np.sort(samples)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach) - 1), min(n - 1, math.ceil(n / 2 + reach))
    return float((ordered[high] - ordered[low]) / 2 / np.median(ordered))


def sample(
    gpu: TorchGpu, calls: Callable[[int], Sequence[Call]], rule: GraphRule, *, flush: Call | None = None,
    in_flight: Callable[[], None] | None = None,
) -> Sampled:  # fmt: skip
    """Time a kernel.

    Args:
        gpu: the device.
        calls: gives that many calls to capture: the same one for a hot case, on operands in turn for a cold one.
        rule: when to stop.
        flush: empties the cache, enqueued before every replay; None for a hot case.
        in_flight: called once while a replay runs, half-way or after the last sample, to look at clocks under load.
    """
    call = calls(1)[0]
    times = [gpu.call_s(call) for _ in range(rule.warm_up_calls)]
    few = min(rule.calls_for(min(times)), rule.probe_calls)
    graph = gpu.graph(calls(few), flush)
    # An eager call costs the host more than a short kernel takes: only a graph knows how many fill a sample.
    n_calls = max(few, rule.calls_for(min(graph.replay_s() for _ in range(3)) / few))
    if n_calls > few:
        graph = gpu.graph(calls(n_calls), flush)
    began = gpu.now_s()
    graph.replay_s()
    while gpu.now_s() - began < rule.warm_up_s:
        graph.replay_s()
    return _sampled(gpu, graph, n_calls, rule, in_flight)


def _sampled(
    gpu: TorchGpu, graph: TorchGraph, n_calls: int, rule: GraphRule, in_flight: Callable[[], None] | None
) -> Sampled:
    samples: list[float] = []
    began, look = gpu.now_s(), in_flight
    settled = over = False
    while not over:
        samples.append(graph.replay_s() / n_calls)
        settled = rule.settled(samples, n_calls)
        over = settled or (len(samples) >= rule.warm_up_calls and gpu.now_s() - began >= rule.case_s)
        # Long calls are over before there are that many samples.
        if look is not None and (over or len(samples) >= rule.samples // 2):
            graph.launch()
            look()
            look = None
            # Waits for the replay: nothing of it is to run into what comes next.
            gpu.call_s(_nothing)
    return Sampled(np.array(samples), n_calls, settled, graph)


def _nothing() -> None:
    """A call that asks nothing of the device."""
