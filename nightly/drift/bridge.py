"""The bridge between two regimes: cases measured before, measured again, and what that says of each family and impl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...datasets.schema import spec_of
from ...datasets.store import Store
from ...datasets.tables import numbers, text
from ...features.cases import Floats
from ...features.kernel import KernelSpec
from .ledger import Ledger, Shift, Verdict
from .robust import median_interval
from .training_rows import regimes_of

Tables = Mapping[str, pa.Table]
"""Stored rows by family, with the columns of `datasets.schema.arrow_schema` and `software`."""


@dataclass(frozen=True, slots=True)
class BridgeRule:
    """How a bridge is judged. `tolerance` is the move (ln) that is no reason for a new regime; `noise_factor` times a night's
    own deviation is no reason either. `false_alarms` is for all families and impls together; fewer than `least_cases` of one
    say nothing. `level` is the confidence of the interval by which rows are moved, and within which nothing moved.
    """

    tolerance: float = 0.03
    noise_factor: float = 3.0
    false_alarms: float = 0.05
    least_cases: int = 6
    level: float = 0.9
    per_group: int = 12


@dataclass(frozen=True, slots=True)
class Bridge:
    """Shifts by `family/impl`, and what they come to: `same`, `shifted` where any moved, or `too few` to say."""

    shifts: Mapping[str, Shift]
    verdict: Verdict


def stored_rows(store: Store, device: str) -> dict[str, pa.Table]:
    """The device's stored rows by family."""
    return store.read_all([device])


def rows_of(tables: Tables, ledger: Ledger, regime: str) -> dict[str, pa.Table]:
    """The rows that belong to one regime."""
    found = {}
    for family, table in tables.items():
        names, code = regimes_of(ledger, text(table, "software"), text(table, "measured_at"))
        place = names.index(regime) if regime in names else -2
        found[family] = table.take(pa.array(np.flatnonzero(code == place)))
    return found


def rows_under(tables: Tables, software: str) -> dict[str, pa.Table]:
    """The rows measured under one software, whether or not anybody has decided about it: those of all nights that waited."""
    return {family: table.filter(pa.array(text(table, "software") == software)) for family, table in tables.items()}


