"""From compiled Triton programs to a model of compiled code: boosted trees, judged out of fold, intervals calibrated
by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.errors import SpecError
from ....features.mlir.triton.program_order import COUNTED
from ....features.mlir.triton.vectors import NAMES
from ....features.mlir.understanding import read
from ....models.family_model.intervals import Scores
from ....models.regressor import Matrix, Progress, no_progress
from ....models.training.interval_calibration import folds_of, held_out_error_sizes, held_out_parts
from ....version import __version__
from .code_model import (
    COLLAPSE,
    ERROR_CORRELATION,
    INSTRUCTIONS,
    REGISTERS,
    ROOT_REGISTERS,
    SCALES,
    SPILL,
    SPILL_SIZE,
    CodeAnswers,
    CodeEngine,
    CodeModel,
    analytic_instructions,
    candidates_b,
    pair_inputs,
    probability,
    save_code_model,
)
from .labels import CompiledRows, compiled_rows, read_labels

LEAST_PROGRAMS = 20
"""Fewer programs are not enough to hold some out."""

COVERAGES = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        folds: Parts the programs are dealt into.
        rounds: Rounds of boosting.
        seed: Of everything random.
    """

    folds: int = 8
    rounds: int = 300
    seed: int = 0


def out_of_fold(rows: CompiledRows, fold: Any, config: TrainingConfig, progress: Progress = no_progress) -> CodeAnswers:
    """Answers for every row by a model that saw nothing of its fold, shape `(n,)` of whole numbers."""
    answers: dict[str, Floats] = {}
    parts = list(held_out_parts(fold))
    for done, (_, part, others) in enumerate(parts):
        progress("programs held out", done, len(parts))
        seen = rows.take(others)
        answer = CodeEngine(fit_members(seen, config), fallback_of(seen)).answer(rows.x[part])
        for name in CodeAnswers.__dataclass_fields__:
            answers.setdefault(name, np.full(len(rows), np.nan))[part] = getattr(answer, name)
    return CodeAnswers(**answers)


def train_code(rows: CompiledRows, config: TrainingConfig | None = None, progress: Progress = no_progress) -> CodeModel:
    """A model of compiled code.

    Raises:
        SpecError: there are too few programs, or all of them spill, or none.
    """
    config = config or TrainingConfig()
    n_programs = len(set(rows.programs))
    if n_programs < LEAST_PROGRAMS:
        raise SpecError(f"{n_programs} compiled programs; a model takes {LEAST_PROGRAMS}", field="data")
    if rows.spilled.all() or not rows.spilled.any():
        raise SpecError(
            "all programs spill registers, or none does: there is nothing to tell them apart by", field="data"
        )
    fold = folds_of(rows.programs, config.folds, config.seed)
    answers = out_of_fold(rows, fold, config, progress)
    progress("everything", config.folds, config.folds)
    platt = fit_platt(rows.spilled, answers.spill_margin)
    graphs = dict(fit_members(rows, config))
    scores: dict[str, Scores] = {}
    metrics: dict[str, Any] = {"out of fold": by_slice(rows, columns_of(answers))}
    halves = folds_of(rows.programs, 2, config.seed + 1)
    for name in SCALES:
        errors = np.log(getattr(rows, name) / getattr(answers, name))
        scores[name], graphs[f"scale-{name}"], metrics[f"{name} coverage"] = _calibrated(
            rows, errors, halves, config.seed
        )
    off = np.log((1.0 + rows.shared_b) / (1.0 + answers.shared_b))
    scores["shared_b"] = Scores.of(off)
    likely = probability(platt[0] * answers.spill_margin + platt[1])
    metrics["spill calibration error"] = round(expected_calibration_error(rows.spilled, likely), 4)
    return CodeModel(
        graphs, scores, platt, rows.x.min(axis=0), rows.x.max(axis=0), fallback_of(rows), n_programs, len(rows), metrics
    )


def columns_of(answers: CodeAnswers) -> dict[str, Floats]:
    """Answers as `errors_of` takes them."""
    return {"registers": answers.registers, "instructions": answers.instructions, "shared_b": answers.shared_b,
            "spill_score": answers.spill_margin}  # fmt: skip


def fallback_of(rows: CompiledRows) -> float:
    """Registers of code of which the assembler gave up on registers: their mean."""
    registers = rows.registers[rows.collapsed]
    return float(registers.mean()) if len(registers) else _USUAL_FALLBACK


_USUAL_FALLBACK = 40.0
"""Where no row shows it: the mean of sixteen such kernels, of 32 to 72 registers."""


