"""Predictions judged: errors by slice, every regressor beside the roofline, and the HTML report.

`evaluate` judges a trained model on measured rows; `compare` trains every regressor on one side of a split and judges it
on the other. Both end in an `Evaluation`, which is plain data.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.splits import devices_left_out, held_out_region, held_out_shapes
from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from .artifact import save_artifact
from .fitting import MIN_ROWS
from .labelled import Labelled
from .metrics import Mask, Metrics, slices
from .prediction import TARGETS
from .predictor import ArtifactPredictor, load_predictor
from .regressor import regressors as known_regressors
from .scoring import LOWER_BOUND, Plot, Scored, pooled, score
from .training import DEFAULT_REGRESSOR, Progress, train

HELD_OUT = {
    "hash": "shapes held out at random, by hash",
    "region": "the largest shapes held out",
    "device": "every device left out in turn",
}
"""What `compare` can hold out."""

_ACROSS_FAMILIES = ("source", "device", "device seen in training")


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Metrics of one slice of one target; `family` is empty for all families together, `by` is `all` for all rows."""

    target: str
    family: str
    by: str
    name: str
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Compared:
    """Metrics of one regressor on one family's held-out rows; `device` is the device left out, empty for all rows."""

    regressor: str
    family: str
    target: str
    device: str
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found. `facts` says of what, on what and how; `notes` what a reader must know beside it.

    `slices` and `plots` are of the one `regressor`; `compared` has every regressor and the lower bound, by family.
    """

    title: str
    regressor: str
    coverage: float
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    slices: tuple[SliceResult, ...]
    compared: tuple[Compared, ...]
    plots: tuple[Plot, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, all but the plots."""
        data = asdict(replace(self, plots=(), facts=dict(self.facts)))
        del data["plots"]
        return data

    def overall(self, target: str = "latency_s", family: str = "") -> Metrics | None:
        """Metrics of all rows of a target, of one family or (empty) of all; None where there are none."""
        every = [one for one in self.slices if one.target == target and one.by == "all"]
        found = [one for one in every if one.family == family] or (every if not family else [])
        return found[0].metrics if found else None