def bridge_cases(tables: Tables, ledger: Ledger, device: str, n: int, *, regime: str | None = None, seed: int = 0,
                 rule: BridgeRule | None = None) -> list[KernelSpec]:  # fmt: skip
    """At most `n` cases of the device measured well in a regime, the current one unless another is named.

    Families and impls by turns, in each the latencies evenly from short to long. Where `n` is too few for all, families come
    first, each with the impl that has most cases, so that those taken can be judged. Empty without regimes or rows.

    Raises:
        SpecError: no such regime.
    """
    rule = rule or BridgeRule()
    name = regime if regime is not None else (ledger.current.id if ledger.current else None)
    if name is None or n <= 0:
        return []
    ledger.regime(name)
    groups: list[tuple[int, int, list[dict[str, Any]]]] = []
    for _, table in sorted(rows_of(tables, ledger, name).items()):
        good = _good(table) & (text(table, "device") == device)
        impl, case, latency = text(table, "impl"), text(table, "case_id"), numbers(table, "latency_s").values
        own = []
        for word in sorted(set(impl[good].tolist())):
            rows = np.flatnonzero(good & (impl == word))
            _, first = np.unique(case[rows], return_index=True)
            own.append(rows[first][np.argsort(latency[rows[first]], kind="stable")])
        for rank, rows in enumerate(sorted(own, key=len, reverse=True)):
            groups.append((rank, -len(rows), _spread_out(table, rows, rule, n, seed)))
    groups.sort(key=lambda one: one[:2])
    chosen = [rows for _, _, rows in groups[: max(n // rule.per_group, 1)]]
    turns = [
        row for turn in range(max(map(len, chosen), default=0)) for rows in chosen for row in rows[turn : turn + 1]
    ]
    return [spec_of(row) for row in turns[:n]]


def _good(table: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    noisy = np.array([bool(one) for one in table["noisy"].to_pylist()] if "noisy" in table.column_names
                     else np.zeros(table.num_rows), dtype=np.bool_)  # fmt: skip
    good: np.ndarray[Any, np.dtype[np.bool_]] = (text(table, "status") == "ok") & ~noisy
    return good


def _spread_out(table: pa.Table, ordered: Any, rule: BridgeRule, n: int, seed: int) -> list[dict[str, Any]]:
    """Rows at random places along `ordered`, one of each of as many equal parts as may be wanted, in random order."""
    rng = np.random.default_rng(seed)
    most = min(max(n, rule.per_group), len(ordered))
    # Twice as many as a group needs at least: the rest is for groups of few rows.
    parts = np.array_split(ordered, min(most, 4 * rule.per_group))
    chosen = np.array([int(rng.choice(part)) for part in parts])
    return list(table.take(pa.array(rng.permutation(chosen))).to_pylist())


def judge_bridge(old: Tables, new: Tables, *, noise: float = 0.01, rule: BridgeRule | None = None) -> Bridge:
    """What the cases in both say, by family and impl: the median of ln(new / old), each case at its median on either side.

    `noise` is a quiet night's deviation of what all cases share (`DeviceDrift.noise`): one night's offset moves every case of
    the bridge, however many there are. Intervals are the sign test's; what moved is corrected for how many were asked.
    """
    rule = rule or BridgeRule()
    steps: dict[str, Floats] = {}
    for family in sorted(old.keys() & new.keys()):
        before, after = _medians(old[family], family), _medians(new[family], family)
        for key in sorted(before.keys() & after.keys()):
            both = sorted(before[key].keys() & after[key].keys())
            if both:
                steps[key] = np.log([after[key][case] / before[key][case] for case in both])
    return judged(steps, noise, rule)


def judged(steps: Mapping[str, Floats], noise: float, rule: BridgeRule) -> Bridge:
    """The same from ln(new / old) of the cases of every `family/impl`, at least one each."""
    level = 1.0 - rule.false_alarms / max(len(steps), 1)
    shifts = {key: judge_steps(found, level, noise, rule) for key, found in steps.items()}
    verdicts = {shift.verdict for shift in shifts.values()}
    # Some stayed and one may well have moved: that is no reason yet for a regime, and none to learn from both together.
    farthest = max(rule.tolerance, rule.noise_factor * noise)
    suspect = any(one.verdict == "unclear" and (one.low > farthest or one.high < -farthest) for one in shifts.values())
    settled: Verdict = "same" if "same" in verdicts and not suspect else "too few"
    return Bridge(shifts, "shifted" if "shifted" in verdicts else settled)


def _medians(table: pa.Table, family: str) -> dict[str, dict[str, float]]:
    """Median latency by `family/impl` and case, of rows that were measured."""
    ok = text(table, "status") == "ok"
    impl, case, latency = text(table, "impl"), text(table, "case_id"), numbers(table, "latency_s").values
    seen: dict[str, dict[str, list[float]]] = {}
    for i in np.flatnonzero(ok & (latency > 0)):
        seen.setdefault(f"{family}/{impl[i]}", {}).setdefault(str(case[i]), []).append(float(latency[i]))
    return {key: {one: float(np.median(times)) for one, times in cases.items()} for key, cases in seen.items()}


def judge_steps(steps: Floats, level: float, noise: float, rule: BridgeRule) -> Shift:
    """One family and impl from its cases' ln(new / old), at least one; `level` is the surer interval's, see `judge_bridge`.

    Two questions, two intervals: that it moved has to be sure among all families and impls; that it did not, and by how much
    it did, is asked of each by itself.
    """
    middle = float(np.median(steps))
    interval = median_interval(steps, rule.level) if len(steps) >= rule.least_cases else None
    if interval is None:
        return Shift(middle, float(steps.min()), float(steps.max()), len(steps), "too few")
    low, high = interval
    surely = median_interval(steps, level)
    band = rule.noise_factor * noise
    same = max(-low, high) <= max(rule.tolerance, band)
    shifted = surely is not None and (surely[0] > band or surely[1] < -band)
    return Shift(middle, low, high, len(steps), "same" if same else "shifted" if shifted else "unclear")
