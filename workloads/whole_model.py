"""Whole models: many kernels with counts on one device, added up into one latency, power and energy with intervals.

Kernels of one stream run back to back, so their times and energies add up. What takes thought is the interval, because
the errors of kernels on one device are not independent. Write the log error of kernel i as

    e_i = s_i · (sqrt(cross) · G  +  sqrt(same - cross) · F_family(i)  +  sqrt(1 - same) · O_i)

with G shared by all kernels of the device, F by those of one family, O by runs of one identical kernel alone, all
independent and of unit variance, and s_i the half-width of the kernel's own interval in logarithms. Two kernels are then
correlated by `same` within a family and by `cross` across families. To first order (the delta method) the sum
T = Σ n_i·v_i changes by d ln T = Σ w_i·e_i / s_i with w_i = n_i·v_i·s_i / T, and its variance is the familiar one of a
weighted sum, as of a portfolio (Markowitz, "Portfolio Selection", Journal of Finance 1952):

    h² = Σ_ij rho_ij · w_i · w_j
       = (Σ sqrt(cross)·w)² + Σ_families (Σ sqrt(same - cross)·w)² + Σ_identical (Σ sqrt(1 - same)·w)²

`h` is a half-width at the coverage of the parts, since a half-width is taken as the same multiple of the deviation for
parts and sum. It is worked out upwards and downwards apart and applied in logarithms, so that the lower end stays
positive. With everything correlated the sum's quantiles are the sums of the parts' quantiles, and nothing is worse: no
end goes beyond those sums, nor, therefore, below the time that no run can beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..features.batch.cases import Floats
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.predict.named_impl import check_specs
from ..models.predict.prediction import Interval, Prediction, Predictor
from .memory_reads import cpu_stream, streamed

MAX_COUNT = 10**9
"""Most runs of one kernel in a model: beyond any real one, so that a size in the wrong place is noticed."""

MAX_LAUNCH_S = 1.0
"""Longest gap between two kernels accepted; real ones are microseconds."""

_MOST_LOG_WIDTH = 50.0
"""Keeps the distance to a lower end of 0 finite."""

_DOMINANT_SHARE = 0.8
"""The kernels that dominate are the fewest that take this share of the time together."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One line of a model.

    Attributes:
        spec: The kernel.
        count: How many times it runs.
        name: What the model calls it; empty: what it is.
    """

    spec: KernelSpec
    count: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= MAX_COUNT:
            message = f"count must be a whole number between 1 and {MAX_COUNT}, got {self.count!r}"
            raise SpecError(message, field="count")

    @property
    def title(self) -> str:
        """What it is called, or else what it is."""
        return self.name or str(self.spec)


@dataclass(frozen=True, slots=True)
class ErrorCorrelation:
    """Correlation of the log errors of two different kernels on one device, 0 ≤ cross_family ≤ same_family ≤ 1.

    Attributes:
        same_family: Of two of one family.
        cross_family: Of two of different families.
    """

    same_family: float
    cross_family: float

    def __post_init__(self) -> None:
        if not 0 <= self.cross_family <= self.same_family <= 1:
            raise ValueError(f"correlations must be 0 <= cross_family <= same_family <= 1, got {self}")


ERROR_CORRELATION: Mapping[str, ErrorCorrelation] = {
    "seen": ErrorCorrelation(same_family=0.4, cross_family=0.1),
    "adapted": ErrorCorrelation(same_family=0.4, cross_family=0.1),
    "unseen_device": ErrorCorrelation(same_family=0.7, cross_family=0.5),
    "unseen_kind": ErrorCorrelation(same_family=0.7, cross_family=0.5),
}
"""By regime (`intervals.REGIMES`). A measured device leaves errors of shapes, which kernels of one model share as far as
they are alike; one never measured is fast or slow as a whole, and a few rows tell how fast. Where the numbers come from:
docs/decisions/008-whole-models.md."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel's part of a model; latency and energy are those of all its runs.

    Attributes:
        kernel: The kernel.
        prediction: What one run of it costs.
        latency_s: Seconds.
        energy_j: Joules; None where they are unknown.
        time_share: Share of the latency without gaps.
        energy_share: Share of the energy; None where it is unknown.
    """

    kernel: Kernel
    prediction: Prediction
    latency_s: float
    energy_j: float | None
    time_share: float
    energy_share: float | None


@dataclass(frozen=True, slots=True)
class FamilyPart:
    """One kernel family's part of a model, summed over its kernels.

    Attributes:
        family: Its name.
        launches: Runs of its kernels.
        latency_s: Seconds.
        energy_j: Joules; None where they are unknown.
        time_share: Share of the latency without gaps.
        energy_share: Share of the energy; None where it is unknown.
    """

    family: str
    launches: int
    latency_s: float
    energy_j: float | None
    time_share: float
    energy_share: float | None


@dataclass(frozen=True, slots=True)
class WholeModelPrediction:
    """What a whole model costs on one device.

    Attributes:
        latency_s: Latency.
        power_w: Energy over latency; None when a kernel has none.
        energy_j: Energy; None when a kernel has none.
        coverage: Share of models whose value the intervals are built to contain.
        bound_s: The time no run of these kernels can beat.
        launch_s: What the gaps between kernels add to the latency.
        launches: Runs of all kernels.
        in_domain: Whether all kernels are inside the domain of their models.
        notes: What to know of the answer.
        without_energy: Kernels that have no energy.
        parts: In the order of the kernels.
        families: Sorted by time.
        dominant: Positions in `parts`, largest first, that take 80 % of the time.
    """

    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    bound_s: float
    launch_s: float
    launches: int
    in_domain: bool
    notes: tuple[str, ...]
    without_energy: tuple[str, ...]
    parts: tuple[Part, ...]
    families: tuple[FamilyPart, ...]
    dominant: tuple[int, ...]


def compose(
    kernels: Sequence[Kernel],
    predictions: Sequence[Prediction],
    *,
    shared: Mapping[str, ErrorCorrelation] = ERROR_CORRELATION,
    launch_s: float = 0.0,
) -> WholeModelPrediction:
    """The whole of kernels that run one after the other on one device.

    Args:
        kernels: what runs, and how often.
        predictions: one per kernel, of a single run, all at one coverage.
        shared: how errors hang together, by regime.
        launch_s: seconds between the end of a kernel and the start of the next, added once per run. 0, the default, is a stream
            that always has work queued. Gaps add no energy, since what a device draws in them is not predicted.

    Raises:
        SpecError: there are no kernels, or `launch_s` is no time.
    """
    if not kernels:
        raise SpecError("a model needs at least one kernel", field="kernels")
    if isinstance(launch_s, bool) or not isinstance(launch_s, int | float) or not 0 <= launch_s <= MAX_LAUNCH_S:
        raise SpecError(f"launch_s must be seconds between 0 and {MAX_LAUNCH_S:g}, got {launch_s!r}", field="launch_s")
    counts = np.array([kernel.count for kernel in kernels], dtype=np.float64)
    model = ErrorModel.of(kernels, [prediction.regime for prediction in predictions], shared)
    latency = log_columns([prediction.latency_s for prediction in predictions])
    gaps_s = float(launch_s * counts.sum())
    latencies_s = counts * latency[0]
    pairs = zip(kernels, predictions, strict=True)
    without = tuple(dict.fromkeys(kernel.title for kernel, prediction in pairs if prediction.energy_j is None))
    energies_j = energy_j = power_w = None
    if not without:
        energy = log_columns([prediction.energy_j for prediction in predictions])
        energies_j = counts * energy[0]
        energy_j = _sum(counts, energy, model)
        power = log_columns([prediction.power_w for prediction in predictions])
        power_w = _power(latencies_s, energies_j, latency, power, model, gaps_s)
    parts = tuple(_parts(kernels, predictions, latencies_s, energies_j))
    return WholeModelPrediction(
        latency_s=_sum(counts, latency, model, constant=gaps_s),
        power_w=power_w,
        energy_j=energy_j,
        coverage=predictions[0].coverage,
        bound_s=float(counts @ [max(prediction.breakdown.values(), default=0.0) for prediction in predictions]),
        launch_s=gaps_s,
        launches=int(counts.sum()),
        in_domain=all(prediction.in_domain for prediction in predictions),
        notes=_notes(predictions),
        without_energy=without,
        parts=parts,
        families=_families(parts),
        dominant=_dominant(latencies_s),
    )


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """Which kernels share which part of their errors: loadings and groups, shape `(n,)`, as in the module's formula."""

    device: Floats
    family: Floats
    kernel: Floats
    families: Any
    identical: Any

    @classmethod
    def of(
        cls, kernels: Sequence[Kernel], regimes: Sequence[str], shared: Mapping[str, ErrorCorrelation]
    ) -> ErrorModel:
        """The loadings of kernels in their regimes; kernels of two regimes share what both have."""
        same = np.array([shared[regime].same_family for regime in regimes])
        cross = np.array([shared[regime].cross_family for regime in regimes])
        return cls(
            np.sqrt(cross), np.sqrt(same - cross), np.sqrt(1 - same),
            _groups([kernel.spec.family for kernel in kernels]), _groups([kernel.spec for kernel in kernels]),
        )  # fmt: skip

    def variance(self, w: Floats) -> float:
        """Σ_ij rho_ij·w_i·w_j for weights `w`, shape `(n,)`, of either sign."""
        by_family = np.bincount(self.families, self.family * w)
        by_kernel = np.bincount(self.identical, self.kernel * w)
        return float((self.device @ w) ** 2 + by_family @ by_family + by_kernel @ by_kernel)


