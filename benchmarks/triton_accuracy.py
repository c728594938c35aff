"""Accuracy for compiled code of Triton programs never seen: the model, a rule of thumb, models of text or options alone.

Run `.venv/bin/python -P benchmarks/triton_accuracy.py [DATA ...]` (what `compile-triton-programs` wrote, packed or stored;
the shipped table when left out). Every program is held out once, whatever its sizes and options, and once more with its whole
family. Writes docs/triton-accuracy.md and takes some minutes on one core.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.features.batch.cases import Floats
from kernelcast.features.mlir.triton.vectors import NAMES
from kernelcast.features.mlir.understanding import read
from kernelcast.models.training.interval_calibration import folds_of
from kernelcast.workloads.mlir.triton.code_model import number
from kernelcast.workloads.mlir.triton.labels import CompiledRows, compiled_rows, read_labels
from kernelcast.workloads.mlir.triton.training import TrainingConfig, columns_of, errors_of, out_of_fold, train_code

PAGE = Path(__file__).parents[1] / "docs" / "triton-accuracy.md"
PARTS, SEED = 8, 2026
"""Programs are dealt into so many parts, by a seed that no training uses."""

OPTIONS = ("num_warps", "num_stages", "sm_90", "limit")
_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+|[^\s\w]")
_BUCKETS = 1024
_ROUNDS = 300


def main(data: Sequence[Path]) -> None:
    """Train, judge, write the page."""
    rows, refusals = compiled_rows(read_labels(data), read)
    print(f"{len(rows)} rows of {len(set(rows.programs))} programs, {len(refusals)} left out", flush=True)
    by_program = folds_of(rows.programs, PARTS, SEED)
    by_family = folds_of(rows.families, PARTS, SEED)
    options = rows.x[:, [NAMES.index(name) for name in OPTIONS]]
    text = np.concatenate([hashed(rows.texts), options], axis=1)
    result = {
        "rule of thumb": errors_of(rows, **rule_of_thumb(rows)),
        "options alone": errors_of(rows, **of_inputs(rows, options, by_program)),
        "text alone: trees on n-grams": errors_of(rows, **of_inputs(rows, text, by_program)),
        "this model": errors_of(rows, **columns_of(out_of_fold(rows, by_program, TrainingConfig()))),
        "this model, whole families held out": errors_of(
            rows, **columns_of(out_of_fold(rows, by_family, TrainingConfig()))
        ),
    }
    model = train_code(rows)
    PAGE.write_text(page(result, rows, model.metrics), encoding="utf-8")
    print(PAGE.read_text())


def rule_of_thumb(rows: CompiledRows) -> dict[str, Floats]:
    """What is alive at once, every operation once per element, tiles in flight: without anything learned."""
    column = {name: number(rows.x, NAMES.index(name)) for name in ("registers", "demand", "instructions", "operands b")}
    return {"registers": column["registers"], "instructions": column["instructions"] + 1.0,
            "shared_b": np.round(column["operands b"]), "spill_score": column["demand"] - rows.limit}  # fmt: skip


def of_inputs(rows: CompiledRows, x: Floats, fold: Any) -> dict[str, Floats]:
    """Boosted trees on other inputs, each row by a fit that did not see its program."""
    targets = {"registers": rows.registers, "instructions": np.log(rows.instructions),
               "shared_b": np.log1p(rows.shared_b), "spill_score": rows.spilled.astype(float)}  # fmt: skip
    result = {name: np.zeros(len(rows)) for name in targets}
    for item in np.unique(fold):
        local, others = fold == item, fold != item
        for name, y in targets.items():
            result[name][local] = trees(x[others], y[others], x[local])
    return {"registers": np.clip(result["registers"], 8.0, rows.limit), "instructions": np.exp(result["instructions"]),
            "shared_b": np.round(np.expm1(result["shared_b"])), "spill_score": result["spill_score"]}  # fmt: skip


def trees(x: Floats, y: Floats, unseen: Floats) -> Floats:
    """XGBoost with the settings of the model's own members."""
    import xgboost

    settings = {"tree_method": "hist", "max_depth": 5, "eta": 0.06, "subsample": 0.8, "colsample_bytree": 0.4,
                "min_child_weight": 2.0, "nthread": 1, "verbosity": 0, "base_score": float(y.mean())}  # fmt: skip
    booster = xgboost.train(settings, xgboost.DMatrix(x, y), num_boost_round=_ROUNDS)
    return booster.predict(xgboost.DMatrix(unseen)).astype(np.float64)


def hashed(texts: Sequence[str]) -> Floats:
    """Counts of tokens, pairs and triples of them, in buckets by a hash; log2(1 + count)."""
    known: dict[str, Floats] = {}
    for text in texts:
        if text not in known:
            tokens = _TOKEN.findall(text)
            grams = [" ".join(tokens[i : i + n]) for n in (1, 2, 3) for i in range(len(tokens) - n + 1)]
            places = [zlib.crc32(gram.encode()) % _BUCKETS for gram in grams]
            known[text] = np.log2(1.0 + np.bincount(places, minlength=_BUCKETS))
    return np.stack([known[text] for text in texts])


def page(found: Mapping[str, Mapping[str, float]], rows: CompiledRows, metrics: Mapping[str, Any]) -> str:
    """The page of results."""
    coverage = {name: metrics[f"{name} coverage"] for name in ("registers", "instructions")}
    lines = [
        "# Accuracy for compiled code of Triton programs", "",
        f"Written by `benchmarks/triton_accuracy.py`: {len(rows)} rows ({len(set(rows.programs))} programs of "
        f"{len(set(rows.families))} families, with options and target), each predicted by a model that never saw its "
        "program.", "",
        *_table("model", found), "",
        "By slice, with the folds of training:", "", *_table("held out", metrics["out of fold"]), "",
        f"The expected calibration error of the probability of spilling is {metrics['spill calibration error']:.3f}. "
        "Coverage of intervals:", "",
        "| nominal | registers | instructions |", "| ---: | ---: | ---: |",
        *(f"| {float(item):.0%} | {coverage['registers'][item]:.1%} | {coverage['instructions'][item]:.1%} |"
          for item in coverage["registers"]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(head: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = [
        f"| {head} | n | registers R² | registers MAE | spills AUC | instructions, mean APE (%) | median APE (%) "
        "| shared memory exact (%) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| {name} | {row['n']:.0f} | {row['registers_r2']:.3f} | {row['registers_mae']:.1f} "
        f"| {row['spill_auc']:.3f} | {row['instructions_mean_ape_pct']:.1f} | {row['instructions_median_ape_pct']:.1f} "
        f"| {row['shared_exact_pct']:.0f} |"
        for name, row in rows.items()
    ]


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
