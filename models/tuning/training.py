"""Small models that rank a compiler's choices: boosted trees on ln(latency / bound), fitted so that ranking comes first.

A task weighs as much as it has configurations, a configuration the more the nearer it is to its task's best. Errors come in
two parts: the level of a task, which ranking does not need, and differences within it, which it is made of; the fit minimises a
weighted sum of the squares of both. Scores are of tasks whose shape was held out
([decision 012](../../docs/decisions/012-tuning.md)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...features.tuning.formula import Formula
from ...features.tuning.kind import BOUND, get_kind, kinds
from ...version import __version__
from ..metrics import error_summary, kendall
from ..regressor import Progress, no_progress
from .flat_model import SUFFIX, FlatModel, write_model
from .forest import forest_of
from .rows import TuningRows, facts_by_device, read_tables, tuning_rows

Floats = NDArray[np.float64]
LEAST_SHAPES = 10
"""Fewer shapes are not enough to hold some out."""

LEAST_CONFIGS = 5
"""Configurations of a task below which picking one says nothing; such tasks are learnt from, not scored."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How trees are fitted; the values are those that held-out regret was lowest with.

    Attributes:
        folds: Folds of held-out tasks.
        rounds: Number of trees.
        depth: Depth of a tree.
        rate: How fast they learn.
        rows_share: Share of the rows that a tree sees.
        columns_share: Share of the features that a tree sees.
        least_child: Least weight of a leaf.
        ridge: L2 penalty on leaves.
        near_best: Power of (best / latency) that weighs a configuration.
        least_weight: What the slowest still weigh.
        noisy_weight: Factor of rows whose measuring did not settle.
        most_device_weight: A device with fewer rows to rank than another weighs as much, by at most this factor a row.
        within: Weight of squared differences within a task over that of its level's square.
        seed: Of everything random.
    """

    folds: int = 8
    rounds: int = 260
    depth: int = 6
    rate: float = 0.045
    rows_share: float = 0.6
    columns_share: float = 0.7
    least_child: float = 3.0
    ridge: float = 1.0
    near_best: float = 2.0
    least_weight: float = 0.1
    noisy_weight: float = 0.3
    most_device_weight: float = 6.0
    within: float = 1.5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What `train_files` did, by kind.

    Attributes:
        scores: Held-out scores over tasks.
        n_rows: Rows trained on.
        n_shapes: Shapes among them.
        n_failed: Rows that failed.
        left_out: Why other kinds have no model.
    """

    scores: Mapping[str, Mapping[str, float | None]]
    n_rows: Mapping[str, int]
    n_shapes: Mapping[str, int]
    n_failed: Mapping[str, int]
    left_out: tuple[str, ...]


def train_files(
    paths: Sequence[Path] | None,
    out: Path,
    *,
    names: Sequence[str] | None = None,
    config: TrainingConfig | None = None,
    devices: Catalogue | None = None,
    progress: Progress = no_progress,
) -> TuningReport:
    """Train every kind that has enough measured rows and write `KIND.kcm` for each into `out`.

    Args:
        paths: directories of measured rows; None for the shipped tables and the user's store.
        out: where the files go; it is made if need be.
        names: kinds to train; None for all that have rows.
        config: how to train.
        devices: the catalogue to take facts from.
        progress: told how far it is.

    Raises:
        SpecError: an unknown kind, a directory without rows, or no kind with enough rows.
    """
    wanted = [get_kind(name) for name in dict.fromkeys(names)] if names else list(kinds().values())
    tables = read_tables(paths)
    rows = tuning_rows(wanted, tables, lambda done, of: progress("reading rows", done, of))
    known, trained, left_out = devices or catalogue(), {}, []
    for name, row in rows.items():
        n_shapes = len(np.unique(row.shapes()))
        if n_shapes < LEAST_SHAPES:
            if names or len(row):
                left_out.append(f"{name}: {n_shapes} measured shapes; a model takes {LEAST_SHAPES}")
            continue
        trained[name] = train(row, config, known, partial(progress, f"training {name}"))
    if not trained:
        reasons = "; ".join(left_out) or "no kind of tuning problem has measured rows"
        raise SpecError(f"nothing to train: {reasons}", field="data")
    for name, model in trained.items():
        write_model(model, Path(out) / f"{name}{SUFFIX}")
    about = {name: model.metadata for name, model in trained.items()}
    return TuningReport(
        scores={name: facts["held_out"] for name, facts in about.items()},
        n_rows={name: facts["rows"] for name, facts in about.items()},
        n_shapes={name: facts["shapes"] for name, facts in about.items()},
        n_failed={name: facts["failed_rows"] for name, facts in about.items()},
        left_out=tuple(left_out),
    )


