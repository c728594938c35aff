"""The gate: a challenger beside the champion on rows neither has seen, slice by slice.

A challenger is refused when it is worse on any slice beyond noise, or for what no gain makes up for (`refusals`). It is worth
promoting only when it is also better beyond noise on all rows together: a model that is merely "not worse" would let the error
creep up night after night, each step too small to be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...datasets.hashing import mixed, word_hash
from ...datasets.splits import shape_hashes
from ...features.cases import Floats, Strings
from ...features.device import Catalogue, catalogue
from ...models.metrics import ape_pct, size_bands
from ...models.predictor import ArtifactPredictor, load_predictor
from ...models.scoring import canonical
from .hold_out import HOLD_OUT, LAST_NIGHT, Evidence, joined_evidence
from .refusals import answers_refused, coverage_lost, forgets, seconds_per_answer, size_b
from .resampling import Difference, difference, holm, resamples_for

SliceVerdict = Literal["better", "same", "worse", "too few"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the gate demands.

    `alpha` is how often a challenger that is nowhere worse may be refused by chance, over all slices together (half of it for
    whole families on a device, half for their parts);
    `tolerance_pct` is a worsening of the mean error, in percentage points, that nobody minds; `fewest_shapes` are needed to
    judge a slice on its own. `coverage` is what intervals are asked for, `coverage_tolerance_pct` how many points of it a slice
    may lose. `slower` and `larger` are factors on the champion's time and size; a model up to `small_b` is never too large, and
    answers that take less than `quick_s` in all are never too slow.
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

    `rows` says of which rows it is; `low_pct` and `high_pct` are the ends of the 90 % interval of challenger minus champion, in
    percentage points, None where there are too few shapes; `p_worse` is not corrected for the number of slices. Coverage is in
    percent.
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
    """What the gate says of one challenger.

    `passed`: nothing speaks against it. `better`: beyond noise on all rows together, or it knows what the champion does not.
    `gain_pct` is by how many points of mean error. `reasons` say why it was refused.
    """

    name: str
    passed: bool
    better: bool
    gain_pct: float
    said: str
    slices: tuple[JudgedSlice, ...]
    reasons: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What a night's record says of it."""
        return {"name": self.name, "passed": self.passed, "better": self.better, "gain_pct": round(self.gain_pct, 4),
                "said": self.said, "reasons": list(self.reasons), "slices": [asdict(one) for one in self.slices]}  # fmt: skip


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
    reasons = [] if not lost or rules.may_forget else [forgets(lost)]
    reasons += _too_much(champion, challenger, old, new, evidence, rules)
    scored: list[_Scored] = []
    for one in joined_evidence(evidence):
        if one.rows.cases.family.name not in new.families:
            continue
        found, why = _score(old, new, one, rules)
        reasons += why
        if found is not None:
            scored.append(found)
    slices = _judged(scored, rules)
    reasons += [_worse(one) for one in slices if one.verdict == "worse"]
    reasons += _coverage_worse(scored, rules)
    overall, gains = _overall(scored, rules)
    gain = 0.0 if overall is None else -overall.mean
    if overall is None and not gains and not reasons:
        reasons.append("no row judges it: measure cases whose shapes were not learned from")
    better = gains or (overall is not None and overall.p_below <= rules.alpha)
    return Verdict(
        name, not reasons, better, gain, _said(reasons, better, gains, overall, slices), slices, tuple(reasons)
    )


