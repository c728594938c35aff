"""A trained model judged on measured rows: errors by slice, never only pooled, and whether its intervals hold.

`evaluate` judges a model; `comparison.compare` trains every regressor on one side of a split and judges it on the other.
Both end in an `Evaluation`, which is plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.hashing import file_sha256
from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from .labelled import Labelled
from .metrics import Metrics, shared_words, slices
from .peers import Beside, beside
from .prediction import TARGETS
from .predictor import ArtifactPredictor, load_predictor
from .reliability import LEVELS, Reliability, reliability
from .scoring import SPLIT_AND_DEVICE, Plot, Scored, pooled, score, shared_labels

_ACROSS_FAMILIES = ("source", "split", "device", "device seen in training", "in domain", "size", "kernel time")
"""Labels that mean the same in every family."""


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

    `slices`, `plots`, `intervals` and `beside` are of the one `regressor`; `compared` has every regressor and the lower
    bound, by family. `shared` says by family what all its latency rows have in common, of which there is no slice.
    `intervals` has coverage asked for and found at several levels, `beside` other predictors' figures next to ours.
    """

    title: str
    regressor: str
    coverage: float
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    slices: tuple[SliceResult, ...]
    compared: tuple[Compared, ...]
    plots: tuple[Plot, ...]
    shared: Mapping[str, Mapping[str, str]]
    intervals: tuple[Reliability, ...] = ()
    beside: tuple[Beside, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, all but the plots."""
        data = asdict(replace(self, plots=(), facts=dict(self.facts), shared=dict(self.shared)))
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
    splits: Sequence[str] | None = None,
    coverage: float = 0.9,
    levels: Sequence[float] = LEVELS,
    title: str = "Evaluation",
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
        title: of the evaluation.
        facts: what a reader should know of what was judged.
        notes: what a reader must know beside the figures.

    Raises:
        SpecError: the model knows none of the families, or a device is unknown.
    """
    scored: dict[tuple[str, str, str], list[Scored]] = {}
    known: dict[str, list[Labelled]] = {}
    missed: dict[str, int] = {}
    named = [split or "not given" for split in splits] if splits and any(splits) else [""] * len(tables)
    for rows, split in zip(tables, named, strict=True):
        name = rows.cases.family.name
        if len(rows) and name in predictor.families:
            known.setdefault(name, []).append(rows)
            for one in score(predictor, rows, coverage=coverage, split=split):
                scored.setdefault((one.family, one.target, one.regressor), []).append(one)
        else:
            missed[name] = missed.get(name, 0) + len(rows)
    if not scored:
        raise SpecError(
            f"none of these rows can be judged: the model knows {listed(predictor.families)}, the rows are of "
            f"{listed(rows.cases.family.name for rows in tables) or 'no family'}",
            field="data",
        )
    whole = [_whole(parts) for parts in scored.values()]
    intervals = [one for parts in known.values() for one in reliability(predictor, parts, levels)]
    about = {"model": str(predictor.directory), "made": predictor.manifest.get("created")} | dict(facts or {})
    remarks = [f"{name}: {n} rows not judged, the model was not trained on {name}" for name, n in missed.items()]
    found = evaluation_of(
        whole, compared_of(whole), str(predictor.manifest["regressor"]), coverage, title, about, [*notes, *remarks]
    )
    own = [one for one in whole if one.regressor == found.regressor]
    return replace(found, intervals=tuple(intervals), beside=tuple(beside(own)))


def evaluate_files(
    model_dir: Path,
    paths: Sequence[Path],
    *,
    split: str | Sequence[str] | None = None,
    family: str | None = None,
    keep_good: bool = False,
    html: Path | None = None,
    coverage: float = 0.9,
    levels: Sequence[float] = LEVELS,
    devices: Catalogue | None = None,
) -> Evaluation:
    """Judge the model in `model_dir` on measurement files, and write the HTML report where asked.

    `split` names the splits to judge, each a name or a pattern such as `val_*`; by default every row is judged.

    Raises:
        SpecError: a file breaks the form, no row has the split, the report cannot be written, or see `evaluate`.
        ArtifactError: `model_dir` is no usable model.
    """
    from .split_files import read_splits

    predictor = load_predictor(model_dir, devices)
    asked = [split] if isinstance(split, str) else list(split or ())
    tables = read_splits(paths, asked, family=family, keep_good=keep_good, devices=devices)
    judged = sorted({one.split for one in tables})
    facts = {"data": ", ".join(path.name for path in paths), "split": ", ".join(filter(None, judged)) or "all rows"}
    result = evaluate(
        predictor, [one.rows for one in tables], splits=[one.split for one in tables], coverage=coverage,
        levels=levels, facts=facts, notes=_trained_on(predictor, paths, judged),
    )  # fmt: skip
    if html is not None:
        from .report import write_report

        write_report(result, html)
    return result


def evaluation_of(
    scored: Sequence[Scored], compared: Iterable[Compared], regressor: str, coverage: float, title: str,
    facts: Mapping[str, Any], notes: Iterable[str],
) -> Evaluation:  # fmt: skip
    """The evaluation of scored rows, one entry per regressor, family and target; `regressor` is the one told of."""
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
        plots=tuple(Plot.of(one) for one in own),
        shared={one.family: shared_words(one.labels) for one in own if one.target == "latency_s"},
    )


def compared_of(scored: Iterable[Scored], device: str = "") -> list[Compared]:
    """Metrics of all rows of scored tables, as a comparison tells them."""
    return [Compared(one.regressor, one.family, one.target, device, one.metrics()) for one in scored]


def _whole(parts: Sequence[Scored]) -> Scored:
    """All tables of one family and target as one."""
    # With a single split, the device alone says the same.
    splits = {str(one.labels["split"][0]) for one in parts if "split" in one.labels}
    labels = [name for name in shared_labels(parts) if len(splits) > 1 or name != SPLIT_AND_DEVICE]
    return pooled(parts, family=parts[0].family, labels=labels)


def _within(scored: Scored) -> Iterable[SliceResult]:
    yield SliceResult(scored.target, scored.family, "all", "", scored.metrics())
    for one in slices(scored.labels):
        yield SliceResult(scored.target, scored.family, one.by, one.name, scored.metrics(one.rows))


def _across(own: Sequence[Scored]) -> Iterable[SliceResult]:
    for target in TARGETS:
        parts = [one for one in own if one.target == target]
        if len(parts) > 1:
            labels = [name for name in _ACROSS_FAMILIES if name in shared_labels(parts)]
            whole = pooled(parts, family="", labels=labels)
            families = np.repeat([one.family for one in parts], [len(one) for one in parts])
            yield from _within(replace(whole, labels={"family": families, **whole.labels}))


def _trained_on(predictor: ArtifactPredictor, paths: Sequence[Path], judged: Sequence[str]) -> list[str]:
    """A note for every file the model was trained on with these very rows: its errors there are flattered."""
    trained = {one["sha256"] for one in predictor.manifest.get("data", ())}
    calibrated = {file["sha256"] for one in predictor.manifest.get("calibrated", ()) for file in one.get("data", ())}
    # Trained on one split and judged on another is what splits are for.
    if predictor.manifest.get("split") not in (None, *judged):
        trained = set()
    found = []
    for path in paths:
        sha256 = file_sha256(path)
        for what, known in (("trained on", trained), ("calibrated with", calibrated)):
            if sha256 in known:
                found.append(
                    f"the model was {what} rows of {path.name} that are judged here: their errors are flattered"
                )
    return found
