"""Which cases to measure first on a device, so that calibrating a model to it gains most: `kernelcast measure suggest`.

A case is worth measuring for what it says of the others. The process that calibrating uses knows that before anything is
measured, since its variance does not depend on the measured values: cases are chosen one by one, each the one that lowers the
mean variance over all candidates most (active learning after Cohn: "Neural network exploration using optimal experiment
design", 1996) for what it costs. Greedy choice is near the best there is for such gains (Krause, Singh and Guestrin,
"Near-optimal sensor placements in Gaussian processes", 2008).

What a case costs is worked out by the protocol of `docs/measurement.md`, since no row records its own wall time, only how long
its first call took (`first_call_s`): repetitions until the stopping rule is met, warm-up, and what a case costs beside its
kernel (operands, graphs, checks, the store). That last part is a constant, chosen so that the shipped campaigns come out at
what they really took.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Catalogue, Device, catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ..family_model.artifact import load_family, read_manifest
from ..family_model.device_correction import Adaptation
from ..family_model.gaussian_process import PRIOR, Points, Process, covariance
from ..predict.predictor import FamilyPredictor
from ..training.device_calibration import check_kind
from ..training.labelled_cases import LabelledCases
from .candidates import drawn_cases, runnable


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a kind of device is measured; times in seconds.

    Attributes:
        samples: Samples of a case.
        sample_s: Least length of one.
        fewest: Fewest calls.
        most_s: Where sampling is cut short.
        warm_up_s: Before the samples.
        calls: Single calls before the samples.
        first_call_s: Stands in where a row does not record its own.
        overhead_s: The rest of a row's mean wall time.
    """

    samples: int
    sample_s: float
    fewest: int
    most_s: float
    warm_up_s: float
    calls: int
    first_call_s: float
    overhead_s: float

    def seconds(self, latency_s: Floats, first_call_s: Floats) -> Floats:
        """Seconds to measure kernels of these latencies, shape `(n,)`; an unknown first call is NaN."""
        sampling = self.samples * np.maximum(latency_s, self.sample_s)
        sampling_s = np.maximum(np.minimum(sampling, self.most_s), self.fewest * latency_s)
        first = np.where(np.isnan(first_call_s), self.first_call_s, first_call_s)
        total_s: Floats = self.overhead_s + first + self.warm_up_s + self.calls * latency_s + sampling_s
        return total_s


PROTOCOLS = {
    # collectors/gpu/measure/timing.py (GraphRule). The shipped H200 campaign took 68.6 ms a row (8,130 rows in 9.3 minutes), of
    # which this rule explains 37 ms and first calls 5 ms on average.
    "gpu": Protocol(samples=10, sample_s=2e-3, fewest=1, most_s=0.5, warm_up_s=0.01, calls=19,
                    first_call_s=0.005, overhead_s=0.026),
    # collectors/cpu/timing.py (StoppingRule): three blocks of ten. The shipped CPU campaigns took 0.30 s a row (14,887 rows in
    # 74 minutes), of which this rule explains 65 ms and first calls 44 ms on average.
    "cpu": Protocol(samples=30, sample_s=2e-5, fewest=9, most_s=0.12, warm_up_s=0.033, calls=7,
                    first_call_s=0.044, overhead_s=0.19),
}  # fmt: skip
"""By the kind of device; every other kind is taken for a GPU."""

ENERGY_S = 2.8
"""More for a row with power: settling and the window of the energy meter. 151 H200 rows took 7.2 minutes, 2.9 s each."""


def measuring_seconds(rows: LabelledCases, devices: Catalogue, first_call_s: Floats | None = None) -> Floats:
    """Seconds of machine time each row costs, shape `(n,)`.

    Args:
        rows: measured rows.
        devices: the catalogue, for the kind of each device.
        first_call_s: recorded first calls in seconds, NaN where a row has none; None for no record at all.

    Raises:
        SpecError: a device the catalogue does not know.
    """
    first = np.full(len(rows), np.nan) if first_call_s is None else first_call_s
    seconds = np.empty(len(rows))
    for index, (name,) in rows.cases.groups("device"):
        protocol = PROTOCOLS.get(devices.get(name).kind, PROTOCOLS["gpu"])
        seconds[index] = protocol.seconds(rows.latency_s[index], first[index])
    return seconds + np.where(np.isnan(rows.power_w), 0.0, ENERGY_S)


LONGEST_S = 1.0
"""Cases predicted to take longer are never suggested: a few of them cost more than all the others."""

