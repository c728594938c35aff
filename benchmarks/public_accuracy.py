"""Accuracy on public tables of measured kernels: hidden shapes, larger sizes, and devices never trained on.

Run `.venv/bin/python benchmarks/public_accuracy.py TABLES`, where TABLES has a folder per source with form tables that have a
`split` column (`train`, `val_…`). It writes docs/public-accuracy.md. Every step (one training, and what it is judged by) runs
in a process of its own and leaves a JSON file in the work folder: a run that was stopped goes on where it was. `--rows 2000`
takes that many rows of each family and split, to try it out.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.datasets.rows.splits import held_out_shapes
from kernelcast.models.evaluation.evaluation import evaluate
from kernelcast.models.evaluation.published_errors import BASES, Peer, Range, peers
from kernelcast.models.evaluation.reports import span
from kernelcast.models.evaluation.scoring import LOWER_BOUND
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_files
from kernelcast.models.training.training import DEFAULT_REGRESSOR, train

ROOT = Path(__file__).parents[1]
SOURCES = {
    "aiconfigurator": ("gemm", "attention_prefill", "attention_decode", "moe"),
    "neusight": ("gemm", "conv2d", "elementwise", "softmax", "layernorm"),
}
"""Tables of each source: a model of its own is trained on them."""

RANDOM_SHAPES = {"neusight": 0.1}
"""Sources whose `val_` splits hold no shapes out at random, and the share of shapes held out of `train` instead."""

CALIBRATED_BY = (0, 32, 128)
"""Rows of each family of a device left out that the model is adapted by before it is judged on the others."""

ADAPTATION = "kernelcast.models.training.device_calibration"
SLICED_BY = ("variant", "device", "device seen in training", "dtype", "impl", "size", "kernel time", "in domain")
TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}


@dataclass(frozen=True)
class Step:
    """One training and what it is judged by: the `val_` splits, random shapes, or a device left out."""

    source: str
    kind: str
    device: str = ""

    @property
    def name(self) -> str:
        """What the step's file is called."""
        return "-".join(filter(None, (self.source, self.kind, self.device)))


def main() -> None:
    """Run the steps that have no result yet, then write the page."""
    options = _options()
    work = options.work / f"{options.regressor}-{options.rows or 'all'}"
    if options.step:
        _run(next(item for item in _steps(options.tables) if item.name == options.step), options, work)
        return
    work.mkdir(parents=True, exist_ok=True)
    chosen = [item for item in _steps(options.tables) if fnmatch.fnmatchcase(item.name, options.only)]
    for i, step in enumerate(chosen):
        if not _result(work, step).exists():
            print(f"[{i + 1}/{len(chosen)}] {step.name} …", flush=True)
            command = [sys.executable, __file__, *sys.argv[1:], "--step", step.name]
            subprocess.run(command, check=True)
        document = json.loads(_result(work, step).read_text(encoding="utf-8"))
        print(f"[{i + 1}/{len(chosen)}] {step.name}: {_cost(document)}", flush=True)
    results = {item: json.loads(_result(work, item).read_text(encoding="utf-8"))
               for item in _steps(options.tables) if _result(work, item).exists()}  # fmt: skip
    options.page.write_text(page(results, options.rows, options.regressor), encoding="utf-8")
    print(f"wrote {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, help="folder with a folder of tables per source")
    parser.add_argument("--rows", type=int, help="at most so many rows of each family and split")
    parser.add_argument("--regressor", default=DEFAULT_REGRESSOR)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="steps to run, such as 'neusight-*'")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "public-accuracy")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "public-accuracy.md")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args()


def _steps(tables: Path) -> list[Step]:
    results = []
    for source, names in SOURCES.items():
        paths = _paths(tables, source, names)
        if not paths:
            continue
        results += [Step(source, "val"), *([Step(source, "random")] if source in RANDOM_SHAPES else [])]
        devices = _words(paths, "device", split="train")
        results += [Step(source, "without", device) for device in devices]
    if not results:
        raise SystemExit(f"{tables} has none of {', '.join(SOURCES)}")
    return results


def _paths(tables: Path, source: str, names: Iterable[str]) -> list[Path]:
    return [path for name in names if (path := tables / source / f"{name}.parquet").exists()]


def _words(paths: Iterable[Path], column: str, split: str | None = None) -> list[str]:
    """The words of a text column of all tables, or of their rows in one split."""
    only = None if split is None else [("split", "=", split)]
    return sorted(
        {
            word
            for path in paths
            for word in pq.read_table(path, columns=[column], filters=only)[column].unique().to_pylist()
        }
    )


def _result(work: Path, step: Step) -> Path:
    return work / f"{step.name}.json"


