"""Speed of a cost model inside a compiler: microseconds per configuration in Python and C++, and start-up.

Run `.venv/bin/python -P benchmarks/tuning_speed.py` on an otherwise idle machine; `--json FILE` also writes the numbers down.
Kinds have their own features; trees are drawn at random over them, complete and full of comparisons, which is slower than
trained ones. `--model FILE` times a model file instead. Figures are of the fastest round, with the median beside it; the
C++ part needs g++.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# One thread, as inside a compiler; numpy reads these when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.kind import Candidates, Task, TuningKind, get_kind
from kernelcast.models.tuning.corrections import configurations
from kernelcast.models.tuning.flat_model import FlatModel, read_model, write_model
from kernelcast.models.tuning.forest import Forest
from kernelcast.plugins.cost_model import CostModel

CASES = {
    "iree-contraction": ("amd-epyc-9005-vm-2c", "fp32"),
    "triton-gemm": ("nvidia-h100-sxm-80gb", "fp16"),
}
SHAPES = ((200, 6), (300, 6), (300, 8))
BATCHES = (1, 64, 512)
TARGETS = {"python": 8.0, "c++": 3.0}
"""Microseconds per configuration in a batch of 64."""
START_TARGET_MS = 150.0
CUTS = 48
SOURCE = Path(__file__).parents[1] / "plugins" / "cpp"
SCORER = Path(__file__).with_name("score.cpp")
START = """
import time
start = time.perf_counter()
import numpy
numpy_only = time.perf_counter()
from kernelcast.plugins.cost_model import CostModel
imported = time.perf_counter()
CostModel.load({kind!r}, {device!r}, {path!r})
now = time.perf_counter()
print(now - start, numpy_only - start, now - imported, time.process_time())
"""


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model file to time instead of random trees")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    args = parser.parse_args()
    items: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        score = compiled(Path(folder))
        for what, path in models(args.model, Path(folder)):
            for timed in measured(path, score):
                items.append(timed | {"model": what})
                show(items[-1])
    if args.json:
        args.json.write_text(json.dumps(items, indent=1) + "\n")


def models(given: Path | None, folder: Path) -> Iterator[tuple[str, Path]]:
    """What is timed: names and files."""
    if given is not None:
        yield given.name, given
        return
    for name, (device, dtype) in CASES.items():
        for n_trees, depth in SHAPES:
            path = folder / f"{name}-{n_trees}-{depth}.kcm"
            model = random_model(get_kind(name), device, dtype, n_trees, depth)
            write_model(model, path)
            sizes = f"{len(model.formula.outputs)} features, {n_trees} trees, depth {depth}"
            yield f"{name}, {sizes}", path


def random_model(kind: TuningKind, device: str, dtype: str, n_trees: int, depth: int) -> FlatModel:
    """Random complete trees over a kind's features, thresholds among the values the features take on a task's space."""
    draw = np.random.default_rng(0)
    formula = kind.formula()
    facts = kind.facts_of(catalogue().get(device), dtype)
    table = {(device, dtype): tuple(float(facts[name]) for name in kind.facts)}
    nothing = Forest(0.0, 0, *_no_comparisons(), np.zeros((0, 1), np.float32))
    model = FlatModel(kind.name, kind.sizes, kind.knobs, kind.facts, table, formula, nothing)
    spaces = [kind.space(task_of(model, size)) for size in (256, 1024)]
    columns = [values_of(model, space) for space in spaces]
    comparisons = []
    for i in range(len(formula.outputs)):
        values = np.unique(np.concatenate([column[i] for column in columns]).astype(np.float32))
        comparisons += [(i, float(cut)) for cut in values[:: max(len(values) // CUTS, 1)]]
    return FlatModel(
        kind.name,
        kind.sizes,
        kind.knobs,
        kind.facts,
        table,
        formula,
        Forest(
            0.5,
            depth,
            np.array([i for i, _ in comparisons], dtype=np.uint32),
            np.array([cut for _, cut in comparisons], dtype=np.float32),
            draw.integers(0, len(comparisons), (2**depth - 1, n_trees)).astype(np.uint32),
            (draw.normal(size=(n_trees, 2**depth)) * 0.05).astype(np.float32),
        ),
    )


def task_of(model: FlatModel, size: int) -> Task:
    """A square product on the model's first device."""
    (device, dtype), *_ = model.table
    sizes = {"a_transposed": 0, "b_transposed": 0, "batch": 1, "threads": 1}
    return Task(model.kind, {name: sizes.get(name, size) for name in model.sizes}, dtype, device)


