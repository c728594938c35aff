"""Every GPU of the public tables left out in turn, by family: the errors of its answers beside those of the lower bound.

Run `.venv/bin/python benchmarks/devices_left_out.py TABLES`. Each answer is what training judges devices never measured by:
quick boosted trees on samples of the other devices' rows, transferred as the shipped model does. Takes about fifteen minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import families
from kernelcast.models.regressor import get_regressor
from kernelcast.models.training.fitting import TrainingTable, log_errors
from kernelcast.models.training.interval_calibration import device_holdout_answers
from kernelcast.models.training.labelled_cases import LabelledCases, joined, labelled_files, labelled_tables
from kernelcast.process import core_count
from pretrained import FAMILY_FILES, SOURCES, possible, source_folder, with_timing

HEADER = ("family", "GPU left out", "rows", "roofline", "mean", "median", "within 10 %")


def main() -> None:
    """Print the table, a family at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, help="folder of the public tables")
    tables = parser.parse_args().tables
    print("| " + " | ".join(HEADER) + " |\n|" + " --- |" * len(HEADER), flush=True)
    for family in families():
        for row in left_out(tables, family):
            print("| " + " | ".join(row) + " |", flush=True)


def left_out(tables: Path, family: str) -> Iterator[tuple[str, ...]]:
    """The rows of a family's part of the table; none where fewer than two GPUs were measured."""
    files = [source_folder(tables, source) / f"{name}.parquet" for source in SOURCES for name in FAMILY_FILES]
    parts: list[LabelledCases] = [
        possible(with_timing(rows))
        # DeepBench has devices that are not in the catalogue.
        for rows in labelled_files([file for file in files if file.exists()], split="train", skip_bad_rows=True)
        if rows.cases.family.name == family
    ]
    if family in shipped_families():
        parts += labelled_tables({family: read_shipped(family)})
    if not parts:
        return
    table = TrainingTable.of(joined(parts), catalogue())
    with ThreadPoolExecutor(core_count()) as pool:
        holdout = device_holdout_answers(table, get_regressor("blend"), 0, catalogue(), pool)
    if holdout is None:
        return
    errors = log_errors(table, "latency", holdout.answers)
    roofline = table.log_labels["latency"] - table.log_bound
    for device in np.unique(table.rows.cases.device[~np.isnan(errors)]).tolist():
        here = ~np.isnan(errors) & (table.rows.cases.device == device)
        if catalogue().get(device).kind == "gpu":
            off, bound = (100.0 * np.abs(np.expm1(-part[here])) for part in (errors, roofline))
            figures = (bound.mean(), off.mean(), np.median(off), 100.0 * (off <= 10.0).mean())
            yield family, device, f"{here.sum():,}", *(f"{figure:.1f}" for figure in figures)


if __name__ == "__main__":
    main()