def _run(step: Step, options: argparse.Namespace, work: Path) -> None:
    """Train, judge, and leave the result; its file appears only once it is whole."""
    started = time.perf_counter()
    paths = _paths(options.tables, step.source, SOURCES[step.source])
    tables = {split: [_thinned(rows, options.rows) for rows in labelled_files(paths, split=split)]
              for split in (_words(paths, "split") if step.kind == "val" else ["train"])}  # fmt: skip
    trained = tables["train"]
    judged = [(split, rows) for split, some in tables.items() if split.startswith("val_") for rows in some]
    if step.kind == "random":
        share = RANDOM_SHAPES[step.source]
        outs = [held_out_shapes(rows.cases, share) for rows in trained]
        judged = [("random shapes", rows.take(out)) for rows, out in zip(trained, outs, strict=True)]
        trained = [rows.take(~out) for rows, out in zip(trained, outs, strict=True)]
    elif step.kind == "without":
        outs = [rows.cases.device == step.device for rows in trained]
        judged = [
            (f"without {step.device}", rows.take(out)) for rows, out in zip(trained, outs, strict=True) if out.any()
        ]
        trained = [rows.take(~out) for rows, out in zip(trained, outs, strict=True)]
    trained = [rows for rows in trained if len(rows)]
    read_s, began = time.perf_counter() - started, time.perf_counter()
    artifact = train(trained, regressor=options.regressor)
    train_s, began = time.perf_counter() - began, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        model = Path(folder) / "model"
        save_artifact(artifact, model)
        evaluations = dict(_judgements(step, model, judged, Path(folder)))
    result = {
        "rows": sum(map(len, trained)),
        "families": {rows.cases.family.name: len(rows) for rows in trained},
        "read_s": round(read_s, 1),
        "train_s": round(train_s, 1),
        "judge_s": round(time.perf_counter() - began, 1),
        # Linux counts in KiB (getrusage(2)).
        "peak_b": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "evaluations": evaluations,
    }
    temporary = work / f".{step.name}.tmp"
    temporary.write_text(json.dumps(result), encoding="utf-8")
    temporary.replace(_result(work, step))


