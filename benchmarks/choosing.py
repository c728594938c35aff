"""Does choosing pay? Shipped rows replayed: error against seconds of measuring for rows chosen at random, evenly, and by us.

Run `.venv/bin/python -P benchmarks/choosing.py`; each replay leaves a JSON file under `build/choosing`, and a run that was
stopped (or that `--minutes` ended) goes on where it was. `benchmarks/choosing_report.py` makes the page's figures of them.

Of each family on each device a fifth of the shapes judges, and so does half of the shapes of real models ("usage"); neither is
chosen from, and the other half of those shapes is the usage log that one policy is told. All policies start from the same
random twentieth of the rest; in rounds, up to three fifths of all seconds, a policy picks with what it has measured so far, and
a model is trained anew. Seconds are those of `models.measuring_cost` with the first call that the row records; a policy knows
only what it could: predicted latencies, and the median first call of each implementation among rows it has measured.

The learner, `QUICK`, stands in for the one that ships: fewer and smaller boosted trees on the same fitted analytic model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kernelcast.datasets.rows.splits import Mask, held_out_shapes
from kernelcast.datasets.rows.table_columns import numbers, text
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.store.location import commit_files
from kernelcast.features.batch.cases import Floats, Indices
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, get_family
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.regressor import Regressor, get_regressor
from kernelcast.models.regressors.xgboost import XGBoost
from kernelcast.models.selection.select_cases import RULE, choose
from kernelcast.models.selection.suggest import measuring_seconds, spec_at
from kernelcast.models.training import training
from kernelcast.models.training.fitting import TrainingTable, fit
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_table

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"
MAIN = ("random", "ours", "usage", "space-filling")
RULES = {
    "ours": RULE,
    "usage": RULE,
    "no cost": replace(RULE, cost_power=0.0),
    "no diversity": replace(RULE, updated=False),
    "width only": replace(RULE, by="width", updated=False),
    "no widths": replace(RULE, size_power=0.0),
    "20 first rows": replace(RULE, first_rows=20),
}
"""Policies that ask a model; `usage` is ours told of usage."""

DEVELOPED_ON = (("softmax", CPU), ("gemm", CPU), ("attention", GPU))
"""The rule was developed on these with other seeds; all else was looked at once it was settled."""

BLENDED = (("softmax", CPU), ("reduction", CPU), ("attention", GPU))
SEEDS, HELD_OUT, FEWEST = (0, 1, 2), 0.2, 24
SHARES = (0.05, 0.08, 0.13, 0.22, 0.36, 0.6)
"""Shares of the seconds that all rows to choose from would take, at the end of each round; the first rows are random ones."""

QUICK = XGBoost(name="quick", on_analytic=True, sizes=((1_000_000, 16, 80, 0.2),))
OUT = Path("build/choosing")


@dataclass(frozen=True)
class Job:
    """One replay."""

    family: str
    device: str
    policy: str
    regressor: str
    seed: int

    @property
    def file(self) -> Path:
        """Where its result goes."""
        words = (self.family, self.device, self.policy.replace(" ", "-"), self.regressor, str(self.seed))
        return OUT / f"{'.'.join(words)}.json"


@dataclass(frozen=True)
class Replay:
    """A family's rows on a device, with what each truly cost; `pool` may be chosen (indices), the others are masks.

    `judged` rows judge, `usage` rows judge for those who ask for shapes of real models, `asked` rows are in the usage log.
    """

    rows: LabelledCases
    table: TrainingTable
    specs: Sequence[KernelSpec]
    seconds: Floats
    first_call_s: Floats
    pool: Indices
    judged: Mask
    usage: Mask
    asked: Mask

    @classmethod
    def of(cls, family: str, device: str, seed: int) -> Replay:
        """The rows without power: metering it would cost more than all the rest."""
        stored = read_shipped(family, [device])
        first = numbers(stored, "first_call_s").values[text(stored, "status") == "ok"]
        rows = labelled_table(stored, family)
        rows = replace(rows, power_w=np.full(len(rows), np.nan))
        out = held_out_shapes(rows.cases, HELD_OUT, seed)
        specs = [spec_at(rows.cases, i) for i in range(len(rows))]
        seconds = measuring_seconds(rows, catalogue(), first)
        table = TrainingTable.of(rows, catalogue())
        sizes = [tuple(spec.dims) for spec in specs]
        wanted = [dict(shape) for shape in get_family(family).model_shapes]
        known = {shape for shape in set(sizes) if any(dict(shape).items() >= item.items() for item in wanted)}
        half = sorted(known)
        np.random.default_rng(seed).shuffle(half)
        hidden, logged = set(half[: len(half) // 2]), set(half[len(half) // 2 :])
        usage = np.array([shape in hidden for shape in sizes], dtype=np.bool_)
        query = np.array([shape in logged for shape in sizes], dtype=np.bool_) & ~out
        return cls(rows, table, specs, seconds, first, np.flatnonzero(~out & ~usage), out, usage, query)

    def budgets(self) -> Floats:
        """Seconds at the end of each round; the first are those of the first rows."""
        whole = float(self.seconds[self.pool].sum())
        result: Floats = whole * np.maximum(SHARES, FEWEST / len(self.pool))
        return result

    def errors(self, chosen: Indices, regressor: str) -> dict[str, float]:
        """Errors on the judged rows of a model trained on the chosen ones, in percent."""
        learned = fit(self.table, chosen, _regressor(regressor), 0)
        rows = np.flatnonzero(self.judged | self.usage)
        members = learned.answers(self.table, rows)["latency"].values()
        logs = np.maximum(np.mean(list(members), axis=0), self.table.log_bound)
        ape = 100.0 * np.abs(np.expm1(logs - self.table.log_labels["latency"]))
        local = ape[self.judged]
        result = {"mean": local.mean(), "median": np.median(local), "within_10": 100.0 * np.mean(local <= 10.0)}
        result["usage_mean"] = ape[self.usage].mean() if self.usage.any() else np.nan
        return {name: round(float(value), 3) for name, value in result.items()}


def _regressor(name: str) -> Regressor:
    return QUICK if name == QUICK.name else get_regressor(name)


def main() -> None:
    """Run what has no file yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1e9, help="start no replay after so many minutes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="only families and devices whose names hold this")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs() if not job.file.exists() and options.only in f"{job.family} {job.device}"]
    until = time.monotonic() + 60.0 * options.minutes
    with ProcessPoolExecutor(options.processes) as pool:
        running = {pool.submit(_run, job, until): job for job in waiting}
        for future in as_completed(running):
            if future.result():
                print(running[future].file.name, flush=True)


