"""The recorded search for better settings of the blend's two members, around today's and no dearer than 1.5 times as much.

Run `.venv/bin/python benchmarks/search.py TABLES --page docs/decisions/007-learners.md`, TABLES as for `learners.py`; it needs
optuna. Every trial goes to docs/decisions/search-<learner>.json. Fits are short ones on few rows, so what wins is first held
against today's setting on rows of another draw, where it must gain more than today's setting differs from itself by the seed.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.features.batch.cases import Floats
from kernelcast.models.engine.runtime import Runtime
from kernelcast.models.metrics import error_summary
from kernelcast.models.regressor import Matrix, Problem, Regressor, get_regressor
from kernelcast.models.regressors.periodic import Periodic
from kernelcast.models.regressors.xgboost import XGBoost
from kernelcast.models.training.fitting import fit

# Scripts of one folder find each other: Python puts a script's own folder first.
from learners import HELD_OUT_SPLIT, ROOT, Held, put

FAMILIES = ("aiconfigurator/gemm", "aiconfigurator/moe", "neusight/conv2d")
"""Two large tables of tensor-core kernels, and the table with the largest errors."""

SEEDS = (0, 1, 2)
MOST_COST = 1.5
CONFIRMED_ON = 1_000
"""Added to the seed that draws rows: rows the search has not chosen by."""


@dataclass(frozen=True, slots=True)
class Task:
    """One family's rows as a regressor meets them: the problem (ratio to the analytic model), and what is asked of it."""

    problem: Problem
    unseen: Matrix
    wanted: Floats

    @classmethod
    def of(cls, held: Held) -> Task:
        """The task of learning what the analytic model leaves over; that is fitted once, as no setting changes it."""
        bare = fit(held.train, slice(None), get_regressor("analytic"), 0)
        (x, base), (unseen, unseen_base) = bare.inputs(held.train), bare.inputs(held.test)
        problem = Problem(x, {"latency": held.train.log_labels["latency"] - base}, {}, 0)
        return cls(problem, unseen, held.test.log_labels["latency"] - unseen_base)

    def error_pct(self, regressor: Regressor, seed: int) -> float:
        """Mean absolute percentage error on the held-out rows."""
        (graph,) = regressor.fit(replace(self.problem, seed=seed))
        answer = Runtime([graph.onnx]).run(self.unseen)[0][:, 0]
        return error_summary(self.wanted - answer)["mean_ape_pct"]


Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for one learner: today's parameters, how a trial draws others, what they make, what they cost.

    `cost` is in units of its own, proportional to the multiplications of a fit (network) or the leaves grown (trees).
    """

    name: str
    today: Parameters
    draw: Callable[[Any], dict[str, Any]]
    regressor: Callable[[Parameters, int], Regressor]
    cost: Callable[[Parameters], float]


def _draw_network(trial: Any) -> dict[str, Any]:
    return {
        "width": trial.suggest_int("width", 96, 224, step=32),
        "depth": trial.suggest_int("depth", 2, 6),
        "spread": trial.suggest_float("spread", 0.05, 2.0, log=True),
        "batch": trial.suggest_categorical("batch", [128, 256, 512]),
        "epochs": trial.suggest_float("epochs", 0.6, 2.0, log=True),
        "rate": trial.suggest_float("rate", 1e-3, 1.5e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 2e-3, 0.2, log=True),
        "loss_width": trial.suggest_float("loss_width", 0.01, 0.5, log=True),
    }


def _network(parameters: Parameters, steps: int) -> Regressor:
    """A network trained for `steps` batches of today's size, times `epochs`: as many rows are seen whatever the batch."""
    count = round(steps * parameters["epochs"] * NETWORK.batch / parameters["batch"])
    local = {name: value for name, value in parameters.items() if name != "epochs"}
    return replace(NETWORK, epochs=1, least_steps=count, most_epochs=10_000, **local)


def _network_cost(parameters: Parameters) -> float:
    """Rows seen × weights, and what a batch costs however few rows it has: about as much as 100 rows at today's width."""
    weights = parameters["width"] ** 2 * parameters["depth"]
    small = 100 * NETWORK.width**2 * NETWORK.depth / parameters["batch"]
    return float(parameters["epochs"] * (weights + small))


def _draw_trees(trial: Any) -> dict[str, Any]:
    return {
        "leaves": trial.suggest_int("leaves", 12, 128, log=True),
        "rounds": trial.suggest_int("rounds", 200, 1_500, log=True),
        "rate": trial.suggest_float("rate", 0.02, 0.2, log=True),
    }


def _trees(parameters: Parameters, _steps: int) -> Regressor:
    size = (100_000_000, parameters["leaves"], parameters["rounds"], parameters["rate"])
    return replace(XGBoost(), sizes=(size,))


NETWORK = Periodic()
_KEPT = ("width", "depth", "spread", "batch", "rate", "weight_decay", "loss_width")


def searches(rows: int) -> tuple[Search, ...]:
    """The searches; today's trees are those for a table of `rows` rows."""
    _, leaves, rounds, rate = next(size for size in XGBoost().sizes if rows <= size[0])
    network = {name: getattr(NETWORK, name) for name in _KEPT} | {"epochs": 1.0}
    trees = {"leaves": leaves, "rounds": rounds, "rate": rate}
    return (
        Search("periodic", network, _draw_network, _network, _network_cost),
        Search("xgboost", trees, _draw_trees, _trees, lambda p: float(p["leaves"] * p["rounds"])),
    )


