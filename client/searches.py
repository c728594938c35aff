"""Answers to questions about many configurations, devices or sizes at once; names end in their SI unit."""

from __future__ import annotations

import msgspec

from .answers import Fact, Interval, Intervals, Prediction


class Ranked(msgspec.Struct, frozen=True):
    """One configuration; `slower_than_best` is its time over the best one's, less one.

    `in_domain` is None where the tuning model ranked it and the served one was not shown the like.
    """

    config: dict[str, int]
    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    slower_than_best: float
    bound: str
    in_domain: bool | None
    notes: list[str]


class Ranking(msgspec.Struct, frozen=True):
    """Configurations of `impl`, the quickest first; the first `tied` of them cannot be told apart."""

    device: str
    family: str
    impl: str
    considered: int
    ranked: list[Ranked]
    method: str
    tied: int


class DeviceCost(msgspec.Struct, frozen=True):
    """One kernel on one device: a prediction, or why there is none."""

    device: str
    title: str
    kind: str
    prediction: Prediction | None
    refusal: str | None
    flops_per_s: Interval | None
    joules_per_flop: Interval | None
    of_bound: float | None
    cost_per_million_calls: Interval | None


class Comparison(msgspec.Struct, frozen=True):
    """One kernel on several devices; `flops` and `bytes` are those of one run."""

    family: str
    flops: float
    bytes: float
    answers: list[DeviceCost]


class Curve(msgspec.Struct, frozen=True):
    """One device's predictions at every value of a sweep."""

    device: str
    latency_s: Intervals
    power_w: Intervals | None
    energy_j: Intervals | None
    lower_bound_s: list[float]
    bound: list[str]
    in_domain: list[bool]


class Sweep(msgspec.Struct, frozen=True):
    """One kernel while one of its numbers takes `values`."""

    dim: str
    values: list[int]
    curves: list[Curve]


class DeviceRoof(msgspec.Struct, frozen=True):
    """One kernel under one device's roofs; `of_limit` is the share of the limiting roof that it attains."""

    device: str
    dtype: str
    peak_flops_per_s: Fact
    bandwidth_b_per_s: Fact
    ridge_intensity: float
    intensity: float
    attained_flops_per_s: Interval
    of_limit: float
    bound: str
    lower_bound_s: float
    latency_s: Interval
    breakdown: dict[str, float]
    in_domain: bool


class Roofline(msgspec.Struct, frozen=True):
    """One kernel against the peaks of devices; `flops` and `bytes` are those of one run."""

    flops: float
    bytes: float
    answers: list[DeviceRoof]
