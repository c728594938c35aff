"""The fitted analytic model alone: a weighted sum of the terms a kernel is made of on paper."""

from __future__ import annotations

from dataclasses import dataclass

from .roofline import Roofline


@dataclass(frozen=True, slots=True)
class Analytic(Roofline):
    """Latency is the analytic model's (`models.family_model.analytic`), nothing learned on top; power as for the roofline.

    Attributes:
        name: On the command line and in artifacts.
        on_analytic: True: latency is a ratio to the fitted analytic model.
    """

    name: str = "analytic"
    on_analytic: bool = True


REGRESSOR = Analytic()
