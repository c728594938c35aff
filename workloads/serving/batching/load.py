"""Requests and the client that sends them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from ....features.errors import SpecError

MAX_TOKENS = 10_000_000
"""Longest prompt or answer accepted."""
MAX_REQUESTS = 100_000
"""Most requests simulated."""
MIN_RATE = 1e-6
"""Fewest requests per second: with fewer, times of arrivals have too few digits beside those of steps."""
MAX_CLOSED = 4000
"""Most requests simulated unless a number is given; more change the mean of a closed loop by less than its interval."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests and the client that sends them.

    Attributes:
        kind: `closed`: a number under way, each answered one followed by the next. `open`: a rate, at random times.
            `static`: one batch, all at once. `queued`: more than the engine takes, all at once.
        size: Requests under way; requests per second; sequences of the batch; unused for `queued`. All but a rate are whole.
        input_tokens: Mean tokens of a prompt.
        output_tokens: Mean tokens of an answer.
        rounds: Requests per request under way in a closed loop. 10 is what vLLM's and InferenceX's clients send, 1 is a burst.
        requests: Requests that are simulated, of each replica; None: what `rounds` gives.
        spread: Half the range of lengths, as a share of their mean.
        cached: Share of a prompt that the prefix cache already has, so that it is not computed.
        seed: Of random lengths and times.
        trace: Of an `open` load: when each request arrives in seconds, tokens of its prompt and of its answer, in the order of
            arrival; None: they are drawn.
    """

    kind: Literal["closed", "open", "static", "queued"]
    size: float
    input_tokens: float
    output_tokens: float
    rounds: float = 10.0
    requests: int | None = None
    spread: float = 0.0
    cached: float = 0.0
    seed: int = 0
    trace: tuple[tuple[float, int, int], ...] | None = None

    @classmethod
    def of_trace(
        cls, arrival_s: Sequence[float], inputs: Sequence[int], outputs: Sequence[int], cached: float = 0.0
    ) -> Load:
        """The requests of a trace, in any order; their rate and mean lengths are the load's.

        Raises:
            SpecError: there are fewer than 2 or too many requests, or one has no time, no tokens, or none that is a number.
        """
        if not 2 <= len(arrival_s) <= MAX_REQUESTS:
            raise SpecError(f"a trace has between 2 and {MAX_REQUESTS} requests, got {len(arrival_s)}", field="trace")
        for name, values, least in (("arrival_s", arrival_s, 0), ("input", inputs, 1), ("output", outputs, 1)):
            for row, value in enumerate(values, 1):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or not least <= value < math.inf or (least and value != int(value)):
                    what = "a whole number of at least 1" if least else "a time of at least 0"
                    raise SpecError(f"request {row} of the trace: {name} must be {what}, got {value!r}", field="trace")
        first = min(arrival_s)
        trace = tuple(sorted(
            (float(time) - first, int(new), int(answer)) for time, new, answer in zip(arrival_s, inputs, outputs, strict=True)
        ))  # fmt: skip
        if trace[-1][0] == 0:
            raise SpecError("all requests of the trace arrive at once; that is --batch or --concurrency", field="trace")
        n = len(trace)
        return cls(
            "open", (n - 1) / trace[-1][0], sum(inputs) / n, sum(outputs) / n, requests=n, cached=cached, trace=trace
        )

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if not math.isfinite(value) or not 1 <= value <= MAX_TOKENS:
                raise SpecError(f"{name} must be between 1 and {MAX_TOKENS}, got {value!r}", field=name)
        name = {"closed": "concurrency", "open": "rate", "static": "batch", "queued": "load"}[self.kind]
        if self.kind in ("closed", "static"):
            if not 1 <= self.size <= MAX_REQUESTS or self.size != int(self.size):
                raise SpecError(
                    f"{name} must be a whole number between 1 and {MAX_REQUESTS}, got {self.size!r}", field=name
                )
        elif not math.isfinite(self.size) or self.size <= 0:
            raise SpecError(f"{name} must be positive, got {self.size!r}", field=name)
        if not 0 <= self.spread < 1:
            raise SpecError(f"spread must be at least 0 and below 1, got {self.spread!r}", field="spread")
        if not 0 <= self.cached < 1:
            raise SpecError(f"cached must be at least 0 and below 1, got {self.cached!r}", field="cached")
        if not math.isfinite(self.rounds) or self.rounds < 1:
            raise SpecError(f"rounds must be at least 1, got {self.rounds!r}", field="rounds")
        if self.requests is not None and not (_is_whole(self.requests) and 1 <= self.requests <= MAX_REQUESTS):
            raise SpecError(
                f"requests must be a whole number between 1 and {MAX_REQUESTS}, got {self.requests!r}", field="requests"
            )
        if not _is_whole(self.seed) or self.seed < 0:
            raise SpecError(f"seed must be a whole number of at least 0, got {self.seed!r}", field="seed")

    def __str__(self) -> str:
        what = {
            "closed": f"{self.size:g} under way", "open": f"{self.size:g} per second", "static": f"a batch of {self.size:g}",
            "queued": "all queued",
        }[self.kind]  # fmt: skip
        return f"{what}, {self.input_tokens:g} tokens in, {self.output_tokens:g} out"

    @property
    def count(self) -> int | None:
        """Requests that are simulated; None of `queued`, whose number the cache decides unless it is given."""
        if self.trace is not None:
            return len(self.trace)
        if self.kind == "static":
            return round(self.size)
        if self.kind == "closed":
            return self.requests or min(round(self.size * self.rounds), max(MAX_CLOSED, round(self.size)))
        return self.requests or (1000 if self.kind == "open" else None)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer that may be drawn."""
        if self.trace is not None:
            return max(new + out for _, new, out in self.trace)
        return sum(round(mean * (1 + self.spread)) for mean in (self.input_tokens, self.output_tokens))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
