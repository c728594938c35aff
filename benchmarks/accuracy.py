"""Accuracy of every regressor on the shipped measurements: held-out shapes and a held-out region, by family.

Run `.venv/bin/python benchmarks/accuracy.py`; it writes docs/accuracy.md and takes some minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.models.evaluation import compare
from kernelcast.models.tables import labelled_tables

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
REGRESSORS = ("roofline", "analytic", "random_forest", "xgboost", "mlp", "blend")
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
        found = compare(tables, regressors=names, held_out=held_out, progress=_say)
        parts.append(f"## {title}\n\n{_table(found, names)}")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def _say(what: str, done: int, total: int) -> None:
    print(f"{what} ({done}/{total})", flush=True)


def _table(found: Any, names: Sequence[str]) -> str:
    lines: list[Sequence[str]] = [("family", "rows", *names, "blend: 90 % interval covers", "median width")]
    lines.append(["---"] * len(lines[0]))
    lines += [_row(found, family, names) for family in _families(found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


_HEAD = """# Accuracy on the shipped measurements

Written by `benchmarks/accuracy.py` from the {rows} shipped rows. Latency errors: mean APE / median APE / share within 10 %,
in percent. Each regressor was trained on the other shapes only. `roofline` is the lower bound itself; `analytic` the fitted
sum of terms; `xgboost`, `random_forest` and `mlp` learn the ratio to the lower bound; `blend`, which ships, learns what the
analytic model leaves over.
"""


def _families(found: Any) -> list[str]:
    return sorted({one.family for one in found.compared})


def _row(found: Any, family: str, names: Sequence[str]) -> Sequence[str]:
    metrics = {
        one.regressor: one.metrics
        for one in found.compared
        if one.family == family and one.target == "latency_s" and not one.device
    }
    errors = [
        f"{m.mean_ape_pct:.1f} / {m.median_ape_pct:.1f} / {m.within_10_pct:.0f}" for m in map(metrics.get, names) if m
    ]
    own = metrics["blend"]
    return [family, str(own.n), *errors, f"{own.coverage_pct:.1f} %", f"{own.width_pct:.0f} %"]


if __name__ == "__main__":
    main()
