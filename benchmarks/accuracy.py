"""Accuracy of every regressor on the shipped measurements: held-out shapes and a held-out region, by family.

Run `.venv/bin/python benchmarks/accuracy.py`; it writes docs/accuracy.md, and beside the shipped model what `GET /v1/accuracy`
answers: the same errors of the regressor that ships, with a sample of predictions beside measurements. It takes some minutes
on two cores, and is due whenever `benchmarks/pretrained.py` made the model anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from kernelcast.api.browse.accuracy import (
    PARITY_POINTS,
    AccuracyAnswer,
    AccuracySlice,
    AccuracySplit,
    ParityPoints,
    model_hash,
    write_accuracy,
)
from kernelcast.datasets.rows.splits import held_out_region, held_out_shapes
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.models.evaluation.evaluation import (
    Evaluation,
    compare,
    evaluation_of,
    regressor_metrics,
    trained_and_scored,
)
from kernelcast.models.evaluation.scoring import LOWER_BOUND, Scored
from kernelcast.models.family_model.artifact import read_manifest
from kernelcast.models.metrics import Metrics
from kernelcast.models.regressor import training_threads
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_tables

SHIPPED_MODEL = Path(__file__).parents[1] / "models" / "pretrained" / "kernels"
SHIPS = "blend"
COVERAGE = 0.9
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
REGRESSORS = ("roofline", "analytic", "xgboost", "periodic", "blend")
PARTS = ("device", "impl")
"""What the page divides a family's held-out shapes by."""
HELD_OUT = {
    "hash": (
        "Shapes held out by hash: 10 % of the shapes, in every dtype, thread count, cache state and configuration",
        REGRESSORS,
    ),
    "region": (
        "A region held out: the 5 % of shapes with the most work, which a model must extrapolate to",
        ("roofline", "analytic", "xgboost", "blend"),
    ),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One family: every regressor's metrics, the slices of the one that ships, and its scored rows by target."""

    evaluation: Evaluation
    scored: Sequence[Scored]


def main() -> None:
    """Train and judge every regressor, write the page and the shipped model's accuracy."""
    tables = labelled_tables({family: read_shipped(family) for family in shipped_families()})
    manifest = read_manifest(SHIPPED_MODEL)
    parts = [_HEAD.format(rows=sum(map(len, tables)))]
    splits = []
    for held_out, (title, names) in HELD_OUT.items():
        with ThreadPoolExecutor(training_threads()) as pool:
            judged = list(pool.map(partial(_compared, names, held_out), tables))
        evaluations = [family.evaluation for family in judged]
        parts.append(f"## {title}\n\n{_table(evaluations, names)}")
        if held_out == "hash":
            parts.append(_parts_table(evaluations))
        scored = [part for family in judged for part in family.scored]
        slices = [row for part in scored for row in _slices(part)]
        parity = [points for part in scored for points in _parity(part)]
        splits.append(AccuracySplit(held_out, _DOC.format(title=title, regressor=SHIPS), slices, parity))
    write_accuracy(AccuracyAnswer(model_hash(manifest), manifest["regressor"], splits), SHIPPED_MODEL)
    PAGE.write_text("\n".join(parts), encoding="utf-8")


_DOC = (
    "{title}. Rows are those that ship. To have predictions of rows never seen, a second model was trained by the same "
    "regressor ({regressor}) on the other shipped rows alone; the served one has seen all of them, and public rows beside."
)


def _compared(names: Sequence[str], held_out: str, rows: LabelledCases) -> Judged:
    print(f"{held_out}: {rows.cases.family.name}", flush=True)
    others = compare([rows], regressors=[name for name in names if name != SHIPS], held_out=held_out)
    out = held_out_region(rows.cases) if held_out == "region" else held_out_shapes(rows.cases, seed=0)
    scored = [
        item
        for item in trained_and_scored(rows.take(~out), [rows.take(out)], SHIPS, COVERAGE, None)
        if item.regressor != LOWER_BOUND
    ]
    compared = [*others.compared, *regressor_metrics(scored)]
    return Judged(evaluation_of(scored, compared, SHIPS, COVERAGE, PAGE.stem, {}, ()), scored)


def _slices(scored: Scored) -> Iterable[AccuracySlice]:
    """Errors on all devices together, then on each."""
    for device in (None, *np.unique(scored.labels["device"]).tolist()):
        rows = slice(None) if device is None else scored.labels["device"] == device
        m = scored.metrics(rows)
        shares = [None if pct is None else round(pct / 100, 6) for pct in (m.coverage_pct, m.width_pct)]
        yield AccuracySlice(
            scored.family, device, scored.target, m.n, round(m.mean_ape_pct / 100, 6), round(m.median_ape_pct / 100, 6),
            round(m.within_10_pct / 100, 6), shares[0], COVERAGE, shares[1],
        )  # fmt: skip


def _parity(scored: Scored) -> Iterable[ParityPoints]:
    """Rows spread evenly over all of them in order of size, the same every time, by device."""
    order = np.argsort(scored.measured, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), PARITY_POINTS)).round().astype(np.int64)
    shown = order[np.unique(places)]
    for device in np.unique(scored.labels["device"][shown]).tolist():
        local = shown[scored.labels["device"][shown] == device]
        columns = (scored.measured[local], scored.value[local], scored.lower[local], scored.upper[local])
        yield ParityPoints(
            scored.family, device, scored.target, *([float(f"{x:.5g}") for x in column] for column in columns)
        )


