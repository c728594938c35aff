"""A GPU played in memory: calls take the time they say, graphs add them up, and a clock that only they advance.

`alive` notes how many graphs were still alive as each was captured.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelcast.collectors.gpu.measure.operands import TORCH_DTYPES
from kernelcast.collectors.gpu.measure.timing import Call
from kernelcast.collectors.gpu.measure.torch_gpu import CUDA


@dataclass
class FakeGraph:
    gpu: FakeGpu
    calls: Sequence[Call]
    before: Call | None

    def replay_s(self) -> float:
        if self.before is not None:
            self.before()
        seconds = sum(call() for call in self.calls) * self.gpu.jitter() + self.gpu.replay_overhead_s
        self.gpu.clock_s += seconds
        self.gpu.replays += 1
        return seconds

    def launch(self) -> None:
        self.gpu.launched += 1


@dataclass
class FakeGpu:
    """A call returns the seconds it takes on the device; eager calls cost the host `host_s` as well."""

    host_s: float = 8e-6
    spread: float = 0.0
    replay_overhead_s: float = 0.0
    cache_b: float = 50e6
    memory_b: float = 140e9
    clock_s: float = 0.0
    replays: int = 0
    launched: int = 0
    flushes: int = 0
    released: int = 0
    paused_s: float = 0.0
    captured: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    torch: Any = None
    accelerator: Any = CUDA
    formats: dict[str, str] = field(default_factory=lambda: dict(TORCH_DTYPES))

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self._graphs: list[weakref.ref[FakeGraph]] = []

    def jitter(self) -> float:
        return 1.0 + self.spread * self._random.gauss(0.0, 1.0)

    def now_s(self) -> float:
        return self.clock_s

    def call_s(self, call: Callable[[], float]) -> float:
        took = call()
        seconds = max(self.host_s, took) if isinstance(took, float) else self.host_s
        self.clock_s += seconds
        return seconds

    def graph(self, calls: Sequence[Call], before: Call | None = None) -> FakeGraph:
        self.captured.append(len(calls))
        self.alive.append(sum(graph() is not None for graph in self._graphs))
        graph = FakeGraph(self, list(calls), before)
        self._graphs.append(weakref.ref(graph))
        return graph

    def flush(self) -> None:
        self.flushes += 1

    def steady(self, graph: FakeGraph, calls: int) -> Any:
        return ("loop", graph, calls)

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds
        self.clock_s += seconds

    def release(self) -> None:
        self.released += 1
