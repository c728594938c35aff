"""A device never trained on, night by night: error on shapes never measured, by rows so far and by what learned from them.

    python -P benchmarks/new_device.py STORE --device-file YAML [--rows 50,100,250,500,1000] [--folds 3]

Rows of a store are dealt to folds by shape; each fold judges what learned from the first rows of the others, in random order.
Prints Markdown: mean and median absolute percentage error of the shipped model, of the median ratio of each family, of the
mean of nearby rows' ratios, and of `kernelcast calibrate`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kernelcast.datasets.rows.splits import mixed, shape_hashes
from kernelcast.datasets.store.store import Store
from kernelcast.features.batch.cases import Floats
from kernelcast.features.device import Catalogue, load_device_file
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.family_model.nearby_rows import Method
from kernelcast.models.metrics import ape_pct
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.device_calibration import calibrate_to_devices
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.store_rows import labelled_batches

METHODS: tuple[Method, ...] = ("median", "nearby", "process")


def read(store: str, known: Catalogue) -> list[LabelledCases]:
    """The measured rows of a store, one table a family."""
    tables = Store(store).read_all()
    return [labelled_batches(name, table.to_batches(), known=known) for name, table in sorted(tables.items())]


def errors(model: Path, tables: Sequence[LabelledCases], known: Catalogue) -> Floats:
    """Absolute percentage errors of all rows."""
    predictor = load_predictor(model, known)
    answers = [predictor.predict_cases(rows.cases).targets["latency_s"].value for rows in tables]
    return np.concatenate([ape_pct(rows.latency_s, value) for rows, value in zip(tables, answers, strict=True)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--device-file", type=Path, action="append", default=[])
    parser.add_argument("--rows", default="50,100,250,500,1000")
    parser.add_argument("--folds", type=int, default=3)
    args = parser.parse_args()
    known = Catalogue(tuple(map(load_device_file, args.device_file)))
    tables = read(args.store, known)
    total = sum(map(len, tables))
    fold = [(mixed(shape_hashes(rows.cases)) % np.uint64(args.folds)).astype(int) for rows in tables]
    print(
        f"{total} rows\n\n| rows | shipped | {' | '.join(METHODS)} | seconds |\n|---|---|{'---|' * (1 + len(METHODS))}"
    )
    for wanted in map(int, args.rows.split(",")):
        share = wanted / (total * (1 - 1 / args.folds))
        if share > 1.1:
            break
        found: dict[str, list[Floats]] = {name: [] for name in ("shipped", *METHODS)}
        seconds = 0.0
        for k in range(args.folds):
            judged = [rows.take(np.flatnonzero(f == k)) for rows, f in zip(tables, fold, strict=True)]
            learn = []
            for rows, f in zip(tables, fold, strict=True):
                order = np.random.default_rng(k).permutation(np.flatnonzero(f != k))
                learn.append(rows.take(order[: max(2, round(share * len(order)))]))
            found["shipped"].append(errors(shipped_model_dir(), judged, known))
            for method in METHODS:
                with tempfile.TemporaryDirectory() as folder:
                    began = time.process_time()
                    calibrate_to_devices(shipped_model_dir(), learn, Path(folder) / "m", devices=known, method=method)
                    seconds += (time.process_time() - began) * (method == "process") / args.folds
                    found[method].append(errors(Path(folder) / "m", judged, known))
        every = [np.concatenate(parts) for parts in found.values()]
        cells = [f"{each.mean():.1f} / {np.median(each):.1f} %" for each in every]
        print(
            f"| {min(wanted, round(total * (1 - 1 / args.folds)))} | {' | '.join(cells)} | {seconds:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
