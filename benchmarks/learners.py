"""What learns best on public tables of measured kernels: every candidate on the same rows, judged on shapes held out.

Run `.venv/bin/python benchmarks/learners.py TABLES --page docs/decisions/007-learners.md`, where TABLES has a folder per source
with form tables that have a `split` column. Of each table `--rows` training rows and as many held-out ones are taken. A table
that was judged before is read from the work folder, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.datasets.rows.splits import held_out_shapes
from kernelcast.features.batch.cases import Cases, Floats
from kernelcast.features.device import catalogue
from kernelcast.features.vector.extract import extract
from kernelcast.features.vector.schema import FeatureSchema
from kernelcast.models.engine.runtime import Runtime, weighted_sum
from kernelcast.models.family_model.analytic import attributes_of
from kernelcast.models.metrics import error_summary
from kernelcast.models.regressor import Regressor, get_regressor
from kernelcast.models.regressors.blend import Blend
from kernelcast.models.regressors.periodic import Periodic
from kernelcast.models.regressors.xgboost import XGBoost
from kernelcast.models.training.fitting import TrainingTable, fit, hold_out
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_files
from kernelcast.models.training.stacking import stacking_weights, unneeded, weighed_members
from sklearn.ensemble import RandomForestRegressor

ROOT = Path(__file__).parents[1]
SHARE_HELD_OUT = 0.1
TABLES = {
    "aiconfigurator": ("gemm", "attention_prefill", "attention_decode", "moe"),
    "neusight": ("gemm", "conv2d", "elementwise", "softmax", "layernorm"),
}
HELD_OUT_SPLIT = {"aiconfigurator": "val_shapes"}
"""The split that holds shapes out at random; of other sources `SHARE_HELD_OUT` of the shapes to train on is, by hash."""

_WORDS = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")
_NEIGHBOURS, _RIDGE = 12, 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """Rows to learn from and rows of shapes not among them, both under the training rows' feature schema, latency alone."""

    train: TrainingTable
    test: TrainingTable

    @classmethod
    def of(cls, path: Path, split: str | None, rows: int, seed: int = 0) -> Held:
        """At most `rows` rows of either side of a form table, drawn at random; `split` names the other side, if it is one."""
        (learned,) = labelled_files([path], split="train")
        if split is None:
            out = held_out_shapes(learned.cases, SHARE_HELD_OUT)
            learned, unseen = learned.take(~out), learned.take(out)
        else:
            (unseen,) = labelled_files([path], split=split)
        learned, unseen = (_drawn(side, rows, seed) for side in (learned, unseen))
        schema = FeatureSchema.fit(learned.cases)
        return cls(_table(learned, schema), _table(unseen, schema))


Learner = Callable[[Held, int], Iterator[tuple[str, Floats]]]
"""From rows and a seed to names and answers: ln of seconds for the held-out rows, shape `(n,)`."""


def main() -> None:
    """Judge what has no result yet, print every line as it comes, and put the table into the page."""
    options = _options()
    result: dict[str, dict[str, Any]] = {}
    options.work.mkdir(parents=True, exist_ok=True)
    for source, families in TABLES.items():
        for family in families:
            path, name = options.tables / source / f"{family}.parquet", f"{source} {family}"
            if path.exists() and fnmatch.fnmatchcase(f"{source}/{family}", options.only):
                print(f"\n| {name} | mean / median / within 10 % | CPU s |\n| --- | --- | --- |", flush=True)
                remaining = options.work / f"{source}-{family}-{options.rows}-{options.seed}.json"
                if remaining.exists():
                    result[name] = json.loads(remaining.read_text(encoding="utf-8"))
                    for learner, item in result[name].items():
                        print(_line(learner, item))
                    continue
                held_out = Held.of(path, HELD_OUT_SPLIT.get(source), options.rows)
                result[name] = judged(held_out, options.seed)
                remaining.write_text(json.dumps(result[name]), encoding="utf-8")
    if not result:
        raise SystemExit(f"{options.tables} has none of the tables wanted ({options.only})")
    text = table(result)
    print(f"\n{text}")
    if options.page:
        put(options.page, "learners", text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, help="folder with a folder of tables per source")
    parser.add_argument("--rows", type=int, default=12_000, help="at most so many rows to learn from, and to judge by")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tables to run, such as 'neusight/*'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "learners")
    parser.add_argument("--page", type=Path, help="page with a place for the table (see `put`)")
    return parser.parse_args()


