"""An evaluation as tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import note, out

if TYPE_CHECKING:
    from ..models.evaluation import Evaluation
    from ..models.metrics import Metrics

_HEADS = ("rows", "mean APE", "median APE", "within 10 %", "Spearman", "coverage", "width")
_TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}


def show_evaluation(found: Evaluation) -> None:
    """Every regressor by family, then the slices of the one the evaluation tells of."""
    from rich.table import Table

    screen = out()
    compared = Table(title=f"{found.title}; intervals for {found.coverage * 100:g} %", box=None, pad_edge=False)
    sliced = Table(title=f"{found.regressor} by slice", box=None, pad_edge=False)
    heads = ((compared, ("family", "target", "regressor", "left out")), (sliced, ("target", "family", "slice", "")))
    for table, words in heads:
        for word in words:
            table.add_column(word, overflow="fold")
        for head in _HEADS:
            table.add_column(head, justify="right", no_wrap=True)
    for one in found.compared:
        compared.add_row(one.family, _TARGETS[one.target], one.regressor, one.device, *_cells(one.metrics))
    for part in found.slices:
        sliced.add_row(_TARGETS[part.target], part.family or "all", part.by, part.name, *_cells(part.metrics))
    screen.print(compared)
    screen.print()
    screen.print(sliced)
    for remark in found.notes:
        note(f"note: {remark}")


def _cells(metrics: Metrics) -> list[str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1f} %"

    rank = "" if metrics.spearman is None else f"{metrics.spearman:.3f}"
    return [str(metrics.n), percent(metrics.mean_ape_pct), percent(metrics.median_ape_pct), percent(metrics.within_10_pct),
            rank, percent(metrics.coverage_pct), percent(metrics.width_pct)]  # fmt: skip
