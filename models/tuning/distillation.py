"""Small models of single operations, taught by a trained predictor and written to files: what compilers ask without Python.

The predictor is asked about thousands of operations on every device, and boosted trees learn ln(latency / lower bound) of its
answers, and ln(power) where it answers power. A model is as good as its teacher at most: both errors are told, against fresh
answers of the teacher and against measured rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Device
from ...features.errors import SpecError, listed
from ...features.tuning.family_kinds import (
    HAS_POWER,
    LOG_LOWER,
    LOG_UPPER,
    PREFIX,
    THREADS,
    VARIANT,
    VARIANT_CODES,
    WEIGHTS,
)
from ...features.tuning.formula import Formula
from ...features.tuning.kind import BOUND, TuningKind, get_kind
from ...version import __version__
from ..metrics import error_summary
from ..predict.predictor import ArtifactPredictor
from ..regressor import Progress, no_progress
from ..training.labelled_cases import LabelledCases, joined, labelled_table
from .flat_model import SUFFIX, FlatModel, write_model
from .forest import Forest, forest_of
from .operation_sampling import COVERAGE, MOST_LATENCY_S, TeacherAnswers, asked_teacher, usual_impl
from .rows import read_tables


@dataclass(frozen=True, slots=True)
class Trees:
    """A forest's size.

    Attributes:
        depth: Depth of a tree.
        rounds: Number of trees.
        rate: How fast they learn.
    """

    depth: int
    rounds: int
    rate: float


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How much the teacher is asked and how large the trees are.

    Attributes:
        rows_measured: Operations per device and dtype where the teacher was measured.
        rows_other: Operations per device and dtype where it carries over from others.
        fresh_measured: Operations asked anew to judge by, where it was measured.
        fresh_other: The same where it carries over.
        weight_other: Weight of rows where it carries over, whose answers are far rougher than what trees miss.
        trees: Trees of latency by family, `""` for all others.
        power_trees: Trees of power.
        seed: Of everything random.
    """

    rows_measured: int = 20_000
    rows_other: int = 600
    fresh_measured: int = 1_000
    fresh_other: int = 150
    weight_other: float = 0.1
    trees: Mapping[str, Trees] = field(
        default_factory=lambda: {"": Trees(7, 180, 0.2), "gemm": Trees(9, 180, 0.16), "conv2d": Trees(9, 120, 0.16)}
    )
    power_trees: Trees = Trees(6, 120, 0.2)
    seed: int = 0

    @classmethod
    def of_rows(cls, rows: int, seed: int) -> TrainingConfig:
        """A recipe with `rows` operations where the teacher was measured, and all else in proportion."""
        usual = cls()
        parts = {
            name: max(round(getattr(usual, name) * rows / usual.rows_measured), 1)
            for name in ("rows_other", "fresh_measured", "fresh_other")
        }
        return cls(rows_measured=rows, seed=seed, **parts)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors on one device in one dtype, as `metrics.error_summary` gives them.

    Attributes:
        device: Its name.
        dtype: The dtype.
        measured: Whether the teacher was measured there.
        latency: Errors of latency.
        power: Errors of power; empty where it is not known.
    """

    device: str
    dtype: str
    measured: bool
    latency: Mapping[str, float]
    power: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Distilled:
    """One family's model.

    Attributes:
        model: The model.
        errors: Against fresh answers of its teacher.
        n_rows: Rows it was fitted to.
        asking_s: Seconds that asking the teacher took.
        fitting_s: Seconds that fitting took.
    """

    model: FlatModel
    errors: tuple[Errors, ...]
    n_rows: int
    asking_s: float
    fitting_s: float


@dataclass(frozen=True, slots=True)
class Exported:
    """One family's file.

    Attributes:
        kind: Name of the kind.
        file: Where it lies.
        size_b: Its bytes.
        n_rows: Rows it was fitted to.
        asking_s: Seconds that asking the teacher took.
        fitting_s: Seconds that fitting took.
        against_teacher: Errors against fresh answers of the predictor.
        against_rows: Errors against measured rows.
    """

    kind: str
    file: Path
    size_b: int
    n_rows: int
    asking_s: float
    fitting_s: float
    against_teacher: tuple[Errors, ...]
    against_rows: tuple[Errors, ...]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was exported.

    Attributes:
        exported: The files made.
        left_out: One sentence for each family that has none.
    """

    exported: tuple[Exported, ...]
    left_out: tuple[str, ...]


