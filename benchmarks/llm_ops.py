"""The `llm_ops` tables as rows of families: aiconfigurator's columns beside a device, an impl, seconds and a split.

`benchmarks/pretrained.py` trains on them. Run on its own, `.venv/bin/python benchmarks/llm_ops.py TABLES FAMILY …`, it judges
models of the families alone: hidden shapes (`val_shapes`), each device left out, and the tenth of the rows that cost most left
out, beside the roofline and the law of untrained families. A minute a family and core, more where a table is large.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from kernelcast.datasets.form.form import judge_form
from kernelcast.datasets.form.importer import Sheet, read_sheet
from kernelcast.datasets.importers.aiconfigurator import excluded_rows, operator_columns
from kernelcast.datasets.rows.checks import BOUND_SLACK, paper_bounds
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.predict.law import law_predictions
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases, joined
from kernelcast.models.training.training import train

TABLES = ("quantize", "encoder_attention", "mla_module", "linear_attention")
"""Files that hold rows of kernel families, by the name of the file; `comm` is a law of its own."""


def read_llm_ops(path: Path, split: str = "train") -> list[LabelledCases]:
    """The rows of one file with a split, a table per family; what no run can reach on its device is left out."""
    sheet = read_sheet(path)
    sheet = sheet.at(sheet.text("split") == split)
    kinds = sheet.text("table") if "table" in sheet.names else np.full(len(sheet), path.stem)
    parts: dict[str, list[LabelledCases]] = {}
    for kind in np.unique(kinds).tolist():
        for rows in _labelled(kind, sheet.at(kinds == kind)):
            parts.setdefault(rows.cases.family.name, []).append(rows)
    return [joined(parts[name]) for name in sorted(parts)]


def _labelled(kind: str, sheet: Sheet) -> list[LabelledCases]:
    tables = []
    out = np.zeros(len(sheet), dtype=np.bool_)
    for mask, _ in excluded_rows(kind, sheet):
        out |= mask
    sheet = sheet.at(~out)
    for family, rows, columns in operator_columns(kind, sheet):
        labels = {name: rows.text(name) for name in ("device", "impl", "source")}
        named = {"family": family, **labels, "latency_s": rows.numbers("latency_s"), "timing": "device", **columns}
        table = pa.table({name: _column(values, len(rows)) for name, values in named.items()})
        form = judge_form(table, origin=kind, known_devices=lambda name: catalogue().get(name).name)
        tables += [LabelledCases(part.cases, part.latency_s, part.power_w, part.source) for part in form.parts.values()]
    return [rows.take(rows.latency_s >= (1 - BOUND_SLACK) * paper_bounds(rows.cases, catalogue())) for rows in tables]


def _column(values: object, n: int) -> pa.Array:
    return pa.array(np.broadcast_to(np.asarray(values), (n,)).tolist())


def main(argv: Sequence[str] | None = None) -> None:
    """Judge the families named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("families", nargs="+")
    parser.add_argument(
        "--devices", help="only these devices are left out, in turn, separated by commas; default: every one"
    )
    options = parser.parse_args(argv)
    for family in options.families:
        known, hidden = (_of_family(options.tables, family, split) for split in ("train", "val_shapes"))
        _judge(f"{family}: hidden shapes", known, hidden)
        for device in options.devices.split(",") if options.devices else np.unique(known.cases.device).tolist():
            there = known.cases.device == device
            _judge(f"{family}: without {device}", known.take(~there), known.take(there))
        large = _bound_s(known) >= np.quantile(_bound_s(known), 0.9)
        _judge(f"{family}: larger", known.take(~large), known.take(large))


def _of_family(tables: Path, family: str, split: str) -> LabelledCases:
    every = [rows for name in TABLES for rows in read_llm_ops(tables / "llm_ops" / f"{name}.parquet", split)]
    return joined([rows for rows in every if rows.cases.family.name == family])


def _bound_s(rows: LabelledCases) -> np.ndarray:
    return paper_bounds(rows.cases, catalogue())


def _judge(what: str, known: LabelledCases, asked: LabelledCases) -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        save_artifact(train([known]), Path(folder) / "model")
        seconds = time.monotonic() - start
        answers = load_predictor(Path(folder) / "model").predict_cases(asked.cases).targets["latency_s"]
    inside = np.mean((answers.lower <= asked.latency_s) & (asked.latency_s <= answers.upper))
    width = np.median((answers.upper - answers.lower) / answers.value)
    print(
        f"{what}: {_errors(answers.value, asked)}, {inside:.0%} inside, {width:.0%} wide | roofline "
        f"{_errors(_bound_s(asked), asked)}{_of_law(asked)} | {len(known)} and {len(asked)} rows, {seconds:.0f} s",
        flush=True,
    )


def _of_law(asked: LabelledCases) -> str:
    if asked.cases.family.launches is None:
        return ""
    law = law_predictions(asked.cases, catalogue(), 0.9, None).targets["latency_s"]
    inside = np.mean((law.lower <= asked.latency_s) & (asked.latency_s <= law.upper))
    return f" | law {_errors(law.value, asked)}, {inside:.0%} inside"


def _errors(predicted: np.ndarray, asked: LabelledCases) -> str:
    error = np.abs(predicted / asked.latency_s - 1.0)
    return f"{error.mean():.1%} mean {np.median(error):.1%} median {np.mean(error < 0.1):.0%} within 10 %"


if __name__ == "__main__":
    main()
