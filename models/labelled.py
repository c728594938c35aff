"""Measured cases with their labels: what models are trained on and judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..features.cases import Cases, Floats, Strings


@dataclass(frozen=True, slots=True)
class Labelled:
    """Measured cases of one family: `latency_s` in seconds and `power_w` in watts, shape `(n,)`, power NaN if unknown.

    `source` says where each row comes from, for evaluation; None where nobody told.
    """

    cases: Cases
    latency_s: Floats
    power_w: Floats
    source: Strings | None = None

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, index: Any) -> Labelled:
        """The rows at `index`, in that order."""
        source = None if self.source is None else self.source[index]
        return Labelled(self.cases.take(index), self.latency_s[index], self.power_w[index], source)
