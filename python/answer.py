"""Answers that compute: kernels add up to what runs one after the other, and two answers have a ratio, both with intervals.

A sum is that of whole models (`workloads.whole_model`): errors of kernels on one device are correlated, those of runs of one
kernel are one error. A ratio follows from the same correlations. With v_i the time (or energy) of kernel i in a share of both
totals, d_i = n_i·v_i / T − m_i·v_i / U is what ln(T / U) changes by with its log error (the delta method), so that

    h² = Σ_ij rho_ij · (d_i·s_i) · (d_j·s_j)

with s_i the log half-width of its interval: what both have in common cancels. Errors on two devices are taken as independent,
which for answers transferred from the same measurements is the wider choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.predict.prediction import Interval, Prediction
from ..workloads.units import counted
from ..workloads.whole_model import (
    ERROR_CORRELATION,
    ErrorModel,
    Kernel,
    Part,
    WholeModelPrediction,
    compose,
    log_columns,
)
from .display import Line, html_lines, text_lines

_COST = ("latency_s", "power_w", "energy_j")


class Computing:
    """What one kernel and a sum of them have in common: `+`, `*` by a count, `/`, and an order by latency."""

    __slots__ = ()
    latency_s: Interval

    def total(self) -> Total:
        """The same as a sum of kernels."""
        raise NotImplementedError

    def __add__(self, other: Computing) -> Total:
        if not isinstance(other, Computing):
            return NotImplemented
        return _sum([self.total(), other.total()])

    def __radd__(self, other: int) -> Total:
        # `sum` starts from 0.
        return self.total() if type(other) is int and other == 0 else NotImplemented

    def __mul__(self, count: int) -> Total:
        if isinstance(count, bool) or not isinstance(count, int):
            return NotImplemented
        return _sum([self.total()], count)

    __rmul__ = __mul__

    def __truediv__(self, other: Computing) -> Ratio:
        if not isinstance(other, Computing):
            return NotImplemented
        return _ratio(self.total(), other.total())

    def __lt__(self, other: Computing) -> bool:
        return self.latency_s < other.latency_s if isinstance(other, Computing) else NotImplemented


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Computing, Prediction):
    """What one kernel costs on one device: a prediction that knows what it is of, adds up, and is drawn in a notebook.

    `3 * a + b` is what three runs of one kernel and one of another cost one after the other; `a / b` how many times as long one
    takes, with an interval; the order is by latency.

    Attributes:
        spec: The kernel.
        device: Catalogue name of the device.
    """

    spec: KernelSpec
    device: str

    @classmethod
    def of(cls, spec: KernelSpec, device: str, prediction: Prediction) -> Answer:
        """The answer of a prediction."""
        return cls(
            **{item.name: getattr(prediction, item.name) for item in fields(Prediction)}, spec=spec, device=device
        )

    def total(self) -> Total:
        """The same as a sum of one kernel."""
        return Total.of(compose([Kernel(self.spec)], [self]), self.device)

    def _facts(self) -> list[str]:
        place = "inside what was measured" if self.in_domain else "outside what was measured"
        trust = f"{100 * self.coverage:g} % intervals, bound by {self.bound}, {place}"
        return [trust, self.method, *self.notes]

    def __repr__(self) -> str:
        return text_lines(f"{self.spec} on {self.device}", _lines(self), self._facts())

    def _repr_html_(self) -> str:
        return html_lines(f"{self.spec} on {self.device}", _lines(self), self._facts())


@dataclass(frozen=True, slots=True, repr=False)
class Total(Computing, WholeModelPrediction):
    """What kernels cost one after the other on one device; computes as an `Answer` does.

    Attributes:
        device: Catalogue name of the device.
    """

    device: str

    @classmethod
    def of(cls, whole: WholeModelPrediction, device: str) -> Total:
        """The total of a whole model on a device."""
        return cls(**{item.name: getattr(whole, item.name) for item in fields(WholeModelPrediction)}, device=device)

    def total(self) -> Total:
        """Itself."""
        return self

    def _facts(self) -> list[str]:
        shares = ", ".join(f"{item.family} {100 * item.time_share:.0f} %" for item in self.families)
        place = "inside" if self.in_domain else "partly outside"
        return [f"{shares} of the time", f"{100 * self.coverage:g} % intervals, {place} what was measured", *self.notes]

    def _title(self) -> str:
        return f"{counted(self.launches, 'run')} of {counted(len(self.parts), 'kernel')} on {self.device}"

    def __repr__(self) -> str:
        return text_lines(self._title(), _lines(self), self._facts())

    def _repr_html_(self) -> str:
        return html_lines(self._title(), _lines(self), self._facts())


@dataclass(frozen=True, slots=True, repr=False)
class Ratio:
    """How many times as much one answer takes as another; below 1 it takes less.

    Attributes:
        latency: Of the times.
        energy: Of the energies; None where one is unknown.
        coverage: Share of cases the intervals are built to contain.
        title: What over what.
    """

    latency: Interval
    energy: Interval | None
    coverage: float
    title: str

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the times leaves out 1: one is faster, by more than the errors that are expected."""
        return self.latency.upper < 1 or self.latency.lower > 1

    def _lines(self) -> list[Line]:
        pairs = (("latency", self.latency), ("energy", self.energy))
        return [Line(name, interval, _times) for name, interval in pairs if interval is not None]

    def _facts(self) -> list[str]:
        clear = "the times differ clearly" if self.is_clear else "the times cannot be told apart"
        return [f"{100 * self.coverage:g} % intervals; {clear}"]

    def __repr__(self) -> str:
        return text_lines(self.title, self._lines(), self._facts())

    def _repr_html_(self) -> str:
        return html_lines(self.title, self._lines(), self._facts())


