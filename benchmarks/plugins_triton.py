"""Triton's autotuner with and without the cost model: how fast the chosen configuration is, and the tuning time saved.

On a machine with a GPU, torch and Triton:

    python -P benchmarks/plugins_triton.py measure [--top-k 5] [--shapes 24] [--minutes 9] [--model DIR] [--json FILE]

Every configuration of every shape is compiled and timed once. What pruned tuning would have chosen and cost follows from
the same times, so noise between two runs does not come into it; the first shapes are also tuned by Triton's own autotuner
with the hook in place. Beside the model stand the expectation of as many configurations drawn blindly, and the first ones of
the list.

Without a GPU, on the measured rows that come with kernelcast:

    python -P benchmarks/plugins_triton.py replay [--json FILE]

Shapes are then held out in turn, and what a model trained on the others would have kept is compared with the best that was
measured; it needs the packages that training needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import comb, exp, log
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PROBLEMS = Path(__file__).with_name("plugins_triton_problems.py")


@dataclass(frozen=True)
class Trial:
    """One configuration of one shape: seconds of a call (None where it did not run), and seconds that trying it took."""

    config: Mapping[str, int]
    latency_s: float | None
    wall_s: float


@dataclass(frozen=True)
class Outcome:
    """What tuning one shape cost and gave, exhaustively and pruned to `kept` configurations."""

    shape: str
    n: int
    failed: int
    kept: int
    best_s: float
    chosen_s: float
    blind_s: float
    first_s: float
    all_wall_s: float
    kept_wall_s: float
    prune_s: float

    @property
    def speed(self) -> float:
        """Speed of the chosen configuration as a share of the best one's."""
        return self.best_s / self.chosen_s


def outcome(shape: str, trials: Sequence[Trial], kept: Sequence[int], prune_s: float) -> Outcome:
    """What tuning only the `kept` trials, by their places, would have cost and given.

    Raises:
        ValueError: no trial ran, or none of the kept ones did.
    """
    ran = [trial.latency_s for trial in trials if trial.latency_s is not None]
    chosen = [result for i in kept if (result := trials[i].latency_s) is not None]
    if not ran or not chosen:
        raise ValueError(
            f"{shape}: {len(ran)} of {len(trials)} configurations ran, {len(chosen)} of {len(kept)} kept ones"
        )
    first = [trial.latency_s for trial in trials[: len(kept)] if trial.latency_s is not None]
    return Outcome(
        shape=shape, n=len(trials), failed=len(trials) - len(ran), kept=len(kept), best_s=min(ran), chosen_s=min(chosen),
        blind_s=expected_best_s(ran, len(kept)), first_s=min(first, default=max(ran)),
        all_wall_s=sum(trial.wall_s for trial in trials), kept_wall_s=sum(trials[i].wall_s for i in kept), prune_s=prune_s,
    )  # fmt: skip


