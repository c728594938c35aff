"""The gate: whether a challenger takes the champion's place, by the evidence of all nights since the champion was promoted.

A family in which the champion is better beyond noise stays the champion's. Hard limits refuse a
challenger whatever it gains: answers that are no numbers, lost families, intervals without width, time, size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Cases
from ...features.device import Catalogue
from ...models.evaluation.scoring import canonical
from ...models.family_model.artifact import read_manifest
from ...models.predict.prediction import Predictions
from ...models.predict.predictor import ArtifactPredictor, load_predictor
from ...models.training.labelled_cases import LabelledCases
from .challengers import known_devices
from .evidence import COVERAGE, Evidence, ShapeScore, Wealth


@dataclass(frozen=True, slots=True)
class Rules:
    """What the gate demands of a challenger.

    Attributes:
        alpha: Probability that a challenger that is no better is ever promoted in place of one champion, over all challengers
            of a night together; and that a family that is no worse stays the champion's.
        refit_alpha: The same for a champion's own rule made again of more rows: that rule has passed already, and what is no
            better then does no harm.
        refit_growth: Of so many times the rows it is taken as soon as its mean error is lower.
        tolerance_pct: Increase of a family's mean error that is accepted, in percentage points.
        least_coverage: Share of rows that intervals of 90 % must hold, unless the champion's hold no more.
        may_forget: Whether a family or device that the champion was measured on may be lost.
        slower: Most time for the rows that judge, as a factor on the champion's.
        quick_s: Predictions that take fewer seconds in all are never too slow,
        quick_row_s: nor are those that take fewer seconds a row: rows of the device itself cost time, whatever their use.
        larger: Largest size, as a factor on the champion's.
        small_b: A model of fewer bytes is never too large.
    """

    alpha: float = 0.05
    refit_alpha: float = 0.5
    refit_growth: float = 1.5
    tolerance_pct: float = 0.5
    least_coverage: float = 0.75
    may_forget: bool = False
    slower: float = 2.0
    quick_s: float = 0.05
    quick_row_s: float = 1e-4
    larger: float = 4.0
    small_b: float = 32e6


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of the gate on one challenger.

    Attributes:
        name: The challenger.
        passed: Whether nothing speaks against it.
        better: Whether it is better beyond noise.
        gain_pct: Decrease of the mean error since the champion was promoted, in percentage points.
        summary: The judgement in a sentence.
        keep: Families in which the champion is better beyond noise, which stay the champion's.
        slices: By family, tonight's errors of both.
        reasons: Why it was refused; empty where it passed.
        evidence: What later nights go on from.
    """

    name: str
    passed: bool
    better: bool
    gain_pct: float
    summary: str
    keep: tuple[str, ...] = ()
    slices: tuple[dict[str, Any], ...] = ()
    reasons: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)

    def facts(self) -> dict[str, Any]:
        """What a night's record says of it."""
        return {
            "name": self.name, "passed": self.passed, "better": self.better, "gain_pct": round(self.gain_pct, 4),
            "summary": self.summary, "keep": list(self.keep), "reasons": list(self.reasons), "slices": list(self.slices),
            "evidence": asdict(self.evidence),
        }  # fmt: skip


def judge(
    name: str,
    tonight: Sequence[ShapeScore],
    before: Evidence,
    refusals: Sequence[str],
    rules: Rules,
    challengers: int,
    *,
    refit: float = 0.0,
) -> Verdict:
    """Whether the challenger may take the champion's place.

    Args:
        name: of the challenger.
        tonight: its scores on tonight's shapes.
        before: the evidence of earlier nights since the champion was promoted.
        refusals: why it may not serve whatever it gains, see `refusals`.
        rules: what is demanded.
        challengers: number of challengers of this night.
        refit: of the champion's own rule, made again: how many times the rows it learned from; else 0.
    """
    evidence = before.after(tonight, rules.tolerance_pct)
    level = rules.alpha / max(challengers, 1)
    keep = [family for family, bets in evidence.worse.items() if bets.p_value <= level / len(evidence.worse)]
    slices = tuple(
        _slice([score for score in tonight if score.family == family], bets, family in keep)
        for family, bets in evidence.worse.items() if any(score.family == family for score in tonight)
    )  # fmt: skip
    reasons = [*refusals, *_intervals(tonight, rules)]
    bets = evidence.together(without=keep)
    needed = 1.0 if refit >= rules.refit_growth else max(level, rules.refit_alpha) if refit else level
    gain, better = bets.mean_gain_pct, bets.mean_gain_pct > 0 and bets.p_value <= needed
    if reasons:
        summary = f"Refused: {'; '.join(reasons[:3])}{'; and more' if len(reasons) > 3 else ''}."
    else:
        verb = "Passed" if better else "Not promoted, since it is not better beyond noise"
        stay = f"; {', '.join(keep)} stay the champion's" if keep else ""
        summary = (f"{verb}: the mean error changes by {-gain:+.2f} points on {bets.shapes} shapes judged since the "
                   f"champion was promoted (p = {bets.p_value:.2g}, needed {needed:.2g}){stay}.")  # fmt: skip
    return Verdict(name, not reasons, better, gain, summary, tuple(keep), slices, tuple(reasons), evidence)


