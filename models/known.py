"""What bears on a kind of case: the analytic model's weights, and the measured devices that can say something of it.

It follows from the kind alone, so it is worked out once a kind and kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..features.cases import Floats
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.extract import FeatureSchema, KindTable
from ..features.kernel import get_family
from ..features.kinds import ByKind, Kind, Kinds
from ..features.words import measured_word
from .analytic import AnalyticModel
from .similarity import REACH, distance, twinness

_LEAST_SAY = 0.01
"""A source whose weight is below this share of the nearest one's is not asked: it would move an answer by a fraction of a
per cent, and asking costs as much as asking the nearest."""


@dataclass(frozen=True, slots=True)
class Source:
    """A device on which the like of a kind was measured: how near it is, 0 to 1, how much of a twin, and for which targets."""

    device: str
    near: float
    twin: float
    targets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Known:
    """What bears on a kind's answers: ln of the analytic model's weights, shape `(n_terms,)`, and the sources."""

    weights: Floats | None
    sources: tuple[Source, ...]


class KnownTable:
    """`Known` of kinds, under what was learned and a catalogue."""

    def __init__(
        self,
        schema: FeatureSchema,
        analytic: AnalyticModel | None,
        measured: Mapping[str, tuple[str, ...]],
        devices: Catalogue,
    ) -> None:
        self.features = KindTable(schema, devices)
        self._schema = schema
        self._unit = get_family(schema.family).unit
        self._analytic = analytic
        self._measured = {target: frozenset(words) for target, words in measured.items()}
        self._devices = devices
        self._known: ByKind[Known] = ByKind()

    def of(self, kinds: Kinds) -> list[Known]:
        """What is known of each kind."""
        return self._known.of(kinds, self._find)

    def _find(self, kind: Kind) -> Known:
        read_as = self.features.of(Kinds((kind,), np.zeros(1, dtype=np.intp)))[0].read_as
        weights = None if self._analytic is None else self._analytic.log_weights(kind, read_as)
        found = [source for name in self._schema.devices if (source := self._source(kind, name)) is not None]
        # A source is asked where it counts for something in one of its targets at least.
        best = {target: max(one.near for one in found if target in one.targets) for target in self._measured
                if any(target in one.targets for one in found)}  # fmt: skip
        counts = [one for one in found if any(one.near >= _LEAST_SAY * best[target] for target in one.targets)]
        return Known(weights, tuple(counts))

    def _source(self, kind: Kind, name: str) -> Source | None:
        """What a measured device can say of the kind, None where that is nothing: another kind of device, or itself."""
        device, origin = self._devices.get(kind.device), self._devices.get(name)
        word = measured_word(kind._replace(device=name))
        targets = frozenset(target for target, words in self._measured.items() if word in words)
        if device.kind != origin.kind or device.name == origin.name or not targets:
            return None
        try:
            origin.peak_flops_per_s(kind.dtype, self._unit)
        except SpecError:
            # Measured under a catalogue that knew a peak for it; without one it has no features here.
            return None
        apart = distance(device, origin)
        return Source(name, math.exp(-apart / REACH), twinness(apart), targets)