def judged(held: Held, seed: int) -> dict[str, dict[str, Any]]:
    """Errors on the held-out rows and CPU seconds of every learner, by name; prints each as it is found."""
    result: dict[str, dict[str, Any]] = {}
    for learner in LEARNERS:
        began = time.process_time()
        for name, answer in learner(held, seed):
            errors = error_summary(held.test.log_labels["latency"] - np.maximum(answer, held.test.log_bound))
            # A learner's later answers cost what they add to its first.
            result[name] = errors | {"cpu_s": round(time.process_time() - began, 1)}
            print(_line(name, result[name]), flush=True)
            began = time.process_time()
    return result


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A Markdown table of mean APE: learners down, the mean over each source's tables across, over all, and the CPU seconds."""
    names = dict.fromkeys(name for item in found.values() for name in item)
    sources = dict.fromkeys(name.split()[0] for name in found)
    rows = [["learner", *sources, "all tables", "CPU s"], ["---"] * (len(sources) + 3)]
    for name in names:
        errors = {key: item[name]["mean_ape_pct"] for key, item in found.items() if name in item}
        columns = [[error for key, error in errors.items() if key.split()[0] == source] for source in sources]
        columns.append(list(errors.values()))
        cells = [f"{np.mean(column):.1f}" if column else "" for column in columns]
        seconds = sum(item[name]["cpu_s"] for item in found.values() if name in item)
        rows.append([name, *cells, f"{seconds:.0f}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def put(page: Path, name: str, text: str) -> None:
    """Put generated text into a page written by hand: between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        SystemExit: the page has no such place.
    """
    old = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not place.search(old):
        raise SystemExit(f"{page} has no <!-- {name} --> and <!-- /{name} --> to put the table between")
    page.write_text(place.sub(lambda item: f"{item[1]}{text}\n{item[2]}", old), encoding="utf-8")


def _errors(one: Mapping[str, Any]) -> str:
    return f"{one['mean_ape_pct']:.1f} / {one['median_ape_pct']:.1f} / {one['within_10_pct']:.0f}"


def _line(name: str, one: Mapping[str, Any]) -> str:
    return f"| {name} | {_errors(one)} | {one['cpu_s']:.0f} |"


def _drawn(rows: LabelledCases, most: int, seed: int) -> LabelledCases:
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:most]))


def _table(rows: LabelledCases, schema: FeatureSchema) -> TrainingTable:
    features = extract(rows.cases, schema, catalogue())
    return TrainingTable(
        rows=rows,
        features=features,
        terms=features.terms.T,
        attributes=attributes_of(rows.cases.categories, features.read_as),
        log_bound=np.log(features.work.lower_bound_s),
        log_labels={"latency": np.log(rows.latency_s)},
    )


def _bound(held: Held, _seed: int) -> Iterator[tuple[str, Floats]]:
    yield "roofline: the lower bound", held.test.log_bound


def _interpolation(held: Held, _seed: int) -> Iterator[tuple[str, Floats]]:
    yield "interpolation on the grid", interpolated(held)


def _raw_forest(held: Held, seed: int) -> Iterator[tuple[str, Floats]]:
    """What a first attempt looks like: sizes and words as they are, no physics; words as numbers, in alphabetical order."""
    known = {key: np.unique(getattr(held.train.rows.cases, key)) for key in _WORDS}
    x, unseen = (
        np.column_stack([
            *side.rows.cases.sizes.values(),
            *(np.searchsorted(words, getattr(side.rows.cases, key)) for key, words in known.items()),
        ]).astype(np.float32)
        for side in (held.train, held.test)
    )  # fmt: skip
    forest = RandomForestRegressor(min_samples_leaf=2, max_features=0.5, random_state=seed)
    yield "random forest on raw sizes", forest.fit(x, held.train.log_labels["latency"]).predict(unseen)


def _fitted(title: str, regressor: Regressor) -> Learner:
    def answers(held: Held, seed: int) -> Iterator[tuple[str, Floats]]:
        result = fit(held.train, slice(None), regressor, seed)
        yield title, result.answers(held.test, slice(None))["latency"][""]

    return answers


def _plain_network(held: Held, seed: int) -> Iterator[tuple[str, Floats]]:
    """On the ratio to the analytic model, as the periodic network."""
    bare = fit(held.train, slice(None), get_regressor("analytic"), seed)
    (x, base), (unseen, unseen_base) = bare.inputs(held.train), bare.inputs(held.test)
    yield (
        "plain network on the analytic model",
        unseen_base + plain_network(x, held.train.log_labels["latency"] - base, unseen, Periodic(), seed),
    )


def _members(held: Held, seed: int) -> Iterator[tuple[str, Floats]]:
    """The blend's members, fitted once on all rows, and their even mean."""
    members = fit(held.train, slice(None), Blend(), seed).answers(held.test, slice(None))["latency"]
    yield "mean of network and boosted trees", (members["boosted"] + members["network"]) / 2
    yield "… boosted trees on the analytic model", members["boosted"]
    yield "… periodic network on the analytic model", members["network"]


