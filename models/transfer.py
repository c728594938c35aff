"""Answers for what was never measured on a device, carried over from devices on which it was.

Three answers are made and averaged: that of measured devices, times the ratio of the fitted analytic model between
the two; the analytic model's own; and that of trees which see scale-free features only. The nearer a measured device, the
more its answer says; of two editions of one chip it says all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats, Indices
from ..features.coded import Words
from ..features.device import Catalogue
from ..features.extract import Features, FeatureSchema, extract
from ..features.kinds import Kinds
from .analytic import AnalyticModel, log_sum
from .engine import Runtime, answered, with_base
from .known import Known, KnownTable, Source

ANALYTIC, FREE = "analytic", "scale-free"

Members = Mapping[str, tuple[tuple[int, int, float], ...]]


class Learned:
    """What was learned of one family, as far as carrying over needs it.

    `members` are each target's (graph, column, weight) triples in `runtime`; `free` is the graph of the scale-free trees,
    which answer ln(latency / lower bound). `measured` holds for each target the words of what was measured where
    (`features.words.measured_word`). `shift` is added to ln(latency) of devices that are nobody's twin.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        runtime: Runtime,
        members: Members,
        analytic: AnalyticModel | None,
        free: int | None,
        measured: Mapping[str, tuple[str, ...]],
        shift: float = 0.0,
    ) -> None:
        self.schema = schema
        self.runtime = runtime
        self.members = members
        self.analytic = analytic
        self.free = free
        self.measured = measured
        self.shift = shift
        self._tables: dict[Catalogue, KnownTable] = {}

    def table(self, devices: Catalogue) -> KnownTable:
        """What is known of kinds under a catalogue, kept between calls."""
        if (found := self._tables.get(devices)) is None:
            found = self._tables.setdefault(devices, KnownTable(self.schema, self.analytic, self.measured, devices))
        return found

    def extract(self, cases: Cases, devices: Catalogue) -> Features:
        """Features of cases, see `features.extract`.

        Raises:
            SpecError: unknown device, or a dtype a device has no peak for.
        """
        return extract(cases, self.schema, devices, self.table(devices).features)

    def log_base(self, cases: Cases, features: Features, devices: Catalogue) -> Floats:
        """Ln of what latency is learned as a ratio to, in seconds, shape `(n,)`."""
        if self.analytic is None:
            return np.log(features.work.lower_bound_s)
        kinds = cases.kinds()
        weights = kinds.column([one.weights for one in self.table(devices).of(kinds)])
        return log_sum(np.log(features.terms) + weights)[0]

    def inputs(self, features: Features, base: Floats) -> Any:
        """What the graphs read, float32 `(n, n_inputs)`; `base` is `log_base`."""
        return with_base(features.values, None if self.analytic is None else base)


@dataclass(frozen=True, slots=True)
class Carried:
    """ln of each target's answer (s; share of the power limit), and how much of a twin was found, 0 to 1; shape `(n,)`.

    `parts` holds, by target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`. NaN where nothing
    can be carried over.
    """

    logs: Mapping[str, Floats]
    parts: Mapping[str, Mapping[str, Floats]]
    twin: Floats


