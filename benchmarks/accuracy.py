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
from kernelcast.api.accuracy_wire import (
    PARITY_POINTS,
    AccuracyAnswer,
    AccuracySlice,
    AccuracySplit,
    ParityPoints,
    model_hash,
    write_accuracy,
)
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.splits import held_out_region, held_out_shapes
from kernelcast.models.artifact import read_manifest
from kernelcast.models.comparison import compare, trained_and_scored
from kernelcast.models.evaluation import Evaluation, compared_of, evaluation_of
from kernelcast.models.labelled import Labelled
from kernelcast.models.metrics import Metrics
from kernelcast.models.regressor import training_threads
from kernelcast.models.scoring import LOWER_BOUND, Scored
from kernelcast.models.tables import labelled_tables

SHIPPED_MODEL = Path(__file__).parents[1] / "models" / "pretrained"
SHIPS = "blend"
COVERAGE = 0.9
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
REGRESSORS = ("roofline", "analytic", "random_forest", "xgboost", "periodic", "blend")
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
            found = list(pool.map(partial(_compared, names, held_out), tables))
        parts.append(f"## {title}\n\n{_table([one.evaluation for one in found], names)}")
        scored = [part for one in found for part in one.scored]
        slices = [one for part in scored for one in _slices(part)]
        parity = [one for part in scored for one in _parity(part)]
        splits.append(AccuracySplit(held_out, _DOC.format(title=title, regressor=SHIPS), slices, parity))
    write_accuracy(AccuracyAnswer(model_hash(manifest), manifest["regressor"], splits), SHIPPED_MODEL)
    PAGE.write_text("\n".join(parts), encoding="utf-8")


_DOC = (
    "{title}. Rows are those that ship. To have predictions of rows never seen, a second model was trained by the same "
    "regressor ({regressor}) on the other shipped rows alone; the served one has seen all of them, and public rows beside."
)


def _compared(names: Sequence[str], held_out: str, rows: Labelled) -> Judged:
    print(f"{held_out}: {rows.cases.family.name}", flush=True)
    others = compare([rows], regressors=[name for name in names if name != SHIPS], held_out=held_out)
    out = held_out_region(rows.cases) if held_out == "region" else held_out_shapes(rows.cases, seed=0)
    scored = [one for one in trained_and_scored(rows, out, SHIPS, 0, COVERAGE, None) if one.regressor != LOWER_BOUND]
    compared = [*others.compared, *compared_of(scored)]
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
        own = shown[scored.labels["device"][shown] == device]
        columns = (scored.measured[own], scored.value[own], scored.lower[own], scored.upper[own])
        yield ParityPoints(scored.family, device, scored.target, *([float(f"{x:.5g}") for x in one] for one in columns))


def _table(found: Sequence[Evaluation], names: Sequence[str]) -> str:
    lines: list[Sequence[str]] = [("family", "rows", *names, "blend: 90 % interval covers", "median width")]
    lines.append(["---"] * len(lines[0]))
    for evaluation in found:
        lines += _rows(evaluation, names)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


_HEAD = """# Accuracy on the shipped measurements

Written by `benchmarks/accuracy.py` from the {rows} shipped rows. Latency errors: mean APE / median APE / share within 10 %,
in percent. Each regressor was trained on the other shapes only. `roofline` is the lower bound itself; `analytic` the fitted
sum of terms; `xgboost`, `random_forest` and `periodic` learn the ratio to the lower bound; `blend`, which ships, learns what
the analytic model leaves over.
"""


def _rows(found: Evaluation, names: Sequence[str]) -> Iterable[Sequence[str]]:
    metrics = {one.regressor: one.metrics for one in found.compared if one.target == "latency_s" and not one.device}
    own = metrics["blend"]
    family = next(one.family for one in found.compared)
    errors = [_words(metrics[name]) for name in names]
    yield [family, str(own.n), *errors, f"{own.coverage_pct:.1f} %", f"{own.width_pct:.0f} %"]
    for part in found.slices:
        if part.target == "latency_s" and part.by in ("device", "dtype", "impl", "threads", "cache_state"):
            m = part.metrics
            nothing = [""] * (len(names) - 1)
            yield [
                f"… {part.by} {part.name}",
                str(m.n),
                *nothing,
                _words(m),
                f"{m.coverage_pct:.1f} %",
                f"{m.width_pct:.0f} %",
            ]


def _words(m: Metrics) -> str:
    return f"{m.mean_ape_pct:.1f} / {m.median_ape_pct:.1f} / {m.within_10_pct:.0f}"


if __name__ == "__main__":
    main()
