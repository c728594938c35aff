"""From measured rows to an artifact: fit, hold out, learn the size of errors, calibrate intervals.

For each family: rows are dealt into folds by shape, so a shape never stands on both sides; held-out errors calibrate the
intervals of devices seen in training; errors with each device left out calibrate those of devices never seen; the model
that ships is fitted on all rows.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.splits import shape_folds
from ..features.cases import Cases, Floats, Strings
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from ..features.extract import Features, FeatureSchema, extract
from .artifact import Artifact, FamilyModel, TargetModel, save_artifact
from .domain import Domain
from .intervals import NO_EVIDENCE_FACTOR, Scores, log_scale_target
from .metrics import error_summary
from .predictor import power_limits_w
from .regressor import Graph, Matrix, Problem, Regressor, get_regressor

FOLDS = 5
_ALL_FOLDS_BELOW_ROWS = 20_000
"""Below this every fold is held out in turn; above it one fold gives errors enough and training stays within minutes."""

_LEFT_OUT_ROWS = 6_000
"""Rows of the other devices a left-out device is predicted from: enough for its errors, and quick."""

_SCALE_ROWS = 20_000
MIN_ROWS = 20
"""Fewer rows of a family than this cannot be held out in folds and teach nothing."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Measured cases of one family: `latency_s` in seconds and `power_w` in watts, shape `(n,)`, power NaN if unknown.

    `source` says where each row comes from, for evaluation; None where nobody told.
    """

    cases: Cases
    latency_s: Floats
    power_w: Floats
    source: Strings | None = None

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, index: Any) -> Labelled:
        """The rows at `index`, in that order."""
        source = None if self.source is None else self.source[index]
        return Labelled(self.cases.take(index), self.latency_s[index], self.power_w[index], source)


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What training made: per family its rows, devices and held-out errors."""

    regressor: str
    families: Mapping[str, Mapping[str, Any]]
    out: Path | None


@dataclass(frozen=True, slots=True)
class _Table:
    """One family's rows as a regressor sees them, `Problem` plus what splitting needs."""

    rows: Labelled
    features: Features
    x: Matrix
    targets: Mapping[str, Floats]
    fold: Any

    def problem(self, index: Any, seed: int, weight: Floats | None = None) -> Problem:
        count = len(self.x[index])
        return Problem(self.x[index], {name: y[index] for name, y in self.targets.items() if self._any(y[index])},
                       np.ones(count) if weight is None else weight, seed)  # fmt: skip

    @staticmethod
    def _any(y: Floats) -> bool:
        return bool((~np.isnan(y)).any())


