"""Limits that no gain in accuracy outweighs: answers that are no numbers, lost families, empty intervals, speed, size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Cases
from ...models.family_model.artifact import read_manifest
from ...models.predict.prediction import Predictions
from ...models.predict.predictor import ArtifactPredictor
from .challengers import known_devices

_BELOW = 1e-6
"""Relative room under the physical bound for rounding."""

_NARROWEST = 1e-4
"""ln(upper / lower) of an interval that claims to know a latency to 0.01 %: no measurement repeats that well."""

_REPEATS = 5


def answers_refused(family: str, predictions: Predictions) -> Iterable[str]:
    """Why answers of one family cannot be served: no numbers, intervals wrong or without width, physics beaten."""
    columns = predictions.targets["latency_s"]
    value, lower, upper = columns.value, columns.lower, columns.upper
    good = (
        np.isfinite(value) & np.isfinite(lower) & np.isfinite(upper) & (lower > 0) & (lower <= value) & (value <= upper)
    )
    if not good.all():
        yield f"{(~good).sum()} of {len(value)} answers of {family} are no latency with an interval around it"
        return
    bound = np.max(np.stack(list(predictions.breakdown.values())), axis=0)
    if (under := value < bound * (1.0 - _BELOW)).any():
        yield f"{under.sum()} of {len(value)} answers of {family} are below the physical bound"
    if np.median(np.log(upper / lower)) < _NARROWEST:
        yield f"intervals of {family} have collapsed: half of them are narrower than 0.01 %"


def coverage_lost(champion: Path, challenger: Path) -> list[str]:
    """What the champion answers from measurements and the challenger no longer would: `family on device`, or its power."""
    before, after = (_measured(read_manifest(path)) for path in (champion, challenger))
    return sorted(before - after)


def _measured(manifest: Mapping[str, Any]) -> set[str]:
    measured: set[str] = set()
    for family, entry in manifest["families"].items():
        measured |= {f"{family} on {device}" for device in known_devices(entry)}
        powered = {word.split(" ")[0] for word in entry.get("measured", {}).get("power", ())}
        powered |= {device for device, targets in entry.get("adaptations", {}).items() if "power" in targets}
        measured |= {f"the power of {family} on {device}" for device in powered}
    return measured


def seconds_per_answer(predictors: Sequence[ArtifactPredictor], tables: Sequence[Cases]) -> list[float]:
    """Seconds that each predictor takes for all the tables: the best of several turns, since others run here too.

    The predictors take turns, so that a slow stretch of the machine falls on all of them, and have one thread: on a busy
    machine threads of small products wait for each other. Families that one of them lacks are left out of all.
    """
    from threadpoolctl import threadpool_limits

    shared = [table for table in tables if all(table.family.name in predictor.families for predictor in predictors)]
    best = [float("inf")] * len(predictors)
    with threadpool_limits(1):
        for _ in range(_REPEATS):
            for i, predictor in enumerate(predictors):
                began = time.perf_counter()
                for table in shared:
                    predictor.predict_cases(table)
                best[i] = min(best[i], time.perf_counter() - began)
    return best


def size_b(directory: Path) -> int:
    """Bytes of a model's files."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
