"""From measured programs to a model of programs: members fitted fold by fold, blended, their intervals calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....datasets.records.mlir_modules import ModuleRun
from ....features.batch.cases import Floats
from ....features.device import Catalogue, catalogue
from ....features.errors import SpecError
from ....features.mlir.understanding import read, understand
from ....models.engine.runtime import Runtime
from ....models.family_model.intervals import Scores
from ....models.metrics import error_summary, kendall
from ....models.regressor import Progress, no_progress
from ....models.training.interval_calibration import folds_of, held_out_error_sizes, held_out_parts
from ....models.training.stacking import blend_weights
from ....version import __version__
from .analytic_base import BASE, AnalyticBase
from .boosted_trees import GROUP_TREES, GroupRows, fit_characteristic, fit_group_trees, mean_of, tree_graph, tree_inputs
from .group_network import GROUP_NETWORK, network_graph
from .measured_programs import MeasuredPrograms, measured_programs, read_modules
from .network_training import Schedule, TrainedNetwork, answers, train_network
from .program_domain import ProgramDomain
from .program_model import (
    SCALE,
    Characteristic,
    ProgramEngine,
    ProgramModel,
    at_mean_speed,
    blended,
    columns_of,
    compilers_of,
    save_models,
)


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a model of programs is trained.

    Every fold is answered by members trained on the others. The networks of all folds are averaged: each saw most programs,
    and together they are better than one that saw all. Trees are fitted once more on everything.

    Attributes:
        folds: Number of folds.
        network: Schedule of the network.
        tree_rounds: Rounds of boosting.
        forests: Fits of the trees, each with other draws of rows and columns.
        seed: Of everything random.
    """

    folds: int = 5
    network: Schedule = field(default_factory=Schedule)
    tree_rounds: int = 800
    forests: int = 2
    seed: int = 0

    def lasting(self, factor: float) -> TrainingConfig:
        """The same with a network that learns for so many times as long."""
        return replace(self, network=replace(self.network, epochs=max(round(self.network.epochs * factor), 1)))


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Answers for programs by members that had not seen them.

    Attributes:
        answers: Logarithms of seconds of shape `(n, n_settings)`, by member.
        fits: The networks that gave them, fold by fold.
    """

    answers: Mapping[str, Floats]
    fits: tuple[TrainedNetwork, ...]


def out_of_fold(measured: MeasuredPrograms, config: TrainingConfig, progress: Progress = no_progress) -> OutOfFold:
    """Every member's answers for every program, by fits that did not see it nor another size of it."""
    fold = folds_of(measured.names, config.folds, config.seed)
    result = {name: np.full(measured.log_latency.shape, np.nan) for name in (BASE, GROUP_TREES, GROUP_NETWORK)}
    fits: list[TrainedNetwork] = []
    for number, held_out_part, others in held_out_parts(fold):
        seen, unseen = measured.take(others), measured.take(held_out_part)
        base = AnalyticBase.fit(seen.programs, seen.log_latency, seen.weight)
        result[BASE][held_out_part] = base.log_latency(unseen.programs)
        progress(f"fold {number + 1}: {GROUP_TREES}", number, config.folds)
        boosters = _fit_trees(seen, base, config, number)
        result[GROUP_TREES][held_out_part] = _tree_answers(boosters, unseen, base)
        progress(f"fold {number + 1}: {GROUP_NETWORK}", number, config.folds)
        fits.append(
            train_network(seen.programs, base, seen.log_latency, seen.weight, config.network, config.seed + number)
        )
        result[GROUP_NETWORK][held_out_part] = answers(fits[-1], unseen.programs)
    return OutOfFold(result, tuple(fits))


