"""Does choosing pay? Errors after calibrating with rows that `suggest` chose, beside rows chosen at random.

Run `.venv/bin/python benchmarks/suggestion.py TABLE...` with form tables of one family each and with a `split` column. Each
device in turn is left out of training; half of its `train` rows may be measured, the other half judges. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernelcast.features.batch.cases import Indices
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.selection.suggest import measuring_seconds, spec_at, suggest
from kernelcast.models.training import training
from kernelcast.models.training.device_calibration import calibrate_to_devices
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_files

ROWS = (8, 32)
ORDERS = 3
"""Random orders that are tried, and drawings of what may be measured: figures are their means."""

TRAINING_ROWS, POOL_ROWS, JUDGED_ROWS = 5000, 1500, 2000


@dataclass(frozen=True)
class Side:
    """What may be measured of a device, and what judges."""

    pool: LabelledCases
    judged: LabelledCases


def main() -> None:
    """Print a line per family and device left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    heads = [f"{n} rows, {how}" for n in ROWS for how in ("random", "suggested")]
    print(f"| family | device left out | not calibrated | {' | '.join(heads)} | seconds, random | suggested |")
    print(f"|---|---|{'---|' * (3 + len(heads))}")
    lines = []
    for path in parser.parse_args().tables:
        (rows,) = labelled_files([path], split="train")
        for device in np.unique(rows.cases.device).tolist():
            figures = _left_out(rows, device)
            lines.append(figures)
            print(f"| {path.stem} | {device} | {' | '.join(f'{figure:.1f}' for figure in figures)} |", flush=True)
    print(f"| mean | | {' | '.join(f'{item:.1f}' for item in np.mean(lines, axis=0))} |")


def _left_out(rows: LabelledCases, device: str) -> list[float]:
    """Mean APE without calibration, then by number of rows at random and suggested, then the seconds of the most rows."""
    local = rows.cases.device == device
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        model = Path(folder) / "model"
        table = rows.take(np.sort(rng.permutation(np.flatnonzero(~local))[:TRAINING_ROWS]))
        save_artifact(training.train([table], regressor="xgboost"), model)
        items = []
        for seed in range(ORDERS):
            order = np.random.default_rng(seed).permutation(np.flatnonzero(local))
            half = min(len(order) // 2, POOL_ROWS)
            side = Side(rows.take(order[:half]), rows.take(order[half : half + JUDGED_ROWS]))
            items.append(_compared(model, side, device))
    return [float(item) for item in np.mean(items, axis=0)]


def _compared(model: Path, side: Side, device: str) -> list[float]:
    # The pool is in random order already.
    at_random = np.arange(max(ROWS))
    place = {spec_at(side.pool.cases, i): i for i in range(len(side.pool))}
    chosen = suggest(model, device, max(ROWS), [side.pool.cases])
    suggested = np.array([place[item.spec] for item in chosen])
    errors = [_error(model, side, order[:n]) for n in ROWS for order in (at_random, suggested)]
    seconds = measuring_seconds(side.pool, catalogue())
    return [_mean_ape(model, side.judged), *errors, seconds[at_random].sum(), seconds[suggested].sum()]


def _error(model: Path, side: Side, chosen: Indices) -> float:
    adapted = model.with_name("adapted")
    calibrate_to_devices(model, side.pool.take(chosen), adapted)
    return _mean_ape(adapted, side.judged)


def _mean_ape(model: Path, rows: LabelledCases) -> float:
    predicted = load_predictor(model).predict_cases(rows.cases).targets["latency_s"].value
    return float(100.0 * np.mean(np.abs(predicted / rows.latency_s - 1.0)))


if __name__ == "__main__":
    main()
