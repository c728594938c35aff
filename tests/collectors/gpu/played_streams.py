"""A GPU with streams, played in memory: what two streams run at once takes longer, and time passes as the host asks for it.

A call returns the seconds it takes on an idle device. Beside another one it takes `slowdown` times as long, or as many
times as the call's own `beside` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fake_gpu import FakeGpu
from played_worker import PlayedTorch

LOOK_S = 1e-5
"""What it costs the host to ask an event."""


class Stream:
    def __init__(self) -> None:
        self.queue: deque[Any] = deque()


class Event:
    def __init__(self, device: Streams) -> None:
        self._device, self.at_s = device, -1.0

    def record(self) -> None:
        self._device.current.queue.append(self)

    def query(self) -> bool:
        self._device.advance(LOOK_S)
        return self.at_s >= 0

    def synchronize(self) -> None:
        while self.at_s < 0:
            self._device.advance(1e-3)

    def elapsed_time(self, end: Event) -> float:
        return (end.at_s - self.at_s) * 1e3


class Work:
    def __init__(self, seconds: float, slowdown: float) -> None:
        self.left_s, self.slowdown = seconds, slowdown


class Streams:
    """What torch calls `torch.cuda`, with a clock."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown, self.clock_s, self.launches = slowdown, 0.0, 0
        self.current = Stream()
        self.streams = [self.current]

    def Stream(self) -> Stream:  # noqa: N802  torch's name
        self.streams.append(Stream())
        return self.streams[-1]

    def current_stream(self) -> Stream:
        return self.current

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802  torch's name
        return Event(self)

    def advance(self, seconds: float) -> None:
        until = self.clock_s + seconds
        while True:
            for stream in self.streams:
                while stream.queue and isinstance(stream.queue[0], Event):
                    stream.queue.popleft().at_s = self.clock_s
            if self.clock_s >= until:
                return
            busy = [stream.queue for stream in self.streams if stream.queue]
            rates = [1.0 if len(busy) == 1 else 1 / queue[0].slowdown for queue in busy]
            ends_s = [queue[0].left_s / rate for queue, rate in zip(busy, rates, strict=True)]
            left_s = until - self.clock_s
            step = min([left_s, *ends_s])
            self.clock_s = until if step == left_s else self.clock_s + step
            for queue, rate, end_s in zip(busy, rates, ends_s, strict=True):
                queue[0].left_s -= step * rate
                if end_s <= step:
                    queue.popleft()


class Graph:
    def __init__(self, gpu: StreamGpu, calls: Sequence[Any]) -> None:
        self._gpu, self.calls = gpu, calls

    def replay_s(self) -> float:
        seconds = sum(call() for call in self.calls)
        self._gpu.device.advance(seconds)
        return float(seconds)

    def launch(self) -> None:
        device = self._gpu.device
        device.launches += 1
        device.advance(self._gpu.host_s)
        slowdown = getattr(self.calls[0], "beside", device.slowdown)
        device.current.queue.append(Work(sum(call() for call in self.calls), slowdown))


class StreamGpu(FakeGpu):
    """The FakeGpu whose graphs run on streams; `host_s` is what launching one costs."""

    def __init__(self, slowdown: float, host_s: float = 8e-6) -> None:
        self.device = Streams(slowdown)
        super().__init__(host_s=host_s)
        torch: Any = PlayedTorch()
        torch.cuda = self.device
        self.torch, self.accelerator = torch, SimpleNamespace(type="cuda")

    def now_s(self) -> float:
        self.device.advance(1e-7)
        return self.device.clock_s

    def call_s(self, call: Any) -> float:
        took = call()
        self.device.advance(took if isinstance(took, float) else 1e-6)
        return max(self.host_s, took) if isinstance(took, float) else self.host_s

    def graph(self, calls: Sequence[Any], before: Any = None) -> Any:
        self.captured.append(len(calls))
        return Graph(self, list(calls))
