"""From compiled Triton programs to a model of compiled code: boosted trees, judged out of fold, intervals calibrated
by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.cases import Floats
from ...features.errors import SpecError
from ...features.mlir.triton_counts import COUNTED
from ...features.mlir.triton_vectors import NAMES
from ..engine import Runtime
from ..intervals import Scores, log_scale_target, scale_of
from ..regressor import Matrix
from .measured import folds_of
from .triton_artifact import SCALES, CodeModel
from .triton_engine import (
    COLLAPSE,
    INSTRUCTIONS,
    REGISTERS,
    ROOT_REGISTERS,
    SHARED,
    SPILL,
    SPILL_SIZE,
    CodeAnswers,
    CodeEngine,
    candidates_b,
    pair_inputs,
    paper_instructions,
    probability,
)  # fmt: skip
from .triton_evaluation import by_slice, expected_calibration_error
from .triton_labels import CompiledRows

Progress = Callable[[str, int, int], None]
"""Told what is done, and how much of how much."""

LEAST_PROGRAMS = 20
"""Fewer programs are not enough to hold some out."""

COVERAGES = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: parts the programs are dealt into, rounds of boosting, and the seed of everything
    random.
    """

    folds: int = 8
    rounds: int = 300
    seed: int = 0


def out_of_fold(
    rows: CompiledRows, fold: Any, recipe: Recipe, progress: Progress = lambda what, done, of: None
) -> CodeAnswers:
    """Answers for every row by a model that saw nothing of its fold, shape `(n,)` of whole numbers."""
    found: dict[str, Floats] = {}
    numbers = np.unique(fold)
    for done, number in enumerate(numbers):
        progress("programs held out", done, len(numbers))
        own, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        seen = rows.take(others)
        answer = CodeEngine(fit_members(seen, recipe), fallback_of(seen)).answer(rows.x[own])
        for name in CodeAnswers.__dataclass_fields__:
            found.setdefault(name, np.full(len(rows), np.nan))[own] = getattr(answer, name)
    return CodeAnswers(**found)


def train_code(
    rows: CompiledRows, recipe: Recipe | None = None, progress: Progress = lambda what, done, of: None
) -> CodeModel:
    """A model of compiled code.

    Raises:
        SpecError: there are too few programs, or all of them spill, or none.
    """
    recipe = recipe or Recipe()
    n_programs = len(set(rows.programs))
    if n_programs < LEAST_PROGRAMS:
        raise SpecError(f"{n_programs} compiled programs; a model takes {LEAST_PROGRAMS}", field="data")
    if rows.spilled.all() or not rows.spilled.any():
        raise SpecError(
            "all programs spill registers, or none does: there is nothing to tell them apart by", field="data"
        )
    fold = folds_of(rows.programs, recipe.folds, recipe.seed)
    answers = out_of_fold(rows, fold, recipe, progress)
    progress("everything", recipe.folds, recipe.folds)
    platt = fit_platt(rows.spilled, answers.spill_margin)
    graphs = dict(fit_members(rows, recipe))
    scores: dict[str, Scores] = {}
    metrics: dict[str, Any] = {"out of fold": by_slice(rows, columns_of(answers))}
    halves = folds_of(rows.programs, 2, recipe.seed + 1)
    for name in SCALES:
        errors = np.log(getattr(rows, name) / getattr(answers, name))
        scores[name], graphs[f"scale-{name}"], metrics[f"{name} coverage"] = _calibrated(
            rows, errors, halves, recipe.seed
        )
    off = np.log((1.0 + rows.shared_b) / (1.0 + answers.shared_b))
    scores["shared_b"] = Scores.of(off)
    likely = probability(platt[0] * answers.spill_margin + platt[1])
    metrics["spill calibration error"] = round(expected_calibration_error(rows.spilled, likely), 4)
    return CodeModel(
        graphs, scores, platt, rows.x.min(axis=0), rows.x.max(axis=0), fallback_of(rows), n_programs, len(rows), metrics
    )


