"""From measured rows to an artifact: fit, hold out, learn the size of errors, calibrate intervals.

For each family: rows are dealt into folds by shape, so a shape never stands on both sides; held-out errors calibrate the
intervals of devices seen in training; errors with each device left out calibrate those of devices never seen; the model
that ships is fitted on all rows.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from .artifact import Artifact, FamilyModel, TargetModel, save_artifact
from .calibration import calibrate
from .domain import Domain
from .fitting import MIN_ROWS, Answers, Fit, TrainingTable, fit, held_out_answers, left_out_answers, log_errors
from .labelled import Labelled
from .metrics import error_summary
from .regressor import Regressor, get_regressor, training_threads
from .stacking import combined, stacking_weights, weighed_members

DEFAULT_REGRESSOR = "blend"

_LARGE_TABLE = 20_000

Members = Mapping[str, tuple[tuple[int, int, float], ...]]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What training made: per family its rows, devices and held-out errors."""

    regressor: str
    families: Mapping[str, Mapping[str, Any]]
    out: Path | None


def train(
    tables: Sequence[Labelled],
    *,
    regressor: str = DEFAULT_REGRESSOR,
    seed: int = 0,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact trained on measured rows, one table per family.

    Raises:
        SpecError: no such regressor, a family with too few rows, a device the catalogue does not know.
    """
    fitter, known = get_regressor(regressor), devices or catalogue()
    steps = progress or (lambda what, done, total: None)
    cores = training_threads()
    # Families side by side on one core each beat one family on all cores: its fits are many and small. A lone large table
    # has all cores; a lone small one does not, so that it is fitted to the bit as it would be beside others.
    alone = len(tables) == 1 and len(tables[0]) > _LARGE_TABLE
    threads = cores if alone else 1
    families: dict[str, FamilyModel] = {}
    with ThreadPoolExecutor(max_workers=cores if len(tables) > 1 else 1) as pool:
        running = {
            pool.submit(_train_family, rows, fitter, seed, known, threads): rows.cases.family.name
            for rows in sorted(tables, key=len, reverse=True)
        }
        steps("training", 0, len(tables))
        for future in as_completed(running):
            families[running[future]] = future.result()
            steps(f"trained {running[future]}", len(families), len(tables))
    order = [rows.cases.family.name for rows in tables]
    facts = _versions() | {"seed": seed} | dict(facts or {})
    return Artifact(regressor, {name: families[name] for name in order}, facts)


def train_files(
    paths: Sequence[Path],
    *,
    out: Path,
    split: str | None = None,
    regressor: str = DEFAULT_REGRESSOR,
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

    tables = labelled_files(paths, split=split, family=family, keep_good=keep_good, devices=devices)
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


def _train_family(rows: Labelled, regressor: Regressor, seed: int, devices: Catalogue, threads: int) -> FamilyModel:
    name = rows.cases.family.name
    if len(rows) < MIN_ROWS:
        raise SpecError(
            f"{name} has {len(rows)} rows, at least {MIN_ROWS} are needed; measure more or leave it out", field="data"
        )
    table = TrainingTable.of(rows, devices, threads)
    members = held_out_answers(table, regressor, seed)
    if not members.get("latency"):
        raise SpecError(
            f"the {len(rows)} rows of {name} are of too few different shapes to hold any out; "
            "measure more shapes or leave it out",
            field="data",
        )
    weights = stacking_weights(table, members)
    held_out = combined(table, members, weights)
    if "power" in table.log_labels and np.isnan(log_errors(table, "power", held_out)).all():
        # Power of one shape only: nothing says how wrong it would be on another, so none is predicted.
        table = replace(table, log_labels={"latency": table.log_labels["latency"]})
    away = left_out_answers(table, regressor, seed)
    left_out = None if away is None else combined(table, away, weights)
    final, triples = weighed_members(fit(table, slice(None), regressor, seed), weights)
    targets, scales = _target_models(table, final, triples, held_out, left_out, seed)
    names = np.unique(rows.cases.device).tolist()
    return FamilyModel(
        schema=table.features.schema,
        graphs=(*(graph.onnx for graph in final.graphs), *scales),
        targets=targets,
        domain=Domain.fit(table.features, seed),
        devices=tuple(devices.get(device).name for device in names),
        kinds=tuple(sorted({devices.get(device).kind for device in names})),
        median_log_ratio=float(np.median(table.log_labels["latency"] - table.log_bound)),
        n_rows=len(rows),
        analytic=final.analytic,
        metrics=_metrics(table, held_out, left_out),
    )


def _target_models(
    table: TrainingTable, final: Fit, members: Members, held_out: Answers, left_out: Answers | None, seed: int
) -> tuple[dict[str, TargetModel], list[bytes]]:
    """Each target's model, and the graphs of error sizes that follow the fit's own graphs."""
    x, _ = final.inputs(table)
    targets: dict[str, TargetModel] = {}
    scales: list[bytes] = []
    for target in [*table.log_labels, *(["energy"] if "power" in table.log_labels else [])]:
        calibration = calibrate(table, x, target, held_out, left_out, seed)
        place = len(final.graphs) + len(scales)
        targets[target] = TargetModel(members.get(target, ()), place, calibration.scores)
        scales.append(calibration.scale)
    return targets, scales


def _metrics(table: TrainingTable, held_out: Answers, left_out: Answers | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for what, answers in (("held_out", held_out), ("device_left_out", left_out)):
        if answers is not None:
            metrics[what] = {target: error_summary(log_errors(table, target, answers)) for target in table.log_labels}
    return metrics


def _versions() -> dict[str, Any]:
    packages = ("numpy", "xgboost-cpu", "scikit-learn", "torch", "onnx", "onnxruntime")
    return {"versions": {"python": platform.python_version(), **dict(_installed(packages))}}


def _installed(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