def main() -> None:
    """Search for every learner wanted; tell it, and put it into the page."""
    options = _options()
    drawn = {seed: {name: _task(options, name, seed) for name in options.families}
             for seed in (options.seed, options.seed + CONFIRMED_ON)}  # fmt: skip
    for search in searches(options.rows):
        if search.name in options.learners:
            text = run(search, list(drawn.values()), options)
            print(text, flush=True)
            if options.page:
                put(options.page, f"search-{search.name}", text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, help="folder with a folder of tables per source")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, help="seconds after which no further trial is begun")
    parser.add_argument("--rows", type=int, default=6_000, help="at most so many rows to learn from, and to judge by")
    parser.add_argument("--steps", type=int, default=600, help="batches a network is trained for")
    parser.add_argument("--families", nargs="+", default=FAMILIES, metavar="SOURCE/FAMILY")
    parser.add_argument("--learners", nargs="+", default=["periodic", "xgboost"], choices=["periodic", "xgboost"])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "decisions", help="folder of the records")
    parser.add_argument("--page", type=Path, help="page with places for the summaries (see `learners.put`)")
    return parser.parse_args()


def _task(options: argparse.Namespace, name: str, seed: int) -> Task:
    source, family = name.split("/")
    path = options.tables / source / f"{family}.parquet"
    return Task.of(Held.of(path, HELD_OUT_SPLIT.get(source), options.rows, seed))


def run(search: Search, tasks: Sequence[Mapping[str, Task]], options: argparse.Namespace) -> str:
    """Today's setting by seed, the trials, the best held against today's on the second tasks; the summary in Markdown."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chosen_by, confirmed_by = tasks
    dearest = MOST_COST * search.cost(search.today)
    today = [_tried(search, search.today, chosen_by, options.steps, seed) for seed in SEEDS]
    base = {name: float(np.mean([item["error_pct"][name] for item in today])) for name in chosen_by}
    record: dict[str, Any] = {
        "learner": search.name, "families": list(chosen_by), "rows": options.rows, "seed": options.seed,
        "steps": options.steps, "most_cost": MOST_COST, "optuna": version("optuna"),
        "objective": "mean over families of mean APE on held-out shapes, as a ratio to the mean of today's seeds",
        "today": [item | {"objective": _ratio(item, base)} for item in today], "trials": [], "too_dear": 0,
    }  # fmt: skip
    path = options.out / f"search-{search.name}.json"

    def objective(trial: Any) -> float:
        parameters = search.draw(trial)
        if search.cost(parameters) > dearest:
            record["too_dear"] += 1
            raise optuna.TrialPruned
        one = _tried(search, parameters, chosen_by, options.steps, options.seed)
        ratio = _ratio(one, base)
        record["trials"].append({"number": trial.number} | one | {"objective": ratio})
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{search.name} {trial.number}: {ratio:.4f} {one}", flush=True)
        return ratio

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=options.seed, n_startup_trials=8))
    enough = options.trials
    study.optimize(
        objective,
        # What is too dear costs nothing and does not count.
        n_trials=4 * enough,
        timeout=options.timeout,
        callbacks=[lambda study, _: study.stop() if len(record["trials"]) >= enough else None],
    )
    best = min(record["trials"], key=lambda item: item["objective"])
    record["confirmed"] = {
        name: [_tried(search, parameters, confirmed_by, options.steps, seed) for seed in SEEDS]
        for name, parameters in (("today", search.today), ("best", best["parameters"]))
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return summary(record)


def _tried(search: Search, parameters: Parameters, tasks: Mapping[str, Task], steps: int, seed: int) -> dict[str, Any]:
    began = time.process_time()
    regressor = search.regressor(parameters, steps)
    errors = {name: task.error_pct(regressor, seed) for name, task in tasks.items()}
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in parameters.items()}
    cost = round(search.cost(parameters) / search.cost(search.today), 2)
    return {"parameters": rounded, "seed": seed, "error_pct": errors, "cost": cost,
            "cpu_s": round(time.process_time() - began, 1)}  # fmt: skip


def _ratio(one: Mapping[str, Any], base: Mapping[str, float]) -> float:
    return round(float(np.mean([one["error_pct"][name] / base[name] for name in base])), 4)


def summary(record: Mapping[str, Any]) -> str:
    """The error of the best setting on other rows against that of today's. Every trial is in the JSON file."""
    confirmed = record["confirmed"]
    base = {
        name: float(np.mean([trial["error_pct"][name] for trial in confirmed["today"]])) for name in record["families"]
    }
    ratios = {name: [_ratio(trial, base) for trial in trials] for name, trials in confirmed.items()}
    gain = 1.0 - float(np.mean(ratios["best"]))
    # The standard error of a difference of two means, both of whose seeds scatter as today's do.
    noise = float(np.std(ratios["today"], ddof=1)) * (2 / len(SEEDS)) ** 0.5
    way, sure = "lower" if gain > 0 else "higher", "more" if abs(gain) > 2 * noise else "no more"
    text = (
        f"* {record['learner']}, {len(record['trials'])} trials: on other rows the error of the best setting is "
        f"{abs(gain):.1%} {way} than the present one's, {sure} than twice the standard error ({noise:.1%})."
    )
    return textwrap.fill(text, 128, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    main()
