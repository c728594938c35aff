"""Accuracy for whole MLIR programs never seen: the learned model beside a roofline, the sum of kernels, and models of
text alone.

Run `.venv/bin/python -P benchmarks/mlir_accuracy.py DATA` (what `collect-mlir` stored, or a directory with the packed
tables; the shipped programs when left out). A sixth of the programs is held out, every size and dialect of them;
models are trained on the rest, whose own folds choose all weights. Then whole origins of programs are held out: what
one author wrote after one kind of description. Writes docs/mlir-accuracy.md and takes about half an hour on one core.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.datasets.records.mlir_modules import PROGRAMS_DIR
from kernelcast.features.batch.cases import Floats
from kernelcast.features.device import catalogue
from kernelcast.features.mlir.understanding import read, understand
from kernelcast.features.mlir.vectors.device_limits import hardware
from kernelcast.features.mlir.vectors.group_columns import GROUP_NUMBERS
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.interval_calibration import folds_of
from kernelcast.workloads.mlir.composition import compose_program
from kernelcast.workloads.mlir.learned.measured_programs import (
    MeasuredPrograms,
    measured_programs,
    read_modules,
)
from kernelcast.workloads.mlir.learned.network_training import Schedule
from kernelcast.workloads.mlir.learned.program_model import ProgramEngine
from kernelcast.workloads.mlir.learned.ragged_batch import RaggedBatch
from kernelcast.workloads.mlir.learned.training import TrainingConfig, errors_of, train_programs

PAGE = Path(__file__).parents[1] / "docs" / "mlir-accuracy.md"
DEVICE = "amd-epyc-9005-vm-2c"
PARTS, SEED = 6, 2026
"""One part of six is held out, dealt by a seed that no fold of training uses."""

RECIPE = TrainingConfig(folds=3).lasting(0.6)
"""A third of the usual training, so that the page is a matter of minutes."""

COVERAGES = (0.5, 0.8, 0.9, 0.95)
_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+|[^\s\w]")
_BUCKETS, _STEPS = 1024, 1024


def main(data: Sequence[Path]) -> None:
    """Train, judge, write the page."""
    texts, runs = read_modules(data)
    measured, _ = measured_programs(texts, runs, catalogue().get(DEVICE), lambda text: understand(read(text)))
    held_out = folds_of(measured.names, PARTS, SEED) == 0
    seen, unseen = measured.take(~held_out), measured.take(held_out)
    print(f"{len(seen)} programs to learn from, {len(unseen)} held out", flush=True)
    answers = {
        "roofline": roofline(unseen),
        "sum of kernel predictions": sum_of_kernels(unseen),
        "text only: trees on n-grams": text_trees(seen, unseen),
        "text only: convolutional": text_network(seen, unseen),
    }
    engine = ProgramEngine(
        train_programs(seen, RECIPE, progress=lambda what, done, of: print(what, done, "of", of, flush=True))
    )
    answers["learned on whole programs"], ends = learned(engine, unseen)
    by_origin = {origin: left_out(origin, measured) for origin in ORIGINS}
    PAGE.write_text(page(answers, ends, seen, unseen, engine) + origins_page(by_origin), encoding="utf-8")
    print(PAGE.read_text())


ORIGINS: Mapping[str, str] = {
    "kernelbench": "kernelbench/", "model zoos": "jax-zoo/|torch-mlir-zoo/", "single operations": "operations/(?!chain)",
    "chains of operations": "operations/chain", "drawn networks": "drawn/",
}  # fmt: skip
"""Whose idea programs are, by a pattern of their names."""

ORIGIN_RECIPE = TrainingConfig(folds=2, network=Schedule(epochs=24), forests=1)


def left_out(origin: str, measured: MeasuredPrograms) -> Mapping[str, Mapping[str, float]]:
    """Errors for programs of an origin that nothing was learned of."""
    is_origin = np.array([bool(re.match(ORIGINS[origin], name)) for name in measured.names])
    unseen = measured.take(is_origin)
    print(f"{origin}: {len(unseen)} left out", flush=True)
    engine = ProgramEngine(train_programs(measured.take(~is_origin), ORIGIN_RECIPE))
    answer, ends = learned(engine, unseen)
    inside = coverage_of(*ends[0.9], unseen.log_latency)
    errors, rough = errors_of(answer, unseen), errors_of(roofline(unseen), unseen)
    slices = [name for name in ("iree, 1 threads", "xla, 1 threads") if name in errors]
    result = {f"roofline, {name.partition(',')[0]}": rough[name] | {"inside_pct": float("nan")} for name in slices}
    result |= {
        f"other programs, {name.partition(',')[0]}": errors[name] | {"inside_pct": float("nan")} for name in slices
    }
    return result | {"other programs, both": errors["all"] | {"inside_pct": 100 * inside}}


def origins_page(by_origin: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The part of the page on origins left out."""
    lines = [
        "", "## Programs of other hands", "",
        f"Programs written after public descriptions, measured on {DEVICE}; nothing was learned of what is left out. "
        "Drawn networks consist of the steps that those of kernelbench and the zoos do. Models have "
        f"{ORIGIN_RECIPE.folds} folds of trees and the group network here.", "",
        "| left out | learned from | n | mean APE (%) | median APE (%) | within 10 % | Kendall τ | inside 90 % intervals |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for origin, by_model in by_origin.items():
        for model, row in by_model.items():
            inside = "" if np.isnan(row["inside_pct"]) else f"{row['inside_pct']:.0f} %"
            lines.append(
                f"| {origin} | {model} | {row['n']} | {row['mean_ape_pct']:.1f} | {row['median_ape_pct']:.1f} | "
                f"{row['within_10_pct']:.0f} | {row['kendall_tau']:.3f} | {inside} |"
            )
    return "\n".join([*lines, ""])


def roofline(unseen: MeasuredPrograms) -> Floats:
    """Every group at the device's peaks, on one core or all."""
    columns = {1: GROUP_NUMBERS.index("log roofline 1"), 2: GROUP_NUMBERS.index("log roofline all")}
    runs = 2.0 ** unseen.programs.groups[:, GROUP_NUMBERS.index("log runs")] - 1.0
    items = []
    for _, threads in unseen.settings:
        seconds = (2.0 ** unseen.programs.groups[:, columns[min(threads, 2)]] - 1.0) * 1e-9 * runs
        items.append(np.bincount(unseen.programs.group_program, seconds, minlength=len(unseen)))
    return np.log(np.maximum(np.stack(items, axis=1), 1e-7))


def sum_of_kernels(unseen: MeasuredPrograms) -> Floats:
    """What the kernel model says of every kernel, added up."""
    kernels = load_predictor(default_model_dir())
    programs = [understand(read(text)) for text in unseen.texts]
    by_threads = {}
    for threads in sorted({threads for _, threads in unseen.settings}):
        on = hardware(catalogue().get(DEVICE), threads)
        by_threads[threads] = [compose_program(kernels, program, on).latency_s.value for program in programs]
    return np.log(np.stack([by_threads[threads] for _, threads in unseen.settings], axis=1))


def tokens(text: str) -> list[int]:
    """The text as hashed words, numbers and marks, as a language model's tokenizer sees it."""
    return [zlib.crc32(word.encode()) % _BUCKETS for word in _TOKEN.findall(text)]


def text_trees(seen: MeasuredPrograms, unseen: MeasuredPrograms) -> Floats:
    """Boosted trees on counts of words and of pairs of them."""
    import xgboost

    def inputs(measured: MeasuredPrograms) -> Any:
        counts = np.zeros((len(measured), 2 * _BUCKETS))
        for row, text in zip(counts, measured.texts, strict=True):
            values = np.array(tokens(text))
            row[:_BUCKETS] = np.bincount(values, minlength=_BUCKETS)
            row[_BUCKETS:] = np.bincount((values[:-1] * 31 + values[1:]) % _BUCKETS, minlength=_BUCKETS)
        n_settings = len(measured.settings)
        which = np.tile(np.eye(n_settings), (len(measured), 1))
        return np.concatenate([np.repeat(np.log2(1 + counts), n_settings, axis=0), which], axis=1).astype(np.float32)

    y = seen.log_latency.ravel()
    known = ~np.isnan(y)
    recipe = {
        "tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 32, "max_depth": 0, "eta": 0.05, "subsample": 0.7,
        "colsample_bytree": 0.25, "objective": "reg:pseudohubererror", "huber_slope": 0.3, "base_score": float(y[known].mean()),
        "seed": 0, "nthread": 1,
    }  # fmt: skip
    table = xgboost.DMatrix(inputs(seen)[known], y[known], weight=seen.weight.ravel()[known])
    booster = xgboost.train(recipe, table, num_boost_round=300)
    astype: Floats = (
        booster.predict(xgboost.DMatrix(inputs(unseen))).reshape(unseen.log_latency.shape).astype(np.float64)
    )
    return astype


def text_network(seen: MeasuredPrograms, unseen: MeasuredPrograms) -> Floats:
    """A convolutional network on the first tokens of the text."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    n_settings = len(seen.settings)
    layers: list[Any] = [torch.nn.Embedding(_BUCKETS + 1, 24, padding_idx=_BUCKETS)]
    network = torch.nn.Sequential(
        torch.nn.Conv1d(24, 48, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv1d(48, 64, 5, stride=4), torch.nn.ReLU(),
        torch.nn.Conv1d(64, 64, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, n_settings),
    )  # fmt: skip
    embed = layers[0]

    def padded(measured: MeasuredPrograms) -> Any:
        rows = np.full((len(measured), _STEPS), _BUCKETS)
        for row, text in zip(rows, measured.texts, strict=True):
            local = tokens(text)[:_STEPS]
            row[: len(local)] = local
        return torch.from_numpy(rows)

    x, y = padded(seen), torch.tensor(seen.log_latency, dtype=torch.float32)
    middle = torch.nanmean(y)
    optimiser = torch.optim.AdamW([*embed.parameters(), *network.parameters()], lr=2e-3, weight_decay=0.01)
    for _ in range(12):
        for rows in torch.randperm(len(x)).split(64):
            known = ~torch.isnan(y[rows])
            answer = network(embed(x[rows]).transpose(1, 2)) + middle
            loss = torch.nn.functional.smooth_l1_loss(answer[known], y[rows][known])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return (network(embed(padded(unseen)).transpose(1, 2)) + middle).double().numpy()


def learned(engine: ProgramEngine, unseen: MeasuredPrograms) -> tuple[Floats, Mapping[float, tuple[Floats, Floats]]]:
    """The model's answers, and the ends of its intervals at every coverage, logarithms of seconds."""
    values = np.full(unseen.log_latency.shape, np.nan)
    ends = {coverage: (values.copy(), values.copy()) for coverage in COVERAGES}
    vectors = [vectors_of(unseen.programs, i) for i in range(len(unseen))]
    for i, vector in enumerate(vectors):
        if not len(vector.groups):  # no kernel, no learned answer
            continue
        for j in np.flatnonzero(~np.isnan(unseen.log_latency[i])):
            for coverage, (lower, upper) in ends.items():
                interval = engine.answer(vector, unseen.settings[j], coverage).latency_s
                values[i, j], lower[i, j], upper[i, j] = np.log([interval.value, interval.lower, interval.upper])
    return values, ends


def vectors_of(programs: RaggedBatch, i: int) -> Any:
    """The numbers of one of many programs, as `extract` gave them."""
    from kernelcast.features.mlir.vectors.op_columns import OpTable
    from kernelcast.features.mlir.vectors.program_vector import Vectors

    item = programs.take([i])
    nothing = np.zeros((len(item.op_row), 5))
    ops = OpTable(
        item.op_codes[item.op_row], item.ops[item.op_row], nothing, nothing[:, 0], nothing[:, 0], item.op_group
    )
    sources = np.where(item.sources == np.arange(len(item.sources)), -1, item.sources)
    return Vectors(item.totals[0], item.bigrams[0], item.groups, item.group_codes, item.terms, sources, item.shapes,
                   float(item.passed_s[0]), ops)  # fmt: skip


def page(
    answers: Mapping[str, Floats], ends: Mapping[float, tuple[Floats, Floats]], seen: MeasuredPrograms,
    unseen: MeasuredPrograms, engine: ProgramEngine,
) -> str:  # fmt: skip
    """The page of results."""
    result = {name: errors_of(answer, unseen) for name, answer in answers.items()}
    best = result["learned on whole programs"]
    lines = [
        "# Accuracy for whole MLIR programs", "",
        f"Written by `benchmarks/mlir_accuracy.py` on {DEVICE}: {len(set(seen.names))} programs to learn from, "
        f"{len(set(unseen.names))} held out ({best['all']['n']} measurements). APE is the absolute error of latency as a "
        f"share of what was measured. The learned model had {RECIPE.folds} folds and 0.6 of the usual epochs here.", "",
        *_table("model", {name: item["all"] for name, item in result.items()}), "",
        f"The learned model is blended from {engine.method}. By slice:", "",
        *_table("held out", {name: item for name, item in best.items() if name != "all"}), "",
        "Coverage of intervals on held-out programs:", "", "| nominal | measured |", "| ---: | ---: |",
        *(f"| {coverage:.0%} | {coverage_of(*pair, unseen.log_latency):.1%} |" for coverage, pair in ends.items()), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(head: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = [
        f"| {head} | n | mean APE (%) | median APE (%) | within 10 % | Kendall τ |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| {name} | {row['n']} | {row['mean_ape_pct']:.1f} | {row['median_ape_pct']:.1f} | {row['within_10_pct']:.0f} "
        f"| {row['kendall_tau']:.3f} |"
        for name, row in rows.items()
    ]


def coverage_of(lower: Floats, upper: Floats, log_measured: Floats) -> float:
    """Share of measurements inside intervals, logarithms of any shape, where something was measured."""
    known = ~np.isnan(log_measured)
    inside = (lower[known] <= log_measured[known]) & (log_measured[known] <= upper[known])
    return float(inside.mean())


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]] or [PROGRAMS_DIR])