def train_programs(
    measured: MeasuredPrograms, config: TrainingConfig | None = None, progress: Progress = no_progress
) -> ProgramModel:
    """A model of the programs measured on one device."""
    config = config or TrainingConfig()
    held_out = out_of_fold(measured, config, progress)
    weights = blend_weights(held_out.answers, measured.log_latency, measured.weight)
    answer = blended(held_out.answers, weights, measured.programs.is_empty)
    progress("trees on everything", config.folds, config.folds)
    base = AnalyticBase.fit(measured.programs, measured.log_latency, measured.weight)
    inputs = tree_inputs(measured.programs, base)
    n_inputs = GroupRows.of(measured.programs.take([0]), base, [0]).x.shape[1]
    boosters = _fit_trees(measured, base, config, config.folds)
    graphs = {f"{GROUP_TREES} {name}": tree_graph(items, n_inputs) for name, items in boosters.items() if items}
    graphs[GROUP_NETWORK] = network_graph(held_out.fits)
    progress("intervals", config.folds, config.folds)
    answer, scores, graphs[SCALE] = _calibrated(measured, inputs, answer, config.seed)
    return ProgramModel(
        device=measured.device,
        settings=measured.settings,
        usual=_usual(measured),
        base=base,
        graphs=graphs,
        weights=weights,
        scores=scores,
        domain=ProgramDomain.fit(measured.programs.totals, measured.programs.op_codes[:, 0], config.seed),
        characteristics=_characteristics(measured, inputs, config),
        n_programs=len(set(measured.names)),
        n_rows=int((~np.isnan(measured.log_latency)).sum()),
        metrics={name: errors_of(column, measured) for name, column in {**held_out.answers, "blend": answer}.items()},
    )


def _fit_trees(
    measured: MeasuredPrograms, base: AnalyticBase, config: TrainingConfig, seed: int
) -> dict[str, list[Any]]:
    """Boosters by compiler."""
    seeds = range(seed * config.forests, (seed + 1) * config.forests)
    known = (measured.programs, base, measured.log_latency, measured.weight)
    return {
        compiler: fit_group_trees(*known, columns_of(compiler, measured.settings), seeds, config.tree_rounds)
        for compiler in compilers_of(measured.settings)
    }


def _tree_answers(boosters: Mapping[str, Sequence[Any]], measured: MeasuredPrograms, base: AnalyticBase) -> Floats:
    result = np.full(measured.log_latency.shape, np.nan)
    for compiler in compilers_of(measured.settings):
        columns = columns_of(compiler, measured.settings)
        rows = GroupRows.of(measured.programs, base, columns)
        result[:, columns] = rows.log_latency(partial(mean_of, boosters[compiler]), len(columns))
    return result


def _calibrated(
    measured: MeasuredPrograms, x: Any, middle: Floats, seed: int
) -> tuple[Floats, dict[str, Scores], bytes]:
    """Answers at the mean speed, scores of their errors by compiler, and the graph of error sizes."""
    errors = (measured.log_latency - middle).ravel()
    halves = np.repeat(folds_of(measured.names, 2, seed + 1), len(measured.settings))
    known = np.flatnonzero(~np.isnan(errors))
    sizes, graph = held_out_error_sizes(x, errors, halves, known, known, seed)
    all_sizes = np.full(middle.shape, np.nan)
    all_sizes.flat[known] = sizes
    answer = at_mean_speed(middle, all_sizes, measured.programs.is_empty)
    compiler, scores = _compiler_of_rows(measured)[known], (measured.log_latency - answer).flat[known] / sizes
    by_compiler = {name: Scores.of(scores[compiler == name]) for name in np.unique(compiler).tolist()}
    return answer, by_compiler, graph


def _compiler_of_rows(measured: MeasuredPrograms) -> Any:
    """The compiler of each row of `tree_inputs`, shape `(n * n_settings,)`."""
    return np.tile([name for name, _ in measured.settings], len(measured))