def carry_over(
    learned: Learned,
    cases: Cases,
    features: Features,
    devices: Catalogue,
    targets: Sequence[str] = (),
    x: Any = None,
    base: Floats | None = None,
) -> Carried:
    """Answers for cases from what was measured on other devices of their kind; of some `targets`, or of all.

    `x` and `base` are the cases' own inputs and `Learned.log_base`, where they are at hand.

    Raises:
        SpecError: unknown device.
    """
    n, kinds = len(cases), cases.kinds()
    known = learned.table(devices).of(kinds)
    base = learned.log_base(cases, features, devices) if base is None else base
    members = {target: triples for target, triples in learned.members.items() if target in targets or not targets}
    parts: dict[str, dict[str, Floats]] = {target: {} for target in members}
    near: dict[str, Floats] = {}
    twin = np.zeros(n)
    asked = _Asked.of(learned.schema.devices, cases, known, members)
    if asked.names:
        # All sources in one go: what a run costs is mostly its start.
        moved = cases.moved_to(asked.rows, Words(asked.names, asked.source))
        there = learned.extract(moved, devices)
        moved_x = learned.inputs(there, learned.log_base(moved, there, devices))
        ratios = {
            target: _where_measured(learned.runtime, triples, moved_x, asked.measured(cases.kinds(), target))
            for target, triples in members.items()
        }
    for place, name in enumerate(asked.names):
        by_kind = asked.by_kind[place]
        some = asked.source == place
        near[name] = kinds.column([0.0 if source is None else source.near for source in by_kind])
        twin = np.maximum(twin, kinds.column([0.0 if source is None else source.twin for source in by_kind]))
        for target, ratio in ratios.items():
            answer = np.full(n, np.nan)
            answer[asked.rows[some]] = ratio[some]
            parts[target][name] = answer + base if target == "latency" else answer
    logs = {target: _weighed(answers, near, n) for target, answers in parts.items()}
    if "latency" not in members:
        return Carried(logs, parts, twin)
    general: dict[str, Floats] = {}
    if learned.analytic is not None:
        general[ANALYTIC] = base
    if learned.free is not None:
        x = learned.inputs(features, base) if x is None else x
        ratio = learned.runtime.run(x, only=[learned.free])[learned.free][:, 0]
        general[FREE] = np.log(features.work.lower_bound_s) + ratio
    logs["latency"] = _averaged(logs["latency"], general, features, twin, learned.shift)
    parts["latency"] |= general
    return Carried(logs, parts, twin)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which sources are asked about which cases: names, what each says of each kind, and the rows with the source of each."""

    names: tuple[str, ...]
    by_kind: tuple[Sequence[Source | None], ...]
    rows: Indices
    source: Indices

    @classmethod
    def of(cls, devices: Sequence[str], cases: Cases, known: Sequence[Known], targets: Collection[str]) -> _Asked:
        names, by_kind, rows = [], [], []
        for name in devices:
            said = [_source(one, name, targets) for one in known]
            if any(source is not None for source in said):
                names.append(name)
                by_kind.append(said)
                rows.append(np.flatnonzero(cases.kinds().column([source is not None for source in said])))
        source = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
        return cls(tuple(names), tuple(by_kind), np.concatenate(rows) if rows else np.zeros(0, dtype=np.intp), source)

    def measured(self, kinds: Kinds, target: str) -> Any:
        """In which rows the source can say something of that target, a mask of the shape of `rows`."""
        by_source = [[source is not None and target in source.targets for source in said] for said in self.by_kind]
        return np.array(by_source)[self.source, kinds.code[self.rows]]


def _where_measured(runtime: Runtime, triples: Sequence[tuple[int, int, float]], x: Any, wanted: Any) -> Floats:
    """The answer of graphs for the rows that are wanted, shape `(n,)`, NaN elsewhere."""
    found = np.full(len(x), np.nan)
    if wanted.any():
        some = x if wanted.all() else x[wanted]
        found[wanted] = answered(runtime.run(some, only=sorted({graph for graph, _, _ in triples})), triples)
    return found


def _source(known: Known, name: str, targets: Collection[str]) -> Source | None:
    """What the device of that name can say of a kind, None where it is nothing of `targets`."""
    return next(
        (source for source in known.sources if source.device == name and not source.targets.isdisjoint(targets)), None
    )


def _weighed(answers: Mapping[str, Floats], near: Mapping[str, Floats], n: int) -> Floats:
    """The mean of the sources' answers, the nearer the heavier, shape `(n,)`; NaN where there is none."""
    total, weight = np.zeros(n), np.zeros(n)
    for source, answer in answers.items():
        known = ~np.isnan(answer)
        total[known] += (near[source] * answer)[known]
        weight[known] += near[source][known]
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def _averaged(carried: Floats, general: Mapping[str, Floats], features: Features, twin: Floats, shift: float) -> Floats:
    """The mean of the answers there are, or the carried one alone as far as it comes from a twin."""
    stacked = np.stack([carried, *general.values()])
    there = ~np.isnan(stacked)
    # With no source at all and nothing general either, the lower bound is what is left.
    bound = np.log(features.work.lower_bound_s)
    mean = np.where(there.any(axis=0), np.nansum(stacked, axis=0) / np.maximum(there.sum(axis=0), 1), bound)
    own = np.where(np.isnan(carried), 0.0, twin)
    result: Floats = own * np.nan_to_num(carried) + (1.0 - own) * (mean + shift)
    return result
