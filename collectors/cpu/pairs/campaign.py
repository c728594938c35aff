"""Measuring pairs of kernels: each alone and both together in short slots that alternate, since the machine's speed moves.

    a | a and b | b | a and b | a | a and b | …        one pair, some forty cycles of four slots

What counts is the ratio within a cycle: the time of a call together over that alone a few milliseconds before and after. The
machine of the shipped rows moves by 30 % within minutes, and as much within a tenth of a second.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ....datasets.records.kernel_pairs import PairRow
from ....datasets.rows.schema import Status
from ....features.kernel import KernelSpec, View, get_family
from ....features.spec_io.rows import spec_row
from ....process import ChildLostError, JsonChild
from ...host import STEADY_MEMORY, cache_sizes_b, utc_now
from ..plans.shapes import Limits, plan
from ..worker import WorkerOptions
from .worker import Slots, pair_command

FAMILIES = ("attention", "conv2d", "copy", "elementwise", "gemm", "layernorm", "moe", "reduction", "softmax")
KERNELS_PER_FAMILY = 20
"""Each meets several neighbours, so that a law can be judged on pairs and on kernels that it has not seen."""

LONGEST_CALL_S = 0.03
CYCLE = ("a", "ab", "b", "ab")
"""What runs in the four slots of a cycle: each alone lies between two slots together."""
_SLOT_S, _LEAD_S, _CALLS = 0.006, 0.0015, 3.2
"""Shortest slot; what of it does not count; calls of the slower kernel that one holds."""
_PAIR_S, _FEWEST, _MOST = 0.9, 5, 60
"""How long a pair is measured, in about how many cycles."""
_START_S = 0.02
"""From asking for slots until the first: both processes have read the message by then."""

_SILENCE_S = 60.0
_LIMITS = Limits(matrix_flops=3e8, operand_b=4e7)
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
        by_level = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        chosen += list(itertools.islice((spec for spec in by_level if spec is not None), per_family))
    return chosen


def pairs(kernels: Sequence[KernelSpec], seed: int = 0) -> Iterator[tuple[KernelSpec, KernelSpec]]:
    """Pairs of kernels without end, each once: rounds in which each kernel is in one pair, two of three with large ones only.

    Large are those of more than a quarter of the last-level cache: small ones hardly disturb each other.
    """
    quarter_b = max(cache_sizes_b().values(), default=2**25) / 4
    large = [spec for spec in kernels if float(get_family(spec.family).footprint_b(View.of(spec))) > quarter_b]
    return rounds(kernels, large, seed)


def rounds(
    kernels: Sequence[KernelSpec], large: Sequence[KernelSpec], seed: int
) -> Iterator[tuple[KernelSpec, KernelSpec]]:
    """Pairs of kernels without end, each once: rounds in which each kernel is in one pair, two of three of `large` ones."""
    rng = np.random.default_rng(seed)
    seen: set[frozenset[KernelSpec]] = set()
    for members in itertools.cycle((large, kernels, large)):
        order = rng.permutation(len(members)).tolist()
        for i, j in zip(order[::2], order[1::2], strict=False):
            if (pair := frozenset((members[i], members[j]))) not in seen:
                seen.add(pair)
                yield members[i], members[j]
        if len(seen) == len(kernels) * (len(kernels) - 1) // 2:
            return


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
        self.child.write(message, at_once=True)

    def answer(self) -> dict[str, object]:
        """The answer to the last message."""
        return self.child.read(_SILENCE_S)


class PairBench:
    """Two processes on two cores that measure pairs; a context manager, at whose end they are killed."""

    def __init__(
        self, device: str, cores: Sequence[int], runner: str = "torch", *,
        command: Callable[[WorkerOptions], list[str]] = pair_command,
    ) -> None:  # fmt: skip
        self.device, self._cores = device, tuple(cores)
        several = [WorkerOptions(runner=runner, threads=1, device=device, cores=(core,)) for core in cores]
        self._sides = [
            _Side(JsonChild(runner, command(options), STEADY_MEMORY | {"OMP_NUM_THREADS": "1"})) for options in several
        ]

    def __enter__(self) -> PairBench:
        for side in self._sides:
            side.child.start()
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides:
            side.child.close()

    def facts(self) -> dict[str, Any]:
        """What to record about it."""
        return {"cores_used": list(self._cores)}

    def measure(self, a: KernelSpec, b: KernelSpec) -> PairRow:
        """The row of a pair, whatever happens to it.

        Raises:
            ChildStartError: a process that was lost over an earlier pair does not start again.
        """
        try:
            if refusal := self._prepare(a, b):
                return PairRow(a, b, self.device, *refusal, measured_at=utc_now())
            return self._measure(a, b)
        except ChildLostError as lost:
            for side in self._sides:
                side.child.close()
            return PairRow(a, b, self.device, lost.kind, f"a process {lost}", measured_at=utc_now())

    def _prepare(self, *specs: KernelSpec) -> tuple[Status, str] | None:
        """Ready both kernels; the status and why, where one cannot be."""
        for side, spec in zip(self._sides, specs, strict=True):
            side.ask({"prepare": spec_row(spec)})
        answers = [side.answer() for side in self._sides]
        for side, spec, answer in zip(self._sides, specs, answers, strict=True):
            if "status" in answer:
                return cast("Status", answer["status"]), f"{spec}: {answer['message']}"
            side.call_s = float(str(answer["call_s"]))
            if side.call_s > LONGEST_CALL_S:
                why = f"{spec}: a call takes {side.call_s:.2g} s; slots hold calls of at most {LONGEST_CALL_S:g} s"
                return "unsupported", why
        return None

    def _measure(self, a: KernelSpec, b: KernelSpec) -> PairRow:
        longest_s = max(side.call_s for side in self._sides)
        slot_s = max(_SLOT_S, _CALLS * longest_s)
        cycles = min(max(_FEWEST, round(_PAIR_S / (len(CYCLE) * slot_s))), _MOST)
        start_ns = time.monotonic_ns() + round(_START_S * 1e9)
        for side, name in zip(self._sides, "ab", strict=True):
            active = tuple(name in slot for slot in CYCLE) * cycles
            lead_s = max(_LEAD_S, longest_s)
            side.ask(Slots(start_ns, round(slot_s * 1e9), round(lead_s * 1e9), active).message())
        times = [np.array(side.answer()["slots"], dtype=np.float64).reshape(cycles, -1) for side in self._sides]
        return row_of_slots(a, b, self.device, times)


def row_of_slots(a: KernelSpec, b: KernelSpec, device: str, times: Sequence[npt.NDArray[np.float64]]) -> PairRow:
    """The row of a pair from what was measured in the slots of its cycles.

    Args:
        a: the first kernel.
        b: the second.
        device: catalogue name of the device.
        times: of each kernel seconds per call, shape `(cycles, 4)`; NaN where it was idle or no turn of a slot counts.
    """
    columns: dict[str, float] = {}
    for name, seconds in zip("ab", times, strict=True):
        alone, together = (seconds[:, [i for i, slot in enumerate(CYCLE) if slot == word]] for word in (name, "ab"))
        logs = np.log(together).mean(axis=1) - np.log(alone[:, 0])
        logs = logs[np.isfinite(logs)]
        if not len(logs):
            return PairRow(a, b, device, "failed", f"no turn of {name} counts", measured_at=utc_now())
        low, middle, high = np.percentile(logs, (25, 50, 75))
        columns[f"{name}_alone_s"] = float(np.nanmedian(alone))
        columns[f"{name}_slowdown"] = float(np.exp(middle))
        # Of a median of normal errors, from their quartiles.
        columns[f"{name}_error"] = float(1.25 * (high - low) / 1.35 / math.sqrt(len(logs)))
    return PairRow(a, b, device, "ok", None, **columns, cycles=len(times[0]), measured_at=utc_now())


def two_cores() -> tuple[int, int]:
    """The first and the last core that this process may use.

    Raises:
        ValueError: there is only one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ValueError("pairs need two cores, and this process may use one")
    return cores[0], cores[-1]
