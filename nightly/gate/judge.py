"""The gate: a challenger beside the champion on rows neither has seen, slice by slice.

A challenger is refused when it is worse on any slice beyond noise, or by a hard limit (`hard_limits`). It is worth
promoting only when it is also better beyond noise on all rows together: a model that is merely "not worse" would let the error
creep up night after night, each step too small to be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...datasets.rows.splits import mixed, shape_hashes, word_hash
from ...features.batch.cases import Floats, Strings
from ...features.device import Catalogue, catalogue
from ...models.evaluation.scoring import canonical
from ...models.metrics import ape_pct, size_bands
from ...models.predict.prediction import Predictions
from ...models.predict.predictor import ArtifactPredictor, load_predictor
from .hard_limits import answers_refused, coverage_lost, seconds_per_answer, size_b
from .hold_out import HOLD_OUT, LAST_NIGHT, Evidence, joined_evidence
from .paired_bootstrap import Difference, difference, holm, resamples_for

SliceVerdict = Literal["better", "same", "worse", "too few"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the gate demands of a challenger.

    Attributes:
        alpha: Probability that a challenger that is no worse is refused by chance, over all slices together; half of it for
            whole families on a device, half for their parts.
        tolerance_pct: Increase of the mean error that is accepted, in percentage points.
        fewest_shapes: Shapes that a slice needs to be judged on its own.
        coverage: Coverage that intervals are made for.
        coverage_tolerance_pct: Percentage points of coverage that a slice may lose.
        may_forget: Whether it may lack a family or device that the champion knows.
        slower: Most time for its predictions, as a factor on the champion's.
        quick_s: Predictions that take fewer seconds in all are never too slow.
        larger: Largest size, as a factor on the champion's.
        small_b: A model of fewer bytes is never too large.
        resamples: Least number of bootstrap draws.
        seed: Seed of the draws.
    """

    alpha: float = 0.05
    tolerance_pct: float = 0.5
    fewest_shapes: int = 8
    coverage: float = 0.9
    coverage_tolerance_pct: float = 5.0
    may_forget: bool = False
    slower: float = 2.0
    quick_s: float = 0.02
    larger: float = 4.0
    small_b: float = 32e6
    resamples: int = 4999
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JudgedSlice:
    """One slice of the rows that judge. Errors are mean absolute percentage errors of latency.

    Attributes:
        slice: Its name: family, device and what else its rows share.
        rows: Where its rows come from.
        n: Number of rows.
        champion_mean_ape_pct: Error of the champion; None where it does not know the slice.
        challenger_mean_ape_pct: Error of the challenger.
        low_pct: Lower end of the 90 % interval of challenger minus champion, in percentage points; None where there are too
            few shapes.
        high_pct: Upper end of it.
        verdict: What the comparison gave.
        p_worse: p-value of being worse, not corrected for the number of slices; None where there are too few shapes.
        champion_coverage_pct: Share of rows in the champion's intervals, in percent.
        challenger_coverage_pct: Share of rows in the challenger's, in percent.
    """

    slice: str
    rows: str
    n: int
    champion_mean_ape_pct: float | None
    challenger_mean_ape_pct: float
    low_pct: float | None
    high_pct: float | None
    verdict: SliceVerdict
    p_worse: float | None
    champion_coverage_pct: float | None
    challenger_coverage_pct: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of the gate on one challenger.

    Attributes:
        name: The challenger.
        passed: Whether nothing speaks against it.
        better: Whether it is better beyond noise on all rows together, or knows what the champion does not.
        gain_pct: Decrease of the mean error, in percentage points.
        summary: The judgement in a sentence.
        slices: The slices compared.
        reasons: Why it was refused; empty where it passed.
    """

    name: str
    passed: bool
    better: bool
    gain_pct: float
    summary: str
    slices: tuple[JudgedSlice, ...]
    reasons: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What a night's record says of it."""
        return {"name": self.name, "passed": self.passed, "better": self.better, "gain_pct": round(self.gain_pct, 4),
                "said": self.summary, "reasons": list(self.reasons),
                "slices": [asdict(part) for part in self.slices]}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Scored:
    """Both models' errors on the rows of one family, shape `(n,)` each; the champion's are NaN where it does not know it."""

    family: str
    champion: Floats
    challenger: Floats
    champion_inside: Floats
    challenger_inside: Floats
    clusters: np.ndarray[Any, np.dtype[np.uint64]]
    labels: dict[str, Strings]


