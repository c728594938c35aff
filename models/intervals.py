"""Prediction intervals: conformal quantiles of held-out errors, scaled to how hard each case looks.

An error is ln(measured / predicted) of rows the model was not trained on. A small model learns the size of errors from
the features; errors divided by it are scores, and the interval at any level comes from the scores' quantiles (normalised
split-conformal prediction: Lei et al., "Distribution-free predictive inference for regression", JASA 2018, section 5).
Scores are kept apart by regime, since errors on a device never trained on follow another law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Floats
from ..features.errors import SpecError

REGIMES = ("seen", "adapted", "unseen_device", "unseen_kind")
"""From the least strange to the strangest, an order that what is made of two answers goes by. seen: the like was measured on
the device; adapted: a device calibrated by a few rows, whose errors its own process claims (`models.adapted`); unseen_device:
errors with each device left out, also for a variant or dtype never measured on a device that was; unseen_kind: no learned model
applies (a kind of processor never trained on), errors are those of the lower bound times its median ratio."""

COVERAGE_RANGE = (0.5, 0.99)
"""Levels that can be asked for; beyond them the held-out errors are too few to say."""

_PROBABILITIES = np.round(np.concatenate([np.arange(0.005, 0.5, 0.005), np.arange(0.5, 0.9951, 0.005)]), 4)

NO_EVIDENCE_FACTOR = 4.0
"""How much wider scores are taken for an unseen device when training had one device only, so none could be left out.
Public tables give errors of 25–115 % for a new architecture where seen devices give 5–8 %: a factor of 5 to 15 in error,
of about 4 in the scores once the scale model has widened what it can."""


_TWIN_NARROWING = 0.4


@dataclass(frozen=True, slots=True)
class Scores:
    """Quantiles of conformal scores at fixed probabilities, shape `(n_probabilities,)`, from `n` held-out rows."""

    quantiles: Floats
    n: int

    @classmethod
    def of(cls, scores: Floats) -> Scores:
        """Quantiles of scores, shape `(n,)`, with the finite-sample shift of conformal prediction: the outer ends move
        out by `(n + 1) / n`.
        """
        n = len(scores)
        outward = 0.5 + (_PROBABILITIES - 0.5) * (n + 1) / n
        return cls(np.quantile(scores, np.clip(outward, 0.0, 1.0)), n)

    def widened(self, factor: float) -> Scores:
        """The same scores, `factor` times as large."""
        return Scores(self.quantiles * factor, self.n)

    def bounds(self, coverage: float) -> tuple[float, float]:
        """Lower (≤ 0) and upper (≥ 0) score of the central interval of that coverage.

        Raises:
            SpecError: coverage outside `COVERAGE_RANGE`.
        """
        check_coverage(coverage)
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], _PROBABILITIES, self.quantiles)
        return min(float(low), 0.0), max(float(high), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"quantiles": [round(float(q), 6) for q in self.quantiles], "n": self.n}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scores:
        """The scores `to_json` described."""
        quantiles = np.asarray(data["quantiles"], dtype=np.float64)
        if quantiles.shape != _PROBABILITIES.shape or not np.isfinite(quantiles).all():
            raise ValueError(f"expected {len(_PROBABILITIES)} finite quantiles")
        return cls(quantiles, int(data["n"]))


def student_scores(standardised: Floats) -> Scores:
    """Scores of an adaptation's few rows: Student's t, as wide as their errors were when each was left out, shape `(n,)`.

    The fewer rows, the heavier the tails: n / 2 degrees of freedom, at least 3, since the scales were fitted to them too.
    Errors smaller than claimed narrow nothing below four fifths: with few rows that may be luck.
    """
    from scipy.stats import t

    n = len(standardised)
    size = max(float(np.sqrt((standardised**2).mean())), 0.8)
    return Scores(size * t.ppf(_PROBABILITIES, df=max(n / 2.0, 3.0)), n)


def check_coverage(coverage: float) -> float:
    """The coverage itself.

    Raises:
        SpecError: it is outside `COVERAGE_RANGE` or no number.
    """
    low, high = COVERAGE_RANGE
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not low <= coverage <= high:
        raise SpecError(f"coverage must be between {low} and {high}, got {coverage!r}", field="coverage")
    return float(coverage)


def twin_factor(twin: Floats) -> Floats:
    """Factor on the error sizes of devices never measured, shape `(n,)`: less for editions of a measured chip.

    Of an A100 with 80 GB, predicted from one with 40, public tables show errors of 2–12 % in three families of four, where
    strangers show 17–25 %.
    """
    return 1.0 - _TWIN_NARROWING * twin


def log_scale_target(errors: Floats) -> Floats:
    """What the scale model learns: ln of the error's size, floored where errors are below what clocks can tell."""
    floor = 0.002
    return np.log(np.abs(errors) + floor)


def scale_of(log_scale: Floats) -> Floats:
    """Scale from the scale model's answer, held within limits so that one odd leaf cannot give an absurd interval."""
    return np.exp(np.clip(log_scale, np.log(0.004), np.log(2.0)))