def export_files(
    predictor: ArtifactPredictor,
    families: Sequence[str],
    devices: Sequence[Device],
    out: Path,
    *,
    config: TrainingConfig | None = None,
    progress: Progress = no_progress,
) -> ExportReport:
    """Teach a small model for each family and write it to `out/op-FAMILY.kcm`. Needs the `train` extra.

    Measured rows to judge by are the shipped ones and those of the user's store.

    Args:
        predictor: The teacher.
        families: Kernel families, one file each.
        devices: Devices the files know.
        out: Folder of the files.
        config: How much the teacher is asked and how large the trees are.
        progress: Called with what is being done, steps done, and steps in all.

    Raises:
        SpecError: no family can be exported, or a file cannot be written.
    """
    tables = read_tables()
    exported, left_out = [], []
    for family in families:
        try:
            distilled = distil(predictor, family, devices, config, progress)
        except SpecError as error:
            left_out.append(f"{family}: {error}")
            continue
        file = out / f"{distilled.model.kind}{SUFFIX}"
        write_model(distilled.model, file)
        progress(f"judging {family}", 0, 0)
        family_rows = [labelled_table(table, family, predictor.devices) for table in tables.get(family, [])]
        rows = errors_on_rows(distilled.model, joined(family_rows), predictor) if family_rows else ()
        size_b, took = file.stat().st_size, (distilled.asking_s, distilled.fitting_s)
        exported.append(Exported(distilled.model.kind, file, size_b, distilled.n_rows, *took, distilled.errors, rows))
    if not exported:
        raise SpecError(f"nothing to export: {'; '.join(left_out)}", field="device")
    return ExportReport(tuple(exported), tuple(left_out))


def distil(
    predictor: ArtifactPredictor,
    family: str,
    devices: Sequence[Device],
    config: TrainingConfig | None = None,
    progress: Progress = no_progress,
) -> Distilled:
    """A small model of a family on devices, taught by `predictor`. Needs the `train` extra.

    Raises:
        SpecError: the predictor does not know the family, or none of the devices runs it.
    """
    config, kind = config or TrainingConfig(), get_kind(PREFIX + family)
    rng = np.random.default_rng(config.seed)
    started = time.perf_counter()
    lessons = list(asked_teacher(predictor, family, devices, (config.rows_measured, config.rows_other), rng, progress))
    fresh = list(asked_teacher(predictor, family, devices, (config.fresh_measured, config.fresh_other), rng, progress))
    if not lessons:
        raise SpecError(
            f"none of the devices runs a dtype of {family} that the model in {predictor.directory} was trained on: "
            f"{listed(device.name for device in devices)}",
            field="device",
        )
    fitting_began = time.perf_counter()
    progress(f"fitting {family}", 0, 0)
    formula = kind.formula()
    table = {lesson.key: _facts(kind, formula, lesson, predictor.devices.get(lesson.key[0])) for lesson in lessons}
    x = np.concatenate([_columns(kind, formula, lesson.cases, table[lesson.key]) for lesson in lessons])
    bound_s = x[:, formula.names.index(BOUND)]
    latency_s, power_w = (
        np.concatenate([getattr(lesson, name) for lesson in lessons]) for name in ("latency_s", "power_w")
    )
    counts = [len(lesson.cases) for lesson in lessons]
    weight = np.repeat([1.0 if lesson.measured else config.weight_other for lesson in lessons], counts)
    trees = config.trees.get(family, config.trees[""])
    known = np.isfinite(power_w)
    model = FlatModel(
        kind=kind.name, sizes=kind.sizes, knobs=kind.knobs, facts=kind.facts, table=_rows(kind, table), formula=formula,
        latency=_fitted(x, np.log(latency_s / bound_s), weight, trees, config.seed),
        energy=_fitted(x[known], np.log(power_w[known]), weight[known], config.power_trees, config.seed)
        if known.any()
        else None,
    )  # fmt: skip
    answers = [_predicted(model, lesson.cases) for lesson in fresh]
    errors = tuple(
        Errors(*lesson.key, lesson.measured, error_summary(np.log(lesson.latency_s / seconds)),
               error_summary(np.log(lesson.power_w / watts)))
        for lesson, (seconds, watts) in zip(fresh, answers, strict=True)
    )  # fmt: skip
    for lesson, (seconds, _) in zip(fresh, answers, strict=True):
        table[lesson.key] |= _widths(lesson, seconds)
    metadata = {
        "kernelcast": __version__,
        "taught_by": {"regressor": str(predictor.manifest["regressor"]), "created": str(predictor.manifest["created"])},
        "family": family,
        "n_rows": len(x),
        "seed": config.seed,
        "variants": dict(VARIANT_CODES[family]),
        "errors_against_teacher": [
            {"device": error.device, "dtype": error.dtype, "measured": error.measured, "latency": dict(error.latency)}
            for error in errors
        ],
    }
    model = replace(model, table=_rows(kind, table), metadata=metadata)
    return Distilled(model, errors, len(x), fitting_began - started, time.perf_counter() - fitting_began)


