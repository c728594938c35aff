"""How far others are from measurements: figures of other predictors on public tables, beside ours where they compare.

The figures, their sources, and whether they were published or measured on the same rows are in `published_errors.yaml`; what
adapting to a machine brought is in `adaptation_errors.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from ...features.batch.cases import Strings
from ..metrics import POWER_BANDS, Mask, Metrics

if TYPE_CHECKING:
    from .scoring import Scored

TABLE = Path(__file__).with_suffix(".yaml")

BASES = {
    "published": "published, on the authors' own rows",
    "same tables": "measured by us on the same tables, other rows held out",
    "same rows": "measured by us on the same rows",
}
"""How a figure came about, in words."""

ELSEWHERE = "other"
"""`data` of figures on rows that no table here has: nothing of ours compares with them."""

Range = tuple[float, float]
"""The least and the most of what is told, in percent; twice the same for a single figure."""

_FIGURES = ("mean_ape_pct", "median_ape_pct", "within_10_pct")


@dataclass(frozen=True, slots=True)
class Peer:
    """Published errors of another predictor, in percent; None where they were not published.

    Attributes:
        name: Name of the predictor.
        source: Where its errors were published.
        basis: What the figures are based on.
        data: Source of the tables it was measured on.
        held_out: What the rows it was judged by have not in common with those it was trained on.
        target: `latency_s`, `power_w` or `energy_j`.
        family: Kernel family; empty where the figure is of all.
        variant: Variant; empty where the figure is of all.
        split: Part of the held-out rows; empty where the figure is of all.
        long_only: Whether it is only of kernels long enough for their power to be trusted.
        rows: Number of rows.
        mean_ape_pct: Mean absolute percentage error.
        median_ape_pct: Median absolute percentage error.
        within_10_pct: Share of rows within 10 %.
        note: What to know beside.
    """

    name: str
    source: str
    basis: str
    data: str
    held_out: str
    target: str = "latency_s"
    family: str = ""
    variant: str = ""
    split: str = ""
    long_only: bool = False
    rows: int | None = None
    mean_ape_pct: Range | None = None
    median_ape_pct: Range | None = None
    within_10_pct: Range | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A peer's figures and ours.

    Attributes:
        peer: The peer.
        ours: Our metrics of the judged rows that its figures compare with.
    """

    peer: Peer
    ours: Metrics

    @property
    def basis(self) -> str:
        """How the peer's figure came about, in words; the same rows only where all of them are judged."""
        if self.peer.basis == "same rows" and self.peer.rows != self.ours.n:
            return f"measured by us on all {self.peer.rows:,} rows of {self.peer.split}"
        return BASES[self.peer.basis]


@cache
def peers() -> tuple[Peer, ...]:
    """Every peer's figures, in the table's order."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return tuple(Peer(**{**row, "source": table["sources"][row["source"]], **_ranges(row)}) for row in table["peers"])


def _ranges(row: Mapping[str, Any]) -> dict[str, Range]:
    pairs = {name: row[name] if isinstance(row[name], list) else [row[name]] * 2 for name in _FIGURES if name in row}
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}


def beside(scored: Iterable[Scored]) -> list[PublishedComparison]:
    """Every peer whose family, source, variant, target and kind of split some of the judged rows have."""
    comparisons: list[PublishedComparison] = []
    for target_rows in scored:
        kinds = held_out_kinds(target_rows.labels)
        for peer in peers():
            if peer.data != ELSEWHERE and (peer.family, peer.target) == (target_rows.family, target_rows.target):
                rows = _comparable(peer, target_rows.labels, kinds)
                if rows.any():
                    comparisons.append(PublishedComparison(peer, target_rows.metrics(rows)))
    return comparisons


def held_out_kinds(labels: Mapping[str, Strings]) -> Strings:
    """What each row was held out as: `device`, `sizes`, `shapes`, or empty for rows that were trained on.

    A device never trained on is the harder part whatever the split is called. On others the split's name says: larger
    sizes where it has the word `size`, training rows where it has `train`, and shapes at random otherwise.
    """
    seen = labels["device seen in training"]
    split = labels.get("split", np.full(len(seen), ""))
    named = np.where(np.char.find(split, "size") >= 0, "sizes", "shapes")
    return np.where(seen == "no", "device", np.where(np.char.find(split, "train") >= 0, "", named))


def _comparable(peer: Peer, labels: Mapping[str, Strings], kinds: Strings) -> Mask:
    rows: Any = (kinds == peer.held_out) & np.char.startswith(labels["source"], peer.data)
    if peer.variant:
        rows &= labels["variant"] == peer.variant
    if peer.split:
        rows &= labels.get("split", np.full(len(rows), "")) == peer.split
    if peer.long_only:
        rows &= labels["kernel time"] == POWER_BANDS[1]
    return np.asarray(rows, dtype=np.bool_)


_ADAPTATIONS = Path(__file__).with_name("adaptation_errors.yaml")


@dataclass(frozen=True, slots=True)
class MeasuredAdaptation:
    """Errors before and after a model was calibrated to a machine.

    Attributes:
        machine: The machine, in words.
        kind: `cpu` or `gpu`.
        base: The model that was calibrated, in words.
        rows: Rows that were measured for it.
        before: Mean and median APE in percent, on shapes that were not learned from.
        after: The same after it.
        minutes: Minutes of `kernelcast adapt`; None where rows were given instead.
        doc: The document that tells more.
    """

    machine: str
    kind: str
    base: str
    rows: int
    before: tuple[float, float]
    after: tuple[float, float]
    doc: str
    minutes: float | None = None


@cache
def measured_adaptations() -> tuple[MeasuredAdaptation, ...]:
    """All that was measured, in the table's order."""
    table = yaml.safe_load(_ADAPTATIONS.read_text(encoding="utf-8"))
    return tuple(
        MeasuredAdaptation(**{**run, "before": tuple(run["before"]), "after": tuple(run["after"]), "doc": part["doc"]})
        for part in table.values()
        for run in part["runs"]
    )