def _characteristics(measured: MeasuredPrograms, x: Any, config: TrainingConfig) -> dict[str, Characteristic]:
    compiler = _compiler_of_rows(measured)
    halves = np.repeat(folds_of(measured.names, 2, config.seed), len(measured.settings))
    models = {}
    for name, values in measured.characteristics.items():
        y = np.log1p(values.ravel())
        known = np.flatnonzero(np.isfinite(y))
        if len(known) < _LEAST_ROWS or len(np.unique(halves[known])) < 2:
            continue
        errors = np.full(len(known), np.nan)
        for _, held_out_part, others in held_out_parts(halves[known]):
            graph = fit_characteristic(x[known[others]], y[known[others]], config.seed)
            errors[held_out_part] = y[known[held_out_part]] - Runtime([graph]).run(x[known[held_out_part]])[0][:, 0]
        by_compiler = {word: errors[compiler[known] == word] for word in np.unique(compiler[known]).tolist()}
        scores = {word: Scores.of(column) for word, column in by_compiler.items() if len(column) >= _LEAST_ROWS}
        models[name] = Characteristic(fit_characteristic(x[known], y[known], config.seed), scores)
    return models


_LEAST_ROWS = 40
"""Fewer rows say too little of a target to learn it."""


def _usual(measured: MeasuredPrograms) -> dict[str, str]:
    """The compiler each dialect was mostly measured with: XLA takes only StableHLO, so it is the usual one there."""
    dialect, compiler = np.array(measured.dialects), np.array([name for name, _ in measured.settings])
    counts = {
        (word, name): int((~np.isnan(measured.log_latency[dialect == word][:, compiler == name])).sum())
        for word in np.unique(dialect).tolist() for name in dict.fromkeys(compiler.tolist())
    }  # fmt: skip
    usual = {}
    for word in np.unique(dialect).tolist():
        of_word = {name: n for (other, name), n in counts.items() if other == word}
        often = [name for name, n in of_word.items() if n >= 0.8 * max(of_word.values())]
        # Of two measured equally often, the one that takes fewer dialects is made for this one.
        usual[word] = min(often, key=lambda name: sum(n > 0 for (_, other), n in counts.items() if other == name))
    return usual


def errors_of(log_answer: Floats, measured: MeasuredPrograms) -> dict[str, dict[str, float]]:
    """Errors of answers, logarithms of seconds of shape `(n, n_settings)`, by slice; `all` is everything together.

    Each slice has `n`, `mean_ape_pct`, `median_ape_pct`, `within_10_pct` and `kendall_tau`.
    """
    names = np.array([f"{compiler}, {threads} threads" for compiler, threads in measured.settings])
    columns = np.tile(names, (len(measured), 1))
    known = ~np.isnan(measured.log_latency) & ~np.isnan(log_answer)
    errors_by_slice = {"all": errors(log_answer[known], measured.log_latency[known])}
    slices = {"": columns}
    for word, labels in (("source", measured.sources), ("dialect", measured.dialects)):
        slices[word] = np.tile(np.array(labels)[:, None], (1, len(names)))
    for word, values in slices.items():
        for value in np.unique(values[known]).tolist():
            rows = known & (values == value)
            errors_by_slice[f"{word} {value}".strip()] = errors(log_answer[rows], measured.log_latency[rows])
    return errors_by_slice


def errors(log_answer: Floats, log_measured: Floats) -> dict[str, float]:
    """Errors of answers, all of shape `(n,)`: absolute percentage errors, and the rank correlation (Kendall's τ-b)."""
    tau = kendall(log_answer, log_measured) if len(log_answer) else None
    return error_summary(log_measured - log_answer) | {"kendall_tau": float("nan") if tau is None else tau}


LEAST_PROGRAMS = 20
"""Fewer programs of one device are not enough to hold some out."""


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """What training gave, by device.

    Attributes:
        n_programs: Programs.
        n_rows: Rows.
        settings: Compilers and thread counts.
        weights: Weights of the members by setting.
        errors: Errors of every member and of their blend for programs held out, by slice; only the blend is at the mean speed.
        left_out: Why rows were left out.
    """

    n_programs: dict[str, int]
    n_rows: dict[str, int]
    settings: dict[str, list[str]]
    weights: dict[str, dict[str, list[float]]]
    errors: dict[str, dict[str, dict[str, dict[str, float]]]]
    left_out: tuple[str, ...]


