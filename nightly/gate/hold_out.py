"""Which rows teach and which judge: a hold-out frozen by shape, and a half of last night's rows.

A shape belongs to the hold-out by its hash alone, so it is the same every night on every machine, grows only as new shapes of
it are measured, and no challenger ever learns from it. Of tonight's other rows, a half (by shape and night) judges tonight and
may teach from tomorrow on. A row of that half judges only where its shape was never learned from before: neither the champion,
made of earlier rows, nor a challenger has seen it then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...datasets.rows.splits import Mask, held_out_shapes, mixed, shape_hashes, word_hash
from ...features.batch.cases import Cases, Strings
from ...models.training.labelled_cases import LabelledCases, joined

HOLD_OUT, LAST_NIGHT = "hold-out", "last night"
"""Where rows that judge come from."""

HELD_OUT_SHARE = 0.1
JUDGED_SHARE = 0.5

_SEED = 20261122
"""Chooses the frozen hold-out. Changing it would judge models by rows that they have learned from."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows of one family that judge models.

    Attributes:
        rows: The measured rows.
        origin: `HOLD_OUT` or `LAST_NIGHT` for each row, shape `(n,)`.
    """

    rows: LabelledCases
    origin: Strings

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class RowSplit:
    """The rows of a night's devices, split into those that train and those that judge.

    Attributes:
        learn: What challengers may learn from, one table a family.
        evidence: What judges them and the champion.
    """

    learn: tuple[LabelledCases, ...]
    evidence: tuple[Evidence, ...]


def judging_rows(evidence: Iterable[Evidence]) -> dict[str, int]:
    """Rows that judge by where they come from, the keys as facts of a record write them."""
    counts = Counter(origin for part in evidence for origin in part.origin.tolist())
    return {"hold_out": counts[HOLD_OUT], "last_night": counts[LAST_NIGHT]}


def frozen(cases: Cases, share: float = HELD_OUT_SHARE) -> Mask:
    """True for the cases of the frozen hold-out, shape `(n,)`."""
    return held_out_shapes(cases, share, _SEED)


def judges_tonight(cases: Cases, night: str) -> Mask:
    """True for the cases whose shape judges in the night of this id, shape `(n,)`; another night has another half."""
    drawn = mixed(shape_hashes(cases) ^ np.uint64(word_hash(f"judges-{night}")))
    return (drawn >> np.uint64(11)).astype(np.float64) / 2.0**53 < JUDGED_SHARE


def teachable(tables: Iterable[LabelledCases], share: float = HELD_OUT_SHARE) -> list[LabelledCases]:
    """The tables without the rows of the frozen hold-out, those left empty left out: what any training may use."""
    parts = [rows.take(np.flatnonzero(~frozen(rows.cases, share))) for rows in tables]
    return [rows for rows in parts if len(rows)]


def split_rows(
    earlier: Sequence[LabelledCases], tonight: Sequence[LabelledCases], night: str, *, share: float = HELD_OUT_SHARE
) -> RowSplit:
    """Split rows into those that teach and those that judge.

    Args:
        earlier: rows of earlier nights.
        tonight: rows of this night.
        night: its id, which chooses the half that judges.
        share: of all shapes, the frozen hold-out.
    """
    learn: list[LabelledCases] = []
    evidence: list[Evidence] = []
    for name in sorted({rows.cases.family.name for rows in (*earlier, *tonight)}):
        before = [rows for rows in earlier if rows.cases.family.name == name and len(rows)]
        now = [rows for rows in tonight if rows.cases.family.name == name and len(rows)]
        if not before and not now:
            continue
        rows = _unsourced([*before, *now])
        fresh = np.arange(len(rows)) >= sum(map(len, before))
        held_out = frozen(rows.cases, share)
        shapes = shape_hashes(rows.cases)
        judge = fresh & ~held_out & judges_tonight(rows.cases, night) & ~np.isin(shapes, shapes[~fresh])
        teach = np.flatnonzero(~held_out & ~judge)
        if len(teach):
            learn.append(rows.take(teach))
        evidence.append(_evidence(rows, held_out, judge))
    return RowSplit(tuple(learn), tuple(filter(len, evidence)))


def unseen(
    earlier: Sequence[LabelledCases], tonight: Sequence[LabelledCases], *, share: float = HELD_OUT_SHARE
) -> tuple[Evidence, ...]:
    """Tonight's rows that no model made before tonight has seen: of shapes never measured before, or of the frozen hold-out."""
    evidence = []
    for rows in tonight:
        if not len(rows):
            continue
        shapes = shape_hashes(rows.cases)
        name = rows.cases.family.name
        known = [shape_hashes(table.cases) for table in earlier if table.cases.family.name == name]
        seen = np.isin(shapes, np.concatenate(known)) if known else np.zeros(len(rows), dtype=np.bool_)
        held_out = frozen(rows.cases, share)
        evidence.append(_evidence(rows, held_out, ~seen))
    return tuple(filter(len, evidence))


def _evidence(rows: LabelledCases, held_out: Mask, judge: Mask) -> Evidence:
    """The rows of either mask; those of both are of the hold-out."""
    chosen = np.flatnonzero(held_out | judge)
    return Evidence(rows.take(chosen), np.where(held_out, HOLD_OUT, LAST_NIGHT)[chosen])


def joined_evidence(evidence: Iterable[Evidence]) -> list[Evidence]:
    """One entry a family, those without rows left out."""
    by_family: dict[str, list[Evidence]] = {}
    for part in evidence:
        if len(part):
            by_family.setdefault(part.rows.cases.family.name, []).append(part)
    return [
        Evidence(_unsourced([part.rows for part in parts]), np.concatenate([part.origin for part in parts]))
        for _, parts in sorted(by_family.items())
    ]


def _unsourced(tables: Sequence[LabelledCases]) -> LabelledCases:
    return replace(joined(tables), source=None)