def judge(
    champion: Path,
    challenger: Path,
    evidence: Sequence[Evidence],
    *,
    name: str,
    rules: Rules | None = None,
    devices: Catalogue | None = None,
) -> Verdict:
    """Whether the challenger may take the champion's place, by the rows of `evidence`.

    Raises:
        ArtifactError: one of the two cannot be loaded.
        SpecError: a device that the catalogue does not know.
    """
    rules, known = rules or Rules(), devices or catalogue()
    old, new = load_predictor(champion, known), load_predictor(challenger, known)
    lost = coverage_lost(champion, challenger)
    reasons: list[str] = []
    if lost and not rules.may_forget:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        reasons.append(f"it no longer knows {', '.join(lost[:5])}{more}, which the champion was measured on")
    reasons += _too_much(champion, challenger, old, new, evidence, rules)
    scored: list[_Scored] = []
    for part in joined_evidence(evidence):
        if part.rows.cases.family.name not in new.families:
            continue
        errors, why = _score(old, new, part, rules)
        reasons += why
        if errors is not None:
            scored.append(errors)
    slices = _judged(scored, rules)
    reasons += [_worse(judged_slice) for judged_slice in slices if judged_slice.verdict == "worse"]
    reasons += _coverage_worse(scored, rules)
    overall, gains = _overall(scored, rules)
    gain = 0.0 if overall is None else -overall.mean
    if overall is None and not gains and not reasons:
        reasons.append("no row judges it: measure cases whose shapes were not learned from")
    better = gains or (overall is not None and overall.p_below <= rules.alpha)
    return Verdict(
        name, not reasons, better, gain, _summary(reasons, better, gains, overall, slices), slices, tuple(reasons)
    )