def _blend(held: Held, seed: int) -> Iterator[tuple[str, Floats]]:
    """The blend with all that training does: fits that leave shapes out, and weights learned from these."""
    with ThreadPoolExecutor(1) as pool:
        answers, most = hold_out(held.train, get_regressor("blend"), seed, pool)
    weights = stacking_weights(held.train, answers)
    fitted = fit(held.train, slice(None), get_regressor("blend"), seed, most, unneeded=unneeded(weights))
    final, members = weighed_members(fitted, weights)
    x, log_base = final.inputs(held.test)
    outputs = Runtime([graph.onnx for graph in final.graphs]).run(x)
    yield "blend as trained", weighted_sum(outputs, members["latency"]) + log_base


LEARNERS: tuple[Learner, ...] = (
    _bound,
    _interpolation,
    _raw_forest,
    _fitted("boosted trees on the bound", XGBoost()),
    _fitted("analytic model alone", get_regressor("analytic")),
    _plain_network,
    _members,
    _blend,
)


def interpolated(held: Held) -> Floats:
    """Logarithm of seconds by a plane through the nearest measured rows of the same device, dtypes, variant and library.

    The plane is in log2 of the sizes, weighed by inverse squared distance and a little shrunk towards a level one; where
    nothing like a row was measured the answer is the bound.
    """
    from scipy.spatial import KDTree

    train, test = held.train.rows.cases, held.test.rows.cases
    learned, query = _logs(train), _logs(test)
    rows = {words: index for index, words in train.groups(*_WORDS)}
    answer = held.test.log_bound.copy()
    for index, words in test.groups(*_WORDS):
        entry = rows.get(words)
        if entry is None:
            continue
        _, order = KDTree(learned[entry]).query(query[index], k=np.arange(1, min(_NEIGHBOURS, len(entry)) + 1))
        near = learned[entry][order] - query[index][:, None]
        weight = 1.0 / ((near**2).sum(axis=2) + 1e-3)
        weight /= weight.sum(axis=1, keepdims=True)
        label = held.train.log_labels["latency"][entry][order]
        level = (weight * label).sum(axis=1)
        centre = (weight[:, :, None] * near).sum(axis=1, keepdims=True)
        tilted = near - centre
        scatter = np.einsum("nk,nki,nkj->nij", weight, tilted, tilted) + _RIDGE * np.eye(near.shape[2])
        pulled = np.einsum("nk,nki,nk->ni", weight, tilted, label - level[:, None])
        slope = np.linalg.solve(scatter, pulled[:, :, None])[:, :, 0]
        answer[index] = level - (slope * centre[:, 0]).sum(axis=1)
    return answer


def _logs(cases: Cases) -> Floats:
    return np.log2(np.maximum(np.stack(list(cases.sizes.values()), axis=1), 0.5))


def plain_network(x: Any, y: Floats, unseen: Any, like: Periodic, seed: int) -> Floats:
    """Answers for `unseen` of a residual network trained `like` the periodic one, but on the bare features; shape `(n,)`."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    known = np.ma.masked_invalid(x)
    mean, scale = known.mean(axis=0).filled(0.0), np.maximum(known.std(axis=0).filled(0.0), 1e-3)
    learned, query = (
        torch.tensor(np.clip(np.nan_to_num((side - mean) / scale), -4, 4), dtype=torch.float32) for side in (x, unseen)
    )
    centre, size = float(np.median(y)), max(float(y.std()), 1e-6)
    wanted = torch.tensor((y - centre) / size, dtype=torch.float32)
    sides = [learned.shape[1], *[like.width] * like.depth, 1]
    weights = [torch.randn(n, m, generator=chance) * (3 * m) ** -0.5 for m, n in itertools.pairwise(sides)]
    parameters = [value.requires_grad_(True) for w in weights for value in (w, torch.zeros(len(w)))]

    def answer(hidden: Any) -> Any:
        for i in range(like.depth):
            out = torch.relu(torch.nn.functional.linear(hidden, *parameters[2 * i : 2 * i + 2]))
            hidden = out if i == 0 else hidden + out
        return torch.nn.functional.linear(hidden, *parameters[-2:])[:, 0]

    batch = min(like.batch, len(x))
    per_epoch = max(len(x) // batch, 1)
    epochs = min(max(like.epochs, math.ceil(like.least_steps / per_epoch)), like.most_epochs)
    optimiser = torch.optim.AdamW(parameters, lr=like.rate, weight_decay=like.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, like.rate, total_steps=epochs * per_epoch + 1, pct_start=0.1
    )
    for _ in range(epochs):
        order: Any = torch.randperm(len(x), generator=chance)[: per_epoch * batch]
        for rows in order.split(batch):
            loss: Any = torch.nn.functional.smooth_l1_loss(answer(learned[rows]), wanted[rows], beta=like.loss_width)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    with torch.no_grad():
        return np.asarray(answer(query), dtype=np.float64) * size + centre


if __name__ == "__main__":
    main()