def expected_best_s(times_s: Sequence[float], k: int) -> float:
    """Mean over all choices of `k` of the times of the best one chosen: the time at rank r (from 0) is it in C(n-r-1, k-1)."""
    ordered = sorted(times_s)
    k = min(k, len(ordered))
    return sum(t * comb(len(ordered) - r - 1, k - 1) for r, t in enumerate(ordered)) / comb(len(ordered), k)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Over shapes: geometric means of speed as a share of the best, the worst one, and tuning time saved."""
    all_wall, kept_wall = sum(o.all_wall_s for o in outcomes), sum(o.kept_wall_s + o.prune_s for o in outcomes)
    return {
        "shapes": len(outcomes),
        "configurations": sum(o.n for o in outcomes),
        "kept": sum(o.kept for o in outcomes),
        "speed_of_best": geometric_mean(o.speed for o in outcomes),
        "speed_of_best_worst_shape": min(o.speed for o in outcomes),
        "best_found_share": sum(o.chosen_s == o.best_s for o in outcomes) / len(outcomes),
        "blind_speed_of_best": geometric_mean(o.best_s / o.blind_s for o in outcomes),
        "first_speed_of_best": geometric_mean(o.best_s / o.first_s for o in outcomes),
        "exhaustive_s": all_wall,
        "pruned_s": kept_wall,
        "saved_share": 1.0 - kept_wall / all_wall if all_wall else 0.0,
        "prune_median_s": median(o.prune_s for o in outcomes),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers, at least one."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def from_tree() -> None:
    """Make `kernelcast` importable where it is not installed: this tree's root is the package."""
    if importlib.util.find_spec("kernelcast") is None:
        spec = importlib.util.spec_from_file_location(
            "kernelcast", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        assert spec is not None and spec.loader is not None  # noqa: PT018 - the file is there
        sys.modules["kernelcast"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def problems_file() -> Any:
    """The kernels and shapes, which need torch and Triton to be imported."""
    if PROBLEMS.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(PROBLEMS.stem, PROBLEMS)
        assert spec is not None and spec.loader is not None  # noqa: PT018 - the file lies beside this one
        sys.modules[PROBLEMS.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PROBLEMS.stem])
    return sys.modules[PROBLEMS.stem]


def gpu_seconds(call: Callable[[], Any]) -> float:
    """Median seconds of a call on the GPU, as Triton's autotuner takes it: its L2 cache emptied before every call."""
    import triton

    return float(triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median")) / 1e3


def try_all(problem: Any, timer: Callable[[Callable[[], Any]], float]) -> list[Trial]:
    """Every configuration compiled, checked against torch and timed.

    Raises:
        ValueError: a configuration computes something else.
    """
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    trials = []
    for config in problem.configs:
        start = time.perf_counter()
        try:
            latency_s: float | None = timer(partial(_launch, problem, config))
        except (OutOfResources, CompileTimeAssertionFailure, PTXASError):
            latency_s = None
        wall_s = time.perf_counter() - start
        if latency_s is not None and (error := problem.error()) > _TOLERANCE:
            raise ValueError(f"{problem.name} {config}: the result is off by {error:.2g}")
        trials.append(
            Trial({**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}, latency_s, wall_s)
        )
    return trials


_TOLERANCE = 0.02


def _launch(problem: Any, config: Any) -> None:
    parameters = config.all_kwargs()
    problem.kernel[problem.grid(parameters)](**problem.arguments, **parameters)


def tune_pruned(problem: Any, pruner: Any, timer: Callable[[Callable[[], Any]], float]) -> tuple[list[Any], float]:
    """Triton's own autotuner with the hook in place: the configurations it timed, and the seconds tuning took."""
    import triton

    decorate = triton.autotune(
        problem.configs, list(problem.key), prune_configs_by={"early_config_prune": pruner},
        do_bench=lambda call, quantiles: [timer(call)] * len(quantiles),
    )  # fmt: skip
    tuned = decorate(problem.kernel)
    start = time.perf_counter()
    tuned[problem.grid](**problem.arguments)
    return list(tuned.configs_timings), time.perf_counter() - start


def measure(
    asked: Iterable[Any], top_k: int | float, *, timer: Callable[[Callable[[], Any]], float], device: str | None,
    folder: Path | None, tuned_shapes: int = 4,
    most_s: float = float("inf"),
) -> dict[str, Any]:  # fmt: skip
    """Every problem tuned exhaustively; what pruning would have chosen and cost; the first ones tuned by Triton's own too.

    No problem is begun after `most_s` seconds.
    """
    from kernelcast.plugins.triton import prune

    outcomes, shapes, began = [], [], time.monotonic()
    for number, problem in enumerate(asked):
        pruner = prune(top_k, device, problem.maps, folder and folder / f"{problem.maps.kind}.kcm")
        trials = try_all(problem, timer)
        start = time.perf_counter()
        chosen = pruner(problem.configs, problem.arguments)
        prune_s = time.perf_counter() - start
        items = [problem.configs.index(config) for config in chosen]
        outcomes.append(outcome(problem.name, trials, items, prune_s))
        shapes.append({**asdict(outcomes[-1]), "kept_places": items, "trials": [asdict(trial) for trial in trials]})
        if number < tuned_shapes:
            timed, wall_s = tune_pruned(problem, pruner, timer)
            shapes[-1] |= {"autotuner_timed": len(timed), "autotuner_s": wall_s}
            if timed != chosen:
                raise ValueError(f"{problem.name}: Triton timed other configurations than the hook chose")
        print(_line(outcomes[-1]), flush=True)
        if time.monotonic() - began > most_s:
            break
    return {"top_k": top_k, "summary": summary(outcomes), "shapes": shapes}


def _line(o: Outcome) -> str:
    return (
        f"{o.shape:36s} {o.kept:3d} of {o.n:3d} kept ({o.failed} cannot run)  best {o.best_s * 1e6:9.1f} us  "
        f"chosen {o.speed:6.1%} of its speed  blind {o.best_s / o.blind_s:6.1%}  "
        f"tuning {o.all_wall_s:6.1f} s -> {o.kept_wall_s:5.1f} s"
    )


def replay(names: Sequence[str] = ("triton-gemm", "triton-attention")) -> dict[str, Any]:
    """Held-out errors of each kind on the shipped rows, and what keeping one configuration of each task would have cost."""
    from kernelcast.features.tuning.kind import get_kind
    from kernelcast.models.tuning.rows import read_tables, tuning_rows
    from kernelcast.models.tuning.training import TrainingConfig

    result = tuning_rows([get_kind(name) for name in names], read_tables())
    return {name: replayed(rows, held_out_s(rows, TrainingConfig())) for name, rows in result.items()}


def held_out_s(rows: Any, config: Any) -> Any:
    """Predicted seconds `(n,)`, each by a model that saw no row of its shape, in any dtype."""
    import numpy as np
    from kernelcast.features.device import catalogue
    from kernelcast.models.tuning.training import Problem, dealt

    problem = Problem.of(rows, rows.kind.formula(), catalogue(), config)
    folds, predicted = dealt(rows.shapes(), config), np.empty(len(rows))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        predicted[out] = problem.bound_s[out] * np.exp(problem.predict(problem.fit(~out, config), out))
    return predicted


def replayed(rows: Any, predicted_s: Any) -> dict[str, Any]:
    """Errors of predictions `(n,)` of measured rows: over all, by dtype, and of ranking the configurations of a task."""
    import numpy as np

    dtype = np.array([rows.tasks[i].dtype for i in rows.of_task])
    sizes = np.bincount(rows.of_task)
    everything = np.ones(len(rows), dtype=np.bool_)
    parts = {"all": everything, **{name: dtype == name for name in sorted(set(dtype.tolist()))}}
    return {
        "rows": len(rows),
        "shapes": len(np.unique(rows.shapes())),
        "tasks_by_configurations": {int(n): int(np.sum(sizes == n)) for n in np.unique(sizes)},
        "parts": {name: _part(rows, predicted_s, chosen) for name, chosen in parts.items()},
    }


def _part(rows: Any, predicted_s: Any, chosen: Any) -> dict[str, Any]:
    import numpy as np
    from kernelcast.models.metrics import ape_pct
    from kernelcast.models.tuning.training import task_score

    ape = ape_pct(rows.latency_s[chosen], predicted_s[chosen])
    groups = [np.flatnonzero(chosen & (rows.of_task == task)) for task in np.unique(rows.of_task[chosen])]
    groups = [group for group in groups if len(group) > 1]
    scores = [task_score(rows.latency_s[group], predicted_s[group]) for group in groups]
    taus = [score["kendall_tau"] for score in scores if score["kendall_tau"] is not None]
    result = {"rows": int(chosen.sum()), "mean_ape_pct": float(ape.mean()), "median_ape_pct": float(np.median(ape)),
             "within_10_pct": float(np.mean(ape <= 10.0) * 100), "tasks_of_several": len(groups)}  # fmt: skip
    if not groups:
        return result
    outcomes = [
        outcome(str(rows.tasks[rows.of_task[group[0]]].sizes), [Trial({}, float(s), 1.0) for s in rows.latency_s[group]],
                [int(np.argmin(predicted_s[group]))], 0.0)
        for group in groups
    ]  # fmt: skip
    return result | {
        "kendall_tau": float(np.mean(taus)) if taus else None,
        "top_1_regret_pct": float(np.mean([score["top_1_regret_pct"] for score in scores])),
        "top_5_regret_pct": float(np.mean([score["top_5_regret_pct"] for score in scores])),
        "keeping_one": summary(outcomes),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Triton's autotuner with and without the cost model.")
    ways = parser.add_subparsers(dest="way", required=True)
    measured = ways.add_parser("measure", help="on this machine's GPU")
    measured.add_argument("--top-k", type=_top_k, default=5, help="how many, or with a point what share, are kept")
    measured.add_argument("--shapes", type=int, default=24, help="how many shapes, at most %(default)s")
    measured.add_argument("--minutes", type=float, default=float("inf"), help="begin no shape after so many minutes")
    measured.add_argument("--device", help="name in the catalogue; default: the current GPU")
    measured.add_argument("--model", type=Path, help="folder of model files; default: those installed")
    replaying = ways.add_parser("replay", help="on the measured rows that come with kernelcast")
    for way in (measured, replaying):
        way.add_argument("--json", type=Path, help="also write everything here")
    args = parser.parse_args()
    from_tree()
    if args.way == "measure":
        result = measure(
            problems_file().problems(args.shapes),
            args.top_k,
            timer=gpu_seconds,
            device=args.device,
            folder=args.model,
        )
        print(json.dumps(result["summary"], indent=2))
    else:
        result = replay()
        print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _top_k(text: str) -> int | float:
    return float(text) if "." in text else int(text)


if __name__ == "__main__":
    main()