MOST_CANDIDATES = 2000
"""Candidates of a family that are looked at, drawn at random from more: memory grows with their square."""

_DRAWN, _FEWEST_DRAWN = 2000, 300
"""Candidates drawn where none are given, shared among families, and the fewest of each."""

_COST_POWER = 0.5
"""Gains are divided by the square root of seconds: on public tables as good as gains alone (decision 010) at half the cost,
while gains per second send every choice to the shortest kernels, which say little of long ones."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A case to measure.

    Attributes:
        spec: The case.
        device: Where.
        latency_s: What it is predicted to take.
        measuring_s: What measuring it costs, in seconds.
        gain: By how much it lowers the mean variance of ln(latency) over its family's candidates, after those before it.
        deviation: The square root of what is then left.
    """

    spec: KernelSpec
    device: str
    latency_s: float
    measuring_s: float
    gain: float
    deviation: float


def suggest(
    model: Path,
    device: str,
    n: int,
    candidates: Sequence[Cases] | None = None,
    families: Sequence[str] | None = None,
    *,
    impls: Collection[str] = (),
    single_device: bool = False,
    seed: int = 0,
    devices: Catalogue | None = None,
) -> list[Suggestion]:
    """At most `n` cases to measure on a device, the most useful first: any beginning of the list is a good choice too.

    What the model was calibrated by on that device is taken as measured. Families share the choice by what each gains.

    Args:
        model: the artifact that is to be calibrated.
        device: catalogue name or alias.
        n: how many cases.
        candidates: cases to choose from, put on `device` whatever device they name; None: like those trained on.
        families: families to choose from; None: all that the model knows, or of which there are candidates.
        impls: choose only from cases of these; empty: of all.
        single_device: draw no part of a kernel that several devices share.
        seed: of the drawing of candidates.
        devices: the catalogue, default the shipped one.

    Raises:
        SpecError: unknown device or family, `n` below 1, or nothing to choose from that the device can run.
        ArtifactError: the model cannot be used.
    """
    if n < 1:
        raise SpecError(f"the number of cases must be 1 or more, got {n}", field="n")
    known = devices or catalogue()
    target, manifest = known.get(device), read_manifest(model)
    by_family = None if candidates is None else {cases.family.name: cases for cases in candidates}
    choices: list[_Choice] = []
    refused: list[SpecError] = []
    for name in (names := _chosen(tuple(manifest["families"]), by_family, families)):
        family = load_family(model, manifest, name)
        try:
            check_kind(family, target)
            if by_family is None:
                share = max(_FEWEST_DRAWN, min(_DRAWN // len(names), MOST_CANDIDATES))
                cases = drawn_cases(family, target, known, share, impls=impls, single_device=single_device, seed=seed)
            else:
                cases = _placed_candidates(by_family[name], target, known, impls, seed)
            choices.append(_Choice.of(FamilyPredictor(family, str(manifest["regressor"]), known), cases, known))
        except SpecError as error:
            # Of what nobody asked for by name, a family that cannot run there is no reason to say nothing of the others.
            if families or len(names) == 1:
                raise
            refused.append(error)
    if not choices:
        raise refused[0]
    suggestions: list[Suggestion] = []
    while len(suggestions) < n and (left := [choice for choice in choices if choice.free.any()]):
        suggestions.append(max(left, key=_Choice.best).take())
    return suggestions


def _chosen(trained: Sequence[str], candidates: dict[str, Cases] | None, families: Sequence[str] | None) -> list[str]:
    """Families to choose from, each once.

    Raises:
        SpecError: a family that the model was not trained on, or of which there is no candidate.
    """
    names = list(dict.fromkeys(families if families else candidates if candidates is not None else trained))
    if strange := [name for name in names if name not in trained]:
        raise SpecError(f"the model was not trained on {listed(strange)}; it knows {listed(trained)}", field="family")
    if candidates is not None and (missing := [name for name in names if name not in candidates]):
        raise SpecError(
            f"there is no candidate of {listed(missing)}; there are of {listed(candidates) or 'no family'}",
            field="family",
        )
    return names


def _placed_candidates(cases: Cases, device: Device, devices: Catalogue, impls: Collection[str], seed: int) -> Cases:
    """The candidates a caller gave, on `device`, as far as it can run them."""
    cases = replace(cases, device=np.full(len(cases), device.name)).with_core_counts(devices)
    if impls:
        cases = cases.take(np.isin(cases.impl, list(impls)))
    cases = cases.take(np.flatnonzero(runnable(cases, device)) if len(cases) else [])
    return cases.take(np.sort(np.random.default_rng(seed).permutation(len(cases))[:MOST_CANDIDATES]))


class Gains:
    """The gain of measuring each of `n` cases, kept up to date while cases are taken.

    `spread` is their covariance, shape `(n, n)`, and `noise` the standard deviation of a measurement of each, shape `(n,)`.
    """

    def __init__(self, spread: Floats, noise: Floats) -> None:
        self._spread, self._noise2 = spread.copy(), noise**2

    def gain(self) -> Floats:
        """By how much measuring each case lowers the mean variance, shape `(n,)`."""
        gains: Floats = (self._spread**2).mean(axis=0) / (np.diag(self._spread) + self._noise2)
        return gains

    def left(self) -> float:
        """The mean variance that is left."""
        return float(np.maximum(np.diag(self._spread), 0.0).mean())

    def take(self, i: int) -> None:
        """Count case `i` as measured."""
        column = self._spread[:, i] / math.sqrt(self._spread[i, i] + self._noise2[i])
        self._spread -= np.outer(column, column)


class _Choice:
    """Choosing among one family's candidates, one by one, by what each would teach of all."""

    def __init__(self, cases: Cases, latency_s: Floats, seconds: Floats, known: Floats, noise: Floats) -> None:
        self.cases, self.latency_s, self.seconds = cases, latency_s, seconds
        self.gains = Gains(known, noise)
        self.free = np.ones(len(cases), dtype=np.bool_)

    @classmethod
    def of(cls, engine: FamilyPredictor, cases: Cases, devices: Catalogue) -> _Choice:
        """The choice among cases of one device that has a peak for their dtypes.

        Raises:
            SpecError: there is none that is short enough.
        """
        predicted = engine.predict(cases, 0.9).targets["latency_s"].value if len(cases) else np.zeros(0)
        short = np.flatnonzero(predicted <= LONGEST_S)
        if not len(short):
            raise SpecError(
                f"no candidate of {engine.model.schema.family} fits the device: its dtypes, its memory, {LONGEST_S:g} s a "
                "run; give other cases with --candidates",
                field="candidates",
            )
        cases, predicted = cases.take(short), predicted[short]
        seconds = measuring_seconds(LabelledCases(cases, predicted, np.full(len(cases), np.nan)), devices)
        points = engine.estimate(cases).points["latency"]
        before = engine.model.adaptations.get(str(cases.device[0]), {}).get("latency")
        return cls(cases, predicted, seconds, *_covariance(points, before))

    def best(self) -> float:
        """What the best candidate gains for its cost."""
        return float(self._worth().max())

    def take(self) -> Suggestion:
        """Take the best candidate."""
        i = int(np.argmax(self._worth()))
        gain = float(self.gains.gain()[i])
        self.gains.take(i)
        self.free[i] = False
        return Suggestion(
            spec=spec_at(self.cases, i),
            device=str(self.cases.device[i]),
            latency_s=float(self.latency_s[i]),
            measuring_s=float(self.seconds[i]),
            gain=gain,
            deviation=float(np.sqrt(self.gains.left())),
        )

    def _worth(self) -> Floats:
        return np.where(self.free, self.gains.gain() / self.seconds**_COST_POWER, -np.inf)


def _covariance(points: Points, before: Adaptation | None) -> tuple[Floats, Floats]:
    """What is known of points together before anything of the list is measured, `(n, n)`, and each one's noise, `(n,)`."""
    process = None if before is None else before.process
    if not isinstance(process, Process):
        return covariance(points, points, PRIOR), PRIOR["noise"] * points.doubt
    known = process.inverse @ covariance(process.points, points, process.scales, process.lengths)
    left = covariance(points, points, process.scales, process.lengths) - known.T @ known
    return left, process.scales["noise"] * points.doubt


def spec_at(cases: Cases, i: int) -> KernelSpec:
    """Case `i` as a spec."""

    def whole(value: Any) -> int | None:
        return None if np.isnan(value) else int(value)

    knobs = {name: whole(column[i]) for name, column in cases.config.items()}
    return KernelSpec.of(
        cases.family.name,
        str(cases.dtype[i]),
        variant=str(cases.variant[i]),
        impl=str(cases.impl[i]),
        kv_dtype=str(cases.kv_dtype[i]),
        config={name: value for name, value in knobs.items() if value is not None},
        threads=whole(cases.threads[i]),
        cache_state=str(cases.cache_state[i]),
        timing=str(cases.timing[i]),
        **{name: int(column[i]) for name, column in cases.sizes.items()},
    )