def _table(evaluations: Sequence[Evaluation], names: Sequence[str]) -> str:
    """The mean error of every regressor by family, and more of the one that ships."""
    others = [name for name in names if name != SHIPS]
    header = ("family", "rows", *others, SHIPS, "median", "within 10 %", "covers", "width")
    return _markdown(header, [_family_row(evaluation, others) for evaluation in evaluations])


def _parts_table(evaluations: Sequence[Evaluation]) -> str:
    """The errors of the regressor that ships on the parts of each family: devices and implementations."""
    header = ("family", "part", "rows", SHIPS, "median")
    return _markdown(header, [row for evaluation in evaluations for row in _part_rows(evaluation)])


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


_HEAD = """# Accuracy on the shipped measurements

Written by `benchmarks/accuracy.py` from the {rows} shipped rows of three virtual machines (two cores of a Zen 5, a Zen 4 and a
Xeon) and an NVIDIA H200.

All figures are of latency, in percent. A column with the name of a regressor is its mean absolute percentage error. The
columns after `blend`, which ships, are `blend`'s: median error, share of rows within 10 %, share of rows inside the 90 %
interval, and the interval's median width. `roofline` is the lower bound, `analytic` the fitted sum of terms; `xgboost`
and `periodic` learn the ratio to the lower bound, `blend` the ratio to the analytic model. A part is a device or an
implementation. The models of this page were trained without the held-out rows; the model that ships is trained on all rows.
"""


def _family_row(evaluation: Evaluation, others: Sequence[str]) -> Sequence[str]:
    metrics = {
        scores.regressor: scores.metrics
        for scores in evaluation.compared
        if scores.target == "latency_s" and not scores.device
    }
    m = metrics[SHIPS]
    errors = [f"{metrics[name].mean_ape_pct:.1f}" for name in others]
    return [_family(evaluation), str(m.n), *errors, *_errors(m), f"{m.within_10_pct:.0f}", *_interval(m)]


def _part_rows(evaluation: Evaluation) -> Iterable[Sequence[str]]:
    for part in evaluation.slices:
        if part.target == "latency_s" and part.by in PARTS:
            m = part.metrics
            yield [_family(evaluation), str(part.name), str(m.n), *_errors(m)]


def _family(evaluation: Evaluation) -> str:
    return next(scores.family for scores in evaluation.compared)


def _errors(m: Metrics) -> tuple[str, str]:
    return f"{m.mean_ape_pct:.1f}", f"{m.median_ape_pct:.1f}"


def _interval(m: Metrics) -> tuple[str, str]:
    return f"{m.coverage_pct:.1f}", f"{m.width_pct:.0f}"


if __name__ == "__main__":
    main()