def chosen(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Of those that passed and are better beyond noise, the one with the largest gain; None: keep what serves."""
    able = [verdict for verdict in verdicts if verdict.passed and verdict.better]
    return max(able, key=lambda verdict: verdict.gain_pct, default=None)


def refusals(
    champion: Path, challenger: Path, tables: Sequence[LabelledCases], rules: Rules, devices: Catalogue
) -> Iterator[str]:
    """Why a challenger may not serve whatever it gains; `tables` are tonight's rows.

    Raises:
        ArtifactError: one of the two cannot be loaded.
    """
    old, new = load_predictor(champion, devices), load_predictor(challenger, devices)
    if not rules.may_forget and (lost := coverage_lost(champion, challenger)):
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        yield f"it no longer knows {', '.join(lost[:5])}{more}, which the champion was measured on"
    before_b, after_b = size_b(champion), size_b(challenger)
    if after_b > max(rules.small_b, rules.larger * before_b):
        yield f"it is too large: {after_b / 1e6:.0f} MB, the champion has {before_b / 1e6:.0f} MB"
    cases = [canonical(rows, devices).cases for rows in tables if rows.cases.family.name in new.families]
    for case in cases:
        yield from answers_refused(case.family.name, new.predict_cases(case, coverage=COVERAGE))
    before_s, after_s = seconds_per_answer([old, new], cases)
    quick_s = max(rules.quick_s, rules.quick_row_s * sum(map(len, cases)))
    if after_s > max(quick_s, rules.slower * before_s):
        yield f"it is too slow: {after_s * 1e3:.0f} ms for the rows that judge, the champion takes {before_s * 1e3:.0f} ms"


def _intervals(tonight: Sequence[ShapeScore], rules: Rules) -> list[str]:
    """Why the intervals cannot be served: they hold too few of tonight's rows, and fewer than the champion's."""
    if not tonight:
        return []
    weights = [score.rows for score in tonight]
    new, old = (float(np.average([getattr(score, name) for score in tonight], weights=weights))
                for name in ("challenger_inside", "champion_inside"))  # fmt: skip
    # What noise of so many shapes may take off.
    noise = 2.0 * (rules.least_coverage * (1 - rules.least_coverage) / len(tonight)) ** 0.5
    if new >= min(rules.least_coverage - noise, old):
        return []
    return [f"its intervals hold {new:.0%} of tonight's rows, the champion's {old:.0%}, asked are {COVERAGE:.0%}"]


def _slice(scores: Sequence[ShapeScore], worse: Wealth, keep: bool) -> dict[str, Any]:
    weights = [score.rows for score in scores]
    means = {name: float(np.average([getattr(score, name) for score in scores], weights=weights))
             for name in ("champion_pct", "challenger_pct", "champion_inside", "challenger_inside")}  # fmt: skip
    return {
        "slice": f"{scores[0].family} on {', '.join(sorted({score.device for score in scores}))}", "rows": "tonight",
        "n": sum(weights), "champion_mean_ape_pct": round(means["champion_pct"], 4),
        "challenger_mean_ape_pct": round(means["challenger_pct"], 4),
        "verdict": "worse" if keep else "same", "p_worse": round(worse.p_value, 6),
        "champion_coverage_pct": round(100 * means["champion_inside"], 2),
        "challenger_coverage_pct": round(100 * means["challenger_inside"], 2),
    }  # fmt: skip


_BELOW = 1e-6
"""Relative room under the physical bound for rounding."""

_NARROWEST = 1e-4
"""ln(upper / lower) of an interval that claims to know a latency to 0.01 %: no measurement repeats that well."""

_REPEATS = 5


def answers_refused(family: str, predictions: Predictions) -> Iterable[str]:
    """Why answers of one family cannot be served: no numbers, intervals wrong or without width, physics beaten."""
    columns = predictions.targets["latency_s"]
    value, lower, upper = columns.value, columns.lower, columns.upper
    good = (
        np.isfinite(value) & np.isfinite(lower) & np.isfinite(upper) & (lower > 0) & (lower <= value) & (value <= upper)
    )
    if not good.all():
        yield f"{(~good).sum()} of {len(value)} answers of {family} are no latency with an interval around it"
        return
    bound = np.max(np.stack(list(predictions.breakdown.values())), axis=0)
    if (under := value < bound * (1.0 - _BELOW)).any():
        yield f"{under.sum()} of {len(value)} answers of {family} are below the physical bound"
    if np.median(np.log(upper / lower)) < _NARROWEST:
        yield f"intervals of {family} have collapsed: half of them are narrower than 0.01 %"


def coverage_lost(champion: Path, challenger: Path) -> list[str]:
    """What the champion answers from measurements and the challenger no longer would: `family on device`, or its power."""
    before, after = (_measured(read_manifest(path)) for path in (champion, challenger))
    return sorted(before - after)


def _measured(manifest: Mapping[str, Any]) -> set[str]:
    measured: set[str] = set()
    for family, entry in manifest["families"].items():
        measured |= {f"{family} on {device}" for device in known_devices(entry)}
        powered = {word.split(" ")[0] for word in entry.get("measured", {}).get("power", ())}
        powered |= {device for device, targets in entry.get("adaptations", {}).items() if "power" in targets}
        measured |= {f"the power of {family} on {device}" for device in powered}
    return measured


def seconds_per_answer(predictors: Sequence[ArtifactPredictor], tables: Sequence[Cases]) -> list[float]:
    """Seconds that each predictor takes for all the tables: the best of several turns, since others run here too.

    The predictors take turns, so that a slow stretch of the machine falls on all of them, and have one thread: on a busy
    machine threads of small products wait for each other. Families that one of them lacks are left out of all.
    """
    from threadpoolctl import threadpool_limits

    shared = [table for table in tables if all(table.family.name in predictor.families for predictor in predictors)]
    best = [float("inf")] * len(predictors)
    with threadpool_limits(1):
        for _ in range(_REPEATS):
            for i, predictor in enumerate(predictors):
                began = time.perf_counter()
                for table in shared:
                    predictor.predict_cases(table)
                best[i] = min(best[i], time.perf_counter() - began)
    return best


def size_b(directory: Path) -> int:
    """Bytes of a model's files."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
