"""What measurements teach about configurations not measured: a Gaussian process on the model's errors, in closed form.

The error of a measurement is ln(measured / predicted). Two configurations err alike as far as trees judge them alike
(`ForestEvaluator.places`) and their knobs are alike: much within one operation, a little across operations of the kind on the
same device and dtype. Exact regression by Cholesky factorisation (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, algorithm 2.1); left-out errors after their equations 5.10 to 5.12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flat_model import FlatModel
from .forest import Column
from .model_file import Measured

OF_KIND, OF_TASK = 0.1, 0.2
"""Standard deviations of ln(measured / predicted): of the factor common to a kind on a device, and of one operation's."""

NEAR_KIND, NEAR_TASK = 0.1, 0.3
"""Of the remainder that only near configurations share: across operations, and within one."""

LENGTH = 0.15
"""Distance at which configurations are still alike, in the units of `ForestEvaluator.places`."""

NOISE = 0.1
"""Of one measurement.

These five are what left-out configurations of 32 IREE products did well with (trees fitted without the product, 4 and 12 of
about 50 configurations measured): mean errors of 0.25 fell to 0.23 and 0.20. Length,
likeness within a task and noise were varied, the two across tasks not."""

KNOB_SCALE = 8.0
"""Doublings of one knob that are as far as a feature's whole range."""

MOST_ERROR = float(np.log(32.0))
"""Largest error believed; what is further off says that something else was measured."""

OWN_POINTS, OTHER_POINTS, OTHER_PER_TASK = 192, 96, 16
"""Most configurations of the operation itself, of all others together, and of each other one that a fit looks at."""

_ODD = 3.0
"""A measurement so many standard deviations off what the others say counts less, as much as brings it back to that."""
_ROUNDS = 3
"""Most times that odd measurements are looked for."""


@dataclass(frozen=True, slots=True)
class Points:
    """Measured configurations of one operation.

    Attributes:
        place: Where they lie, shape `(n, d)`.
        error: ln(measured / predicted), shape `(n,)`.
        times: How often each was measured, shape `(n,)`.
    """

    place: Column
    error: Column
    times: Column

    def newest(self, most: int) -> Points:
        """At most so many, the ones measured last."""
        return Points(self.place[-most:], self.error[-most:], self.times[-most:])


@dataclass(frozen=True, slots=True)
class Correction:
    """A fitted process.

    Attributes:
        place: The points it was fitted on.
        task: The operation each is of (0: the one that is asked about).
        weights: Weights of the points.
        least: Least correction.
        most: Largest correction.
    """

    place: Column
    task: NDArray[np.intp]
    weights: Column
    least: float
    most: float

    @classmethod
    def fit(cls, task_points: Points, others: Sequence[Points]) -> Correction:
        """The process for one operation, from its own measurements and those of others of the kind, newest last."""
        chosen, room = [task_points.newest(OWN_POINTS)], OTHER_POINTS
        for points in reversed(others):
            if room <= 0:
                break
            chosen.append(points.newest(min(room, OTHER_PER_TASK)))
            room -= len(chosen[-1].error)
        place = np.concatenate([points.place for points in chosen])
        error = np.clip(np.concatenate([points.error for points in chosen]), -MOST_ERROR, MOST_ERROR)
        times = np.concatenate([points.times for points in chosen])
        task = np.repeat(np.arange(len(chosen)), [len(points.error) for points in chosen])
        covariance = _covariance(place, task, place, task)
        noise = NOISE**2 / times
        for _ in range(_ROUNDS):
            inverse = np.linalg.inv(covariance + np.diag(noise))
            weights = inverse @ error
            left_out = np.abs(weights) / np.sqrt(np.diag(inverse))
            if not (left_out > _ODD).any():
                break
            # The variance of a left-out error is 1 / inverse[i, i]; noise is raised until the error is `_ODD` deviations.
            spread = 1.0 / np.diag(inverse)
            noise = np.where(left_out > _ODD, noise + spread * ((left_out / _ODD) ** 2 - 1.0), noise)
        return cls(place, task, weights, float(min(error.min(), 0.0)), float(max(error.max(), 0.0)))

    def at(self, place: Column) -> Column:
        """ln(measured / predicted) to expect of configurations of the operation at `place` `(n, d)`, shape `(n,)`.

        Never beyond what was seen, nor beyond 0 on the other side.
        """
        across = _covariance(place, np.zeros(len(place), dtype=np.intp), self.place, self.task)
        return np.clip(across @ self.weights, self.least, self.most)