def values_of(model: FlatModel, candidates: Candidates) -> list[Any]:
    """The features of configurations, every one a column."""
    knobs = np.zeros((len(candidates), len(model.knobs)), dtype=np.int64)
    for name, column in candidates.knobs.items():
        knobs[:, model.knobs.index(name)] = column
    task = candidates.task
    key = (task.device, task.dtype, tuple(task.sizes[name] for name in model.sizes))
    return [np.broadcast_to(value, len(candidates)) for value in configurations(model, key, knobs).features]


def measured(path: Path, score: Path | None) -> Iterator[dict[str, Any]]:
    """Numbers of one model file: per batch in Python and C++, then start-up."""
    model = read_model(path)
    task = task_of(model, 512)
    cost_model = CostModel(model, task.device)
    space = get_kind(model.kind).space(task)
    for n in BATCHES:
        candidates = space.take(np.arange(n) % len(space))
        times = rounds(partial(cost_model.predict, candidates), 400 if n < 512 else 60)
        yield {"language": "python", "batch": n, "us": min(times) / n, "median_us": statistics.median(times) / n}
        if score is not None:
            command, text = [score, path, "--time", "100"], question(candidates)
            runs = [subprocess.run(command, input=text, capture_output=True, text=True, check=True) for _ in range(5)]
            each = [float(run.stdout) for run in runs]
            yield {"language": "c++", "batch": n, "us": min(each), "median_us": statistics.median(each)}
    command = [sys.executable, "-P", "-c", START.format(kind=model.kind, device=task.device, path=str(path))]
    starts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(9)]
    names = ("start_ms", "numpy_ms", "load_ms", "process_cpu_ms")
    columns = [sorted(float(value) * 1e3 for value in column) for column in zip(*starts, strict=True)]
    yield {name: column[0] for name, column in zip(names, columns, strict=True)} | {"median_start_ms": columns[0][4]}


def rounds(measure: Callable[[], object], times: int) -> list[float]:
    """Microseconds of each call."""
    measure()
    results = []
    for _ in range(times):
        start = time.perf_counter()
        measure()
        results.append((time.perf_counter() - start) * 1e6)
    return results


def question(candidates: Candidates) -> str:
    """The configurations as score.cpp reads them."""
    task = candidates.task
    lines = [f"device {task.device}", f"dtype {task.dtype}", "sizes " + pairs(task.sizes)]
    return "\n".join([*lines, *("config " + pairs(candidates.config(i)) for i in range(len(candidates)))]) + "\n"


def pairs(values: Any) -> str:
    """`name=number` of each."""
    return " ".join(f"{name}={number}" for name, number in values.items())


def compiled(folder: Path) -> Path | None:
    """The command line scorer, or None without a compiler."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        print("no C++ compiler: the C++ part is left out")
        return None
    target = folder / "score"
    command = [compiler, "-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", f"-I{SOURCE}", SCORER, "-o", target]
    subprocess.run(command, check=True)
    return target


def show(row: dict[str, Any]) -> None:
    """One line of what was measured."""
    if "start_ms" in row:
        print(
            f"{row['model']:52} import and load {row['start_ms']:8.1f} ms (median {row['median_start_ms']:.1f}; numpy alone "
            f"{row['numpy_ms']:.1f}, load alone {row['load_ms']:.1f}; the process used {row['process_cpu_ms']:.1f} ms of CPU), "
            f"target {START_TARGET_MS:g}",
            flush=True,
        )
        return
    target = f", target {TARGETS[row['language']]:g}" if row["batch"] == 64 else ""
    print(
        f"{row['model']:52} {row['language']:6} batch {row['batch']:4} {row['us']:8.2f} us per configuration "
        f"(median {row['median_us']:.2f}){target}",
        flush=True,
    )


def _no_comparisons() -> tuple[Any, Any, Any]:
    return np.zeros(0, np.uint32), np.zeros(0, np.float32), np.zeros((0, 0), np.uint32)


if __name__ == "__main__":
    main()
