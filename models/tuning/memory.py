"""What a cost model has learnt since it was trained: measurements by operation, and the corrections they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .correction import KNOB_SCALE, Correction, Points
from .flat import FlatModel
from .forest import Column
from .measured import Measured

TaskKey = tuple[str, str, tuple[int, ...]]
"""Device, dtype, and sizes in the model's order."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Configurations as the model sees them: features as its formula gives them, knobs `(n, n_knobs)` int64."""

    features: list[float | Column]
    knobs: Any

    def place(self, model: FlatModel) -> Column:
        """Where they lie for the correction, shape `(n, d)`: as trees see them, and by their knobs."""
        knobs = np.log2(self.knobs + 1.0) / (KNOB_SCALE * np.sqrt(max(self.knobs.shape[1], 1)))
        return np.hstack([model.judge.places(self.features, len(knobs)), knobs])


def asked(model: FlatModel, key: TaskKey, knobs: Any) -> Asked:
    """Configurations `(n, n_knobs)` of one operation.

    Raises:
        ModelFileError: the model does not know the device or the dtype.
    """
    device, dtype, sizes = key
    values: dict[str, Any] = dict(zip(model.sizes, sizes, strict=True))
    if len(knobs):
        # A knob that is the same in every configuration is one number, so that what follows from it is computed once.
        alike = (knobs == knobs[0]).all(axis=0).tolist()
        columns = knobs.T.astype(np.float64)
        for name, column, one in zip(model.knobs, columns, alike, strict=True):
            values[name] = float(column[0]) if one else column
    else:
        values.update(dict.fromkeys(model.knobs, 0.0))
    values.update(model.facts_for(device, dtype))
    return Asked(model.features(values), knobs)


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """What was measured of one operation: seconds by configuration (the median where it was measured several times)."""

    seconds: Mapping[tuple[int, ...], float]
    points: Points

    @classmethod
    def of(cls, model: FlatModel, key: TaskKey, knobs: Any, seconds: Column) -> TaskMemory:
        """From rows, oldest first: knobs `(r, n_knobs)`, seconds `(r,)`."""
        by_config: dict[tuple[int, ...], list[float]] = {}
        for row, value in zip(knobs.tolist(), seconds.tolist(), strict=True):
            # The configuration measured last comes last, so that a fit of the newest is of these.
            by_config[tuple(row)] = [*by_config.pop(tuple(row), []), value]
        medians = {config: float(np.median(values)) for config, values in by_config.items()}
        found = asked(model, key, np.array(list(medians), dtype=np.int64).reshape(len(medians), knobs.shape[1]))
        predicted = model.seconds(found.features, len(medians))
        points = Points(
            place=found.place(model),
            error=np.log(np.array(list(medians.values())) / predicted),
            times=np.array([len(values) for values in by_config.values()], dtype=np.float64),
        )
        return cls(medians, points)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that was measured, and what was made of it. A value: learning more gives another one.

    `tasks` are ordered by their newest measurement. Corrections are fitted when first asked for; two threads that ask at
    once fit the same one twice.
    """

    model: FlatModel
    rows: Measured
    tasks: Mapping[TaskKey, TaskMemory]
    _fitted: dict[TaskKey, Correction] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, model: FlatModel, rows: Measured) -> Memory:
        """From rows; those on devices or dtypes that the model does not know are kept and not used."""
        places: dict[TaskKey, list[int]] = {}
        for i, key in enumerate(_keys(rows)):
            at = places.pop(key, [])
            at.append(i)
            places[key] = at
        known = {
            key: TaskMemory.of(model, key, rows.knobs[at], rows.seconds[at])
            for key, at in places.items()
            if key[:2] in model.table
        }
        return cls(model, rows, known)

    def after(self, key: TaskKey, knobs: Any, seconds: Column, most: int) -> Memory:
        """The memory with rows of one operation added, knobs `(r, n_knobs)` int64 and seconds `(r,)`.

        Beyond `most` rows the oldest are forgotten.
        """
        device, dtype, sizes = key
        n = len(seconds)
        later = Measured((device,) * n, (dtype,) * n, np.tile(np.array(sizes, dtype=np.int64), (n, 1)), knobs, seconds)
        rows = self.rows.and_then(later)
        if len(rows) > most:
            return Memory.of(self.model, rows.last(most))
        own = [i for i, other in enumerate(_keys(rows)) if other == key]
        tasks = {other: memory for other, memory in self.tasks.items() if other != key}
        tasks[key] = TaskMemory.of(self.model, key, rows.knobs[own], rows.seconds[own])
        return Memory(self.model, rows, tasks)

    def corrected(self, key: TaskKey, given: Asked, seconds: Column) -> Column:
        """Predicted seconds `(n,)` with what was learnt: what was measured as it was, the rest moved towards it."""
        alike = [other for other in self.tasks if other[:2] == key[:2]]
        if not alike:
            return seconds
        if key not in self._fitted:
            empty = Points(np.empty((0, given.place(self.model).shape[1])), np.empty(0), np.empty(0))
            own = self.tasks[key].points if key in self.tasks else empty
            self._fitted[key] = Correction.fit(own, [self.tasks[other].points for other in alike if other != key])
        found = seconds * np.exp(self._fitted[key].at(given.place(self.model)))
        if key in self.tasks:
            remembered = self.tasks[key].seconds
            for i, config in enumerate(map(tuple, given.knobs.tolist())):
                if config in remembered:
                    found[i] = remembered[config]
        return found


def _keys(rows: Measured) -> list[TaskKey]:
    return list(zip(rows.devices, rows.dtypes, map(tuple, rows.sizes.tolist()), strict=True))
