"""What adapting to a machine brought where it was measured: errors before and after, from `adaptation_errors.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

TABLE = Path(__file__).with_suffix(".yaml")


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
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return tuple(
        MeasuredAdaptation(**{**run, "before": tuple(run["before"]), "after": tuple(run["after"]), "doc": part["doc"]})
        for part in table.values()
        for run in part["runs"]
    )
