"""From measured programs to a model of programs: members fitted fold by fold, blended, their intervals calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...features.cases import Floats
from ..engine import Runtime
from ..intervals import Scores, log_scale_target, scale_of
from .artifact import SCALE, TREES, Characteristic, ProgramModel
from .blending import blend_weights, blended
from .boosting import fit_characteristic, fit_trees, tree_graph, tree_inputs
from .domain import ProgramDomain
from .evaluation import errors_of
from .measured import MeasuredPrograms, folds_of
from .network_training import Schedule, Trained, answers, train_network
from .networks import NETWORKS
from .paper_base import BASE, PaperBase

Progress = Callable[[str, int, int], None]
"""Told what is done, and how much of how much."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model of programs is trained.

    Every fold of `folds` is answered by members trained on the others. The networks of all folds are kept and
    averaged: each saw most programs, and together they are better than one that saw all. Trees are fitted once more
    on everything, `forests` times with other draws of rows and columns.
    """

    folds: int = 5
    networks: Mapping[str, Schedule] = field(
        default_factory=lambda: {
            "group network": Schedule(epochs=40),
            "convolutional": Schedule(epochs=25),
            "transformer": Schedule(epochs=20, batch=16, rate=2e-3),
        }
    )
    tree_rounds: int = 400
    forests: int = 3
    seed: int = 0

    def lasting(self, factor: float) -> Recipe:
        """The same with networks that learn for so many times as long."""
        longer = {
            name: replace(schedule, epochs=max(round(schedule.epochs * factor), 1))
            for name, schedule in self.networks.items()
        }
        return replace(self, networks=longer)


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Answers for programs by members that had not seen them, logarithms of seconds of shape `(n, n_settings)` by
    member, and the networks that gave them, fold by fold.
    """

    answers: Mapping[str, Floats]
    fits: Mapping[str, tuple[Trained, ...]]


def out_of_fold(
    measured: MeasuredPrograms, recipe: Recipe, progress: Progress = lambda what, done, of: None
) -> OutOfFold:
    """Every member's answers for every program, by fits that did not see it nor another size of it."""
    fold = folds_of(measured.names, recipe.folds, recipe.seed)
    found: dict[str, Floats] = {}
    fits: dict[str, list[Trained]] = {name: [] for name in recipe.networks}

    def put(name: str, rows: Any, values: Floats) -> None:
        found.setdefault(name, np.full(measured.log_latency.shape, np.nan))[rows] = values

    for number in range(recipe.folds):
        own, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if not len(own) or not len(others):
            continue
        seen, unseen = measured.take(others), measured.take(own)
        base = PaperBase.fit(seen.programs, seen.log_latency, seen.weight)
        put(BASE, own, base.log_latency(unseen.programs))
        boosters = _fit_trees(seen, base, recipe, number)
        put(TREES, own, _tree_answers(boosters, unseen, base))
        for name, schedule in recipe.networks.items():
            progress(f"fold {number + 1}: {name}", number, recipe.folds)
            fit = train_network(
                NETWORKS[name], seen.programs, base, seen.log_latency, seen.weight, schedule, recipe.seed + number
            )
            fits[name].append(fit)
            put(name, own, answers(fit, NETWORKS[name], unseen.programs))
    return OutOfFold(found, {name: tuple(own) for name, own in fits.items()})


def train_programs(
    measured: MeasuredPrograms, recipe: Recipe | None = None, progress: Progress = lambda what, done, of: None
) -> ProgramModel:
    """A model of the programs measured on one device."""
    recipe = recipe or Recipe()
    held_out = out_of_fold(measured, recipe, progress)
    weights = blend_weights(held_out.answers, measured.log_latency, measured.weight)
    answer = blended(held_out.answers, weights)
    progress("trees on everything", recipe.folds, recipe.folds)
    base = PaperBase.fit(measured.programs, measured.log_latency, measured.weight)
    inputs = tree_inputs(measured.programs, base)
    graphs = {TREES: tree_graph(_fit_trees(measured, base, recipe, recipe.folds), inputs.shape[1])}
    graphs |= _network_graphs(held_out, weights)
    progress("intervals", recipe.folds, recipe.folds)
    scores, graphs[SCALE] = _calibrated(measured, inputs, answer, recipe.seed)
    return ProgramModel(
        device=measured.device,
        settings=measured.settings,
        usual=_usual(measured),
        base=base,
        graphs=graphs,
        weights=weights,
        scores=scores,
        domain=ProgramDomain.fit(measured.programs.totals, measured.programs.op_codes[:, 0], recipe.seed),
        characteristics=_characteristics(measured, inputs, recipe),
        n_programs=len(set(measured.names)),
        n_rows=int((~np.isnan(measured.log_latency)).sum()),
        metrics={name: errors_of(own, measured) for name, own in {**held_out.answers, "blend": answer}.items()},
    )