def _covariance(a: Column, task_a: NDArray[np.intp], b: Column, task_b: NDArray[np.intp]) -> Column:
    """Covariance of errors at `a` and `b`, noise aside, shape `(len(a), len(b))`."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2.0 * (a @ b.T)
    near = np.exp(np.maximum(squares, 0.0) / (-2.0 * LENGTH**2))
    same = task_a[:, None] == task_b[None]
    covariance: Column = OF_KIND**2 + NEAR_KIND**2 * near + same * (OF_TASK**2 + NEAR_TASK**2 * near)
    return covariance


TaskKey = tuple[str, str, tuple[int, ...]]
"""Device, dtype, and sizes in the model's order."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """Configurations as the model sees them.

    Attributes:
        features: Features as its formula gives them.
        knobs: int64, shape `(n, n_knobs)`.
    """

    features: list[float | Column]
    knobs: Any

    def place(self, model: FlatModel) -> Column:
        """Where they lie for the correction, shape `(n, d)`: as trees see them, and by their knobs."""
        knobs = np.log2(self.knobs + 1.0) / (KNOB_SCALE * np.sqrt(max(self.knobs.shape[1], 1)))
        return np.hstack([model.evaluator.places(self.features, len(knobs)), knobs])


def configurations(model: FlatModel, key: TaskKey, knobs: Any) -> Configurations:
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
        for name, column, constant in zip(model.knobs, columns, alike, strict=True):
            values[name] = float(column[0]) if constant else column
    else:
        values.update(dict.fromkeys(model.knobs, 0.0))
    values.update(model.facts_for(device, dtype))
    return Configurations(model.features(values), knobs)


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """What was measured of one operation.

    Attributes:
        seconds: By configuration; the median where it was measured several times.
        points: The configurations and their errors.
    """

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
        candidates = configurations(
            model, key, np.array(list(medians), dtype=np.int64).reshape(len(medians), knobs.shape[1])
        )
        predicted = model.seconds(candidates.features, len(medians))
        points = Points(
            place=candidates.place(model),
            error=np.log(np.array(list(medians.values())) / predicted),
            times=np.array([len(values) for values in by_config.values()], dtype=np.float64),
        )
        return cls(medians, points)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that was measured, and what was made of it. A value: learning more gives another one.

    Corrections are fitted when first asked for; two threads that ask at once fit the same one twice.

    Attributes:
        model: The model whose errors are corrected.
        rows: The measured rows.
        tasks: What was measured by operation, ordered by the newest measurement.
    """

    model: FlatModel
    rows: Measured
    tasks: Mapping[TaskKey, TaskMemory]
    _fitted: dict[TaskKey, Correction] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, model: FlatModel, rows: Measured | None = None) -> Memory:
        """From rows, by default those in the model's file.

        Rows on devices or dtypes that the model does not know are kept and not used.
        """
        if rows is None:
            rows = model.measured or Measured.none(len(model.sizes), len(model.knobs))
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
        task_rows = [i for i, other in enumerate(_keys(rows)) if other == key]
        tasks = {other: memory for other, memory in self.tasks.items() if other != key}
        tasks[key] = TaskMemory.of(self.model, key, rows.knobs[task_rows], rows.seconds[task_rows])
        return Memory(self.model, rows, tasks)

    def seconds(self, key: TaskKey, knobs: Any) -> Column:
        """Seconds of configurations `(n, n_knobs)` of an operation, `(n,)`: those measured as they were, others predicted.

        Predictions are moved towards what was measured of alike configurations.

        Raises:
            ModelFileError: the model does not know the device or the dtype.
            SpecError: the numbers are too large to give a time.
        """
        candidates = configurations(self.model, key, knobs)
        seconds = self.model.seconds(candidates.features, len(knobs))
        alike = [other for other in self.tasks if other[:2] == key[:2]]
        if not alike:
            return seconds
        if key not in self._fitted:
            empty = Points(np.empty((0, candidates.place(self.model).shape[1])), np.empty(0), np.empty(0))
            task_points = self.tasks[key].points if key in self.tasks else empty
            self._fitted[key] = Correction.fit(
                task_points, [self.tasks[other].points for other in alike if other != key]
            )
        corrected = seconds * np.exp(self._fitted[key].at(candidates.place(self.model)))
        if key in self.tasks:
            remembered = self.tasks[key].seconds
            for i, config in enumerate(map(tuple, candidates.knobs.tolist())):
                if config in remembered:
                    corrected[i] = remembered[config]
        return corrected


def _keys(rows: Measured) -> list[TaskKey]:
    return list(zip(rows.devices, rows.dtypes, map(tuple, rows.sizes.tolist()), strict=True))
