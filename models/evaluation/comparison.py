"""Every regressor trained on one side of a split and judged on the other, beside the roofline."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...datasets.rows.splits import devices_left_out, held_out_region, held_out_shapes
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ..family_model.artifact import save_artifact
from ..metrics import Mask
from ..predict.predictor import load_predictor
from ..regressor import Progress, no_progress
from ..regressor import regressors as known_regressors
from ..training.fitting import MIN_ROWS
from ..training.labelled_cases import LabelledCases
from ..training.training import DEFAULT_REGRESSOR, train
from .evaluation import Evaluation, RegressorMetrics, evaluation_of, regressor_metrics
from .scoring import LOWER_BOUND, Scored, pooled, score, shared_labels

HELD_OUT = {
    "hash": "shapes held out at random, by hash",
    "region": "the largest shapes held out",
    "device": "every device left out in turn",
}
"""What `compare` can hold out."""


def compare(
    tables: Sequence[LabelledCases],
    regressors: Sequence[str] | None = None,
    *,
    held_out: str = "hash",
    detail: str | None = None,
    seed: int = 0,
    coverage: float = 0.9,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Train every regressor on one side of a split and judge it on the other, beside the lower bound.

    Args:
        tables: measured rows, one table per family.
        regressors: those to compare; default: all there are.
        held_out: `hash` (a tenth of the shapes, by content), `region` (the largest shapes) or `device` (leave-one-out).
        detail: the regressor whose slices and plots are told; default: the one that ships, else the last one.
        seed: of training, and of which shapes are held out.
        coverage: of the intervals that are judged.
        devices: the catalogue, default the shipped one.
        progress: called before every training.

    Raises:
        SpecError: an unknown `held_out` or regressor, or no family has rows enough on both sides.
    """
    if held_out not in HELD_OUT:
        raise SpecError(f"cannot hold out {held_out!r}; it is one of {listed(HELD_OUT)}", field="held_out")
    regressors = list(regressors or sorted(known_regressors(), key=lambda name: name != "roofline"))
    plan = [(rows, device, mask) for rows in tables for device, mask in _sides(rows, held_out, seed)]
    judged = {rows.cases.family.name for rows, _, _ in plan}
    names = [rows.cases.family.name for rows in tables]
    notes = [
        f"{name} is not compared: too few rows or devices to hold some out" for name in names if name not in judged
    ]
    if not plan:
        raise SpecError(f"nothing to compare: {'; '.join(notes) or 'no rows'}", field="data")
    steps = progress or no_progress
    scored: list[Scored] = []
    compared: list[RegressorMetrics] = []
    seconds = dict.fromkeys(regressors, 0.0)
    for i, regressor in enumerate(regressors):
        parts: dict[tuple[str, str, str], list[Scored]] = {}
        for j, (rows, device, out) in enumerate(plan):
            where = rows.cases.family.name + (f" without {device}" if device else "")
            steps(f"{regressor} on {where}", i * len(plan) + j, len(regressors) * len(plan))
            start = time.perf_counter()
            answers = trained_and_scored(rows, out, regressor, seed, coverage, devices)
            seconds[regressor] += time.perf_counter() - start
            if device:
                compared += regressor_metrics([answer for answer in answers if answer.regressor == regressor], device)
            for answer in answers:
                parts.setdefault((answer.regressor, answer.family, answer.target), []).append(answer)
        # The lower bound comes with every regressor: once is enough, and the roofline regressor answers just that.
        have = {rows.regressor for rows in scored} | ({LOWER_BOUND} if "roofline" in regressors else set())
        scored += [pooled(some, family=family, labels=shared_labels(some)) for (name, family, _), some in parts.items()
                   if name not in have]  # fmt: skip
    steps("comparison done", len(regressors) * len(plan), len(regressors) * len(plan))
    detailed = detail or (DEFAULT_REGRESSOR if DEFAULT_REGRESSOR in regressors else regressors[-1])
    facts = {"held out": HELD_OUT[held_out], "seed": seed,
             "seconds to train and judge": {name: round(spent, 1) for name, spent in seconds.items()}}  # fmt: skip
    return evaluation_of(
        scored,
        [*regressor_metrics(scored), *compared],
        detailed,
        coverage,
        "Regressors beside the roofline",
        facts,
        notes,
    )


def _sides(rows: LabelledCases, held_out: str, seed: int) -> Iterable[tuple[str, Mask]]:
    """Device left out (or empty) and mask of the rows held out, for every split with rows enough on both sides."""
    if held_out == "device":
        sides = list(devices_left_out(rows.cases))
    elif held_out == "region":
        sides = [("", held_out_region(rows.cases))]
    else:
        sides = [("", held_out_shapes(rows.cases, seed=seed))]
    return [(device, out) for device, out in sides if out.any() and (~out).sum() >= MIN_ROWS]


def trained_and_scored(
    rows: LabelledCases, out: Mask, regressor: str, seed: int, coverage: float, devices: Catalogue | None
) -> list[Scored]:
    """The rows that are `out`, scored by a model trained on the others."""
    artifact = train([rows.take(~out)], regressor=regressor, seed=seed, devices=devices)
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        # Through the disk, so that what is judged is what would be served.
        save_artifact(artifact, Path(folder) / "model")
        return score(load_predictor(Path(folder) / "model", devices), rows.take(out), coverage=coverage)