def _network_graphs(held_out: OutOfFold, weights: Mapping[str, Floats]) -> dict[str, bytes]:
    from .network_onnx import network_graph

    used = {name: fits for name, fits in held_out.fits.items() if fits and np.any(weights[name] > 0)}
    return {name: network_graph(NETWORKS[name], fits) for name, fits in used.items()}


def _fit_trees(measured: MeasuredPrograms, base: PaperBase, recipe: Recipe, seed: int) -> list[Any]:
    log_base = base.log_latency(measured.programs)
    y = (measured.log_latency - log_base).ravel()
    known = ~np.isnan(y)
    x, weight = tree_inputs(measured.programs, base)[known], measured.weight.ravel()[known]
    seeds = range(seed * recipe.forests, (seed + 1) * recipe.forests)
    return [fit_trees(x, y[known], weight, one, rounds=recipe.tree_rounds) for one in seeds]


def _tree_answers(boosters: Sequence[Any], measured: MeasuredPrograms, base: PaperBase) -> Floats:
    import xgboost

    log_base = base.log_latency(measured.programs)
    x = xgboost.DMatrix(tree_inputs(measured.programs, base))
    mean = np.mean([booster.predict(x) for booster in boosters], axis=0)
    found: Floats = log_base + mean.reshape(log_base.shape)
    return found


def _calibrated(measured: MeasuredPrograms, x: Any, answer: Floats, seed: int) -> tuple[dict[str, Scores], bytes]:
    """Scores by compiler, and the graph of error sizes; each row's size comes from a model that did not see its
    program.
    """
    from ..regressors.xgboost import fit_scale

    errors = (measured.log_latency - answer).ravel()
    half = np.repeat(folds_of(measured.names, 2, seed + 1), len(measured.settings))
    compiler = np.tile([name for name, _ in measured.settings], len(measured))
    known = ~np.isnan(errors)
    sizes = np.full(len(errors), np.nan)
    for side in (0, 1):
        others, own = known & (half != side), known & (half == side)
        fit_on = others if others.any() else known
        if own.any():
            graph = fit_scale(x[fit_on], log_scale_target(errors[fit_on]), seed)
            sizes[own] = scale_of(Runtime([graph]).run(x[own])[0][:, 0])
    scores = {name: Scores.of((errors / sizes)[known & (compiler == name)]) for name in sorted(set(compiler.tolist()))}
    return scores, fit_scale(x[known], log_scale_target(errors[known]), seed)


def _characteristics(measured: MeasuredPrograms, x: Any, recipe: Recipe) -> dict[str, Characteristic]:
    compiler = np.tile([name for name, _ in measured.settings], len(measured))
    fold = np.repeat(folds_of(measured.names, 2, recipe.seed), len(measured.settings))
    found = {}
    for name, values in measured.characteristics.items():
        y = np.log1p(values.ravel())
        known = np.isfinite(y)
        if known.sum() < _LEAST_ROWS or len(np.unique(fold[known])) < 2:
            continue
        errors = np.full(len(y), np.nan)
        for side in (0, 1):
            own, others = known & (fold == side), known & (fold != side)
            graph = fit_characteristic(x[others], y[others], recipe.seed)
            errors[own] = y[own] - Runtime([graph]).run(x[own])[0][:, 0]
        own_scores = {
            word: Scores.of(errors[known & (compiler == word)])
            for word in sorted(set(compiler.tolist()))
            if (known & (compiler == word)).sum() >= _LEAST_ROWS
        }
        found[name] = Characteristic(fit_characteristic(x[known], y[known], recipe.seed), own_scores)
    return found


_LEAST_ROWS = 40
"""Fewer rows say too little of a target to learn it."""


def _usual(measured: MeasuredPrograms) -> dict[str, str]:
    """The compiler each dialect was mostly measured with: XLA takes only StableHLO, so it is the usual one there."""
    found = {}
    for dialect in sorted(set(measured.dialects)):
        own = np.array([one == dialect for one in measured.dialects])
        counts: dict[str, int] = {}
        for (compiler, _), n in zip(
            measured.settings, (~np.isnan(measured.log_latency[own])).sum(axis=0).tolist(), strict=True
        ):
            counts[compiler] = counts.get(compiler, 0) + n
        # Of two measured equally often, the one that takes fewer dialects is made for this one.
        takes = {
            name: sum(name in _compilers_of(measured, other) for other in set(measured.dialects)) for name in counts
        }
        most = max(counts.values())
        found[dialect] = min((name for name, n in counts.items() if n >= 0.8 * most), key=lambda name: takes[name])
    return found


def _compilers_of(measured: MeasuredPrograms, dialect: str) -> set[str]:
    own = np.array([one == dialect for one in measured.dialects])
    there = (~np.isnan(measured.log_latency[own])).any(axis=0)
    return {compiler for (compiler, _), any_row in zip(measured.settings, there.tolist(), strict=True) if any_row}
