"""What choosing Triton's configurations by a ranking costs, on shapes of which many configurations were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.features.batch.cases import Cases
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.kind import BOUND, Candidates, Task, get_kind
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.metrics import ape_pct, kendall
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.tuning.rows import TuningRows, read_tables, tuning_rows
from kernelcast.models.tuning.training import TrainingConfig
from kernelcast.plugins.cost_model import CostModel
from numpy.typing import NDArray
from plugins_triton import expected_best_s, held_out_s
from triton_rivals import Ranking

Floats = NDArray[np.float64]

KINDS = ("triton-gemm", "triton-attention")
LEAST_CONFIGURATIONS = 20
"""Configurations of a task below which it is not judged; the shipped campaign has four at most."""

DECODE_ROWS = 64
"""Products of at most so many rows are those of decoding."""

ORDER, MODEL, DRAWN, PAPER = "one order for all", "the model", "drawn blindly", "costs on paper"


@dataclass(frozen=True, slots=True)
class Judged:
    """A task and its configurations: measured seconds `(n,)`, knobs, and scores by ranking, less being better."""

    task: Task
    measured_s: Floats
    knobs: Mapping[str, NDArray[np.int64]]
    scores: dict[str, Floats]

    @property
    def part(self) -> str:
        """What kind of work it is."""
        sizes = self.task.sizes
        if "head_dim" in sizes:
            return "attention, decode" if sizes["q_len"] == 1 else "attention, prefill"
        if self.task.dtype == "fp8":
            return "products, fp8"
        if sizes["n"] % 16 or sizes["k"] % 16:
            return "products, odd"
        return "products, decode" if sizes["m"] <= DECODE_ROWS else "products, prefill"


def expected_regret_pct(measured_s: Floats, score: Floats, k: int) -> float:
    """What the best of the `k` configurations of least score takes beyond the best of all, in percent.

    Equal scores are in no order: the mean over all their orders counts. With all equal that is drawing blindly.
    """
    taken, best = 0, float("inf")
    for value in np.unique(score):
        tied = np.minimum(measured_s[score == value], best)
        best = expected_best_s(tied.tolist(), k - taken)
        taken += len(tied)
        if taken >= k:
            break
    return float(best / measured_s.min() - 1.0) * 100.0


def judged_tasks(
    paths: Sequence[Path] | None, model: Path | None, held_out: bool, rivals: Mapping[str, Ranking]
) -> list[Judged]:
    """Every task with enough configurations, scored by all rankings; `rivals` rank products only.

    Args:
        paths: folders of measured rows; None for the shipped ones and the user's.
        model: folder of model files; None for those installed.
        held_out: score by models trained on all rows but those of the task's shape, not by files.
        rivals: other rankings by name.
    """
    every = tuning_rows([get_kind(name) for name in KINDS], read_tables(paths))
    result = []
    for kind, rows in every.items():
        paper_s = rows.kind.formula().columns(rows.input_columns(catalogue()), len(rows))[:, _bound(rows)]
        predicted_s = held_out_s(rows, TrainingConfig()) if held_out else None
        for number, task in enumerate(rows.tasks):
            of_task = np.flatnonzero(rows.of_task == number)
            if len(of_task) < LEAST_CONFIGURATIONS:
                continue
            knobs = {name: column[of_task] for name, column in rows.knobs.items()}
            if predicted_s is None:
                file = model and model / f"{kind}.kcm"
                answer = CostModel.load(kind, task.device, file).predict(Candidates(task, knobs))
            else:
                answer = predicted_s[of_task]
            scores = {MODEL: answer, DRAWN: np.zeros(len(of_task)), PAPER: paper_s[of_task]}
            if "m" in task.sizes:
                scores |= {name: rank(task, knobs) for name, rank in rivals.items()}
            result.append(Judged(task, rows.latency_s[of_task], knobs, scores))
    for each in result:
        each.scores[ORDER] = order_of_others(each, result)
    return result


def _bound(rows: TuningRows) -> int:
    return rows.kind.formula().names.index(BOUND)


def order_of_others(one: Judged, tasks: Sequence[Judged]) -> Floats:
    """Scores of the simplest ranking that learns: mean ln(latency / best) of each configuration on other shapes of the part.

    Configurations that too few of them have come last: their means would be of luck.
    """
    others = [each for each in tasks if each.part == one.part and dict(each.task.sizes) != dict(one.task.sizes)]
    logs: dict[tuple[int, ...], list[float]] = {}
    for each in others:
        for knobs, loss in zip(_rows_of(each), np.log(each.measured_s / each.measured_s.min()), strict=True):
            logs.setdefault(knobs, []).append(float(loss))
    enough = max(1, len(others) // 2)
    return np.array(
        [np.mean(found) if len(found := logs.get(knobs, [])) >= enough else np.inf for knobs in _rows_of(one)]
    )


def _rows_of(one: Judged) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.stack(list(one.knobs.values()), axis=1).tolist()]


def scores_of(tasks: Sequence[Judged]) -> dict[str, dict[str, dict[str, float]]]:
    """By part and ranking: mean, median and worst regret of the first and of the best of five, and mean rank correlation."""
    parts: dict[str, list[Judged]] = {"all": list(tasks)}
    for kind in ("products", "attention"):
        parts[kind] = [each for each in tasks if each.part.startswith(kind)]
    for each in tasks:
        parts.setdefault(each.part, []).append(each)
    return {
        part: {name: _score(some, name) for name in _shared(some)} for part, some in parts.items() if some
    }  # fmt: skip


def _shared(tasks: Sequence[Judged]) -> list[str]:
    return [name for name in tasks[0].scores if all(name in each.scores for each in tasks)]


def _score(tasks: Sequence[Judged], name: str) -> dict[str, float]:
    result: dict[str, float] = {"shapes": len(tasks), "configurations": sum(len(each.measured_s) for each in tasks)}
    for k in (1, 5):
        regret = [expected_regret_pct(each.measured_s, each.scores[name], k) for each in tasks]
        result |= {f"top_{k}_mean_pct": float(np.mean(regret)), f"top_{k}_median_pct": float(np.median(regret)),
                   f"top_{k}_worst_pct": float(np.max(regret))}  # fmt: skip
    finite = [np.where(np.isfinite(each.scores[name]), each.scores[name], 1e9) for each in tasks]
    taus = [kendall(each.measured_s, score) for each, score in zip(tasks, finite, strict=True)]
    known = [tau for tau in taus if tau is not None]
    return result | {"kendall_tau": float(np.mean(known)) if known else float("nan")}


def table(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The scores as Markdown: regret as mean / median / worst."""
    lines = [
        "| part | shapes | ranking | tau | top-1 regret (%) | top-5 regret (%) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for part, rankings in scores.items():
        for name, score in rankings.items():
            regrets = (
                " / ".join(f"{score[f'top_{k}_{what}_pct']:.1f}" for what in ("mean", "median", "worst"))
                for k in (1, 5)
            )
            tau = "–" if np.isnan(score["kendall_tau"]) else f"{score['kendall_tau']:.2f}"
            lines.append(f"| {part} | {score['shapes']} | {name} | {tau} | {' | '.join(regrets)} |")
    return "\n".join(lines)


def shape_lines(tasks: Sequence[Judged]) -> str:
    """A line a shape: its best time, and what the model's first and best of five take beyond it."""
    lines = []
    for each in sorted(tasks, key=lambda one: one.part):
        sizes = " ".join(f"{name}={size}" for name, size in each.task.sizes.items())
        first, five = (expected_regret_pct(each.measured_s, each.scores[MODEL], k) for k in (1, 5))
        knobs = _rows_of(each)
        chosen, best = knobs[int(np.argmin(each.scores[MODEL]))], knobs[int(np.argmin(each.measured_s))]
        lines.append(
            f"{each.part:20s} {sizes:95s} best {each.measured_s.min() * 1e6:8.1f} us {best}  first {first:5.1f} % {chosen}  "
            f"of five {five:4.1f} %"
        )
    return "\n".join(lines)


def latency_errors(tasks: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """Errors of the kernels' model, which predicts latencies of all implementations, on the same rows by part, in percent."""
    predictor = load_predictor(default_model_dir())
    errors: dict[str, list[float]] = {}
    for each in tasks:
        family = "attention" if "head_dim" in each.task.sizes else "gemm"
        sizes: dict[str, Any] = {name: size for name, size in each.task.sizes.items() if name != "causal"}
        names = [name for name, column in each.knobs.items() if column.any()]
        specs = [
            KernelSpec.of(family, each.task.dtype, impl="triton", config=dict(zip(names, knobs, strict=True)), **sizes)
            for knobs in np.stack([each.knobs[name] for name in names], axis=1).tolist()
        ]
        answers = predictor.predict_cases(Cases.from_specs(specs, [each.task.device] * len(specs)))
        errors.setdefault(each.part, []).extend(ape_pct(each.measured_s, answers.targets["latency_s"].value))
    return {part: {"rows": len(found), "mean_pct": float(np.mean(found)), "median_pct": float(np.median(found))}
            for part, found in errors.items()}  # fmt: skip