def train(
    tables: Sequence[Labelled],
    *,
    regressor: str = "xgboost",
    seed: int = 0,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact trained on measured rows, one table per family.

    Raises:
        SpecError: no such regressor, a family with too few rows, a device the catalogue does not know.
    """
    fitter = get_regressor(regressor)
    steps = progress or (lambda what, done, total: None)
    families: dict[str, FamilyModel] = {}
    for i, rows in enumerate(tables):
        name = rows.cases.family.name
        steps(f"training {name}", i, len(tables))
        families[name] = _train_family(rows, fitter, seed, devices or catalogue())
    steps("training done", len(tables), len(tables))
    return Artifact(regressor, families, _versions() | {"seed": seed} | dict(facts or {}))


def train_files(
    paths: Sequence[Path],
    *,
    out: Path,
    split: str | None = None,
    regressor: str = "xgboost",
    family: str | None = None,
    keep_good: bool = False,
    seed: int = 0,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
) -> TrainingReport:
    """Train on measurement files and write the artifact to `out`.

    Raises:
        SpecError: a file or row breaks the form, no row has the split, or see `train`.
        ArtifactError: `out` cannot be written.
    """
    from .tables import labelled_files

    tables = labelled_files(paths, split=split, family=family, keep_good=keep_good)
    facts = {"data": [{"name": path.name, "sha256": _file_hash(path)} for path in paths], "split": split}
    artifact = train(tables, regressor=regressor, seed=seed, devices=devices, progress=progress, facts=facts)
    save_artifact(artifact, out)
    return report_of(artifact, out)


def report_of(artifact: Artifact, out: Path | None) -> TrainingReport:
    """The report of a trained artifact."""
    families = {
        name: {"rows": model.n_rows, "devices": list(model.devices), **model.metrics}
        for name, model in artifact.families.items()
    }
    return TrainingReport(artifact.regressor, families, out)


def _train_family(rows: Labelled, fitter: Regressor, seed: int, devices: Catalogue) -> FamilyModel:
    if len(rows) < MIN_ROWS:
        raise SpecError(
            f"{rows.cases.family.name} has {len(rows)} rows, at least {MIN_ROWS} are needed; measure more or leave it out",
            field="data",
        )
    table = _table(rows, devices)
    held_out = _held_out_answers(table, fitter, seed)
    if not (~np.isnan(held_out["latency"])).any():
        raise SpecError(
            f"the {len(rows)} rows of {rows.cases.family.name} are of too few different shapes to hold any out; "
            "measure more shapes or leave it out",
            field="data",
        )
    if "power" in table.targets and np.isnan(_errors(table, "power", held_out)).all():
        # Power of one shape only: nothing says how wrong it would be on another, so none is predicted.
        table = replace(table, targets={"latency": table.targets["latency"]})
    left_out = _left_out_answers(table, fitter, seed)
    graphs: list[Graph] = fitter.fit(table.problem(slice(None), seed))
    blobs = [graph.onnx for graph in graphs]
    targets: dict[str, TargetModel] = {}
    for target in [*table.targets, *(["energy"] if "power" in table.targets else [])]:
        model, scale = _calibrate(table, target, held_out, left_out, seed)
        place = next(
            ((i, graph.targets.index(target)) for i, graph in enumerate(graphs) if target in graph.targets), None
        )
        blobs.append(scale)
        targets[target] = replace(
            model,
            graph=None if place is None else place[0],
            column=0 if place is None else place[1],
            scale_graph=len(blobs) - 1,
        )
    names = np.unique(rows.cases.device).tolist()
    return FamilyModel(
        schema=table.features.schema,
        graphs=tuple(blobs),
        targets=targets,
        domain=Domain.fit(table.features, seed),
        devices=tuple(devices.get(name).name for name in names),
        kinds=tuple(sorted({devices.get(name).kind for name in names})),
        median_log_ratio=float(np.median(table.targets["latency"])),
        n_rows=len(rows),
        metrics=_metrics(table, held_out, left_out),
    )


def _table(rows: Labelled, devices: Catalogue) -> _Table:
    schema = FeatureSchema.fit(rows.cases)
    features = extract(rows.cases, schema, devices)
    targets = {"latency": np.log(rows.latency_s / features.work.lower_bound_s)}
    limit, _ = power_limits_w(rows.cases, devices)
    power = np.log(rows.power_w / limit)
    if (~np.isnan(power)).sum() >= MIN_ROWS:
        targets["power"] = power
    fold = shape_folds(rows.cases, FOLDS)
    return _Table(rows, features, features.values.astype(np.float32), targets, fold)


def _held_out_answers(table: _Table, fitter: Regressor, seed: int) -> dict[str, Floats]:
    """Each target's answer on rows held out by shape, shape `(n,)`, NaN where a row was never held out."""
    answers = {target: np.full(len(table.x), np.nan) for target in table.targets}
    folds = range(FOLDS) if len(table.x) < _ALL_FOLDS_BELOW_ROWS else range(1)
    for k in folds:
        out = table.fold == k
        if out.any() and (~out).sum() >= MIN_ROWS // 2:
            _fill(answers, table, fitter, np.flatnonzero(~out), np.flatnonzero(out), seed)
    return answers


def _left_out_answers(table: _Table, fitter: Regressor, seed: int) -> dict[str, Floats] | None:
    """Each target's answer on devices left out in turn, or None where there is only one device."""
    names = np.unique(table.rows.cases.device).tolist()
    if len(names) < 2:
        return None
    answers = {target: np.full(len(table.x), np.nan) for target in table.targets}
    rng = np.random.default_rng(seed)
    for name in names:
        out = table.rows.cases.device == name
        others = rng.permutation(np.flatnonzero(~out))[:_LEFT_OUT_ROWS]
        own = rng.permutation(np.flatnonzero(out))[:_LEFT_OUT_ROWS]
        _fill(answers, table, fitter, others, own, seed)
    return answers


def _fill(answers: dict[str, Floats], table: _Table, fitter: Regressor, train_on: Any, test_on: Any, seed: int) -> None:
    for graph in fitter.fit(table.problem(train_on, seed)):
        y = run_graph(graph.onnx, table.x[test_on])
        for column, target in enumerate(graph.targets):
            # The served prediction is never below the bound either.
            answers[target][test_on] = np.maximum(y[:, column], 0.0) if target == "latency" else y[:, column]


def _errors(table: _Table, target: str, answers: Mapping[str, Floats]) -> Floats:
    """ln(measured / answered), shape `(n,)`, NaN where there is no answer or no label."""
    if target == "energy":
        return _errors(table, "latency", answers) + _errors(table, "power", answers)
    return table.targets[target] - answers[target]


def _calibrate(
    table: _Table, target: str, held_out: Mapping[str, Floats], left_out: Mapping[str, Floats] | None, seed: int
) -> tuple[TargetModel, bytes]:
    """The target's scores by regime, and the graph of its scale model."""
    errors = _errors(table, target, held_out)
    rows = np.flatnonzero(~np.isnan(errors))
    scale = _ScaleModel(table, errors, rows, seed)
    seen = Scores.of(errors[rows] / scale.cross_fitted)
    scores = {"seen": seen, "unseen_device": seen.widened(NO_EVIDENCE_FACTOR)}
    if left_out is not None:
        away = _errors(table, target, left_out)
        known = np.flatnonzero(~np.isnan(away))
        # Power known on one device only cannot be left out: the guess above stands.
        if len(known):
            scores["unseen_device"] = Scores.of(away[known] / scale(table.x[known]))
    if target == "latency":
        y = table.targets["latency"]
        scores["analytic"] = Scores.of(y - np.median(y))
    return TargetModel(None, 0, None, scores), scale.onnx


class _ScaleModel:
    """Learns the size of held-out errors; `cross_fitted` are its answers on its own rows, each from a model that did not
    see the row's shape, so that scores are not flattered.
    """

    def __init__(self, table: _Table, errors: Floats, rows: Any, seed: int) -> None:
        from .regressors.xgboost import SCALE_REGRESSOR

        y = log_scale_target(errors)
        fit_on = np.random.default_rng(seed).permutation(rows)[:_SCALE_ROWS]
        # Halves by shape again, finer than the folds the errors came from.
        half = shape_folds(table.rows.cases, 2, seed=1)
        self.cross_fitted = np.empty(len(rows))
        for side in (0, 1):
            inside = rows[half[rows] == side]
            outside = fit_on[half[fit_on] != side]
            graph = SCALE_REGRESSOR.fit_scale(
                table.x[outside if len(outside) else fit_on], y[outside if len(outside) else fit_on], seed
            )
            self.cross_fitted[half[rows] == side] = _scale(graph, table.x[inside])
        self.onnx = SCALE_REGRESSOR.fit_scale(table.x[fit_on], y[fit_on], seed)

    def __call__(self, x: Matrix) -> Floats:
        return _scale(self.onnx, x)


def _scale(graph: bytes, x: Matrix) -> Floats:
    from .intervals import scale_of

    return scale_of(run_graph(graph, x)[:, 0]) if len(x) else np.empty(0)


def run_graph(graph: bytes, x: Matrix) -> Floats:
    """Answers of an ONNX graph, shape `(n, n_targets)`, from the engine that serving uses."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    answer: Floats = session.run(None, {"x": x})[0].astype(np.float64)
    return answer


def _metrics(table: _Table, held_out: Mapping[str, Floats], left_out: Mapping[str, Floats] | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for what, answers in (("held_out", held_out), ("device_left_out", left_out)):
        if answers is not None:
            metrics[what] = {target: error_summary(_errors(table, target, answers)) for target in table.targets}
    return metrics


def _versions() -> dict[str, Any]:
    packages = ("numpy", "xgboost-cpu", "scikit-learn", "torch", "onnx", "onnxruntime")
    return {"versions": {"python": platform.python_version(), **dict(_installed(packages))}}


def _installed(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError

    for package in packages:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
