"""Which rows teach and which judge: a hold-out frozen by shape, and a half of last night's rows.

A shape belongs to the hold-out by its hash alone, so it is the same every night on every machine, grows only as new shapes of
it are measured, and no challenger ever learns from it. Of tonight's other rows, a half (by shape and night) judges tonight and
may teach from tomorrow on. A row of that half judges only where its shape was never learned from before: neither the champion,
made of earlier rows, nor a challenger has seen it then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...datasets.hashing import mixed, word_hash
from ...datasets.splits import Mask, held_out_shapes, shape_hashes
from ...features.cases import Cases, Strings
from ...features.errors import SpecError
from ...models.labelled import Labelled
from ...models.tables import joined

HOLD_OUT, LAST_NIGHT = "hold-out", "last night"
"""Where rows that judge come from."""

HELD_OUT_SHARE = 0.1
JUDGED_SHARE = 0.5

_SEED = 20261122
"""Chooses the frozen hold-out. Changing it would judge models by rows that they have learned from."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows of one family that judge; `origin` of shape `(n,)` says whether they are of `HOLD_OUT` or of `LAST_NIGHT`.

    `regime` of shape `(n,)` names the software regime of each row, empty where nobody told.
    """

    rows: Labelled
    origin: Strings
    regime: Strings

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Mask) -> Evidence:
        """The rows of a mask."""
        return Evidence(self.rows.take(index), self.origin[index], self.regime[index])


@dataclass(frozen=True, slots=True)
class Dealt:
    """What a night's challengers may learn from, one table a family, and what judges them and the champion."""

    learn: tuple[Labelled, ...]
    evidence: tuple[Evidence, ...]

    def judged(self) -> dict[str, int]:
        """Rows that judge by where they come from, the keys as facts of a record write them."""
        origins = (
            np.concatenate([one.origin for one in self.evidence]) if self.evidence else np.array([], dtype=np.str_)
        )
        return {"hold_out": int((origins == HOLD_OUT).sum()), "last_night": int((origins == LAST_NIGHT).sum())}


def frozen(cases: Cases, share: float = HELD_OUT_SHARE) -> Mask:
    """True for the cases of the frozen hold-out, shape `(n,)`."""
    return held_out_shapes(cases, share, _SEED)


def judges_tonight(cases: Cases, night: str, share: float = JUDGED_SHARE) -> Mask:
    """True for the cases whose shape judges in the night of this id, shape `(n,)`; another night has another half.

    Raises:
        SpecError: the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise SpecError(
            f"the share of last night's rows that judges must be between 0 and 1, got {share}", field="gate"
        )
    drawn = mixed(shape_hashes(cases) ^ np.uint64(word_hash(f"judges-{night}")))
    return (drawn >> np.uint64(11)).astype(np.float64) / 2.0**53 < share


def teachable(tables: Iterable[Labelled], share: float = HELD_OUT_SHARE) -> list[Labelled]:
    """The tables without the rows of the frozen hold-out, those left empty left out: what any training may use."""
    kept = [rows.take(np.flatnonzero(~frozen(rows.cases, share))) for rows in tables]
    return [rows for rows in kept if len(rows)]


def deal(
    earlier: Sequence[Labelled],
    tonight: Sequence[Labelled],
    night: str,
    *,
    regime: str = "",
    share: float = HELD_OUT_SHARE,
    judged: float = JUDGED_SHARE,
) -> Dealt:
    """Deal rows into those that teach and those that judge.

    Args:
        earlier: rows of earlier nights, of what each device is now (its current regime): what changed since judges nobody.
        tonight: rows of this night.
        night: its id, which chooses the half that judges.
        regime: the current regime, named in the slices.
        share: of all shapes, the frozen hold-out.
        judged: of tonight's other shapes, those that judge.

    Raises:
        SpecError: a share is not between 0 and 1.
    """
    learn: list[Labelled] = []
    evidence: list[Evidence] = []
    for name in sorted({rows.cases.family.name for rows in (*earlier, *tonight)}):
        before = [rows for rows in earlier if rows.cases.family.name == name and len(rows)]
        now = [rows for rows in tonight if rows.cases.family.name == name and len(rows)]
        if not before and not now:
            continue
        rows = _unsourced([*before, *now])
        fresh = np.arange(len(rows)) >= sum(map(len, before))
        held = frozen(rows.cases, share)
        shapes = shape_hashes(rows.cases)
        judge = fresh & ~held & judges_tonight(rows.cases, night, judged) & ~np.isin(shapes, shapes[~fresh])
        teach = np.flatnonzero(~held & ~judge)
        if len(teach):
            learn.append(rows.take(teach))
        if (chosen := np.flatnonzero(held | judge)).size:
            origin = np.where(held, HOLD_OUT, LAST_NIGHT)[chosen]
            evidence.append(Evidence(rows.take(chosen), origin, np.full(len(chosen), regime)))
    return Dealt(tuple(learn), tuple(evidence))


def unseen(
    earlier: Sequence[Labelled], tonight: Sequence[Labelled], *, regime: str = "", share: float = HELD_OUT_SHARE
) -> tuple[Evidence, ...]:
    """Tonight's rows that no model made before tonight has seen: of shapes never measured before, or of the frozen hold-out."""
    found = []
    for rows in tonight:
        if not len(rows):
            continue
        shapes = shape_hashes(rows.cases)
        name = rows.cases.family.name
        known = [shape_hashes(one.cases) for one in earlier if one.cases.family.name == name]
        seen = np.isin(shapes, np.concatenate(known)) if known else np.zeros(len(rows), dtype=np.bool_)
        held = frozen(rows.cases, share)
        if (chosen := np.flatnonzero(held | ~seen)).size:
            origin = np.where(held, HOLD_OUT, LAST_NIGHT)[chosen]
            found.append(Evidence(rows.take(chosen), origin, np.full(len(chosen), regime)))
    return tuple(found)


def joined_evidence(evidence: Iterable[Evidence]) -> list[Evidence]:
    """One entry a family, those without rows left out."""
    parts: dict[str, list[Evidence]] = {}
    for one in evidence:
        if len(one):
            parts.setdefault(one.rows.cases.family.name, []).append(one)
    return [
        Evidence(
            _unsourced([one.rows for one in own]),
            np.concatenate([one.origin for one in own]),
            np.concatenate([one.regime for one in own]),
        )
        for _, own in sorted(parts.items())
    ]


def _unsourced(tables: Sequence[Labelled]) -> Labelled:
    return replace(joined(tables), source=None)