def _groups(keys: Sequence[Any]) -> Any:
    """A number for each distinct key, shape `(n,)`."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def log_columns(intervals: Sequence[Interval | None]) -> tuple[Floats, Floats, Floats]:
    """Values, and log half-widths up and down, each of shape `(n,)`; a lower end of 0 is as far down as can be."""
    value, lower, upper = np.array(
        [(interval.value, interval.lower, interval.upper) for interval in intervals if interval is not None]
    ).T
    with np.errstate(divide="ignore"):
        return value, np.log(upper / value), np.minimum(-np.log(lower / value), _MOST_LOG_WIDTH)


def _sum(
    counts: Floats, columns: tuple[Floats, Floats, Floats], model: ErrorModel, *, constant: float = 0.0
) -> Interval:
    """Σ counts·value + constant with its interval."""
    value, up, down = columns
    total = float(counts @ value) + constant
    lowest, highest = (float(counts @ (value * np.exp(end))) + constant for end in (-down, up))
    higher, lower = (np.exp(np.sqrt(model.variance(counts * value * half / total))) for half in (up, down))
    return _bounded(total, total / float(lower), total * float(higher), lowest, highest)


def _power(
    latencies_s: Floats, energies_j: Floats, latency: tuple[Floats, Floats, Floats],
    power: tuple[Floats, Floats, Floats], model: ErrorModel, gaps_s: float,
) -> Interval:  # fmt: skip
    """Energy over latency with its interval.

    ln P depends on each kernel's power by its energy share, and on its latency by its energy share less its time share
    (a kernel that takes longer draws the mean towards its own power). The two errors are learned apart and taken as
    independent.
    """
    time_s = float(latencies_s.sum()) + gaps_s
    # Rounding aside, no mean over time is above all it is the mean of, such as a limit that all kernels reach.
    total = min(float(energies_j.sum()) / time_s, float(power[0].max()))
    by_power = energies_j / energies_j.sum()
    by_time = by_power - latencies_s / time_s
    ends = []
    for half, longer, shorter in ((1, 1, 2), (2, 2, 1)):
        drawn = by_time * np.where(by_time >= 0, latency[longer], latency[shorter])
        ends.append(float(np.exp(np.sqrt(model.variance(by_power * power[half]) + model.variance(drawn)))))
    if gaps_s:
        return _bounded(total, total / ends[1], total * ends[0], 0.0, np.inf)
    # A mean over time is within the range of what it is the mean of.
    lowest, highest = (power[0] * np.exp(-power[2])).min(), (power[0] * np.exp(power[1])).max()
    return _bounded(total, total / ends[1], total * ends[0], float(lowest), float(highest))


def _bounded(value: float, lower: float, upper: float, lowest: float, highest: float) -> Interval:
    return Interval(value, min(max(lower, lowest), value), max(min(upper, highest), value))


def _parts(
    kernels: Sequence[Kernel], predictions: Sequence[Prediction], latencies_s: Floats, energies_j: Floats | None
) -> Iterator[Part]:
    time_s, in_all_j = float(latencies_s.sum()), None if energies_j is None else float(energies_j.sum())
    for kernel, prediction, spent_s in zip(kernels, predictions, latencies_s.tolist(), strict=True):
        energy_j = None if prediction.energy_j is None else kernel.count * prediction.energy_j.value
        share = None if energy_j is None or not in_all_j else energy_j / in_all_j
        yield Part(kernel, prediction, spent_s, energy_j, spent_s / time_s, share)


def _families(parts: Sequence[Part]) -> tuple[FamilyPart, ...]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.kernel.spec.family, []).append(part)
    families = [
        FamilyPart(
            family=name,
            launches=sum(part.kernel.count for part in group),
            latency_s=sum(part.latency_s for part in group),
            energy_j=_total([part.energy_j for part in group]),
            time_share=sum(part.time_share for part in group),
            energy_share=_total([part.energy_share for part in group]),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(families, key=lambda part: part.latency_s, reverse=True))


def _total(values: Sequence[float | None]) -> float | None:
    """The sum, None where a value is."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _dominant(latencies_s: Floats) -> tuple[int, ...]:
    order = np.argsort(-latencies_s, kind="stable")
    taken = np.cumsum(latencies_s[order]) / latencies_s.sum()
    return tuple(order[: int(np.searchsorted(taken, _DOMINANT_SHARE)) + 1].tolist())


