"""A trained model judged on measured rows: errors by slice, never only pooled, and whether its intervals hold.

`evaluate` judges a model; `compare` trains every regressor on one side of a split and judges it on the other, beside the
roofline. Both end in an `Evaluation`, which is plain data.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.rows.splits import devices_left_out, file_sha256, held_out_region, held_out_shapes
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ..family_model.artifact import save_artifact
from ..metrics import Mask, Metrics, shared_words, slices
from ..predict.prediction import TARGETS
from ..predict.predictor import ArtifactPredictor, load_predictor
from ..regressor import Progress, no_progress
from ..regressor import regressors as known_regressors
from ..training.fitting import MIN_ROWS
from ..training.labelled_cases import LabelledCases, read_splits
from ..training.training import DEFAULT_REGRESSOR, train
from .published_errors import PublishedComparison, beside
from .scoring import (
    LEVELS,
    LOWER_BOUND,
    SPLIT_AND_DEVICE,
    Plot,
    Reliability,
    Scored,
    pooled,
    reliability,
    score,
    shared_labels,
)  # fmt: skip

_ACROSS_FAMILIES = ("source", "split", "device", "device seen in training", "in domain", "size", "kernel time")
"""Labels that mean the same in every family."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Metrics of one slice of one target.

    Attributes:
        target: `latency_s`, `power_w` or `energy_j`.
        family: Kernel family; empty for all together.
        by: What the rows are sliced by; `all` for all rows.
        name: The value of it that the rows have.
        metrics: Their metrics.
    """

    target: str
    family: str
    by: str
    name: str
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class RegressorMetrics:
    """Metrics of one regressor on one family's held-out rows.

    Attributes:
        regressor: Its name.
        family: Kernel family.
        target: `latency_s`, `power_w` or `energy_j`.
        device: The device left out; empty for all rows.
        metrics: Their metrics.
    """

    regressor: str
    family: str
    target: str
    device: str
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        title: Of the report.
        regressor: The one that `slices`, `plots`, `intervals` and `beside` are about.
        coverage: Of the intervals judged slice by slice.
        facts: What was judged, on what and how.
        notes: What a reader must know beside the figures.
        slices: Metrics by slice.
        compared: Every regressor and the lower bound, by family.
        plots: What is drawn.
        shared: By family the labels that all its latency rows have in common, of which there is no slice.
        intervals: Coverage found at several nominal coverages.
        beside: Other predictors' published figures next to these.
    """

    title: str
    regressor: str
    coverage: float
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    slices: tuple[SliceResult, ...]
    compared: tuple[RegressorMetrics, ...]
    plots: tuple[Plot, ...]
    shared: Mapping[str, Mapping[str, str]]
    intervals: tuple[Reliability, ...] = ()
    beside: tuple[PublishedComparison, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, all but the plots."""
        data = asdict(replace(self, plots=(), facts=dict(self.facts), shared=dict(self.shared)))
        del data["plots"]
        return data

    def overall(self, target: str) -> Metrics | None:
        """Metrics of all rows of a target; None where there are none."""
        # All families together come before each.
        return next((part.metrics for part in self.slices if part.target == target and part.by == "all"), None)


def evaluate(
    predictor: ArtifactPredictor,
    tables: Sequence[LabelledCases],
    *,
    splits: Sequence[str] | None = None,
    coverage: float = 0.9,
    levels: Sequence[float] = LEVELS,
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Judge a trained model on measured rows; a family it does not know becomes a note.

    Args:
        predictor: the model.
        tables: measured rows, each table of one family; several may be of the same.
        splits: the split each table is of, empty for none; default: none of them is of any.
        coverage: of the intervals that are judged slice by slice.
        levels: coverages at which intervals are judged as a whole; none for no such look, which takes a prediction of
            every row per level.
        facts: what a reader should know of what was judged.
        notes: what a reader must know beside the figures.

    Raises:
        SpecError: the model knows none of the families, or a device is unknown.
    """
    scored: dict[tuple[str, str, str], list[Scored]] = {}
    known: dict[str, list[LabelledCases]] = {}
    missed: dict[str, int] = {}
    named = [split or "not given" for split in splits] if splits and any(splits) else [""] * len(tables)
    for rows, split in zip(tables, named, strict=True):
        name = rows.cases.family.name
        if len(rows) and name in predictor.families:
            known.setdefault(name, []).append(rows)
            for part in score(predictor, rows, coverage=coverage, split=split):
                scored.setdefault((part.family, part.target, part.regressor), []).append(part)
        else:
            missed[name] = missed.get(name, 0) + len(rows)
    if not scored:
        raise SpecError(
            f"none of these rows can be judged: the model knows {listed(predictor.families)}, the rows are of "
            f"{listed(rows.cases.family.name for rows in tables) or 'no family'}",
            field="data",
        )
    whole, regressor = [_whole(parts) for parts in scored.values()], str(predictor.manifest["regressor"])
    intervals = [target_rows for parts in known.values() for target_rows in reliability(predictor, parts, levels)]
    about = {"model": str(predictor.directory), "made": predictor.manifest.get("created")} | dict(facts or {})
    remarks = [f"{name}: {n} rows not judged, the model was not trained on {name}" for name, n in missed.items()]
    evaluation = evaluation_of(
        whole, regressor_metrics(whole), regressor, coverage, "Evaluation", about, [*notes, *remarks]
    )
    peers = beside(target_rows for target_rows in whole if target_rows.regressor == regressor)
    return replace(evaluation, intervals=tuple(intervals), beside=tuple(peers))


def evaluate_files(
    model_dir: Path,
    paths: Sequence[Path],
    *,
    split: Sequence[str] = (),
    family: str | None = None,
    skip_bad_rows: bool = False,
    coverage: float = 0.9,
    devices: Catalogue | None = None,
) -> Evaluation:
    """Judge the model in `model_dir` on measurement files.

    `split` names the splits to judge, each a name or a pattern such as `val_*`; by default every row is judged.

    Args:
        model_dir: Directory of the artifact.
        paths: Form files (.parquet, .csv).
        split: Splits to judge, each a name or a pattern such as `val_*`; empty judges every row.
        family: Family of all rows, for files without such a column.
        skip_bad_rows: Whether refused rows are left out instead of ending the evaluation.
        coverage: Share of cases the intervals are to contain.
        devices: The devices known; None is the shipped catalogue.

    Raises:
        SpecError: a file breaks the form, no row has the split, or see `evaluate`.
        ArtifactError: `model_dir` is no usable model.
    """
    predictor = load_predictor(model_dir, devices)
    tables = read_splits(paths, split, family=family, skip_bad_rows=skip_bad_rows, devices=devices)
    judged = sorted({table.split for table in tables})
    facts = {"data": ", ".join(path.name for path in paths), "split": ", ".join(filter(None, judged)) or "all rows"}
    return evaluate(
        predictor, [table.rows for table in tables], splits=[table.split for table in tables], coverage=coverage, facts=facts,
        notes=_trained_on(predictor, paths, judged),
    )  # fmt: skip


def evaluation_of(
    scored: Sequence[Scored], compared: Iterable[RegressorMetrics], regressor: str, coverage: float, title: str,
    facts: Mapping[str, Any], notes: Iterable[str],
) -> Evaluation:  # fmt: skip
    """The evaluation of scored rows, one entry per regressor, family and target; `regressor` is the one told of."""
    detailed = [rows for rows in scored if rows.regressor == regressor]
    rows = sum(len(target_rows) for target_rows in detailed if target_rows.target == "latency_s")
    families = {target_rows.family for target_rows in detailed}
    return Evaluation(
        title=title,
        regressor=regressor,
        coverage=coverage,
        facts={**facts, "rows": rows},
        notes=tuple(notes),
        slices=(
            *(_across(detailed) if len(families) > 1 else ()),
            *(part for target_rows in detailed for part in _within(target_rows)),
        ),
        compared=tuple(compared),
        plots=tuple(Plot.of(target_rows) for target_rows in detailed),
        shared={
            target_rows.family: shared_words(target_rows.labels)
            for target_rows in detailed
            if target_rows.target == "latency_s"
        },
    )


def regressor_metrics(scored: Iterable[Scored], device: str = "") -> list[RegressorMetrics]:
    """Metrics of all rows of scored tables, as a comparison tells them."""
    return [RegressorMetrics(rows.regressor, rows.family, rows.target, device, rows.metrics()) for rows in scored]


def _whole(parts: Sequence[Scored]) -> Scored:
    """All tables of one family and target as one."""
    # With a single split, the device alone says the same.
    splits = {str(part.labels["split"][0]) for part in parts if "split" in part.labels}
    labels = [name for name in shared_labels(parts) if len(splits) > 1 or name != SPLIT_AND_DEVICE]
    return pooled(parts, family=parts[0].family, labels=labels)


def _within(scored: Scored) -> Iterable[SliceResult]:
    yield SliceResult(scored.target, scored.family, "all", "", scored.metrics())
    for part in slices(scored.labels):
        yield SliceResult(scored.target, scored.family, part.by, part.name, scored.metrics(part.rows))


def _across(scored: Sequence[Scored]) -> Iterable[SliceResult]:
    for target in TARGETS:
        parts = [target_rows for target_rows in scored if target_rows.target == target]
        if len(parts) > 1:
            labels = [name for name in _ACROSS_FAMILIES if name in shared_labels(parts)]
            whole = pooled(parts, family="", labels=labels)
            families = np.repeat([part.family for part in parts], [len(part) for part in parts])
            yield from _within(replace(whole, labels={"family": families, **whole.labels}))


def _trained_on(predictor: ArtifactPredictor, paths: Sequence[Path], judged: Sequence[str]) -> list[str]:
    """A note for every file the model was trained on with these very rows: its errors there are flattered."""
    manifest = predictor.manifest
    # Trained on one split and judged on another is what splits are for.
    trained = manifest.get("data", ()) if manifest.get("split") in (None, *judged) else ()
    calibrated = [file for adaptation in manifest.get("calibrated", ()) for file in adaptation.get("data", ())]
    return [
        f"the model was {what} rows of {path.name} that are judged here: their errors are flattered"
        for path in paths
        for what, files in (("trained on", trained), ("calibrated with", calibrated))
        if file_sha256(path) in {file["sha256"] for file in files}
    ]


HELD_OUT = {
    "hash": "shapes held out at random, by hash",
    "region": "the largest shapes held out",
    "device": "every device left out in turn",
}
"""What `compare` can hold out."""


def compare(
    tables: Sequence[LabelledCases],
    regressors: Sequence[str] = (),
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
        regressors: those to compare; none: all there are.
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
    names = list(regressors or sorted(known_regressors(), key=lambda name: name != "roofline"))
    plan = [(rows, device, mask) for rows in tables for device, mask in _sides(rows, held_out, seed)]
    judged = {rows.cases.family.name for rows, _, _ in plan}
    missed = [rows.cases.family.name for rows in tables if rows.cases.family.name not in judged]
    notes = [f"{family} is not compared: too few rows or devices to hold some out" for family in missed]
    if not plan:
        raise SpecError(f"nothing to compare: {'; '.join(notes) or 'no rows'}", field="data")
    steps = progress or no_progress
    by_device: list[RegressorMetrics] = []
    seconds = dict.fromkeys(names, 0.0)
    parts: dict[tuple[str, str, str], list[Scored]] = {}
    for i, (name, (rows, device, out)) in enumerate(itertools.product(names, plan)):
        where = rows.cases.family.name + (f" without {device}" if device else "")
        steps(f"{name} on {where}", i, len(names) * len(plan))
        start = time.perf_counter()
        answers = trained_and_scored(rows.take(~out), [rows.take(out)], name, coverage, devices, seed)
        seconds[name] += time.perf_counter() - start
        # The lower bound comes with every regressor: once is enough, and the roofline regressor answers just that.
        if name != names[0] or "roofline" in names:
            answers = [answer for answer in answers if answer.regressor != LOWER_BOUND]
        if device:
            by_device += regressor_metrics([answer for answer in answers if answer.regressor == name], device)
        for answer in answers:
            parts.setdefault((answer.regressor, answer.family, answer.target), []).append(answer)
    steps("comparison done", len(names) * len(plan), len(names) * len(plan))
    scored = [pooled(some, family=family, labels=shared_labels(some)) for (_, family, _), some in parts.items()]
    facts = {"held out": HELD_OUT[held_out], "seed": seed,
             "seconds to train and judge": {name: round(spent, 1) for name, spent in seconds.items()}}  # fmt: skip
    detailed = detail or (DEFAULT_REGRESSOR if DEFAULT_REGRESSOR in names else names[-1])
    title = "Regressors beside the roofline"
    return evaluation_of(scored, [*regressor_metrics(scored), *by_device], detailed, coverage, title, facts, notes)


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
    rows: LabelledCases, judged: Sequence[LabelledCases], regressor: str, coverage: float, devices: Catalogue | None,
    seed: int = 0,
) -> list[Scored]:  # fmt: skip
    """Tables of one family, scored by a model trained on `rows`."""
    artifact = train([rows], regressor=regressor, seed=seed, devices=devices)
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        # Through the disk, so that what is judged is what would be served.
        save_artifact(artifact, Path(folder) / "model")
        predictor = load_predictor(Path(folder) / "model", devices)
        return [target_rows for table in judged for target_rows in score(predictor, table, coverage=coverage)]
