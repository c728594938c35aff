"""From measured rows to an artifact: fit, hold out, learn the size of errors, calibrate intervals.

For each family: rows are dealt into folds by shape, so a shape never stands on both sides; held-out errors calibrate the
intervals of devices seen in training; errors with each device left out calibrate those of devices never seen; the model
that ships is fitted on all rows.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.rows.splits import file_sha256
from ...datasets.store.store import Store
from ...features.cost.bounds import work
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ...process import core_count
from ...version import versions
from ..family_model.artifact import Artifact, FamilyModel, TargetModel, save_artifact
from ..family_model.domain import Domain, largest_sizes
from ..family_model.intervals import NEAR_DUPLICATE
from ..family_model.products import vector_labels
from ..family_model.utilisation import POWERED_KIND, PowerRows, UtilisationModel, power_limits_of
from ..metrics import error_summary
from ..regressor import Matrix, Progress, Regressor, get_regressor, no_progress
from .fitting import MIN_ROWS, Answers, TrainingTable, fit, hold_out, log_errors
from .interval_calibration import (
    DeviceHoldout,
    calibrate_intervals,
    device_holdout_answers,
    measured_by_target,
    scale_free_graphs,
)
from .labelled_cases import LabelledCases, joined_by_family, labelled_files
from .stacking import combined, stacking_weights, unneeded, weighed_members
from .store_rows import MOST_ROWS, labelled_store

DEFAULT_REGRESSOR = "blend"
_PACKAGES = ("numpy", "xgboost-cpu", "scikit-learn", "torch", "onnx", "onnxruntime")
"""Their versions are kept in the artifact."""

Members = Mapping[str, tuple[tuple[int, int, float], ...]]


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What training made.

    Attributes:
        regressor: What learned.
        families: Rows, devices and held-out errors by family.
        out: Where the artifact is; None where it was not written.
    """

    regressor: str
    families: Mapping[str, Mapping[str, Any]]
    out: Path | None


