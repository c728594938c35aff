"""The fitted analytic model alone: a weighted sum of the terms a kernel is made of on paper."""

from __future__ import annotations

from dataclasses import dataclass

from .roofline import Roofline


@dataclass(frozen=True, slots=True)
class Analytic(Roofline):
    """Latency is the analytic model's (`models.analytic`), nothing learned on top; power as for the roofline."""

    name: str = "analytic"
    on_analytic: bool = True


REGRESSOR = Analytic()
