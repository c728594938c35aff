"""What an answer must say of itself: what about each case was never measured, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.extract import Features
from .artifact import FamilyModel
from .continuation import beyond
from .standing import Standing


@dataclass(frozen=True, slots=True)
class Strangeness:
    """How unlike the training rows each case is, shape `(n,)`: words and knobs never seen, and steps outside the domain, by
    anything and by its tuning knobs alone.
    """

    words: Floats
    excess: Floats
    tiles: Floats

    @classmethod
    def of(cls, model: FamilyModel, cases: Cases, features: Features, standing: Sequence[Standing]) -> Strangeness:
        """The strangeness of cases, from the standing of their kinds."""
        kinds = cases.kinds()
        words = kinds.column([one.strange for one in standing])
        learned = kinds.column([one.regimes["latency"] != "unseen_kind" for one in standing])
        tiles = model.domain.tiles.excess(features)
        larger = beyond(cases, kinds.column([one.largest for one in standing]))
        outside = np.maximum(np.maximum(model.domain.sizes_excess(features), tiles), larger)
        return cls(words, np.where(learned, outside, 0.0), tiles)


def notes(
    model: FamilyModel, cases: Cases, features: Features, strangeness: Strangeness, standing: Sequence[Standing]
) -> list[tuple[str, ...]]:
    """What is unusual about each case, in words; nothing for a case like those measured."""
    kinds = cases.kinds()
    memory_b = kinds.column([one.memory_b for one in standing])
    # Most cases have nothing of their own to say: those of a kind share one tuple.
    plain = [one.told or (() if one.never is None else (one.never,)) for one in standing]
    found = [plain[0]] * len(cases) if len(plain) == 1 else [plain[code] for code in kinds.code.tolist()]
    too_large = features.work.footprint_b > memory_b
    for i in np.flatnonzero(too_large | (strangeness.excess > 0)).tolist():
        one = standing[kinds.code[i]]
        said = list(one.told)
        if too_large[i]:
            needed, there = features.work.footprint_b[i] / 1e9, memory_b[i] / 1e9
            said.insert(0, f"operands of {needed:.3g} GB do not fit into {cases.device[i]}'s {there:.3g} GB of memory")
        if not said and one.never is not None:
            said.append(one.never)
        if strangeness.excess[i] > 0:
            outside = model.domain.farthest(features, i, strangeness.tiles[i])
            said.append(_too_large(cases, one, i) or outside)
        found[i] = tuple(said)
    return found


def _too_large(cases: Cases, standing: Standing, i: int) -> str | None:
    """What of a case is larger than anything measured where it runs, in words."""
    for (name, column), limit in zip(cases.sizes.items(), standing.largest.tolist(), strict=True):
        if column[i] > limit:
            of = f"of {cases.variant[i]} " if cases.variant[i] else ""
            return f"{name} {column[i]:.6g} is beyond the largest measured {of}on {cases.device[i]}, {limit:.6g}"
    return None


def method_column(cases: Cases, standing: Sequence[Standing]) -> list[str]:
    """How each case's latency was answered."""
    if len(standing) == 1:
        return [standing[0].method] * len(cases)
    return [standing[code].method for code in cases.kinds().code.tolist()]


def regime_column(cases: Cases, standing: Sequence[Standing], target: str) -> Any:
    """The regime of each case's answer, shape `(n,)`."""
    return cases.kinds().column([one.regimes[target] for one in standing])