def errors_on_rows(model: FlatModel, measured: LabelledCases, predictor: ArtifactPredictor) -> tuple[Errors, ...]:
    """Errors of a model against measured rows of its family: hot, without tuning knobs, run by what is usual there."""
    cases, teacher = measured.cases, predictor.family(measured.cases.family.name).model
    errors = []
    for device, dtype in model.table:
        plain = np.all(
            [np.isnan(column) for column in cases.config.values()] or [np.ones(len(cases), np.bool_)], axis=0
        )
        impl = usual_impl(teacher, predictor.devices.get(device), dtype)
        mine = plain & (cases.device == device) & (cases.dtype == dtype) & (cases.kv_dtype == dtype)
        rows = np.flatnonzero(
            mine & (cases.cache_state == "hot") & (cases.impl == impl) & (measured.latency_s <= MOST_LATENCY_S)
        )
        if not len(rows):
            continue
        seconds, watts = _predicted(model, cases.take(rows))
        errors.append(
            Errors(device, dtype, True, error_summary(np.log(measured.latency_s[rows] / seconds)),
                   error_summary(np.log(measured.power_w[rows] / watts)))
        )  # fmt: skip
    return tuple(errors)


def _columns(kind: TuningKind, formula: Formula, cases: Cases, facts: Mapping[str, float]) -> Floats:
    """The features `(n, n_features)` of operations that share a device and a dtype."""
    inputs: dict[str, Any] = dict(facts) | dict(cases.sizes) | {THREADS: np.nan_to_num(cases.threads)}
    if codes := VARIANT_CODES[cases.family.name]:
        inputs[VARIANT] = np.array([codes[word] for word in cases.variant.tolist()], dtype=np.float64)
    return formula.columns({name: inputs[name] for name in kind.inputs}, len(cases))


def _facts(kind: TuningKind, formula: Formula, lesson: TeacherAnswers, device: Device) -> dict[str, float]:
    """The facts of a device and dtype, weights fitted so that the relative error of the estimate is least."""
    from scipy.optimize import nnls

    facts = dict(kind.facts_of(device, lesson.key[1]))
    facts[HAS_POWER] = float(np.isfinite(lesson.power_w).any())
    place = formula.names.index("estimate_s")
    nothing = dict.fromkeys(WEIGHTS, 0.0)
    # The estimate is linear in its weights: one of them 1 and all others 0 gives its term.
    terms = [_columns(kind, formula, lesson.cases, facts | nothing | {name: 1.0})[:, place] for name in WEIGHTS]
    weights, _ = nnls(np.stack(terms, axis=1) / lesson.latency_s[:, None], np.ones(len(lesson.latency_s)))
    return facts | dict(zip(WEIGHTS, weights.tolist(), strict=True))


def _fitted(x: Floats, y: Floats, weight: Floats, trees: Trees, seed: int) -> Forest:
    import xgboost

    settings = {
        "tree_method": "hist", "max_depth": trees.depth, "eta": trees.rate, "max_bin": 256, "min_child_weight": 1.0,
        "objective": "reg:squarederror", "base_score": float(np.average(y, weights=weight)), "seed": seed, "nthread": 1,
        "verbosity": 0,
    }  # fmt: skip
    data = xgboost.QuantileDMatrix(x.astype(np.float32), y, weight=weight, max_bin=256)
    return forest_of(xgboost.train(settings, data, num_boost_round=trees.rounds))


def _predicted(model: FlatModel, cases: Cases) -> tuple[Floats, Floats]:
    """Seconds and watts of operations that share a device and a dtype, shape `(n,)`; watts NaN where none were taught."""
    n, device, dtype = len(cases), str(cases.device[0]), str(cases.dtype[0])
    facts = model.facts_for(device, dtype)
    columns = _columns(get_kind(model.kind), model.formula, cases, facts)
    features = [np.ascontiguousarray(column) for column in columns.T]
    seconds = model.seconds(features, n)
    taught = model.energy is not None and facts[HAS_POWER]
    return seconds, model.joules(features, seconds) / seconds if taught else np.full(n, np.nan)


def _widths(lesson: TeacherAnswers, seconds: Floats) -> dict[str, float]:
    """Typical widths of the teacher's intervals, and what the pupil is off by, as independent errors add."""
    off = float(np.quantile(np.abs(np.log(seconds / lesson.latency_s)), COVERAGE))
    below, above = (
        float(np.median(np.abs(np.log(end / lesson.latency_s)))) for end in (lesson.lower_s, lesson.upper_s)
    )
    return {LOG_LOWER: float(np.hypot(below, off)), LOG_UPPER: float(np.hypot(above, off))}


def _rows(
    kind: TuningKind, table: Mapping[tuple[str, str], Mapping[str, float]]
) -> dict[tuple[str, str], tuple[float, ...]]:
    return {key: tuple(float(facts[name]) for name in kind.facts) for key, facts in table.items()}
