"""What a launch alone takes, and predictions without it: of kernels that a queue keeps ahead of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..features.kernel import KernelSpec
from ..models.predict.prediction import Interval, Prediction
from ..models.predict.predictor import Predictor

EMPTY_KERNEL_S = 3e-6
"""What the smallest kernels take in a row, where no launch is waited for: 2.2 µs for a product in a CUDA graph
(docs/h200.md), some more on older devices. Only what a launch takes beyond that is hidden by a queue."""

_NOTHING_TO_DO = (1, 8, 32)
"""Sides of square tensors that any device is done with before the next launch; the model is asked for several."""


def launch_floors_s(predictor: Predictor, specs: Sequence[KernelSpec], device: str) -> list[float]:
    """What the model says a kernel with nothing to do takes, for the impl of each spec: its launch, in seconds.

    It is asked in fp32, which every device computes element by element.

    Raises:
        SpecError: the model knows no element-by-element kernels, which are what it is asked.
    """
    kinds = list(dict.fromkeys((spec.impl, spec.threads) for spec in specs))
    nothing = [
        KernelSpec.of("elementwise", "fp32", variant="relu", impl=impl, threads=threads, rows=side, cols=side)
        for impl, threads in kinds
        for side in _NOTHING_TO_DO
    ]
    floor_predictions = iter(predictor.predict(nothing, [device] * len(nothing)))
    floors = {kind: min(next(floor_predictions).latency_s.value for _ in _NOTHING_TO_DO) for kind in kinds}
    return [floors[spec.impl, spec.threads] for spec in specs]


def without_launch(predictions: Sequence[Prediction], floors_s: Sequence[float]) -> list[Prediction]:
    """Predictions less the launch that they include, as kernels take which follow others without a gap.

    A time from one event to another around a single launch starts before the host has launched anything, so the launch is
    in it once, whatever the kernel takes. Nothing falls below the time no run can beat; energy falls with latency, at the
    same power.
    """
    shortened = []
    for prediction, floor_s in zip(predictions, floors_s, strict=True):
        hidden_s, least_s = max(floor_s - EMPTY_KERNEL_S, 0.0), max(prediction.breakdown.values(), default=0.0)
        ends = (prediction.latency_s.value, prediction.latency_s.lower, prediction.latency_s.upper)
        value, lower, upper = (max(end - hidden_s, min(end, least_s)) for end in ends)
        energy_j = None
        if (energy := prediction.energy_j) is not None:
            # Each end by its own share: a constant taken off a time widens what is left, and so its energy.
            parts = zip((energy.value, energy.lower, energy.upper), (value, lower, upper), ends, strict=True)
            joules, least_j, most_j = (end_j * left_s / whole_s for end_j, left_s, whole_s in parts)
            # An end at the time no run can beat keeps all of its energy, also where the value keeps less.
            energy_j = Interval(joules, min(least_j, joules), max(most_j, joules))
        shortened.append(replace(prediction, latency_s=Interval(value, lower, upper), energy_j=energy_j))
    return shortened
