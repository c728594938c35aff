"""Which choices of a list are worth compiling and timing: by what was measured, then by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...features.errors import SpecError
from ...features.tuning.kind import Candidates, Task
from .choices import Product, Reading
from .measured_choices import Measured, Memory
from .reporting import say_once

MARGIN = 1.5
"""A choice measured this much slower than the best is not timed again: Inductor's times of one kernel in two processes were up
to 1.42 times apart (four small products on two cores that others used), so a choice this far behind has hardly a chance."""

Rank = Callable[[Sequence[Reading]], Sequence[int] | None]
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

    @property
    def pruned(self) -> int:
        """How many choices went."""
        return self.by_failure + self.by_memory + self.by_model


def decide(
    readings: Sequence[Reading], memory: Memory, rank: Rank, *, top_k: int, keep_extern: bool, on_cpu: bool
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


class Model(Protocol):
    """What is asked of a cost model; `plugins.cost_model.CostModel` is one."""

    def update(self, candidates: Candidates, measured_s: NDArray[np.float64], /) -> None:
        """Learn seconds, shape `(n,)`, measured for the candidates."""

    def rank(self, candidates: Candidates, k: int, /) -> Sequence[int] | NDArray[Any]:
        """The `k` best candidates' positions, best first."""


Load = Callable[[str], Model]
"""The model of a device by its name; raises SpecError where there is none."""


class Ranking:
    """The model of one device, loaded when it is first asked; without one nothing is ranked and the reason is said once."""

    def __init__(self, device: str, load: Load) -> None:
        self._device = device
        self._load = load
        self._model: Model | None = None
        self._is_loaded = False
        self._unfed: list[Measured] = []

    def learn(self, rows: Iterable[Measured]) -> None:
        """Take measured rows; they are handed to the model when it is next asked, so that compiling waits for nothing."""
        self._unfed.extend(row for row in rows if row.latency_s is not None and row.spec.impl.startswith("triton"))

    def order(self, product: Product, readings: Sequence[Reading]) -> list[int] | None:
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

    def _ready(self) -> Model | None:
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