def train(
    rows: TuningRows,
    config: TrainingConfig | None = None,
    devices: Catalogue | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> FlatModel:
    """Fit one kind's model on all rows, and score models that did not see a task's shape on it.

    Raises:
        SpecError: the kind does not apply to a device that was measured.
    """
    config, known = config or TrainingConfig(), devices or catalogue()
    formula = rows.kind.formula()
    problem = Problem.of(rows, formula, known, config)
    predicted = np.empty(len(rows))
    folds = dealt(rows.shapes(), config)
    n_folds = int(folds.max()) + 1
    for fold in range(n_folds):
        out = folds == fold
        predicted[out] = problem.bound_s[out] * np.exp(problem.predict(problem.fit(~out, config), out))
        progress(fold + 1, n_folds + 1)
    held_out = task_scores(rows, predicted)
    booster = problem.fit(np.ones(len(rows), dtype=np.bool_), config)
    progress(n_folds + 1, n_folds + 1)
    return FlatModel(
        kind=rows.kind.name,
        sizes=rows.kind.sizes,
        knobs=rows.kind.knobs,
        facts=rows.kind.facts,
        table=_table(rows, known),
        formula=formula,
        latency=forest_of(booster),
        metadata={
            "created_with": __version__,
            "rows": len(rows),
            "noisy_rows": int(rows.noisy.sum()),
            "failed_rows": rows.n_failed,
            "tasks": len(rows.tasks),
            "shapes": len(np.unique(rows.shapes())),
            "devices_measured": sorted({task.device for task in rows.tasks}),
            "held_out": over_tasks(held_out),
            "held_out_rows": row_errors(rows, predicted),
            "recipe": asdict(config),
        },
    )


def task_scores(rows: TuningRows, predicted_s: Floats) -> list[dict[str, Any]]:
    """The score of every task that has at least `LEAST_CONFIGS` settled configurations, for predictions `(n,)`.

    Noisy rows are left out: which of them was fastest is what measuring could not tell.
    """
    task_rows = (np.flatnonzero((rows.of_task == task) & ~rows.noisy) for task in range(len(rows.tasks)))
    return [task_score(rows.latency_s[i], predicted_s[i]) for i in task_rows if len(i) >= LEAST_CONFIGS]


def row_errors(rows: TuningRows, predicted_s: Floats) -> dict[str, dict[str, float]]:
    """Errors of all rows by dtype, whatever their tasks: how many rows, mean and median in percent, share within 10 %."""
    dtypes = np.array([task.dtype for task in rows.tasks])[rows.of_task]
    errors = np.log(rows.latency_s / predicted_s)
    return {str(dtype): error_summary(errors[dtypes == dtype]) for dtype in np.unique(dtypes)}


def dealt(shapes: NDArray[np.int64], config: TrainingConfig) -> NDArray[np.int64]:
    """The fold of every row, `(n,)`: shapes are dealt as wholes."""
    distinct, place = np.unique(shapes, return_inverse=True)
    order = np.random.default_rng(config.seed).permutation(len(distinct))
    return (order % min(config.folds, len(distinct)))[place]


@dataclass(frozen=True, slots=True)
class Problem:
    """What trees are fitted to.

    Attributes:
        features: float32, shape `(n, n_features)`.
        bound_s: Lower bound of each row.
        target: ln(latency / bound).
        weight: Weight of each row.
        of_task: Task of each row.
    """

    features: NDArray[np.float32]
    bound_s: Floats
    target: Floats
    weight: Floats
    of_task: NDArray[np.int64]

    @classmethod
    def of(cls, rows: TuningRows, formula: Formula, devices: Catalogue, config: TrainingConfig) -> Problem:
        """The problem that measured rows pose."""
        columns = formula.columns(rows.input_columns(devices), len(rows))
        bound = formula.names.index(BOUND)
        bound_s = columns[:, bound].copy()
        # How long a task takes says which task it is, and little of its configurations.
        columns[:, bound] = 0.0
        return cls(
            columns.astype(np.float32), bound_s, np.log(rows.latency_s / bound_s), weights(rows, config), rows.of_task
        )

    def fit(self, chosen: NDArray[np.bool_], config: TrainingConfig) -> Any:
        """An xgboost booster fitted to the chosen rows."""
        import xgboost

        target, weight = self.target[chosen], self.weight[chosen]
        tasks = np.unique(self.of_task[chosen], return_inverse=True)[1].ravel()
        data = xgboost.DMatrix(self.features[chosen], target, nthread=1)
        base = float(np.average(target, weights=weight))
        settings = {
            "tree_method": "hist", "max_bin": 256, "max_depth": config.depth, "eta": config.rate,
            "subsample": config.rows_share, "colsample_bytree": config.columns_share, "min_child_weight": config.least_child,
            "lambda": config.ridge, "base_score": base, "seed": config.seed, "nthread": 1, "verbosity": 0,
        }  # fmt: skip
        return xgboost.train(settings, data, config.rounds, obj=two_part(target, weight, tasks, config.within))

    def predict(self, booster: Any, chosen: NDArray[np.bool_]) -> Floats:
        """Predicted ln(latency / bound) of the chosen rows."""
        import xgboost

        answers: Floats = booster.predict(xgboost.DMatrix(self.features[chosen], nthread=1)).astype(np.float64)
        return answers


def weights(rows: TuningRows, config: TrainingConfig) -> Floats:
    """Weight of each row `(n,)`: one mean in all tasks of a device, more for configurations near the best of their task.

    Devices with few rows are not drowned by one with many. With equal sums over tasks, those measured in one configuration,
    which say nothing of a ranking, outweighed the others.
    """
    best = np.full(len(rows.tasks), np.inf)
    np.minimum.at(best, rows.of_task, rows.latency_s)
    weight = (best[rows.of_task] / rows.latency_s) ** config.near_best + config.least_weight
    weight *= np.where(rows.noisy, config.noisy_weight, 1.0)
    total, count = np.bincount(rows.of_task, weights=weight), np.bincount(rows.of_task)
    _, device = np.unique([task.device for task in rows.tasks], return_inverse=True)
    is_ranked = count >= LEAST_CONFIGS
    of_device = np.maximum(np.bincount(device, weights=count * is_ranked), 1.0)
    factor = np.where(is_ranked, np.minimum(of_device.max() / of_device, config.most_device_weight)[device], 1.0)
    return np.asarray(weight / (total / count / factor)[rows.of_task])


def two_part(
    target: Floats, weight: Floats, tasks: NDArray[np.int64], within: float
) -> Callable[[Any, Any], tuple[Floats, Floats]]:
    """The objective: Σ weight · (level error² + `within` · (error − level error)²), levels being weighted means of tasks.

    With `within` 1 it is the weighted squared error. Gradient and curvature are of half of it; of the curvature only the
    diagonal's larger part is used, which makes steps smaller, never wrong.
    """
    total = np.bincount(tasks, weights=weight)

    def derivatives(predicted: Any, _data: Any) -> tuple[Floats, Floats]:
        error = np.asarray(predicted, dtype=np.float64) - target
        level = (np.bincount(tasks, weights=weight * error) / total)[tasks]
        return weight * (level + within * (error - level)), weight * max(within, 1.0)

    return derivatives


def _table(rows: TuningRows, devices: Catalogue) -> dict[tuple[str, str], tuple[float, ...]]:
    """Facts of every device of the catalogue that the kind applies to, for the dtypes that were measured."""
    table = dict(facts_by_device(rows, devices))
    for device in devices:
        for dtype in sorted({task.dtype for task in rows.tasks}):
            try:
                table.setdefault((device.name, dtype), rows.kind.facts_of(device, dtype))
            except SpecError:
                # Not a device of this kind, or it has no such dtype: nothing anyone could ask the model about.
                continue
    return {pair: tuple(float(facts[name]) for name in rows.kind.facts) for pair, facts in sorted(table.items())}


_SCORES = (
    "mean_ape_pct", "median_ape_pct", "within_10_pct", "kendall_tau", "top_1_regret_pct", "top_5_regret_pct",
)  # fmt: skip


def task_score(measured_s: Floats, predicted_s: Floats) -> dict[str, Any]:
    """How good predictions `(n,)` are for measurements `(n,)` of one task, all positive, at least one.

    What `error_summary` gives, and the rank correlation `kendall_tau` (None where one side has a single value),
    `top_1_regret_pct` and `top_5_regret_pct` (see `regret_pct`).
    """
    return {
        **error_summary(np.log(measured_s / predicted_s)),
        "kendall_tau": kendall(measured_s, predicted_s),
        "top_1_regret_pct": regret_pct(measured_s, predicted_s, 1),
        "top_5_regret_pct": regret_pct(measured_s, predicted_s, 5),
    }


def regret_pct(measured_s: Floats, predicted_s: Floats, k: int) -> float:
    """What the best of the `k` configurations that are predicted fastest takes beyond the best of all, in percent."""
    first = np.argsort(predicted_s, kind="stable")[:k]
    return float(measured_s[first].min() / measured_s.min() - 1.0) * 100


def over_tasks(scores: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means and medians of task scores as plain data: `task_mean_` and `task_median_` before each name; and their number."""
    summary: dict[str, float | None] = {"n_tasks": len(scores), "n_configs": sum(score["n"] for score in scores)}
    for name in _SCORES:
        values = [score[name] for score in scores if score[name] is not None]
        summary[f"task_mean_{name}"] = round(float(np.mean(values)), 4) if values else None
        summary[f"task_median_{name}"] = round(float(np.median(values)), 4) if values else None
    return summary
