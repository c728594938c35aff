"""One kernel on devices side by side: what it costs on each, or where it lies under the roof of each.

A comparison has what a million calls cost where prices are given; a roofline has the kernel's intensity, the analytic limits,
and what it attains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device, Fact
from ...features.kernel import KernelSpec, View, get_family
from ...models.predict.named_impl import check_impl
from ...models.predict.prediction import Prediction, Predictor
from ..answers import interval_answer, prediction_answer
from .spec_on_devices import check_peaks, on_device, why_refused

_CALLS = 1_000_000
_SECONDS_PER_HOUR = 3600.0


def compare(
    predictor: Predictor, spec: KernelSpec, devices: Sequence[Device], *, coverage: float = 0.9,
    prices: Mapping[str, float] = {},
) -> answers.Comparison:  # fmt: skip
    """A spec on devices in their order; one that cannot run it has the reason in place of a prediction.

    Args:
        predictor: a trained model.
        spec: the kernel, with its timing (`spec_on_devices.with_timing`).
        devices: the devices, each once.
        coverage: share of cases the intervals are to contain.
        prices: price of an hour by catalogue name.

    Raises:
        SpecError: the model does not know the family, the implementation or the coverage.
    """
    refusals = [why_refused(spec, device) for device in devices]
    able = [device for device, reason in zip(devices, refusals, strict=True) if reason is None]
    predictions = iter(_predict(predictor, spec, able, coverage))
    flops, moved_b = _analytic_counts(spec)
    costs = [
        _cost(spec, device, reason or next(predictions), flops, prices.get(device.name))
        for device, reason in zip(devices, refusals, strict=True)
    ]
    return answers.Comparison(spec.family, spec.timing, flops, moved_b, costs)


def fastest_first(comparison: answers.Comparison) -> answers.Comparison:
    """The comparison with its devices by latency, those without a prediction last."""

    def key(cost: answers.DeviceCost) -> float:
        return math.inf if cost.prediction is None else cost.prediction.latency_s.value

    return msgspec.structs.replace(comparison, answers=sorted(comparison.answers, key=key))


def roofline(
    predictor: Predictor, spec: KernelSpec, devices: Sequence[Device], *, coverage: float = 0.9
) -> answers.Roofline:
    """A spec with its timing under the roofs of devices, in their order.

    Raises:
        SpecError: a device has no peak for the dtype, or the model does not know the family, the implementation or the
            coverage.
    """
    check_peaks(spec, devices)
    predictions = _predict(predictor, spec, devices, coverage)
    roofs = [
        _under(predictor.devices, device, on_device(spec, device), prediction)
        for device, prediction in zip(devices, predictions, strict=True)
    ]
    return answers.Roofline(spec.timing, *_analytic_counts(spec), roofs)


def _predict(predictor: Predictor, spec: KernelSpec, devices: Sequence[Device], coverage: float) -> list[Prediction]:
    check_impl(predictor, spec.family, spec.impl)
    specs = [on_device(spec, device) for device in devices]
    return predictor.predict(specs, [device.name for device in devices], coverage=coverage)


def _cost(
    spec: KernelSpec, device: Device, prediction: Prediction | str, flops: float, price: float | None
) -> answers.DeviceCost:
    if isinstance(prediction, str):
        return answers.DeviceCost(device.name, device.title, device.kind, None, prediction, None, None, None, None)
    latency, energy = prediction.latency_s, prediction.energy_j
    return answers.DeviceCost(
        device=device.name,
        title=device.title,
        kind=device.kind,
        prediction=prediction_answer(spec, device.name, prediction),
        refusal=None,
        flops_per_s=interval_answer(flops / latency) if flops else None,
        joules_per_flop=interval_answer(energy.scaled(1.0 / flops)) if flops and energy is not None else None,
        of_bound=max(prediction.breakdown.values()) / latency.value,
        cost_per_million_calls=None
        if price is None
        else interval_answer(latency.scaled(price * _CALLS / _SECONDS_PER_HOUR)),
    )


def _analytic_counts(spec: KernelSpec) -> tuple[float, float]:
    """Arithmetic operations and compulsory traffic in bytes of one run."""
    family, view = get_family(spec.family), View.of(spec)
    return float(family.flops(view)), float(family.bytes_moved(view))


def _under(catalogue: Catalogue, device: Device, spec: KernelSpec, prediction: Prediction) -> answers.DeviceRoof:
    needed = work(Cases.from_specs([spec], [device.name]), catalogue)
    peak, bandwidth = float(needed.peak_flops_per_s[0]), float(needed.bandwidth_b_per_s[0])
    _, ran = device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    least_s = max(prediction.breakdown.values())
    return answers.DeviceRoof(
        device=device.name,
        dtype=ran,
        peak_flops_per_s=answers.Fact(peak, _peak_source(device, spec, ran, peak)),
        bandwidth_b_per_s=answers.Fact(bandwidth, device.facts["memory_bandwidth_b_per_s"].source),
        ridge_intensity=peak / bandwidth,
        intensity=float(needed.intensity[0]),
        attained_flops_per_s=interval_answer(float(needed.flops[0]) / prediction.latency_s),
        of_limit=least_s / prediction.latency_s.value,
        bound=prediction.bound,
        lower_bound_s=least_s,
        latency_s=interval_answer(prediction.latency_s),
        breakdown=dict(prediction.breakdown),
        in_domain=prediction.in_domain,
    )


def _peak_source(device: Device, spec: KernelSpec, ran: str, peak: float) -> str:
    """Where the peak comes from; of a CPU with fewer threads than cores, that it is their share."""
    matrix = get_family(spec.family).unit == "matrix"
    tables = (device.matrix_flops_per_s, device.vector_flops_per_s) if matrix else (device.vector_flops_per_s,)
    fact: Fact = next(table[ran] for table in tables if ran in table)
    cores = device.required("compute_units")
    part = f"; {spec.threads} of {cores:g} cores" if spec.threads is not None and peak < fact.value else ""
    return fact.source + part
