"""What measurements teach about configurations not measured: a Gaussian process on the model's errors, in closed form.

The error of a measurement is ln(measured / predicted). Two configurations err alike as far as trees judge them alike
(`Judge.places`) and their knobs are alike: much within one operation, a little across operations of the kind on the same
device and dtype. Exact regression by Cholesky factorisation (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, algorithm 2.1); left-out errors after their equations 5.10 to 5.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .forest import Column

OF_KIND, OF_TASK = 0.1, 0.2
"""Standard deviations of ln(measured / predicted): of the factor common to a kind on a device, and of one operation's."""

NEAR_KIND, NEAR_TASK = 0.1, 0.3
"""Of the remainder that only near configurations share: across operations, and within one."""

LENGTH = 0.15
"""Distance at which configurations are still alike, in the units of `Judge.places`."""

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


@dataclass(frozen=True, slots=True)
class Points:
    """Measured configurations: `place` `(n, d)`, `error` `(n,)`, how often each was measured `(n,)`."""

    place: Column
    error: Column
    times: Column

    def newest(self, most: int) -> Points:
        """At most so many, the ones measured last."""
        return Points(self.place[-most:], self.error[-most:], self.times[-most:])


@dataclass(frozen=True, slots=True)
class Correction:
    """A fitted process: the points it was fitted on, the operation each is of (0: the one asked about), their weights."""

    place: Column
    task: NDArray[np.intp]
    weights: Column
    least: float
    most: float

    @classmethod
    def fit(cls, own: Points, others: Sequence[Points]) -> Correction:
        """The process for one operation, from its own measurements and those of others of the kind, newest last."""
        chosen, room = [own.newest(OWN_POINTS)], OTHER_POINTS
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
        found: Column = np.clip(across @ self.weights, self.least, self.most)
        return found


def _covariance(a: Column, task_a: NDArray[np.intp], b: Column, task_b: NDArray[np.intp]) -> Column:
    """Covariance of errors at `a` and `b`, noise aside, shape `(len(a), len(b))`."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2.0 * (a @ b.T)
    near = np.exp(np.maximum(squares, 0.0) / (-2.0 * LENGTH**2))
    same = task_a[:, None] == task_b[None]
    found: Column = OF_KIND**2 + NEAR_KIND**2 * near + same * (OF_TASK**2 + NEAR_TASK**2 * near)
    return found