def chosen(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Of those that passed and are better beyond noise, the one with the largest gain; None: keep what serves."""
    able = [verdict for verdict in verdicts if verdict.passed and verdict.better]
    return max(able, key=lambda verdict: verdict.gain_pct, default=None)


def _too_much(
    champion: Path, challenger: Path, old: ArtifactPredictor, new: ArtifactPredictor, evidence: Sequence[Evidence],
    rules: Rules,
) -> Iterator[str]:  # fmt: skip
    before_b, after_b = size_b(champion), size_b(challenger)
    if after_b > max(rules.small_b, rules.larger * before_b):
        yield f"it is too large: {after_b / 1e6:.0f} MB, the champion has {before_b / 1e6:.0f} MB"
    cases = [canonical(part.rows, old.devices).cases for part in evidence if len(part)]
    if not cases:
        return
    before_s, after_s = seconds_per_answer([old, new], cases)
    if after_s > max(rules.quick_s, rules.slower * before_s):
        yield f"it is too slow: {after_s * 1e3:.0f} ms for the rows that judge, the champion takes {before_s * 1e3:.0f} ms"


def _score(
    old: ArtifactPredictor, new: ArtifactPredictor, evidence: Evidence, rules: Rules
) -> tuple[_Scored | None, list[str]]:
    rows = canonical(evidence.rows, old.devices)
    cases, family = rows.cases, rows.cases.family.name
    predictions = new.predict_cases(cases, coverage=rules.coverage)
    if why := list(answers_refused(family, predictions)):
        return None, why
    unknown = np.full(len(rows), np.nan)
    champion = (unknown, unknown)
    if family in old.families:
        champion = _errors(rows.latency_s, old.predict_cases(cases, coverage=rules.coverage))
    challenger = _errors(rows.latency_s, predictions)
    salted = mixed(shape_hashes(cases) ^ np.uint64(word_hash(family)))
    dtype = np.where(
        cases.dtype == cases.kv_dtype, cases.dtype, np.char.add(np.char.add(cases.dtype, "/"), cases.kv_dtype)
    )
    labels = {"device": cases.device, "origin": evidence.origin, "impl": cases.impl, "dtype": dtype,
              "size": size_bands(rows.latency_s)}  # fmt: skip
    return _Scored(family, champion[0], challenger[0], champion[1], challenger[1], salted, labels), []


def _errors(latency_s: Floats, predictions: Predictions) -> tuple[Floats, Floats]:
    """Errors in percent, and 100 for rows inside their interval, else 0; shape `(n,)` each."""
    columns = predictions.targets["latency_s"]
    inside = (columns.lower <= latency_s) & (latency_s <= columns.upper)
    return ape_pct(latency_s, columns.value).astype(np.float64), np.where(inside, 100.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Slice:
    name: str
    rows: str
    scored: _Scored
    index: np.ndarray[Any, np.dtype[np.intp]]
    whole: bool = False


def _slices(scored: _Scored) -> Iterator[_Slice]:
    """A family on each device, then by origin, impl, dtype and size there, unless all rows share it."""
    for device in np.unique(scored.labels["device"]).tolist():
        here = np.flatnonzero(scored.labels["device"] == device)
        name = f"{scored.family} on {device}"
        origins = np.unique(scored.labels["origin"][here]).tolist()
        both = f"{HOLD_OUT} and {LAST_NIGHT}" if len(origins) == 2 else str(origins[0])
        yield _Slice(name, both, scored, here, whole=True)
        for by in ("origin", "impl", "dtype", "size"):
            column = scored.labels[by][here]
            words = np.unique(column).tolist()
            if len(words) > 1:
                for word in words:
                    rows = word if by == "origin" else both
                    yield _Slice(f"{name}, {by} {word or 'not given'}", rows, scored, here[column == word])


def _judged(scored: Sequence[_Scored], rules: Rules) -> tuple[JudgedSlice, ...]:
    parts = [part for errors_of_family in scored for part in _slices(errors_of_family)]
    resamples = resamples_for(len(parts), rules.alpha / 2, rules.resamples)
    gaps = [part.scored.challenger - part.scored.champion for part in parts]
    compared = [(part, _difference(part, gap, rules, rules.tolerance_pct, resamples))
                for part, gap in zip(parts, gaps, strict=True)]  # fmt: skip
    whole = [part.whole for part, gap in compared if gap is not None]
    tested = [gap for _, gap in compared if gap is not None]
    worse = iter(_rejected([gap.p_above for gap in tested], whole, rules.alpha))
    better = iter(_rejected([gap.p_below for gap in tested], whole, rules.alpha))
    return tuple(_judged_slice(part, gap, *((next(worse), next(better)) if gap is not None else (False, False)))
                 for part, gap in compared)  # fmt: skip


def _difference(part: _Slice, values: Floats, rules: Rules, tolerance: float, resamples: int) -> Difference | None:
    """The mean of paired `values` of all rows on a slice; None for few shapes, or where the champion does not know it."""
    values, clusters = values[part.index], part.scored.clusters[part.index]
    if np.isnan(values).any() or len(np.unique(clusters)) < rules.fewest_shapes:
        return None
    return difference(values, clusters, tolerance=tolerance, resamples=resamples, seed=rules.seed)


def _rejected(p_values: Sequence[float], whole: Sequence[bool], alpha: float) -> list[bool]:
    """Holm's rejections with half of `alpha` for whole families and half for their parts.

    Parts are many; a family that is worse as a whole should not have to stand out against all of them.
    """
    rejected = [False] * len(p_values)
    for group in (True, False):
        places = [i for i, is_whole in enumerate(whole) if is_whole is group]
        for i, bad in zip(places, holm([p_values[i] for i in places], alpha / 2), strict=True):
            rejected[i] = bad
    return rejected


def _judged_slice(part: _Slice, gap: Difference | None, worse: bool, better: bool) -> JudgedSlice:
    errors, index = part.scored, part.index
    known = not np.isnan(errors.champion[index]).any()
    verdict: SliceVerdict = "worse" if worse else "better" if better else "same"
    return JudgedSlice(
        slice=part.name,
        rows=part.rows,
        n=len(index),
        champion_mean_ape_pct=_mean(errors.champion[index]) if known else None,
        challenger_mean_ape_pct=_mean(errors.challenger[index]),
        low_pct=None if gap is None else round(gap.low, 4),
        high_pct=None if gap is None else round(gap.high, 4),
        verdict=verdict if gap is not None else "too few" if known else "better",
        p_worse=None if gap is None else round(gap.p_above, 6),
        champion_coverage_pct=_mean(errors.champion_inside[index]) if known else None,
        challenger_coverage_pct=_mean(errors.challenger_inside[index]),
    )


def _coverage_worse(scored: Sequence[_Scored], rules: Rules) -> list[str]:
    """Families on devices whose intervals hold less often than the champion's, beyond noise, and less often than asked."""
    parts = [part for errors_of_family in scored for part in _slices(errors_of_family) if part.whole]
    resamples = resamples_for(len(parts), rules.alpha, rules.resamples)
    compared = []
    for part in parts:
        lost = part.scored.champion_inside - part.scored.challenger_inside
        if (gap := _difference(part, lost, rules, rules.coverage_tolerance_pct, resamples)) is not None:
            compared.append((part, gap.p_above))
    worse = holm([p_value for _, p_value in compared], rules.alpha)
    reasons = []
    for (part, _), bad in zip(compared, worse, strict=True):
        now, before = (
            _mean(column[part.index]) for column in (part.scored.challenger_inside, part.scored.champion_inside)
        )
        if bad and now < 100.0 * rules.coverage:
            reasons.append(f"its intervals of {part.name} hold {now:.0f} % of the rows, the champion's {before:.0f} %, "
                        f"asked are {100 * rules.coverage:.0f} %")  # fmt: skip
    return reasons


def _overall(scored: Sequence[_Scored], rules: Rules) -> tuple[Difference | None, bool]:
    """All rows both models know as one, and whether there are rows that only the challenger knows."""
    gaps = [errors.challenger - errors.champion for errors in scored]
    gains = any(np.isnan(gap).any() for gap in gaps)
    both = [
        (gap, errors.clusters) for gap, errors in zip(gaps, scored, strict=True) if len(gap) and not np.isnan(gap).any()
    ]
    if not both:
        return None, gains
    values, clusters = (np.concatenate(columns) for columns in zip(*both, strict=True))
    return difference(values, clusters, resamples=rules.resamples, seed=rules.seed), gains


def _mean(column: Floats) -> float:
    return round(float(column.mean()), 4)


def _worse(part: JudgedSlice) -> str:
    return (f"{part.slice} is worse: {part.champion_mean_ape_pct:.1f} % became {part.challenger_mean_ape_pct:.1f} % "
            f"on {part.n} rows ({part.rows})")  # fmt: skip


def _summary(
    reasons: Sequence[str], better: bool, gains: bool, overall: Difference | None, slices: Sequence[JudgedSlice]
) -> str:
    if reasons:
        more = f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
        return f"Refused: {'; '.join(reasons[:3])}{more}."
    judged = sum(part.verdict != "too few" for part in slices)
    words = [f"none of {judged} slices is worse beyond noise"]
    if overall is not None:
        words.append(f"the mean error of all rows changes by {overall.mean:+.2f} points (90 % interval {overall.low:+.2f} to "
                     f"{overall.high:+.2f})")  # fmt: skip
    if gains:
        words.append("it knows families that the champion does not")
    return (
        f"{'Passed' if better else 'Passed, and not promoted since it is not better beyond noise'}: {'; '.join(words)}."
    )
