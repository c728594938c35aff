"""Seconds of configurations by the tuning model of their kind, as far as its error was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ..features.cases import Floats
from ..features.tuning.kind import Task
from ..home import home_dir
from ..models.prediction import Interval
from ..models.tuning.flat import SUFFIX, FlatModel, read_model
from ..models.tuning.measured import Measured
from ..models.tuning.memory import Memory, asked
from .rank_candidates import Problem

_SHIPPED = Path(__file__).parents[1] / "models" / "pretrained_tuning"
_QUARTILE = NormalDist().inv_cdf(0.75)
"""Half of a normal distribution lies within this many standard deviations."""


@dataclass(frozen=True, slots=True)
class TuningModel:
    """A kind's model, with the error it had on rows held out from its training.

    `error` is the median of the share by which it was wrong, of the rows of one dtype.
    """

    model: FlatModel
    memory: Memory
    kind: str
    error: float

    def seconds(self, task: Task, configs: Sequence[Mapping[str, int]]) -> Floats:
        """Seconds of the configurations `(n,)`: what was measured where it was, else as predicted.

        Raises:
            SpecError: the sizes are too large to give a time.
        """
        knobs = np.array([[config.get(name, 0) for name in self.model.knobs] for config in configs], dtype=np.int64)
        key = task.device, task.dtype, tuple(int(task.sizes[name]) for name in self.model.sizes)
        given = asked(self.model, key, knobs)
        return self.memory.corrected(key, given, self.model.seconds(given.features, len(knobs)))

    def interval(self, seconds: float, least_s: float, coverage: float) -> Interval:
        """Seconds with an interval: the logarithm of the held-out error is taken as normal, known by its median size."""
        deviation = math.log1p(self.error) / _QUARTILE
        factor = math.exp(NormalDist().inv_cdf((1.0 + coverage) / 2.0) * deviation)
        return Interval(seconds, min(seconds, max(seconds / factor, least_s)), seconds * factor)


def tuning_model(problem: Problem) -> TuningModel | None:
    """The model that ranks configurations of a problem; None where there is none whose error was measured on its device.

    The user's own model of a kind, under `KERNELCAST_HOME`, comes before the shipped one.

    Raises:
        ModelFileError: the file is damaged.
    """
    task = problem.task
    name = f"{task.kind}{SUFFIX}"
    path = next((path for path in (home_dir() / "tuning" / name, _SHIPPED / name) if path.is_file()), None)
    if path is None:
        return None
    status = path.stat()
    model, memory = _read(_File(path, task.kind, status.st_mtime_ns, status.st_size))
    rows = model.metadata.get("held_out_rows", {}).get(task.dtype, {})
    error_pct = rows.get("median_ape_pct")
    measured = task.device in model.metadata.get("devices_measured", ())
    if not measured or error_pct is None or (task.device, task.dtype) not in model.table:
        return None
    return TuningModel(model, memory, task.kind, error_pct / 100)


@dataclass(frozen=True, slots=True)
class _File:
    """A model file as it is now; another time or length is another file, which is read again."""

    path: Path
    kind: str
    changed_ns: int
    length_b: int


@lru_cache(maxsize=32)
def _read(file: _File) -> tuple[FlatModel, Memory]:
    model = read_model(file.path, file.kind)
    return model, Memory.of(model, model.measured or Measured.none(len(model.sizes), len(model.knobs)))