def columns_of(answers: CodeAnswers) -> dict[str, Floats]:
    """Answers as `triton_evaluation` takes them."""
    return {"registers": answers.registers, "instructions": answers.instructions, "shared_b": answers.shared_b,
            "spill_score": answers.spill_margin}  # fmt: skip


def fallback_of(rows: CompiledRows) -> float:
    """Registers of code of which the assembler gave up on registers: their mean."""
    own = rows.registers[rows.collapsed]
    return float(own.mean()) if len(own) else _USUAL_FALLBACK


_USUAL_FALLBACK = 40.0
"""Where no row shows it: the mean of sixteen such kernels, of 32 to 72 registers."""


def fit_members(rows: CompiledRows, recipe: Recipe) -> Mapping[str, bytes]:
    """The graphs of `triton_engine.MEMBERS`."""
    x, seed = rows.x.astype(np.float32), recipe.seed
    kept = ~rows.collapsed
    spilled = rows.spilled
    ratio = np.log(rows.instructions) - paper_instructions(rows.x)
    exact = (candidates_b(rows.x) == rows.shared_b[:, None]).astype(np.float64)
    # Code that gave up says nothing of the registers its values need, and which operations there are little beside
    # how much is alive.
    alive = np.where(_IS_COUNT, np.float32(0.0), x)[kept]
    return {
        REGISTERS: _trees(alive, rows.registers[kept], seed, recipe.rounds, rising=True),
        ROOT_REGISTERS: _trees(alive, np.sqrt(rows.registers[kept]), seed + 1, recipe.rounds, rising=True),
        COLLAPSE: _trees(
            x, rows.collapsed.astype(np.float64), seed, recipe.rounds // 2, objective="binary:logistic", max_depth=4
        ),
        SPILL: _trees(x, spilled.astype(np.float64), seed, recipe.rounds, objective="binary:logistic", rising=True),
        SPILL_SIZE: _trees(x[spilled], np.log1p(rows.spill_b[spilled]), seed, recipe.rounds // 3, max_depth=3),
        INSTRUCTIONS: _trees(x, ratio, seed, recipe.rounds),
        SHARED: _trees(pair_inputs(rows.x), exact.ravel(), seed, recipe.rounds // 2, objective="binary:logistic"),
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

    from ..onnx_graphs import constant, tree_ensemble
    from ..regressors.xgboost import base_score, trees_of

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
    return tree_ensemble(trees_of(booster), base=[base], comparison="<", n_features=x.shape[1])


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

    found = minimize(loss, np.array([1.0, 0.0]), bounds=[(0.05, 5.0), (-5.0, 5.0)], method="L-BFGS-B").x
    return round(float(found[0]), 4), round(float(found[1]), 4)


def _calibrated(rows: CompiledRows, errors: Floats, halves: Any, seed: int) -> tuple[Scores, bytes, dict[str, float]]:
    """Scores of a target, the graph of its error sizes, and how much intervals made of one half hold of the other."""
    from ..regressors.xgboost import fit_scale

    x = rows.x.astype(np.float32)
    sizes = np.full(len(errors), np.nan)
    for side in (0, 1):
        own, others = halves == side, halves != side
        if own.any() and others.any():
            graph = fit_scale(x[others], log_scale_target(errors[others]), seed)
            sizes[own] = scale_of(Runtime([graph]).run(x[own])[0][:, 0])
    sizes = np.where(np.isnan(sizes), 1.0, sizes)
    scores = errors / sizes
    held: dict[str, float] = {}
    for coverage in COVERAGES:
        inside = np.zeros(len(errors), dtype=bool)
        for side in (0, 1):
            own = halves == side
            if own.any() and (~own).any():
                low, high = Scores.of(scores[~own]).bounds(coverage)
                inside[own] = (scores[own] >= low - 1e-9) & (scores[own] <= high + 1e-9)
        held[f"{coverage:g}"] = round(float(inside.mean()), 4)
    return Scores.of(scores), fit_scale(x, log_scale_target(errors), seed), held
