"""Times and energies of an engine's steps on a grid, filled once, and read between its points by linear interpolation.

A step that mixes `n` new tokens of prompts with `b` decoding sequences is composed of three tables:

    T = linear(n + b) + Σ attention(prompt tokens, cached tokens) + [decode(b, context) - decode(b, 1)]

`linear` is all that does not depend on positions already cached, `attention` what a prompt takes beyond it. A step without a
prompt is `decode(b, context)` itself. Under speculative decoding with `k` guesses `decode` is a step that drafts and verifies
them, `linear` is of `n + (k + 1) b` tokens, and what the draft takes at no context is added: `draft(b, 1)`. The sum follows
from how kernels of a step share tokens: products run once for all of them, attention runs for prompts and decoding sequences
apart (Agrawal et al., "Sarathi-Serve", OSDI 2024, section 3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ....features.batch.cases import Floats
from ...architectures.step import Step

_SHORT = 64
"""Tokens of prompts too short for their attention to matter."""


class Steps(Protocol):
    """What gives times of steps; `StepTimes` does."""

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""


@dataclass(frozen=True, slots=True)
class Line:
    """A function of one number by linear interpolation, constant below its first point and extended beyond its last."""

    x: list[float]
    y: list[float]

    def __call__(self, x: float) -> float:
        """Its value at `x`."""
        i = min(max(bisect_right(self.x, x), 1), len(self.x) - 1)
        x0, y0 = self.x[i - 1], self.y[i - 1]
        return y0 if x <= x0 else y0 + (self.y[i] - y0) * (x - x0) / (self.x[i] - x0)


@dataclass(frozen=True, slots=True)
class Surface:
    """A function of two numbers: lines over the second, at points of the first."""

    x: list[float]
    lines: list[Line]

    def at(self, x: float) -> Line:
        """The line at `x`."""
        i = min(max(bisect_right(self.x, x), 1), len(self.x) - 1) if len(self.x) > 1 else 0
        if x <= self.x[i - 1] or i == 0:
            return self.lines[max(i - 1, 0)]
        share = (x - self.x[i - 1]) / (self.x[i] - self.x[i - 1])
        below, above = self.lines[i - 1], self.lines[i]
        return Line(below.x, [(1 - share) * a + share * b for a, b in zip(below.y, above.y, strict=True)])

    def __call__(self, x: float, y: float) -> float:
        """Its value at a point."""
        return self.at(x)(y)


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a service takes per step beyond the times of its steps.

    Attributes:
        step_s: Seconds of every step.
        sequence_s: Seconds of every sequence of a step: scheduling, sampling and sending its token on the host.
        prompt_s: Seconds of a step with prompts, beyond `step_s`.
        decode_factor: Time of a decode step over that of its kernels.
        prompt_factor: The same of a step with prompts.
    """

    step_s: float = 0.0
    sequence_s: float = 0.0
    prompt_s: float = 0.0
    decode_factor: float = 1.0
    prompt_factor: float = 1.0


NO_OVERHEAD = Overhead()