def _notes(predictions: Sequence[Prediction]) -> tuple[str, ...]:
    """Every note once, most frequent first, with how many of the kernels it is about."""
    counted = Counter(note for prediction in predictions for note in prediction.notes)
    return tuple(f"{note} ({times} of {len(predictions)} kernels)" for note, times in counted.most_common())


def predict_whole(
    predictor: Predictor, kernels: Sequence[Kernel], device: str, *, coverage: float = 0.9, launch_s: float = 0.0,
    queued: bool = False,
) -> WholeModelPrediction:  # fmt: skip
    """What a list of kernels costs on one device.

    Every run of a kernel with weights reads weights of its own, as layers of a model do (`memory_reads`).

    Args:
        predictor: a trained model.
        kernels: what runs, and how often.
        device: its name in the catalogue.
        coverage: share of cases the intervals are to contain.
        launch_s: seconds between two kernels, see `compose`.
        queued: work waits for the device, which hides launches: kernels without a timing take the time on the device alone.

    Raises:
        SpecError: there are no kernels, or the model cannot predict one of them.
    """
    specs = [kernel.spec for kernel in kernels]
    if queued:
        specs = [replace(spec, timing=spec.timing or "device") for spec in specs]
    check_specs(predictor, specs)
    predictions = predictor.in_long_loops().predict(specs, [device] * len(specs), coverage=coverage)
    on = predictor.devices.get(device)
    threads = {spec.threads for spec in specs}
    rate_b_per_s = cpu_stream(predictor, on, threads.pop() if len(threads) == 1 else None, coverage)
    predictions = streamed(specs, [kernel.count for kernel in kernels], predictions, on, rate_b_per_s=rate_b_per_s)
    return compose(kernels, predictions, launch_s=launch_s)