def train_modules(
    paths: Sequence[Path],
    out: Path,
    *,
    config: TrainingConfig | None = None,
    devices: Catalogue | None = None,
    progress: Progress = no_progress,
) -> ProgramReport:
    """Train a model of programs on every device of the stores and packed tables at `paths`, and write it to `out`.

    Raises:
        SpecError: a path holds no measured programs, too few of them, or `out` is something else's.
    """
    texts, runs = read_modules(paths)
    known = devices or catalogue()
    models: dict[str, ProgramModel] = {}
    by_device: dict[str, MeasuredPrograms] = {}
    left_out: list[str] = []
    for name in sorted({run.device for run in runs if run.status == "ok"}):
        measured, refusals = measured_programs(
            texts, runs, known.get(name), lambda text: understand(read(text)),
            lambda done, of: progress("reading programs", done, of),
        )  # fmt: skip
        left_out += refusals
        if len(set(measured.names)) < LEAST_PROGRAMS:
            left_out.append(f"{name}: {len(set(measured.names))} programs; a model takes {LEAST_PROGRAMS}")
            continue
        by_device[name] = measured
        models[name] = train_programs(measured, config, progress)
    if not models:
        raise SpecError(f"no device has {LEAST_PROGRAMS} measured programs, the least to learn from", field="data")
    for name, model in models.items():
        kind = known.get(name).kind
        others = [item for there, item in by_device.items() if there != name and known.get(there).kind == kind]
        models[name] = replace(model, elsewhere=scores_elsewhere(model, others))
    save_models(models, facts_of(runs), out)
    return _report(models, left_out)


def scores_elsewhere(model: ProgramModel, others: Sequence[MeasuredPrograms]) -> dict[str, Scores]:
    """Scores by compiler of a model's answers for other devices of its kind, given what these can do; empty without any.

    A factor that all programs of a device share stays unknown until something was measured there. The next device may be as
    much faster than the model says as these were slower: their factor, the median of the errors, is taken both ways.
    """
    engine = ProgramEngine(model)
    scores: dict[str, list[Floats]] = {}
    for other in others:
        settings = [setting for setting in model.settings if setting in other.settings]
        log_latency, sizes = engine.of_batch(other.programs)
        for compiler, threads in settings:
            here, there = model.settings.index((compiler, threads)), other.settings.index((compiler, threads))
            errors = other.log_latency[:, there] - log_latency[:, here]
            known = ~np.isnan(errors)
            if known.sum() < _LEAST_ROWS:
                continue
            errors, size = errors[known], sizes[known, here]
            factor = np.median(errors)
            scores.setdefault(compiler, []).extend([errors / size, (errors - 2.0 * factor) / size])
    return {compiler: Scores.of(np.concatenate(parts)) for compiler, parts in scores.items()}


def facts_of(runs: Sequence[ModuleRun]) -> dict[str, Any]:
    """What is known of a model's making."""
    dates = sorted(run.measured_at for run in runs if run.measured_at)
    return {"trained_with": __version__, "rows": len(runs), "measured": [dates[0], dates[-1]] if dates else []}


def _report(models: dict[str, ProgramModel], left_out: Sequence[str]) -> ProgramReport:
    def by_device(value: Callable[[ProgramModel], Any]) -> dict[str, Any]:
        return {name: value(model) for name, model in models.items()}

    return ProgramReport(
        n_programs=by_device(lambda model: model.n_programs),
        n_rows=by_device(lambda model: model.n_rows),
        settings=by_device(lambda model: [f"{compiler}, {threads} threads" for compiler, threads in model.settings]),
        weights=by_device(lambda model: {member: weight.tolist() for member, weight in model.weights.items()}),
        errors=by_device(lambda model: dict(model.metrics)),
        left_out=tuple(left_out),
    )