def train(
    tables: Sequence[LabelledCases],
    *,
    regressor: str = DEFAULT_REGRESSOR,
    seed: int = 0,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact trained on measured rows, one table per family.

    Args:
        tables: Labelled cases, one table per family.
        regressor: Name of the regressor.
        seed: Seed of everything random.
        devices: The devices known; None is the shipped catalogue.
        progress: Called with what is being done, families done, and families in all.
        facts: Entries for the manifest besides versions and seed.

    Raises:
        SpecError: no such regressor, a family with too few rows, a device the catalogue does not know.
    """
    fitter, known = get_regressor(regressor), devices or catalogue()
    _check(tables)
    steps = progress or no_progress
    families: dict[str, FamilyModel] = {}
    # Families wait side by side, their fits take turns on the cores: a core each beats one fit on all, and none idles while
    # the last large family ends.
    with ThreadPoolExecutor(core_count()) as cores, ThreadPoolExecutor(max_workers=len(tables)) as pool:
        running = {
            pool.submit(_train_family, rows, fitter, seed, known, cores): rows.cases.family.name
            for rows in sorted(tables, key=len, reverse=True)
        }
        steps("training", 0, len(tables))
        for future in as_completed(running):
            families[running[future]] = future.result()
            steps(f"trained {running[future]}", len(families), len(tables))
    families = with_utilisation(families, tables, known, seed)
    order = [rows.cases.family.name for rows in tables]
    installed = {"python": platform.python_version(), **versions(*_PACKAGES)}
    facts = {"versions": installed, "seed": seed} | dict(facts or {})
    return Artifact(regressor, {name: families[name] for name in order}, facts)


def train_files(
    paths: Sequence[Path],
    *,
    out: Path,
    split: str | None = None,
    regressor: str = DEFAULT_REGRESSOR,
    family: str | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    families: Sequence[str] | None = None,
    most_rows: int = MOST_ROWS,
) -> TrainingReport:
    """Train on measurement files, on a store, or on both, and write the artifact to `out`.

    `families` and `most_rows` are those of `labelled_store`; `split`, `family` and `skip_bad_rows` speak of the files.

    Args:
        paths: Form files (.parquet, .csv).
        out: Directory of the artifact.
        split: Only rows of the files whose split column says this.
        regressor: Name of the regressor.
        family: Family of all rows, for files without such a column.
        skip_bad_rows: Whether refused rows of the files are left out instead of ending the training.
        seed: Seed of everything random.
        devices: The devices known; None is the shipped catalogue.
        progress: Called with what is being done, steps done, and steps in all.
        store: A store to train on besides the files.
        families: Only these families of the store.
        most_rows: Most rows of a family of the store; the rest is left out at random.

    Raises:
        SpecError: a file or row breaks the form, no row has the split, the store has no measured row, or see `train`.
        StoreError: the store cannot be read.
        ArtifactError: `out` cannot be written.
    """
    tables = (
        labelled_files(paths, split=split, family=family, skip_bad_rows=skip_bad_rows, devices=devices) if paths else []
    )
    facts: dict[str, Any] = {
        "data": [{"name": path.name, "sha256": file_sha256(path)} for path in paths],
        "split": split,
    }
    if store is not None:
        stored = labelled_store(
            store, families=families, most_rows=most_rows, seed=seed, known=devices, progress=progress
        )  # fmt: skip
        if not stored:
            of_families = f" of {listed(families)}" if families else ""
            raise SpecError(
                f"{store.location.name} has no measured row{of_families}; `kernelcast measure cpu` measures some",
                field="store",
            )
        facts["store"] = {
            "name": store.location.name, "most_rows": most_rows, "rows": {rows.cases.family.name: len(rows) for rows in stored},
        }  # fmt: skip
        tables = joined_by_family([*tables, *stored])
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


def _check(tables: Sequence[LabelledCases]) -> None:
    """What would fail after minutes fails now."""
    if not tables:
        raise SpecError("no rows to train on; give measured rows", field="data")
    names = [rows.cases.family.name for rows in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"{listed(twice)} is given in more than one table; join them", field="data")
    for name, rows in zip(names, tables, strict=True):
        if len(rows) < MIN_ROWS:
            raise SpecError(
                f"{name} has {len(rows)} rows, at least {MIN_ROWS} are needed; measure more or leave it out",
                field="data",
            )


def _train_family(
    rows: LabelledCases, regressor: Regressor, seed: int, devices: Catalogue, cores: ThreadPoolExecutor
) -> FamilyModel:
    name = rows.cases.family.name
    table = TrainingTable.of(rows, devices)
    members, most = hold_out(table, regressor, seed, cores)
    if not members.get("latency"):
        raise SpecError(
            f"the {len(rows)} rows of {name} are of too few different shapes to hold any out; "
            "measure more shapes or leave it out",
            field="data",
        )
    weights = stacking_weights(table, members)
    held_out = combined(table, members, weights)
    if "power" in table.log_labels and np.isnan(log_errors(table, "power", held_out)).all():
        # Power of too few shapes: nothing says how wrong it would be on another, so it is not learned.
        table = replace(table, log_labels={"latency": table.log_labels["latency"]})
    fitted = cores.submit(fit, table, slice(None), regressor, seed, most, unneeded=unneeded(weights))
    left_out = device_holdout_answers(table, regressor, seed, devices, cores)
    final, triples = weighed_members(fitted.result(), weights)
    x, _ = final.inputs(table)
    free = cores.submit(scale_free_graphs, table, slice(None), final, seed).result()
    targets, scales = _target_models(table, x, len(final.graphs) + len(free), triples, (held_out, left_out), seed)
    names = np.unique(table.rows.cases.device).tolist()
    return FamilyModel(
        schema=table.features.schema,
        graphs=(*(graph.onnx for graph in final.graphs), *free, *scales),
        targets=targets,
        domain=Domain.fit(table.features, table.rows.cases.coded("device"), seed),
        devices=tuple(names),
        kinds=tuple(sorted({devices.get(device).kind for device in names})),
        median_log_ratio=float(np.median(table.log_labels["latency"] - table.log_bound)),
        n_rows=len(rows),
        measured=measured_by_target(table),
        largest=largest_sizes(table.rows.cases),
        vectors=vector_labels(table.rows.cases),
        free=len(final.graphs) if free else None,
        shift=0.0 if left_out is None else left_out.shift,
        analytic=final.analytic,
        metrics=_metrics(table, held_out, left_out),
    )


def with_utilisation(
    families: Mapping[str, FamilyModel], tables: Sequence[LabelledCases], devices: Catalogue, seed: int
) -> dict[str, FamilyModel]:
    """The families with what their own rows in loops of seconds say of power, and those without power with what the others'
    rows say of it; as they are where these say too little.

    Where this project's collectors measured power, in loops of seconds, their rows alone say it, those of all families.
    """
    powered = {name for name, family in families.items() if "power" in family.targets}
    collected = _power_rows(tables, devices, set(families), collected=True)
    is_enough = sum(len(rows.share) for rows in collected.values()) >= _LEAST_COLLECTED
    fitted = UtilisationModel.fit(collected if is_enough else _power_rows(tables, devices, powered), seed)
    if fitted is None:
        return dict(families)
    model, scores = fitted
    unmeasured = TargetModel((), None, {"seen": scores, NEAR_DUPLICATE: scores})
    answers = {}
    for name, family in families.items():
        steady, counts = UtilisationModel.of_family(collected, name), family.measured.get("power", {}).values()
        is_few = steady is not None and 0 < sum(count or _LEAST_LEARNED for count in counts) < _LEAST_LEARNED
        if "power" in family.targets and not is_few:
            answers[name] = replace(family, steady=steady)
        else:
            latency = _latency_alone(family)
            targets = {**latency.targets, "power": unmeasured, "energy": unmeasured}
            answers[name] = replace(latency, utilisation=model, steady=steady, targets=targets)
    return answers


_LEAST_LEARNED = 25
"""Rows with power from which on a family's is learned where its own rows also say it by how busy a board is. Of 20 to 22 the
latter errs by 5 to 6 % on what was left out (causal convolutions, cross entropy, rotary positions), what is learned by 13.5 to
18.5; of 25 (embeddings) by 40 and 21."""


def _latency_alone(family: FamilyModel) -> FamilyModel:
    """The model without power, and without the graphs that only power and energy read."""
    latency = family.targets["latency"]
    read = {graph for graph, *_ in latency.members} | {
        graph for graph in (latency.scale_graph, family.free) if graph is not None
    }
    places: dict[int | None, int] = {graph: place for place, graph in enumerate(sorted(read))}
    return replace(
        family, graphs=tuple(family.graphs[graph] for graph in sorted(read)), free=places.get(family.free),
        measured={target: rows for target, rows in family.measured.items() if target == "latency"},
        targets={"latency": replace(
            latency, members=tuple((places[graph], column, weight) for graph, column, weight in latency.members),
            scale_graph=places.get(latency.scale_graph),
        )},
    )  # fmt: skip


_FEW_ROWS, _LEAST_COLLECTED = 5, 100
"""Fewer rows of a family on a GPU than the first say nothing of how busy it is; fewer of all families than the second do not go
before those of tables."""


def _power_rows(
    tables: Sequence[LabelledCases], devices: Catalogue, names: Set[str], *, collected: bool = False
) -> dict[tuple[str, str], PowerRows]:
    """Rows with power of GPUs by family and device, without groups of few rows.

    Args:
        tables: rows by family.
        devices: the devices known.
        names: the families that count.
        collected: rows of this project's collectors alone, of which `_FEW_ROWS` make a group; else `MIN_ROWS` do.
    """
    groups: dict[tuple[str, str], PowerRows] = {}
    for rows in tables:
        name = rows.cases.family.name
        has_power = ~np.isnan(rows.power_w) & (rows.is_collected() if collected else True)
        for device in np.unique(rows.cases.device[has_power]).tolist() if name in names else ():
            index = np.flatnonzero((rows.cases.device == device) & has_power)
            limit_w, _ = power_limits_of(devices.get(device))
            least = _FEW_ROWS if collected else MIN_ROWS
            if devices.get(device).kind == POWERED_KIND and len(index) >= least and not np.isnan(limit_w):
                here = rows.take(index)
                paper = work(here.cases.with_catalogue_names(devices).with_core_counts(devices), devices)
                share = here.power_w / limit_w
                groups[name, device] = PowerRows(
                    here.latency_s, paper.bounds_s["compute"], paper.dram_all_s, share, is_steady=collected
                )
    return groups


def _target_models(
    table: TrainingTable,
    x: Matrix,
    place: int,
    members: Members,
    answers: tuple[Answers, DeviceHoldout | None],
    seed: int,
) -> tuple[dict[str, TargetModel], list[bytes]]:
    """Each target's model, and the graphs of error sizes, which stand from `place` on."""
    targets: dict[str, TargetModel] = {}
    scales: list[bytes] = []
    for target in [*table.log_labels, *(["energy"] if "power" in table.log_labels else [])]:
        calibration = calibrate_intervals(table, x, target, *answers, seed)
        targets[target] = TargetModel(members.get(target, ()), place + len(scales), calibration.scores)
        scales.append(calibration.scale)
    return targets, scales


def _metrics(table: TrainingTable, held_out: Answers, left_out: DeviceHoldout | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    away = None if left_out is None else left_out.answers
    for what, answers in (("held_out", held_out), ("device_left_out", away)):
        if answers is not None:
            metrics[what] = {target: error_summary(log_errors(table, target, answers)) for target in table.log_labels}
    return metrics