def evaluate(
    predictor: ArtifactPredictor,
    tables: Sequence[Labelled],
    *,
    coverage: float = 0.9,
    title: str = "Evaluation",
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Judge a trained model on measured rows, one table per family; a family it does not know becomes a note.

    Raises:
        SpecError: the model knows none of the families, or a device is unknown.
    """
    scored: list[Scored] = []
    missed = []
    for rows in tables:
        name = rows.cases.family.name
        if len(rows) and name in predictor.families:
            scored += score(predictor, rows, coverage=coverage)
        else:
            missed.append(f"{name}: {len(rows)} rows not judged, the model was not trained on {name}")
    if not scored:
        raise SpecError(
            f"none of these rows can be judged: the model knows {listed(predictor.families)}, the rows are of "
            f"{listed(rows.cases.family.name for rows in tables) or 'no family'}",
            field="data",
        )
    about = {"model": str(predictor.directory), "made": predictor.manifest.get("created")} | dict(facts or {})
    regressor = str(predictor.manifest["regressor"])
    return _evaluation(scored, _compared(scored), regressor, coverage, title, about, [*notes, *missed])


def evaluate_files(
    model_dir: Path,
    paths: Sequence[Path],
    *,
    split: str | None = None,
    family: str | None = None,
    keep_good: bool = False,
    html: Path | None = None,
    coverage: float = 0.9,
    devices: Catalogue | None = None,
) -> Evaluation:
    """Judge the model in `model_dir` on measurement files, and write the HTML report where asked.

    Raises:
        SpecError: a file breaks the form, no row has the split, the report cannot be written, or see `evaluate`.
        ArtifactError: `model_dir` is no usable model.
    """
    from .tables import labelled_files

    predictor = load_predictor(model_dir, devices)
    tables = labelled_files(paths, split=split, family=family, keep_good=keep_good, devices=devices)
    facts = {"data": ", ".join(path.name for path in paths), "split": split or "all rows"}
    result = evaluate(predictor, tables, coverage=coverage, facts=facts, notes=_trained_on(predictor, paths, split))
    if html is not None:
        from .report import write_report

        write_report(result, html)
    return result


def compare(
    tables: Sequence[Labelled],
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
    steps = progress or (lambda what, done, total: None)
    scored: list[Scored] = []
    compared: list[Compared] = []
    seconds = dict.fromkeys(regressors, 0.0)
    for i, regressor in enumerate(regressors):
        parts: dict[tuple[str, str, str], list[Scored]] = {}
        for j, (rows, device, out) in enumerate(plan):
            where = rows.cases.family.name + (f" without {device}" if device else "")
            steps(f"{regressor} on {where}", i * len(plan) + j, len(regressors) * len(plan))
            start = time.perf_counter()
            answers = _trained_and_scored(rows, out, regressor, seed, coverage, devices)
            seconds[regressor] += time.perf_counter() - start
            if device:
                compared += _compared([one for one in answers if one.regressor == regressor], device)
            for one in answers:
                parts.setdefault((one.regressor, one.family, one.target), []).append(one)
        # The lower bound comes with every regressor: once is enough, and the roofline regressor answers just that.
        have = {one.regressor for one in scored} | ({LOWER_BOUND} if "roofline" in regressors else set())
        scored += [pooled(some, family=family, labels=_shared(some)) for (name, family, _), some in parts.items()
                   if name not in have]  # fmt: skip
    steps("comparison done", len(regressors) * len(plan), len(regressors) * len(plan))
    told = detail or (DEFAULT_REGRESSOR if DEFAULT_REGRESSOR in regressors else regressors[-1])
    facts = {"held out": HELD_OUT[held_out], "seed": seed,
             "seconds to train and judge": {name: round(spent, 1) for name, spent in seconds.items()}}  # fmt: skip
    return _evaluation(
        scored, [*_compared(scored), *compared], told, coverage, "Regressors beside the roofline", facts, notes
    )


def _sides(rows: Labelled, held_out: str, seed: int) -> Iterable[tuple[str, Mask]]:
    """Device left out (or empty) and mask of the rows held out, for every split with rows enough on both sides."""
    if held_out == "device":
        found = list(devices_left_out(rows.cases))
    elif held_out == "region":
        found = [("", held_out_region(rows.cases))]
    else:
        found = [("", held_out_shapes(rows.cases, seed=seed))]
    return [(device, out) for device, out in found if out.any() and (~out).sum() >= MIN_ROWS]


def _trained_and_scored(
    rows: Labelled, out: Mask, regressor: str, seed: int, coverage: float, devices: Catalogue | None
) -> list[Scored]:
    artifact = train([rows.take(~out)], regressor=regressor, seed=seed, devices=devices)
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        # Through the disk, so that what is judged is what would be served.
        save_artifact(artifact, Path(folder) / "model")
        return score(load_predictor(Path(folder) / "model", devices), rows.take(out), coverage=coverage)


def _evaluation(
    scored: Sequence[Scored], compared: Iterable[Compared], regressor: str, coverage: float, title: str,
    facts: Mapping[str, Any], notes: Iterable[str],
) -> Evaluation:  # fmt: skip
    own = [one for one in scored if one.regressor == regressor]
    rows = sum(len(one) for one in own if one.target == "latency_s")
    families = {one.family for one in own}
    return Evaluation(
        title=title,
        regressor=regressor,
        coverage=coverage,
        facts={**facts, "rows": rows},
        notes=tuple(notes),
        slices=(*(_across(own) if len(families) > 1 else ()), *(part for one in own for part in _within(one))),
        compared=tuple(compared),
        plots=tuple(Plot.of(one) for one in own if one.target != "energy_j"),
    )


def _compared(scored: Iterable[Scored], device: str = "") -> list[Compared]:
    return [Compared(one.regressor, one.family, one.target, device, one.metrics()) for one in scored]


def _within(scored: Scored) -> Iterable[SliceResult]:
    yield SliceResult(scored.target, scored.family, "all", "", scored.metrics())
    for one in slices(scored.labels):
        yield SliceResult(scored.target, scored.family, one.by, one.name, scored.metrics(one.rows))


def _across(own: Sequence[Scored]) -> Iterable[SliceResult]:
    for target in TARGETS:
        parts = [one for one in own if one.target == target]
        if len(parts) > 1:
            whole = pooled(parts, family="", labels=_ACROSS_FAMILIES)
            families = np.repeat([one.family for one in parts], [len(one) for one in parts])
            yield from _within(replace(whole, labels={"family": families, **whole.labels}))


def _shared(parts: Sequence[Scored]) -> list[str]:
    return [name for name in parts[0].labels if all(name in one.labels for one in parts)]


def _trained_on(predictor: ArtifactPredictor, paths: Sequence[Path], split: str | None) -> list[str]:
    """A note for every file the model was trained on with these very rows: its errors there are flattered."""
    trained = {one["sha256"] for one in predictor.manifest.get("data", ())}
    # Trained on one split and judged on another is what splits are for.
    if not trained or (split is not None and predictor.manifest.get("split") not in (None, split)):
        return []
    hashes = [(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    return [f"the model was trained on rows of {path.name} that are judged here: their errors are flattered"
            for path, sha256 in hashes if sha256 in trained]  # fmt: skip