def chosen(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Of those that passed and are better beyond noise, the one with the largest gain; None: keep what serves."""
    able = [one for one in verdicts if one.passed and one.better]
    return max(able, key=lambda one: one.gain_pct, default=None)


def _too_much(
    champion: Path, challenger: Path, old: ArtifactPredictor, new: ArtifactPredictor, evidence: Sequence[Evidence],
    rules: Rules,
) -> Iterator[str]:  # fmt: skip
    before_b, after_b = size_b(champion), size_b(challenger)
    if after_b > max(rules.small_b, rules.larger * before_b):
        yield f"it is too large: {after_b / 1e6:.0f} MB, the champion has {before_b / 1e6:.0f} MB"
    cases = [canonical(one.rows, old.devices).cases for one in evidence if len(one)]
    if not cases:
        return
    before_s, after_s = seconds_per_answer([old, new], cases)
    if after_s > max(rules.quick_s, rules.slower * before_s):
        yield f"it is too slow: {after_s * 1e3:.0f} ms for the rows that judge, the champion takes {before_s * 1e3:.0f} ms"


def _score(
    old: ArtifactPredictor, new: ArtifactPredictor, one: Evidence, rules: Rules
) -> tuple[_Scored | None, list[str]]:
    rows = canonical(one.rows, old.devices)
    cases, family = rows.cases, rows.cases.family.name
    found = new.predict_cases(cases, coverage=rules.coverage)
    if why := list(answers_refused(family, found)):
        return None, why
    columns = [found.targets["latency_s"]]
    if family in old.families:
        columns.insert(0, old.predict_cases(cases, coverage=rules.coverage).targets["latency_s"])
    errors: list[Floats] = [ape_pct(rows.latency_s, one.value).astype(np.float64) for one in columns]
    held = [(one.lower <= rows.latency_s) & (rows.latency_s <= one.upper) for one in columns]
    inside: list[Floats] = [np.where(one, 100.0, 0.0) for one in held]
    unknown = np.full(len(rows), np.nan)
    salted = mixed(shape_hashes(cases) ^ np.uint64(word_hash(family)))
    dtype = np.where(
        cases.dtype == cases.kv_dtype, cases.dtype, np.char.add(np.char.add(cases.dtype, "/"), cases.kv_dtype)
    )
    labels = {"device": cases.device, "origin": one.origin, "impl": cases.impl, "dtype": dtype,
              "size": size_bands(rows.latency_s), "regime": one.regime}  # fmt: skip
    both = len(columns) == 2
    return _Scored(family, errors[0] if both else unknown, errors[-1], inside[0] if both else unknown, inside[-1],
                   salted, labels), []  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Slice:
    name: str
    rows: str
    scored: _Scored
    index: np.ndarray[Any, np.dtype[np.intp]]
    whole: bool = False


def _slices(scored: _Scored) -> Iterator[_Slice]:
    """A family on each device, then by origin, impl, dtype, size and regime there, unless all rows share it."""
    for device in np.unique(scored.labels["device"]).tolist():
        here = np.flatnonzero(scored.labels["device"] == device)
        name = f"{scored.family} on {device}"
        origins = np.unique(scored.labels["origin"][here]).tolist()
        both = f"{HOLD_OUT} and {LAST_NIGHT}" if len(origins) == 2 else str(origins[0])
        yield _Slice(name, both, scored, here, whole=True)
        for by in ("origin", "impl", "dtype", "size", "regime"):
            column = scored.labels[by][here]
            words = np.unique(column).tolist()
            if len(words) > 1:
                for word in words:
                    rows = word if by == "origin" else both
                    yield _Slice(f"{name}, {by} {word or 'not given'}", rows, scored, here[column == word])


def _judged(scored: Sequence[_Scored], rules: Rules) -> tuple[JudgedSlice, ...]:
    parts = [part for one in scored for part in _slices(one)]
    resamples = resamples_for(len(parts), rules.alpha / 2, rules.resamples)
    found: list[tuple[_Slice, Difference | None]] = []
    for part in parts:
        errors, index = part.scored, part.index
        gap = errors.challenger[index] - errors.champion[index]
        enough = len(np.unique(errors.clusters[index])) >= rules.fewest_shapes and not np.isnan(gap).any()
        found.append((part, difference(gap, errors.clusters[index], tolerance=rules.tolerance_pct, resamples=resamples,
                                       seed=rules.seed) if enough else None))  # fmt: skip
    whole = [part.whole for part, gap in found if gap is not None]
    tested = [gap for _, gap in found if gap is not None]
    worse = iter(_rejected([gap.p_above for gap in tested], whole, rules.alpha))
    better = iter(_rejected([gap.p_below for gap in tested], whole, rules.alpha))
    return tuple(_one(part, gap, *((next(worse), next(better)) if gap is not None else (False, False)))
                 for part, gap in found)  # fmt: skip


def _rejected(p_values: Sequence[float], whole: Sequence[bool], alpha: float) -> list[bool]:
    """Holm's rejections with half of `alpha` for whole families and half for their parts.

    Parts are many; a family that is worse as a whole should not have to stand out against all of them.
    """
    rejected = [False] * len(p_values)
    for group in (True, False):
        places = [i for i, one in enumerate(whole) if one is group]
        for i, bad in zip(places, holm([p_values[i] for i in places], alpha / 2), strict=True):
            rejected[i] = bad
    return rejected


def _one(part: _Slice, gap: Difference | None, worse: bool, better: bool) -> JudgedSlice:
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
    parts = [part for one in scored for part in _slices(one) if part.whole]
    kept, gaps = [], []
    for part in parts:
        errors, index = part.scored, part.index
        lost = errors.champion_inside[index] - errors.challenger_inside[index]
        if np.isnan(lost).any() or len(np.unique(errors.clusters[index])) < rules.fewest_shapes:
            continue
        kept.append(part)
        gaps.append(difference(lost, errors.clusters[index], tolerance=rules.coverage_tolerance_pct,
                               resamples=resamples_for(len(parts), rules.alpha, rules.resamples), seed=rules.seed))  # fmt: skip
    worse = holm([gap.p_above for gap in gaps], rules.alpha)
    said = []
    for part, bad in zip(kept, worse, strict=True):
        now, before = (
            _mean(column[part.index]) for column in (part.scored.challenger_inside, part.scored.champion_inside)
        )
        if bad and now < 100.0 * rules.coverage:
            said.append(f"its intervals of {part.name} hold {now:.0f} % of the rows, the champion's {before:.0f} %, "
                        f"asked are {100 * rules.coverage:.0f} %")  # fmt: skip
    return said


def _overall(scored: Sequence[_Scored], rules: Rules) -> tuple[Difference | None, bool]:
    """All rows both models know as one, and whether there are rows that only the challenger knows."""
    gaps = [one.challenger - one.champion for one in scored]
    gains = any(np.isnan(gap).any() for gap in gaps)
    both = [(gap, one.clusters) for gap, one in zip(gaps, scored, strict=True) if len(gap) and not np.isnan(gap).any()]
    if not both:
        return None, gains
    values, clusters = (np.concatenate(columns) for columns in zip(*both, strict=True))
    return difference(values, clusters, resamples=rules.resamples, seed=rules.seed), gains


def _mean(column: Floats) -> float:
    return round(float(column.mean()), 4)


def _worse(one: JudgedSlice) -> str:
    return (f"{one.slice} is worse: {one.champion_mean_ape_pct:.1f} % became {one.challenger_mean_ape_pct:.1f} % "
            f"on {one.n} rows ({one.rows})")  # fmt: skip


def _said(
    reasons: Sequence[str], better: bool, gains: bool, overall: Difference | None, slices: Sequence[JudgedSlice]
) -> str:
    judged = sum(one.verdict != "too few" for one in slices)
    if reasons:
        more = f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
        return f"Refused: {'; '.join(reasons[:3])}{more}."
    change = "" if overall is None else (f" by {-overall.mean:.2f} points of mean error "
                                         f"(90 % interval {-overall.high:.2f} to {-overall.low:.2f})")  # fmt: skip
    if overall is not None and overall.low > 0.0 and not better:
        worse = f"{overall.mean:.2f} points of mean error (90 % interval {overall.low:.2f} to {overall.high:.2f})"
        return (
            f"Not promoted: none of {judged} slices alone is worse beyond noise, but all rows together are, by {worse}."
        )
    more = ", and it knows families that the champion does not" if gains else ""
    if better:
        return f"Passed: none of {judged} slices is worse beyond noise, and all rows together are better{change}{more}."
    return (f"Passed, and not promoted: none of {judged} slices is worse beyond noise, but all rows together are not "
            f"better beyond noise{change}.")  # fmt: skip
