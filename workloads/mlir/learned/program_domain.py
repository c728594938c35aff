"""Where the programs that a model was trained on lie, and how far outside another one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.vectors.op_columns import CODE_SIZES
from ....features.mlir.vectors.program_vector import TOTAL_NUMBERS, Vectors
from ....models.family_model.artifact_files import finite, numbers

SPACE = (
    "log groups", "log ops", "log dispatches", "log flops", "log transcendentals", "log bytes", "log arguments b",
    "log outputs b", "log depth", "log runs max", "log roofline max", "log transposed b", "log gathered b",
    "log contraction roofline 1", "log convolution roofline 1", "log reduction roofline 1", "log elementwise roofline 1",
    "log movement roofline 1", "log sort roofline 1", "log random roofline 1",
    "bf16 share", "fp16 share", "fp64 share", "int8 share", "int32 share", "int64 share",
)  # fmt: skip
"""Numbers of `TOTAL_NUMBERS` that a program is placed by."""

_COLUMNS = [TOTAL_NUMBERS.index(name) for name in SPACE]
_SHARE_SCALE = 8.0
"""A share of 1 in another format counts like eight doublings of a size."""

_SCALES = np.array([_SHARE_SCALE if name.endswith("share") else 1.0 for name in SPACE])
_TYPICAL_QUANTILE = 0.99
_MOST_POINTS = 512
_SLACK = 1.0
"""A doubling beyond the range of a number is still inside."""

_STRANGE_SHARE = 0.2
"""Operations of names never seen in training may make up this share of a program inside."""

_WIDENING_PER_STEP = 0.5
"""Half-widths grow by half for every typical spacing a program lies outside, as in `models.family_model.domain`."""


@dataclass(frozen=True, slots=True)
class ProgramDomain:
    """What training programs were like.

    Attributes:
        points: A sample of them in `SPACE`, shape `(n_points, len(SPACE))`.
        low: Least of each number.
        high: Largest of each number.
        reach: How far neighbours lie apart.
        seen: Hashed names of operations that occurred.
    """

    points: Floats
    low: Floats
    high: Floats
    reach: float
    seen: frozenset[int]

    @classmethod
    def fit(cls, totals: Floats, op_names: Any, seed: int) -> ProgramDomain:
        """The domain of programs with these numbers, shape `(n, len(TOTAL_NUMBERS))`, and hashed names, any shape."""
        space = totals[:, _COLUMNS] * _SCALES
        order = np.random.default_rng(seed).permutation(len(space))
        points, rest = space[order[:_MOST_POINTS]], space[order[_MOST_POINTS:]]
        if len(rest) < 50:
            # Too few programs to keep some apart: each one's distance to the others.
            apart = np.stack([_nearest(point[None], np.delete(points, i, axis=0))[0] for i, point in enumerate(points)])
        else:
            apart = _nearest(rest, points)
        finite = apart[np.isfinite(apart)]
        reach = max(float(np.quantile(finite, _TYPICAL_QUANTILE)) if len(finite) else 0.0, 1.0)
        return cls(points, space.min(axis=0), space.max(axis=0), reach, frozenset(np.unique(op_names).tolist()))

    def excess(self, program: Vectors) -> tuple[float, str]:
        """How far a program lies outside in typical spacings, 0 inside, and what is unusual about it in words."""
        place = program.totals[_COLUMNS] * _SCALES
        beyond = np.maximum(np.maximum(self.low - place, place - self.high) - _SLACK, 0.0)
        far = float(_nearest(place[None], self.points)[0])
        names = program.ops.codes[:, 0]
        strange = float(np.isin(names, list(self.seen), invert=True).mean()) if len(names) else 0.0
        reasons = [
            (float(beyond.max()), f"{SPACE[int(beyond.argmax())].removeprefix('log ')} is outside what was measured"),
            (max(far / self.reach - 1.0, 0.0), "no measured program is of this size and make"),
            (strange / _STRANGE_SHARE - 1.0, f"{strange:.0%} of its operations are of kinds never measured"),
        ]
        worst, why = max(reasons, key=lambda reason: reason[0])
        return (worst, why) if worst > 0 else (0.0, "")

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"space": list(SPACE), "points": np.round(self.points, 2).tolist(), "low": np.round(self.low, 3).tolist(),
                "high": np.round(self.high, 3).tolist(), "reach": round(self.reach, 4), "seen": sorted(self.seen)}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProgramDomain:
        """The domain `to_json` described.

        Raises:
            ValueError: it is of other numbers.
        """
        if tuple(data["space"]) != SPACE:
            raise ValueError("fitted on other numbers than this version has")
        points = numbers(data["points"], None, len(SPACE))
        low, high = (numbers(data[name], len(SPACE)) for name in ("low", "high"))
        seen = frozenset(int(code) for code in data["seen"])
        if not all(0 <= code < CODE_SIZES[0] for code in seen):
            raise ValueError("names outside the table they are hashed into")
        return cls(points, low, high, finite(data["reach"], 0.0), seen)


def widening(excess: float) -> float:
    """Factor on an interval's half-width: 1 inside, growing with the distance outside."""
    return 1.0 + _WIDENING_PER_STEP * excess


def _nearest(space: Floats, points: Floats) -> Floats:
    """Root of the mean of squares of differences to the nearest point, scaled to doublings of four numbers, shape `(n,)`."""
    nearest = np.full(len(space), np.inf)
    if not len(points):
        return nearest
    for start in range(0, len(space), 256):
        block = space[start : start + 256, None, :] - points[None]
        nearest[start : start + 256] = np.sqrt((block**2).sum(axis=2) / 4.0).min(axis=1)
    return nearest