def _judgements(
    step: Step, model: Path, judged: Sequence[tuple[str, LabelledCases]], folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Evaluations as plain data: by split, or for a device left out by calibration rows, all judged by the same rows."""
    if step.kind != "without":
        for split in dict.fromkeys(split for split, _ in judged):
            yield split, _evaluated(model, [item for item in judged if item[0] == split])
        return
    most = max(CALIBRATED_BY)
    orders = [np.random.default_rng(0).permutation(len(rows)) for _, rows in judged]
    # A table too small to give so many rows away gives half.
    spared = [min(most, len(order) // 2) for order in orders]
    rest = [
        (split, rows.take(np.sort(order[n:]))) for (split, rows), order, n in zip(judged, orders, spared, strict=True)
    ]
    for k in CALIBRATED_BY if importlib.util.find_spec(ADAPTATION) else (0,):
        adapted = model
        if k:
            calibrate_to_devices = importlib.import_module(ADAPTATION).calibrate_to_devices
            items = [rows.take(order[: min(k, n)])
                     for (_, rows), order, n in zip(judged, orders, spared, strict=True)]  # fmt: skip
            for i, rows in enumerate(items):
                out = folder / f"adapted-{k}-{i}"
                calibrate_to_devices(adapted, rows, out)
                adapted = out
        yield str(k), _evaluated(adapted, rest)


def _evaluated(model: Path, judged: Sequence[tuple[str, LabelledCases]]) -> dict[str, Any]:
    result = evaluate(
        load_predictor(model), [rows for _, rows in judged], splits=[split for split, _ in judged], levels=()
    )
    return result.to_json()


def _thinned(rows: LabelledCases, most: int | None) -> LabelledCases:
    if most is None or len(rows) <= most:
        return rows
    return rows.take(np.sort(np.random.default_rng(0).permutation(len(rows))[:most]))


def page(results: Mapping[Step, Mapping[str, Any]], rows: int | None, regressor: str) -> str:
    """The whole page from the steps' results."""
    some = f"\n**A trial: at most {rows:,} rows of each family and split.**\n" if rows else ""
    parts = [_HEAD.format(regressor=regressor, some=some)]
    for source in SOURCES:
        local = {step: result for step, result in results.items() if step.source == source}
        if local:
            parts.append(f"## {source}\n")
            parts += _of_source(local)
    ours = _ours(results)
    parts.append("## Others\n\n" + _OTHERS + _table(_PEER_HEADS, (_peer(peer, ours) for peer in peers())))
    return "\n".join(parts)


def _of_source(own: Mapping[Step, Mapping[str, Any]]) -> Iterator[str]:
    hidden = {step: item for step, item in own.items() if step.kind != "without"}
    if hidden:
        splits = {split: item for item in hidden.values() for split, item in item["evaluations"].items()}
        yield f"### Rows held out\n\n{_table(_HEADS, [line for split, item in splits.items() for line in _whole(split, item)])}"
        for split, item in splits.items():
            lines = _table(_SLICE_HEADS, _sliced(item))
            yield f"<details><summary>{split} by slice</summary>\n\n{lines}\n</details>\n"
    away = {step: item for step, item in own.items() if step.kind == "without"}
    if away:
        yield f"### A device left out\n\n{_table(_AWAY_HEADS, [line for item in away.items() for line in _away(*item)])}"
    costs = [[step.name, f"{item['rows']:,}", f"{item['train_s']:.0f} s", f"{item['judge_s']:.0f} s",
              f"{item['peak_b'] / 1e9:.2f} GB"] for step, item in own.items()]  # fmt: skip
    yield f"### What training took\n\n{_table(('step', 'rows', 'training', 'judging', 'peak memory'), costs)}"


def _whole(split: str, found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Each family and target of a split, and each variant where there are several; the roofline beside."""
    bounds = {
        (item["family"], item["target"]): item["metrics"]
        for item in found["compared"]
        if item["regressor"] == LOWER_BOUND
    }
    for item in found["slices"]:
        if item["family"] and item["by"] in ("all", "variant"):
            bound = bounds.get((item["family"], item["target"])) if item["by"] == "all" else None
            name = " ".join(filter(None, (item["family"], item["name"])))
            roofline = f"{bound['mean_ape_pct']:.1f}" if bound else ""
            yield [split, name, TARGETS[item["target"]], *_figures(item["metrics"]), roofline]


def _sliced(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for item in found["slices"]:
        if item["family"] and item["by"] in SLICED_BY:
            yield [item["family"], TARGETS[item["target"]], item["by"], item["name"], *_figures(item["metrics"])]


def _away(step: Step, found: Mapping[str, Any]) -> Iterator[list[str]]:
    for k, judged in found["evaluations"].items():
        for item in judged["slices"]:
            if item["family"] and item["by"] in ("all", "variant"):
                name = " ".join(filter(None, (item["family"], item["name"])))
                yield [step.device, name, TARGETS[item["target"]], k, *_figures(item["metrics"])]


def _ours(results: Mapping[Step, Mapping[str, Any]]) -> dict[str, Range]:
    """The least and the most of our mean errors on rows that compare with each peer, by `_key`, without calibration."""
    match: dict[str, list[float]] = {}
    for step, result in results.items():
        for name, judged in result["evaluations"].items():
            for item in judged["beside"] if step.kind != "without" or name == "0" else ():
                match.setdefault(_key(item["peer"]), []).append(item["ours"]["mean_ape_pct"])
    return {key: (min(means), max(means)) for key, means in match.items()}


def _key(peer: Mapping[str, Any]) -> str:
    return json.dumps(peer, sort_keys=True)


def _peer(one: Peer, ours: Mapping[str, Range]) -> list[str]:
    what = " ".join(filter(None, (one.family or "several", one.variant)))
    figures = [span(value) for value in (one.mean_ape_pct, one.median_ape_pct, one.within_10_pct)]
    entry = ours.get(_key(asdict(one)))
    return [one.data, what, TARGETS[one.target], one.held_out, one.name, *figures, span(entry), BASES[one.basis],
            "; ".join(filter(None, (one.note, one.source)))]  # fmt: skip


def _figures(m: Mapping[str, Any]) -> list[str]:
    errors = f"{m['mean_ape_pct']:.1f} / {m['median_ape_pct']:.1f} / {m['within_10_pct']:.0f}"
    return [f"{m['n']:,}", errors, f"{m['coverage_pct']:.1f} %", f"{m['width_pct']:.0f} %"]


def _cost(found: Mapping[str, Any]) -> str:
    return (f"{found['rows']:,} rows, read in {found['read_s']} s, trained in {found['train_s']} s, "
            f"judged in {found['judge_s']} s, peak {found['peak_b'] / 1e9:.2f} GB")  # fmt: skip


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(re.sub(r"\|", "/", cell) for cell in row) + " |" for row in rows) + "\n"


_HEADS = (
    "split",
    "family",
    "target",
    "rows",
    "mean / median / within 10 %",
    "90 % interval covers",
    "median width",
    "roofline, mean",
)
_SLICE_HEADS = ("family", "target", "by", "slice", *_HEADS[3:7])
_AWAY_HEADS = ("device left out", "family", "target", "rows calibrated by", *_HEADS[3:7])
_PEER_HEADS = (
    "tables",
    "family",
    "target",
    "held out",
    "predictor",
    "mean",
    "median",
    "within 10 %",
    "ours, mean",
    "their figures are",
    "source",
)

_HEAD = """# Accuracy on public tables

Written by `benchmarks/public_accuracy.py`. Regressor: {regressor}, one model per source, trained on the rows marked `train`.
{some}
Errors are mean APE / median APE / share within 10 %, in percent. `val_shapes` and `random shapes` are other shapes on devices
trained on, `val_sizes` larger ones; devices of `val_device` and those left out were never trained on. Power of kernels under
333 µs hardly reproduces; it is told apart under "kernel time".
"""

_OTHERS = """What other predictors are off by, and the mean error of this model on rows held out in the same way. Only "measured
by us on the same rows" is strictly comparable with it.

"""


if __name__ == "__main__":
    main()
