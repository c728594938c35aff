"""How well a model ranks configurations: per task, then over tasks.

Regret is what trusting a model costs: the best measured latency among the model's first k configurations over the best measured
of all, minus 1 (TpuGraphs, Phothilimthana et al., NeurIPS 2023, section 4). Tasks count equally, however many configurations
were measured of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..metrics import ape_pct, kendall

Floats = NDArray[np.float64]

_WITHIN_PCT = 10.0


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task's errors, in percent but for `kendall_tau`, which is None where one side has a single value."""

    n: int
    mean_ape_pct: float
    median_ape_pct: float
    within_10_pct: float
    kendall_tau: float | None
    top_1_regret_pct: float
    top_5_regret_pct: float

    @classmethod
    def of(cls, measured_s: Floats, predicted_s: Floats) -> TaskScore:
        """The score of predictions `(n,)` for measurements `(n,)` of one task, all positive, at least one."""
        ape = ape_pct(measured_s, predicted_s)
        return cls(
            n=len(measured_s),
            mean_ape_pct=float(ape.mean()),
            median_ape_pct=float(np.median(ape)),
            within_10_pct=float(np.mean(ape <= _WITHIN_PCT) * 100),
            kendall_tau=kendall(measured_s, predicted_s),
            top_1_regret_pct=regret_pct(measured_s, predicted_s, 1),
            top_5_regret_pct=regret_pct(measured_s, predicted_s, 5),
        )


def regret_pct(measured_s: Floats, predicted_s: Floats, k: int) -> float:
    """What the best of the `k` configurations that are predicted fastest takes beyond the best of all, in percent."""
    first = np.argsort(predicted_s, kind="stable")[:k]
    return float(measured_s[first].min() / measured_s.min() - 1.0) * 100


def over_tasks(scores: Sequence[TaskScore]) -> dict[str, float | None]:
    """Means and medians of task scores as plain data: `task_mean_` and `task_median_` before each name; and their number."""
    found: dict[str, float | None] = {"n_tasks": len(scores), "n_configs": sum(score.n for score in scores)}
    columns = [asdict(score) for score in scores]
    for name in (field.name for field in fields(TaskScore) if field.name != "n"):
        values = [column[name] for column in columns if column[name] is not None]
        found[f"task_mean_{name}"] = round(float(np.mean(values)), 4) if values else None
        found[f"task_median_{name}"] = round(float(np.median(values)), 4) if values else None
    return found