def _times(value: float) -> str:
    return f"{value:.3g} ×"


def _lines(answer: Any) -> list[Line]:
    return [Line.of(name, getattr(answer, name)) for name in _COST]


def _check(totals: Sequence[Total]) -> None:
    coverages = sorted({total.coverage for total in totals})
    if len(coverages) > 1:
        raise SpecError(
            f"the intervals have coverages {coverages[0]:g} and {coverages[-1]:g}; ask for both at one coverage",
            field="coverage",
        )


def _sum(totals: Sequence[Total], count: int = 1) -> Total:
    """`count` runs of totals one after the other.

    Raises:
        SpecError: they are on two devices, or have two coverages; or the count is no number of runs.
    """
    _check(totals)
    devices = list(dict.fromkeys(total.device for total in totals))
    if len(devices) > 1:
        raise SpecError(
            f"answers of {devices[0]} and {devices[1]} do not add up: kernels of a sum run one after the other on one device; "
            "their ratio says how the devices compare",
            field="device",
        )
    parts = [part for total in totals for part in total.parts]
    kernels = [Kernel(part.kernel.spec, part.kernel.count * count, part.kernel.name) for part in parts]
    gap_s = sum(total.launch_s for total in totals) / sum(total.launches for total in totals)
    return Total.of(compose(kernels, [part.prediction for part in parts], launch_s=gap_s), devices[0])


def _ratio(above: Total, below: Total) -> Ratio:
    """A total over another.

    Raises:
        SpecError: they have two coverages.
    """
    _check([above, below])
    energy = None if above.energy_j is None or below.energy_j is None else _of_target(above, below, "energy_j")
    title = f"{_name(above)} over {_name(below)}"
    return Ratio(_of_target(above, below, "latency_s"), energy, above.coverage, title)


def _name(total: Total) -> str:
    (first, *more) = total.parts
    what = (
        f"{counted(total.launches, 'run')} of {counted(len(total.parts), 'kernel')}"
        if more or first.kernel.count > 1
        else first.kernel.title
    )
    return f"{what} on {total.device}"


def _of_target(above: Total, below: Total, target: str) -> Interval:
    value = getattr(above, target).value / getattr(below, target).value
    if above.device == below.device:
        upward, downward = (_variance([(above, 1.0), (below, -1.0)], target, up=up) for up in (True, False))
    else:
        upward, downward = (
            _variance([(above, 1.0)], target, up=up) + _variance([(below, -1.0)], target, up=up) for up in (True, False)
        )
    return Interval(value, value / math.exp(math.sqrt(downward)), value * math.exp(math.sqrt(upward)))


def _variance(totals: Sequence[tuple[Total, float]], target: str, *, up: bool) -> float:
    """Square of the log half-width of a product of totals of one device to the powers given, upwards or downwards."""
    parts: list[Part] = []
    shares: list[float] = []
    seen: dict[KernelSpec, int] = {}
    for total, power in totals:
        for part in total.parts:
            # Runs of one kernel are one error, whichever total they are in.
            place = seen.setdefault(part.kernel.spec, len(parts))
            if place == len(parts):
                parts.append(part)
                shares.append(0.0)
            spent = part.kernel.count * getattr(part.prediction, target).value
            shares[place] += power * spent / getattr(total, target).value
    _, higher, lower = log_columns([getattr(part.prediction, target) for part in parts])
    share = np.array(shares)
    kernels = [part.kernel for part in parts]
    model = ErrorModel.of(kernels, [part.prediction.regime for part in parts], ERROR_CORRELATION)
    return model.variance(share * np.where((share >= 0) == up, higher, lower))