def jobs() -> Iterator[Job]:
    """All replays, seed by seed, so that what was stopped early says something of every family."""
    pairs = [(family, device) for device in (CPU, GPU) for family in shipped_families()]
    pairs.sort(key=lambda pair: pair[0] == "gemm")  # The largest table by far comes last.
    for seed in SEEDS:
        yield from (Job(family, device, policy, "quick", seed) for policy in MAIN for family, device in pairs)
    for seed in SEEDS:
        for policy in RULES:
            if policy not in MAIN:
                yield from (Job(family, device, policy, "quick", seed) for family, device in DEVELOPED_ON)
    yield from (Job(family, device, policy, "blend", SEEDS[0]) for family, device in BLENDED for policy in MAIN[:2])


def _run(job: Job, until: float) -> bool:
    if time.monotonic() > until:
        return False
    replay = Replay.of(job.family, job.device, job.seed)
    rng = np.random.default_rng(job.seed)
    shuffled = rng.permutation(replay.pool)
    budgets = replay.budgets()
    chosen = shuffled[: np.searchsorted(np.cumsum(replay.seconds[shuffled]), budgets[0]) + 1]
    points = []
    for budget in budgets.tolist():
        left = budget - float(replay.seconds[chosen].sum())
        if left > 0:
            order = (
                shuffled[~np.isin(shuffled, chosen)] if job.policy == "random" else _picked(replay, job, chosen, left)
            )
            spent = np.cumsum(replay.seconds[order])
            chosen = np.concatenate([chosen, order[: np.searchsorted(spent, left) + 1]])
        facts = {
            "budget": round(budget, 2),
            "seconds": round(float(replay.seconds[chosen].sum()), 2),
            "rows": len(chosen),
        }
        points.append(facts | replay.errors(chosen, job.regressor))
    every = replay.errors(replay.pool, job.regressor) if job.policy == "random" else {}
    result = {"all": every, "pool_rows": len(replay.pool), "pool_seconds": round(float(replay.seconds[replay.pool].sum()), 1),
             "judged": int(replay.judged.sum()), "usage": int(replay.usage.sum()), "points": points}  # fmt: skip
    commit_files([(job.file, json.dumps(result).encode())])
    return True


# What is quick has no name of its own to be trained by.
training.get_regressor = _regressor


def _picked(replay: Replay, job: Job, chosen: Indices, left: float) -> Indices:
    """What a policy picks with what is measured so far, in its order; more than the time lasts, since it may guess too high."""
    place = {replay.specs[i]: i for i in replay.pool.tolist()}
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        model = None
        if job.policy != "space-filling":
            model = Path(folder) / "model"
            save_artifact(training.train([replay.rows.take(chosen)], regressor=job.regressor), model)
        picked = choose(
            model,
            job.device,
            list(place),
            seconds=1.5 * left,
            measured=[replay.specs[i] for i in chosen.tolist()],
            usage={replay.specs[i]: 1.0 for i in replay.pool if replay.asked[i]} if job.policy == "usage" else None,
            repeats=0.0,
            first_call_s=_first_calls(replay, chosen),
            rule=RULES.get(job.policy, RULE),
            seed=job.seed,
        )
    return np.array([place[item.spec] for item in picked], dtype=np.intp)


def _first_calls(replay: Replay, chosen: Indices) -> dict[tuple[str, str], float]:
    """The median first call of each implementation among measured rows that record one."""
    impls, first = replay.rows.cases.impl[chosen], replay.first_call_s[chosen]
    messages = ~np.isnan(first)
    return {(replay.rows.cases.family.name, str(impl)): float(np.median(first[messages & (impls == impl)]))
            for impl in np.unique(impls[messages])}  # fmt: skip


if __name__ == "__main__":
    main()
