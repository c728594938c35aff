"""Measuring pairs of kernels: each alone, both together, in short windows that alternate, since the machine's speed drifts.

    a | b | a and b | a | b | a and b | a | b | a and b | a | b        one pair, three rounds

What counts is the ratio within a round: the time of a call together over the mean of the times alone before and after. The
machine of the shipped rows moves by 30 % within minutes, and by little within the half second of a round.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....datasets.records.kernel_pairs import PairRow
from ....features.kernel import KernelSpec, View, get_family
from ....features.spec_io.rows import spec_row
from ....process import ChildLostError, JsonChild, python_command
from ...host import STEADY_MEMORY, cache_sizes_b, utc_now
from ..plans.shapes import Limits, plan
from ..worker import WorkerOptions
from .worker import Window

FAMILIES = ("attention", "conv2d", "copy", "elementwise", "gemm", "layernorm", "moe", "reduction", "softmax")
KERNELS_PER_FAMILY = 20
"""Each meets several neighbours, so that a law can be judged on pairs and on kernels that it has not seen."""

LONGEST_CALL_S = 0.06
_ROUNDS = 3
_LEAD_S, _COUNT_S, _MOST_COUNT_S, _CALLS = 0.012, 0.06, 0.15, 3
_START_S = 0.004
"""From asking for a window until its first call: both processes have read the message by then."""

_SILENCE_S = 60.0
_LIMITS = Limits(matrix_flops=6e8, operand_b=8e7)
_DRAWS = 12
"""Cases drawn for each kernel of the pool, of which as many fit the caches as do not."""


def pool(families: Sequence[str] = FAMILIES, per_family: int = KERNELS_PER_FAMILY, seed: int = 0) -> list[KernelSpec]:
    """Kernels on one thread with hot caches: of each family as many that fit the second level, the last level and neither.

    Products in bf16 are left out, which CPUs without such units emulate at a sixtieth of the rate.
    """
    caches = cache_sizes_b()
    l2_b, last_b = caches.get("l2", 2**20), max(caches.values(), default=2**25)
    chosen: list[KernelSpec] = []
    for index, name in enumerate(families):
        family = get_family(name)
        dtypes = ("fp32",) if family.unit == "matrix" else ("fp32", "bf16")
        drawn = plan([name], _DRAWS * per_family, seed + index, dtypes=dtypes, cache_states=("hot",), limits=_LIMITS)
        sizes = np.array([float(family.footprint_b(View.of(spec))) for spec in drawn])
        place = np.where(sizes <= l2_b, 0, np.where(sizes <= 0.7 * last_b, 1, 2))
        queues = [[spec for spec, at in zip(drawn, place, strict=True) if at == level] for level in range(3)]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        chosen += list(itertools.islice((spec for spec in turns if spec is not None), per_family))
    return chosen


def pairs(kernels: Sequence[KernelSpec], seed: int = 0) -> Iterator[tuple[KernelSpec, KernelSpec]]:
    """Pairs of kernels without end: all of them are in one pair each, then again in others."""
    rng = np.random.default_rng(seed)
    seen: set[frozenset[KernelSpec]] = set()
    while True:
        order = rng.permutation(len(kernels)).tolist()
        for i, j in zip(order[::2], order[1::2], strict=False):
            pair = frozenset((kernels[i], kernels[j]))
            if pair not in seen or len(seen) == len(kernels) * (len(kernels) - 1) // 2:
                seen.add(pair)
                yield kernels[i], kernels[j]


@dataclass(slots=True)
class _Side:
    """One of the two processes, and the kernel it has ready.

    Attributes:
        child: The process.
        call_s: Seconds of a call of its kernel alone.
    """

    child: JsonChild
    call_s: float = 0.0

    def ask(self, message: dict[str, object]) -> None:
        """Send a message at once."""
        self.child.start()
        self.child.write(message)
        self.child.flush()

    def answer(self) -> dict[str, object]:
        """The answer to the last message."""
        return self.child.read(_SILENCE_S)


class PairBench:
    """Two processes on two cores that measure pairs; a context manager, at whose end they are killed."""

    def __init__(self, device: str, cores: Sequence[int], runner: str = "torch") -> None:
        self.device, self.cores = device, tuple(cores)
        self._sides = [self._side(core, runner) for core in cores]

    def _side(self, core: int, runner: str) -> _Side:
        options = WorkerOptions(runner=runner, threads=1, device=self.device, cores=(core,), flush_cores=(core,))
        command = python_command("kernelcast.collectors.cpu.pairs.worker", options.to_json())
        return _Side(JsonChild(runner, command, STEADY_MEMORY | {"OMP_NUM_THREADS": "1"}))

    def __enter__(self) -> PairBench:
        for side in self._sides:
            side.child.start()
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides:
            side.child.close()

    def measure(self, a: KernelSpec, b: KernelSpec, rounds: int = _ROUNDS) -> PairRow:
        """The row of a pair, whatever happens to it.

        Raises:
            ChildStartError: a process that was lost over an earlier pair does not start again.
        """
        try:
            if refusal := self._prepare(a, b):
                return PairRow(a, b, self.device, *refusal, measured_at=utc_now())
            return self._measure(a, b, rounds)
        except ChildLostError as lost:
            for side in self._sides:
                side.child.close()
            return PairRow(a, b, self.device, lost.kind, f"a process {lost}", measured_at=utc_now())

    def _prepare(self, *specs: KernelSpec) -> tuple[str, str] | None:
        """Ready both kernels; the status and why, where one cannot be."""
        for side, spec in zip(self._sides, specs, strict=True):
            side.ask({"prepare": spec_row(spec)})
        answers = [side.answer() for side in self._sides]
        for side, spec, answer in zip(self._sides, specs, answers, strict=True):
            if "status" in answer:
                return str(answer["status"]), f"{spec}: {answer['message']}"
            side.call_s = float(str(answer["call_s"]))
            if side.call_s > LONGEST_CALL_S:
                why = f"{spec}: a call takes {side.call_s:.2g} s; windows hold calls of at most {LONGEST_CALL_S:g} s"
                return "unsupported", why
        return None

    def _measure(self, a: KernelSpec, b: KernelSpec, rounds: int) -> PairRow:
        one, other = self._sides
        alone = [(self._window(one), self._window(other))]
        ratios: list[tuple[float, float]] = []
        for _ in range(rounds):
            together = self._window(one, other)
            alone.append((self._window(one), self._window(other)))
            before, after = alone[-2:]
            ratios.append((2 * together[0] / (before[0][0] + after[0][0]), 2 * together[1] / (before[1][0] + after[1][0])))
        slower = [sorted(ratio[side] for ratio in ratios) for side in (0, 1)]
        return PairRow(
            a, b, self.device, "ok", None,
            a_alone_s=statistics.median(times[0][0] for times in alone),
            b_alone_s=statistics.median(times[1][0] for times in alone),
            a_slowdown=statistics.median(slower[0]), b_slowdown=statistics.median(slower[1]),
            a_spread=slower[0][-1] / slower[0][0] - 1, b_spread=slower[1][-1] / slower[1][0] - 1,
            rounds=rounds, measured_at=utc_now(),
        )  # fmt: skip

    def _window(self, *sides: _Side) -> list[float]:
        """Seconds per call of each of the sides, which run at the same time."""
        longest_s = max(side.call_s for side in sides)
        count_s = min(max(_COUNT_S, _CALLS * longest_s), _MOST_COUNT_S)
        marks = itertools.accumulate((_START_S, max(_LEAD_S, longest_s), count_s, 2 * longest_s if len(sides) > 1 else 0.0))
        began_ns = time.monotonic_ns()
        window = Window(*(began_ns + round(mark * 1e9) for mark in marks))
        for side in sides:
            side.ask({**window.message()})
        return [float(str(side.answer()["call_s"])) for side in sides]


def two_cores() -> tuple[int, int]:
    """The first and the last core that this process may use.

    Raises:
        ValueError: there is only one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ValueError("pairs need two cores, and this process may use one")
    return cores[0], cores[-1]