def fit_members(rows: CompiledRows, config: TrainingConfig) -> Mapping[str, bytes]:
    """The graphs of `code_model.MEMBERS`."""
    x, seed = rows.x.astype(np.float32), config.seed
    in_registers = ~rows.collapsed
    spilled = rows.spilled
    ratio = np.log(rows.instructions) - analytic_instructions(rows.x)
    exact = (candidates_b(rows.x) == rows.shared_b[:, None]).astype(np.float64)
    # Code that gave up says nothing of the registers its values need, and which operations there are little beside
    # how much is alive.
    alive = np.where(_IS_COUNT, np.float32(0.0), x)[in_registers]
    return {
        REGISTERS: _trees(alive, rows.registers[in_registers], seed, config.rounds, rising=True),
        ROOT_REGISTERS: _trees(alive, np.sqrt(rows.registers[in_registers]), seed + 1, config.rounds, rising=True),
        COLLAPSE: _trees(
            x, rows.collapsed.astype(np.float64), seed, config.rounds // 2, objective="binary:logistic", max_depth=4
        ),
        SPILL: _trees(x, spilled.astype(np.float64), seed, config.rounds, objective="binary:logistic", rising=True),
        SPILL_SIZE: _trees(x[spilled], np.log1p(rows.spill_b[spilled]), seed, config.rounds // 3, max_depth=3),
        INSTRUCTIONS: _trees(x, ratio, seed, config.rounds),
        ERROR_CORRELATION: _trees(
            pair_inputs(rows.x), exact.ravel(), seed, config.rounds // 2, objective="binary:logistic"
        ),
    }


_IS_COUNT = np.array([name in COUNTED or name.startswith("pair ") for name in NAMES])
_RISING = ("most", "most in loops", "at the end", "at fixed points", "at fixed points in loops")
_RISING_COLUMNS = frozenset(
    i
    for i, name in enumerate(NAMES)
    if name in ("demand", "limit") or (name.partition(" ")[2] in _RISING and not name.startswith("held"))
)
"""The more is alive at once, the more registers: no tree may say otherwise, which keeps few rows from teaching
nonsense."""


def _trees(
    x: Matrix,
    y: Floats,
    seed: int,
    rounds: int,
    *,
    objective: str = "reg:squarederror",
    max_depth: int = 5,
    rising: bool = False,
) -> bytes:
    """A booster of XGBoost (Chen and Guestrin, KDD 2016) as a graph; of a classifier it answers the margin."""
    import xgboost

    from ....models.engine.onnx_writer import constant, tree_ensemble
    from ....models.regressors.xgboost import base_score, trees_of

    if not len(y) or float(np.ptp(y)) == 0.0:
        value = float(y[0]) if len(y) else 0.0
        return constant(
            [_LEAST_MARGIN * (2.0 * value - 1.0) if "logistic" in objective else value], n_features=x.shape[1]
        )
    settings: dict[str, Any] = {
        "tree_method": "hist", "max_depth": max_depth, "eta": 0.06, "subsample": 0.8, "colsample_bytree": 0.4,
        "min_child_weight": 2.0,
        "max_bin": 128, "lambda": 1.0, "objective": objective, "seed": seed, "nthread": 1, "verbosity": 0,
        "base_score": 0.5 if "logistic" in objective else float(y.mean()),
    }  # fmt: skip
    if "logistic" in objective:
        settings["min_child_weight"] = 0.5
    if rising:
        settings["monotone_constraints"] = tuple(int(i in _RISING_COLUMNS) for i in range(x.shape[1]))
    booster = xgboost.train(settings, xgboost.DMatrix(x, y), num_boost_round=max(rounds, 1))
    # The margin of a base score of one half is 0.
    base = 0.0 if "logistic" in objective else base_score(booster)
    return tree_ensemble(trees_of(booster), base=[base], n_features=x.shape[1])


_LEAST_MARGIN = 4.0
"""What a classifier of one class answers: a probability of a fiftieth, or as near to 1."""


def fit_platt(is_positive: Any, margin: Floats) -> tuple[float, float]:
    """Slope and intercept of the logistic function of margins (Platt, 1999), with his targets short of 0 and 1."""
    from scipy.optimize import minimize

    n_positive, n_negative = int(np.sum(is_positive)), int(np.sum(~np.asarray(is_positive)))
    target = np.where(is_positive, (n_positive + 1.0) / (n_positive + 2.0), 1.0 / (n_negative + 2.0))

    def loss(w: Floats) -> float:
        logit = w[0] * margin + w[1]
        return float((np.logaddexp(0.0, logit) - target * logit).mean())

    scale_and_shift = minimize(loss, np.array([1.0, 0.0]), bounds=[(0.05, 5.0), (-5.0, 5.0)], method="L-BFGS-B").x
    return round(float(scale_and_shift[0]), 4), round(float(scale_and_shift[1]), 4)


def _calibrated(rows: CompiledRows, errors: Floats, halves: Any, seed: int) -> tuple[Scores, bytes, dict[str, float]]:
    """Scores of a target, the graph of its error sizes, and how much intervals made of one half hold of the other."""
    every = np.arange(len(errors))
    sizes, graph = held_out_error_sizes(rows.x.astype(np.float32), errors, halves, every, every, seed)
    scores = errors / sizes
    coverage: dict[str, float] = {}
    for nominal in COVERAGES:
        inside = np.zeros(len(errors), dtype=bool)
        for _, held_out_part, others in held_out_parts(halves):
            low, high = Scores.of(scores[others]).bounds(nominal)
            inside[held_out_part] = (scores[held_out_part] >= low - 1e-9) & (scores[held_out_part] <= high + 1e-9)
        coverage[f"{nominal:g}"] = round(float(inside.mean()), 4)
    return Scores.of(scores), graph, coverage


def r_squared(true: Floats, predicted: Floats) -> float:
    """Share of the variance that is explained; NaN where nothing varies."""
    total = float(((true - true.mean()) ** 2).sum())
    return 1.0 - float(((true - predicted) ** 2).sum()) / total if total else float("nan")


def area_under_curve(is_positive: Any, score: Floats) -> float:
    """Area under the receiver operating characteristic: the chance that a positive scores higher than a negative
    (ties count half).
    """
    from scipy.stats import mannwhitneyu

    positive, negative = score[is_positive], score[~is_positive]
    if not len(positive) or not len(negative):
        return float("nan")
    return float(mannwhitneyu(positive, negative).statistic) / len(positive) / len(negative)


def errors_of(
    rows: CompiledRows, *, registers: Floats, instructions: Floats | None = None, shared_b: Floats | None = None,
    spill_score: Floats | None = None,
) -> dict[str, float]:  # fmt: skip
    """Errors of predictions for rows by name; those of targets not predicted are left out.

    `registers_r2_kept` leaves out code of which the assembler gave up on registers.
    """
    in_registers = ~rows.collapsed
    errors: dict[str, float] = {
        "n": float(len(rows)),
        "registers_r2": r_squared(rows.registers, registers),
        "registers_r2_kept": r_squared(rows.registers[in_registers], registers[in_registers]),
        "registers_mae": float(np.abs(rows.registers - registers).mean()),
        "registers_median_ae": float(np.median(np.abs(rows.registers - registers))),
    }
    if spill_score is not None:
        errors["spill_auc"] = area_under_curve(rows.spilled, spill_score)
        errors["any_stack_auc"] = area_under_curve(rows.spill_b > 0, spill_score)
    if instructions is not None:
        off = 100.0 * np.abs(instructions / rows.instructions - 1.0)
        errors |= {"instructions_mean_ape_pct": float(off.mean()), "instructions_median_ape_pct": float(np.median(off))}
    if shared_b is not None:
        off = np.abs(shared_b - rows.shared_b)
        errors |= {"shared_exact_pct": 100.0 * float((off < 1.0).mean()), "shared_mae_b": float(off.mean())}
    return {name: round(value, 4) for name, value in errors.items()}


def expected_calibration_error(is_positive: Any, probability: Floats) -> float:
    """Mean distance of probabilities from the shares found, over ten bins of equal width weighed by their rows."""
    place = np.minimum((10 * probability).astype(int), 9)
    return float(np.abs(np.bincount(place, probability - np.asarray(is_positive))).sum() / len(place))


def by_slice(rows: CompiledRows, answers: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """Errors over all rows, by target, and with products of matrices or without. `answers` are `errors_of`'s."""
    has_products = rows.x[:, NAMES.index("tt.dot")] > 0
    masks = {"all": np.ones(len(rows), dtype=bool),
        **{target: rows.targets == target for target in sorted(set(rows.targets))},
             "with products": has_products, "without products": ~has_products}  # fmt: skip
    return {
        name: errors_of(rows.take(mask), **{key: answer[mask] for key, answer in answers.items()})
        for name, mask in masks.items() if mask.any()
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeReport:
    """What training gave.

    Attributes:
        n_programs: Programs.
        n_rows: Rows.
        errors: Errors for programs held out, by slice.
        left_out: Why rows were left out.
    """

    n_programs: int
    n_rows: int
    errors: dict[str, dict[str, float]]
    left_out: tuple[str, ...]


def train_labels(
    paths: Sequence[Path],
    out: Path,
    config: TrainingConfig | None = None,
    progress: Progress = no_progress,
) -> CodeReport:
    """Train a model on the tables and stores at `paths`, the shipped table for none, and write it to `out`.

    Raises:
        SpecError: a path holds no compiled programs, too few of them, or `out` is something else's.
    """
    modules = read_labels(paths)
    rows, refusals = compiled_rows(modules, read, lambda done, of: progress("reading programs", done, of))
    model = train_code(rows, config, progress)
    compilers = sorted({module.compiler for module in modules if module.compiler})
    save_code_model(model, {"trained_with": __version__, "compilers": compilers, "rows": len(rows)}, out)
    return CodeReport(model.n_programs, model.n_rows, model.metrics["out of fold"], tuple(refusals))
