"""Accuracy of every regressor on the shipped measurements: held-out shapes and a held-out region, by family.

Run `.venv/bin/python benchmarks/accuracy.py`; it writes docs/accuracy.md and takes some minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.models.comparison import compare
from kernelcast.models.evaluation import Evaluation
from kernelcast.models.labelled import Labelled
from kernelcast.models.metrics import Metrics
from kernelcast.models.regressor import training_threads
from kernelcast.models.tables import labelled_tables

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


def main() -> None:
    """Train and judge every regressor, write the page."""
    tables = labelled_tables({family: read_shipped(family) for family in shipped_families()})
    parts = [_HEAD.format(rows=sum(map(len, tables)))]
    for held_out, (title, names) in HELD_OUT.items():
        with ThreadPoolExecutor(training_threads()) as pool:
            found = list(pool.map(partial(_compared, names, held_out), tables))
        parts.append(f"## {title}\n\n{_table(found, names)}")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def _compared(names: Sequence[str], held_out: str, rows: Labelled) -> Evaluation:
    print(f"{held_out}: {rows.cases.family.name}", flush=True)
    return compare([rows], regressors=names, held_out=held_out)


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
