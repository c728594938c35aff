"""Whole models asked of a predictor: its kernels predicted, launches hidden where they are, and everything composed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..features.kernel import KernelSpec
from .composition import Kernel, Whole, compose
from .prediction import Interval, Prediction
from .predictor import Predictor

EMPTY_KERNEL_S = 3e-6
"""What the smallest kernels take in a row, where no launch is waited for: 2.2 µs for a product in a CUDA graph
(docs/h200.md), some more on older devices. Only what a launch takes beyond that is hidden by a queue."""

_NOTHING_TO_DO = (1, 8, 32)
"""Sides of square tensors that any device is done with before the next launch; the model is asked for several."""


def predict_whole(
    predictor: Predictor,
    kernels: Sequence[Kernel],
    device: str,
    *,
    coverage: float = 0.9,
    launch_s: float = 0.0,
    queued: bool = False,
) -> Whole:
    """What a list of kernels costs on one device.

    Args:
        predictor: a trained model.
        kernels: what runs, and how often.
        device: its name in the catalogue.
        coverage: share of cases the intervals are to contain.
        launch_s: seconds between two kernels, see `compose`.
        queued: work is queued ahead of the device, which hides the launch that a model of kernels timed one at a time has
            in every latency (see `without_launch`). With a model of kernels timed in a row there is nothing to hide.

    Raises:
        SpecError: there are no kernels, or the model cannot predict one of them.
    """
    specs = [kernel.spec for kernel in kernels]
    predictions = predictor.predict(specs, [device] * len(specs), coverage=coverage)
    if queued and specs:
        predictions = without_launch(predictions, launch_floors_s(predictor, specs, device))
    return compose(kernels, predictions, launch_s=launch_s)


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
    found = iter(predictor.predict(nothing, [device] * len(nothing)))
    floors = {kind: min(next(found).latency_s.value for _ in _NOTHING_TO_DO) for kind in kinds}
    return [floors[spec.impl, spec.threads] for spec in specs]


def without_launch(predictions: Sequence[Prediction], floors_s: Sequence[float]) -> list[Prediction]:
    """Predictions less the launch that they include, as kernels take which follow others without a gap.

    A time from one event to another around a single launch starts before the host has launched anything, so the launch is
    in it once, whatever the kernel takes. Nothing falls below the time no run can beat; energy falls with latency, at the
    same power.
    """
    shortened = []
    for one, floor_s in zip(predictions, floors_s, strict=True):
        hidden_s, least_s = max(floor_s - EMPTY_KERNEL_S, 0.0), max(one.breakdown.values(), default=0.0)
        ends = (one.latency_s.value, one.latency_s.lower, one.latency_s.upper)
        value, lower, upper = (max(end - hidden_s, min(end, least_s)) for end in ends)
        energy_j = None
        if (energy := one.energy_j) is not None:
            # Each end by its own share: a constant taken off a time widens what is left, and so its energy.
            parts = zip((energy.value, energy.lower, energy.upper), (value, lower, upper), ends, strict=True)
            energy_j = Interval(*(joules * left_s / whole_s for joules, left_s, whole_s in parts))
        shortened.append(replace(one, latency_s=Interval(value, lower, upper), energy_j=energy_j))
    return shortened
