"""What a kernel does on paper, and that over its predicted time: counts, rates, and intervals of both."""

from __future__ import annotations

from ..features.kernel import KernelSpec, View, get_family
from ..models.prediction import Interval
from .wire import IntervalAnswer, interval_answer


def on_paper(spec: KernelSpec) -> tuple[float, float]:
    """Arithmetic operations and compulsory traffic in bytes of one run."""
    family, view = get_family(spec.family), View.of(spec)
    return float(family.flops(view)), float(family.bytes_moved(view))


def per_second(amount: float, seconds: Interval) -> IntervalAnswer:
    """An amount over a time: the longest time gives the lower end."""
    return IntervalAnswer(amount / seconds.value, amount / seconds.upper, amount / seconds.lower)


def times(interval: Interval, factor: float) -> IntervalAnswer:
    """An interval times a factor of 0 or more."""
    return interval_answer(Interval(interval.value * factor, interval.lower * factor, interval.upper * factor))
