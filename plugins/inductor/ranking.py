"""Triton templates ranked by the cost model of one device, which learns from what Inductor measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...features.errors import SpecError
from ...features.tuning.kind import Candidates, Task
from .choices import Product, Reading
from .rows import Measured
from .sentences import say_once

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
        self._asked = False
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
            found: dict[str, list[int]] = {}
            for at, reading in enumerate(readings):
                found.setdefault(reading.dtype, []).append(at)
            if len(found) > 1:
                say_once("a list of Inductor's choices computes in several formats; all its Triton templates are kept")
                return None
            task = Task(KIND, product.sizes, readings[0].dtype, self._device)
            candidates = Candidates.of(task, [reading.knobs for reading in readings])
            return [int(at) for at in model.rank(candidates, len(readings))]
        except SpecError as error:
            say_once(f"Triton templates are not ranked and all are timed: {error}")
            return None

    def _ready(self) -> Model | None:
        if not self._asked:
            self._asked = True
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
