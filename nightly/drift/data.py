"""Are the cases asked for, or measured tonight, unlike those the model was trained on?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...features.cases import Cases, Floats
from ...features.errors import SpecError
from ...features.kernel import View
from ...models.prediction import Predictions
from ..record import Finding
from .robust import holm, share_interval
from .two_sample import (
    ks_p_value,
    largest_gap,
    population_stability,
    share_p_value,
    stability_of_counts,
)

_WORDS = ("dtype", "kv_dtype", "variant", "impl", "cache_state")
_NAMED = 3


@dataclass(frozen=True, slots=True)
class DataWatch:
    """When inputs are said to have drifted. `per_night` bounds the false alarms of a night over all families and features.

    A feature also has to be `least_gap` apart (largest difference of distribution functions, or of a word's share): among
    100,000 cases any difference is significant and most do not matter. Outside the model's domain, a share surely above
    `most_outside` is told. Fewer than `least_cases` on a side say nothing.
    """

    per_night: float = 1e-4
    least_gap: float = 0.15
    most_outside: float = 0.05
    least_cases: int = 20


@dataclass(frozen=True, slots=True)
class Inputs:
    """Distinct cases of one family: those the model was trained on, those asked for, and whether each of these is outside the
    model's domain, shape `(n_asked,)`. `counts` says how often each was asked for, None for once each.
    """

    trained: Cases
    asked: Cases
    outside: npt.NDArray[np.bool_]
    counts: Floats | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """One feature: how far apart both sides are, their population stability index, the p-value corrected for all features."""

    feature: str
    gap: float
    stability: float
    p_value: float
    said: str


class PredictsCases(Protocol):
    """What a predictor has to do here."""

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """Predictions in columns."""


def outside_domain(predictor: PredictsCases, cases: Cases) -> npt.NDArray[np.bool_]:
    """Which cases the model itself says are unlike its training rows; those that it cannot answer at all are too."""
    outside = np.ones(len(cases), dtype=np.bool_)
    for rows, _ in cases.groups("device", "dtype"):
        try:
            outside[rows] = ~predictor.predict_cases(cases.take(rows)).in_domain
        except SpecError:
            # Left outside, which is what a model that cannot answer says; the others are asked all the same.
            continue
    return outside


def input_columns(cases: Cases) -> dict[str, Floats]:
    """log2 of every size, of operations and of bytes moved on paper, shape `(n,)` each."""
    columns = {name: np.log2(np.maximum(column, 1.0)) for name, column in cases.sizes.items()}
    flops, moved = np.zeros(len(cases)), np.zeros(len(cases))
    for rows, view in cases.views():
        sized = View(view.dtype, view.kv_dtype, view.variant, view.sizes)
        flops[rows], moved[rows] = cases.family.flops(sized), cases.family.bytes_moved(sized)
    columns |= {"operations": np.log2(np.maximum(flops, 1.0)), "bytes moved": np.log2(np.maximum(moved, 1.0))}
    return columns


def moved_features(inputs: Inputs, seed: int = 0) -> list[Moved]:
    """Every feature and word on which the two sides can differ, with Holm's correction within the family."""
    found: list[tuple[str, float, float, float, str]] = []
    trained, asked = input_columns(inputs.trained), input_columns(inputs.asked)
    for name in trained:
        one, other = trained[name], asked[name]
        if one.min() == one.max() == other.min() == other.max():
            continue
        said = f"{name} (median {2 ** float(np.median(one)):.3g} when trained, {2 ** float(np.median(other)):.3g} now)"
        found.append(
            (name, largest_gap(one, other), population_stability(one, other), ks_p_value(one, other, seed), said)
        )
    for name in _WORDS:
        if name == "kv_dtype" and not any(np.any(one.kv_dtype != one.dtype) for one in (inputs.trained, inputs.asked)):
            continue
        found += _words(name, getattr(inputs.trained, name), getattr(inputs.asked, name))
    corrected = holm([p_value for _, _, _, p_value, _ in found])
    return [Moved(name, gap, psi, p, said) for (name, gap, psi, _, said), p in zip(found, corrected, strict=True)]


def _words(name: str, trained: Any, asked: Any) -> list[tuple[str, float, float, float, str]]:
    # An impl left open is no impl of its own: the model answers with the one it knows best.
    words = sorted({*trained.tolist(), *asked.tolist()})
    if len(words) < 2 or (name == "impl" and not any(asked.tolist())):
        return []
    counts = [[int(np.count_nonzero(side == word)) for word in words] for side in (trained, asked)]
    psi = stability_of_counts(*counts)
    found = []
    for word, before, now in zip(words, *counts, strict=True):
        shares = before / len(trained), now / len(asked)
        said = f"{name} {word or 'none'} ({shares[0]:.0%} when trained, {shares[1]:.0%} now)"
        p_value = share_p_value((before, len(trained)), (now, len(asked)))
        found.append((f"{name}={word}", abs(shares[1] - shares[0]), psi, p_value, said))
    return found


def data_drift(
    families: Mapping[str, Inputs], *, what: str = "asked for", watch: DataWatch | None = None, seed: int = 0
) -> tuple[list[Finding], dict[str, Any]]:
    """What the cases of every family say; `what` is how the sentence calls them (`asked for`, `measured tonight`)."""
    rule = watch or DataWatch()
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for family, inputs in sorted(families.items()):
        own, told = _family(family, inputs, what, rule, rule.per_night / max(len(families), 1), seed)
        facts[family] = told
        findings += own
    return findings, facts


def _family(
    family: str, inputs: Inputs, what: str, rule: DataWatch, level: float, seed: int
) -> tuple[list[Finding], Any]:
    n = len(inputs.asked)
    facts: dict[str, Any] = {"cases": n, "trained": len(inputs.trained), "state": "too few cases"}
    if n < rule.least_cases:
        return [], facts
    findings: list[Finding] = []
    hits = int(np.count_nonzero(inputs.outside))
    weights = np.ones(n) if inputs.counts is None else inputs.counts
    of_requests = float(weights[inputs.outside].sum() / weights.sum())
    # Half of the level for the domain, half for the features.
    surely, _ = share_interval(hits, n, 1.0 - level)
    facts |= {"outside_share": hits / n, "outside_share_of_requests": of_requests, "state": "quiet"}
    if surely > rule.most_outside:
        requests = f", {of_requests:.0%} of all requests" if inputs.counts is not None else ""
        said = (
            f"{hits} of {n} {family} cases {what} ({hits / n:.0%}{requests}) are unlike anything the model was trained on: its "
            "answers there have wide intervals. Measure some of them; a night does where its plan reads the usage log."
        )
        numbers = {"outside_pct": 100.0 * hits / n, "outside_of_requests_pct": 100.0 * of_requests}
        findings.append(Finding("data-drift", "warning", family, said, numbers))
        facts["state"] = "drifted"
    if len(inputs.trained) >= rule.least_cases:
        moved = sorted(moved_features(inputs, seed), key=lambda one: -one.gap)
        facts["features"] = {
            one.feature: {"gap": one.gap, "psi": one.stability, "p_value": one.p_value} for one in moved
        }
        if far := [one for one in moved if one.gap >= rule.least_gap and one.p_value <= level / 2.0]:
            more = f" and {len(far) - _NAMED} more" if len(far) > _NAMED else ""
            said = (
                f"{family} cases {what} are others than those the model was trained on, in {_listed(far)}{more}. It answers "
                "them as far as they are in its domain; more rows like them make it better there."
            )
            numbers = {f"{one.feature}_gap": one.gap for one in far[:_NAMED]}
            findings.append(Finding("data-drift", "info", family, said, numbers))
            facts["state"] = "drifted"
    return findings, facts


def _listed(far: list[Moved]) -> str:
    return ", ".join(one.said for one in far[:_NAMED])