class StepTable:
    """Steps of one model on one device under one plan, up to a batch, a length and a number of tokens per step."""

    def __init__(
        self, steps: Steps, *, batch: int, length: int, prompt: int, chunk: int, overhead: Overhead = NO_OVERHEAD,
        waiting_w: float = 0.0, contexts: Sequence[int] = (), guesses: int = 0, drafting: Steps | None = None,
        least_chunk: int | None = None,
    ) -> None:  # fmt: skip
        """Fill the tables.

        Args:
            steps: times of steps.
            overhead: what the service adds to them.
            waiting_w: watts of all devices while they wait for it.
            batch: most sequences that decode together.
            length: most positions of a sequence.
            prompt: most tokens of a prompt.
            chunk: most tokens of a step.
            contexts: positions of decode steps between which is read; empty: a grid up to `length`.
            guesses: tokens guessed for each decoding sequence, which `steps` verify in decode steps.
            drafting: what the draft takes of decode steps; None: nothing.
            least_chunk: tokens of the shortest chunks that are read, behind which a prompt may have the rest; None: `chunk`.
        """
        least = least_chunk or chunk
        batches = sorted({*_grid(1, 1, 2, batch, below=True), batch})
        contexts = list(contexts) or _grid(1, 128, 4, length)
        tokens = _grid(1, 2, 2, min(chunk, batch * prompt) + batch * (guesses + 1))
        prompts = _grid(_SHORT, 2 * _SHORT, 2, min(prompt, chunk))
        cached = _grid(0, 1024, 4, prompt - least) if prompt > least else [0]
        decode = [Step.decode(b, c) for b in batches for c in contexts]
        linear = [Step.prefill(-(-n // _SHORT), min(n, _SHORT)) for n in tokens]
        single = [Step.prefill(1, n, c) for n in prompts for c in cached]
        steps_s, lower_s, upper_s = steps.seconds([*decode, *linear, *single])
        joules = steps.energy_j([*decode, *linear, *single])
        n, m = len(decode), len(decode) + len(linear)
        mean = np.log(np.maximum(upper_s, 1e-12) / np.maximum(steps_s, 1e-12)).mean()
        self.half_width = float(max(mean, np.log(steps_s / np.maximum(lower_s, 1e-12)).mean()))
        self.knows_energy = bool(np.isfinite(joules).all())
        self.overhead, self.waiting_w, self.guesses = overhead, waiting_w, guesses
        self._draft_s = self._draft_j = None
        if drafting is not None:
            drafts = [Step.decode(b, 1) for b in batches]
            self._draft_s = _surface(batches, [1], drafting.seconds(drafts)[0].reshape(-1, 1))
            self._draft_j = _surface(batches, [1], np.nan_to_num(drafting.energy_j(drafts)).reshape(-1, 1))
        parts = []
        for column in (steps_s, np.nan_to_num(joules)):
            line = Line([float(item) for item in tokens], column[n:m].tolist())
            beyond = np.maximum(column[m:].reshape(len(prompts), len(cached)) - [[line(item)] for item in prompts], 0.0)
            # A prompt of no tokens takes nothing.
            rows = np.vstack([np.zeros(len(cached)), beyond])
            parts.append((
                _surface(batches, contexts, column[:n].reshape(len(batches), len(contexts))), line,
                _surface([0, *prompts], cached, rows),
            ))  # fmt: skip
        (self.decode_s, self.linear_s, self.attention_s), (self.decode_j, self.linear_j, self.attention_j) = parts
        self._lines: dict[tuple[int, bool], Line] = {}

    def change(self, overhead: Overhead) -> None:
        """Take another overhead; the times of the steps stay."""
        self.overhead, self._lines = overhead, {}

    def decoding(self, batch: int, *, energy: bool = False) -> Line:
        """Seconds (or joules) of a decode step of `batch` sequences, by their mean context."""
        key = (batch, energy)
        line = self._lines.get(key)
        if line is None:
            times, more = self.decode_s.at(batch), self.overhead
            constant_s = more.step_s + more.sequence_s * batch
            line = Line(times.x, [constant_s + more.decode_factor * y for y in times.y])
            if energy:
                joules = self.decode_j.at(batch).y
                waits_s = (max(0.0, long - short) for long, short in zip(line.y, times.y, strict=True))
                line = Line(
                    times.x, [item + self.waiting_w * wait_s for item, wait_s in zip(joules, waits_s, strict=True)]
                )
            self._lines[key] = line
        return line

    def mixed(self, batch: int, context: float, chunks: Sequence[tuple[int, int]], *, energy: bool = False) -> float:
        """Seconds (or joules) of a step of chunks of prompts (tokens, cached tokens) beside `batch` decoding sequences."""
        linear, attention = (self.linear_j, self.attention_j) if energy else (self.linear_s, self.attention_s)
        total = linear(batch * (self.guesses + 1) + sum(new for new, _ in chunks))
        total += sum(attention(new, old) for new, old in chunks)
        draft = self._draft_j if energy else self._draft_s
        if batch and draft is not None:
            total += draft(batch, 1)
        if batch:
            line = (self.decode_j if energy else self.decode_s).at(batch)
            total += max(0.0, line(context) - line.y[0])
        more = self.overhead
        constant_s = more.step_s + more.prompt_s + more.sequence_s * (batch + len(chunks))
        return total + self.waiting_w * constant_s if energy else constant_s + more.prompt_factor * total


def _grid(first: int, second: int, factor: int, last: int, *, below: bool = False) -> list[int]:
    """`first`, then `second` and on, each `factor` times the one before, up to the first that is not below `last`.

    Grids of two loads share their points, and so their steps. With `below` the points end below `last`.
    """
    points, point = {first}, second
    while point < last:
        points.add(point)
        point *= factor
    return sorted(points if below else {*points, point})


def _surface(x: Sequence[int], y: Sequence[int], values: Floats) -> Surface:
    columns = [float(item) for item in y]
    if len(columns) == 1:
        columns, values = [columns[0], columns[0] + 1], np.hstack([values, values])
    return Surface([float(item) for item in x], [Line(columns, row.tolist()) for row in values])
