"""Which choices of a list are worth compiling and timing: by what was measured, then by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.tuning.kind import Candidates, Task
from .choices import ChoiceSpec, Product
from .reporting import say_once

if TYPE_CHECKING:
    from ..cost_model import CostModel


@dataclass(frozen=True, slots=True)
class Measured:
    """One choice on one device with the time Inductor measured, or a failure.

    Attributes:
        spec: The choice.
        device: Catalogue name of the device.
        status: `ok` or `failed`, as in rows.
        latency_s: Seconds, None for a failure.
        note: Description by Inductor.
        stack: Versions that compiled it (`torch 2.13.0, triton 3.6.0`); results of another stack are measured again.
        measured_at: When, ISO 8601 in UTC.
        least: Whether `latency_s` is the least of the samples, not their median.
    """

    spec: KernelSpec
    device: str
    status: str
    latency_s: float | None
    note: str
    stack: str
    measured_at: str
    least: bool = False


FAILURES = 2
"""Failures after which a choice is not tried again: one may have been an accident, memory taken by another process say."""


class ChoiceHistory:
    """What is known of single choices on one device, from earlier processes and from this one."""

    def __init__(self, stack: str) -> None:
        """`stack` is that of this process: only its rows speak for single choices."""
        self._stack = stack
        self._least_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def learn(self, rows: Iterable[Measured]) -> None:
        """Remember rows; the least time of a choice counts, as it does for Inductor."""
        for row in rows:
            if row.stack != self._stack:
                continue
            case = row.spec.case_id
            if row.latency_s is None:
                self._failures[case] = self._failures.get(case, 0) + 1
            else:
                self._least_s[case] = min(row.latency_s, self._least_s.get(case, row.latency_s))

    def latency_s(self, spec: KernelSpec | None) -> float | None:
        """The least time measured for exactly this case, None where there is none."""
        return None if spec is None else self._least_s.get(spec.case_id)

    def failed(self, spec: KernelSpec | None) -> bool:
        """Whether exactly this case never ran and failed `FAILURES` times or more."""
        if spec is None or spec.case_id in self._least_s:
            return False
        return self._failures.get(spec.case_id, 0) >= FAILURES


def stack_of(versions: Mapping[str, str]) -> str:
    """The words of `Measured.stack` for a mapping of versions by name."""
    return ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions)


MARGIN = 1.5
"""A choice measured this much slower than the best is not timed again: Inductor's times of one kernel in two processes were up
to 1.42 times apart (four small products on two cores that others used), so a choice this far behind has hardly a chance."""

Rank = Callable[[Sequence[ChoiceSpec]], Sequence[int] | None]
"""Positions of the readings given, best first; None where no model can say."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Which choices of a list stay.

    Attributes:
        positions: Their positions, in order.
        by_failure: Number left out because they failed before.
        by_memory: Number left out because they were measured and lost.
        by_model: Number left out because the model ranks them low.
    """

    positions: tuple[int, ...]
    by_failure: int = 0
    by_memory: int = 0
    by_model: int = 0


def decide(
    readings: Sequence[ChoiceSpec], memory: ChoiceHistory, rank: Rank, *, top_k: int, keep_extern: bool, on_cpu: bool
) -> Decision:
    """Which choices of one list stay.

    Library calls stay, unless `keep_extern` is False and a template does. Templates that failed before go. Triton templates
    of which enough were measured for this very product are settled by their times; else the `top_k` that `rank` puts first
    stay. Other templates go when they were measured clearly slower than the best. What cannot be judged stays, and so does
    everything where nothing would be left.

    On a CPU the best may be a library call, as Inductor there takes the fastest; on a GPU a template may still win by
    taking in the operations that follow it, so only templates are compared.
    """
    templates = [at for at, reading in enumerate(readings) if not reading.stays]
    failed = {at for at in templates if memory.failed(readings[at].spec)}
    dropped: dict[str, set[int]] = {"failure": failed, "memory": set(), "model": set()}
    for hint in dict.fromkeys(readings[at].hint for at in templates):
        group = [at for at in templates if at not in failed and readings[at].hint == hint]
        ranked = [at for at in group if readings[at].maker == "triton" and readings[at].knobs]
        times = {at: memory.latency_s(reading.spec) for at, reading in enumerate(readings)}
        rivals = [*group, *(at for at, reading in enumerate(readings) if on_cpu and reading.stays)]
        best_s = min((time for at in rivals if (time := times[at]) is not None), default=None)
        slow = {at for at in group if best_s is not None and (time := times[at]) is not None and time > MARGIN * best_s}
        known = sorted((at for at in ranked if times[at] is not None), key=lambda at: times[at] or 0.0)
        if known and len(known) >= min(top_k, len(ranked)):
            slow |= set(ranked) - set(known[:top_k])
        elif len(ranked) > top_k and (order := rank([readings[at] for at in ranked])) is not None:
            dropped["model"] |= set(ranked) - {ranked[at] for at in order[:top_k]}
            slow -= set(ranked)
        dropped["memory"] |= slow
    union = set().union(*dropped.values())
    if not keep_extern and len(union) < len(templates):
        union |= {at for at, reading in enumerate(readings) if reading.stays}
    if len(union) == len(readings):
        return Decision(tuple(range(len(readings))))
    remaining = tuple(at for at in range(len(readings)) if at not in union)
    return Decision(remaining, len(dropped["failure"]), len(dropped["memory"]), len(dropped["model"]))


KIND = "triton-gemm"
_KNOBS = ("tile_m", "tile_n", "tile_k", "group_m", "warps", "stages", "split_k")
_SIZES = ("batch", "m", "n", "k")


Load = Callable[[str], "CostModel"]
"""The model of a device by its name; raises SpecError where there is none."""


class Ranking:
    """The model of one device, loaded when it is first asked; without one nothing is ranked and the reason is said once."""

    def __init__(self, device: str, load: Load) -> None:
        self._device = device
        self._load = load
        self._model: CostModel | None = None
        self._is_loaded = False
        self._unfed: list[Measured] = []

    def learn(self, rows: Iterable[Measured]) -> None:
        """Take measured rows; they are handed to the model when it is next asked, so that compiling waits for nothing."""
        self._unfed.extend(row for row in rows if row.latency_s is not None and row.spec.impl.startswith("triton"))

    def order(self, product: Product, readings: Sequence[ChoiceSpec]) -> list[int] | None:
        """Positions of the templates `readings` of `product`, fastest first; None where no model can say."""
        try:
            model = self._ready()
            if model is None:
                return None
            result: dict[str, list[int]] = {}
            for at, reading in enumerate(readings):
                result.setdefault(reading.dtype, []).append(at)
            if len(result) > 1:
                say_once("a list of Inductor's choices computes in several formats; all its Triton templates are kept")
                return None
            task = Task(KIND, product.sizes, readings[0].dtype, self._device)
            candidates = Candidates.of(task, [reading.knobs for reading in readings])
            return [int(at) for at in model.rank(candidates, len(readings))]
        except SpecError as error:
            say_once(f"Triton templates are not ranked and all are timed: {error}")
            return None

    def _ready(self) -> CostModel | None:
        if not self._is_loaded:
            self._is_loaded = True
            self._model = self._load(self._device)
        if self._model is not None:
            rows, self._unfed = self._unfed, []
            for candidates, measured_s in _by_task(rows, self._device):
                # What the model cannot answer (a dtype it does not know on this device) it is not asked about either.
                with suppress(SpecError):
                    self._model.update(candidates, measured_s)
        return self._model


def _by_task(rows: Iterable[Measured], device: str) -> Iterable[tuple[Candidates, NDArray[np.float64]]]:
    """Measured rows as tasks with their configurations; of one configuration measured several times the least time."""
    tasks: dict[tuple[tuple[tuple[str, int], ...], str], dict[tuple[int, ...], float]] = {}
    for row in rows:
        knobs: Mapping[str, int] = dict(row.spec.config)
        if row.latency_s is None or not all(name in knobs for name in _KNOBS):
            continue
        times = tasks.setdefault((row.spec.dims, row.spec.dtype), {})
        key = tuple(knobs[name] for name in _KNOBS)
        times[key] = min(row.latency_s, times.get(key, row.latency_s))
    for (dims, dtype), times in tasks.items():
        sizes = {name: size for name, size in dims if name in _SIZES}
        configs = [dict(zip(_KNOBS, key, strict=True)) for key in times]
        yield Candidates.of(Task(KIND, sizes, dtype, device), configs), np.array(list(times.values()))
