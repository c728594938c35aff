"""POST /v1/compare and /v1/roofline: one kernel on devices side by side.

A comparison has what a million calls cost where prices are given; a roofline has the kernel's intensity, the analytic limits,
and what it attains.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Device, Fact
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, View, get_family
from ...models.predict.prediction import Interval, Prediction
from ...workloads.answers import interval_answer, prediction_answer
from ..model_source import LoadedModel
from ..predict.thread_endpoint import Call, refusal_problem
from .request import AcrossDevices, check_peaks, on_device, read_across, read_prices, read_root, why_refused

MAX_CURVES = 8
"""Most devices of a roofline: as many as can be told apart in one plot."""

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'
_CALLS = 1_000_000
_SECONDS_PER_HOUR = 3600.0


def compare(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request of `/v1/compare`.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED, "price_per_hour")
    catalogue = call.loaded.catalogue
    complete = root if root.get("devices") is not None else root | {"devices": catalogue.names()}
    request = read_across(complete, catalogue, "price_per_hour")
    prices = read_prices(root.get("price_per_hour"), catalogue, request.devices)
    refusals = [why_refused(request.spec, device) for device in request.devices]
    able = [device for device, reason in zip(request.devices, refusals, strict=True) if reason is None]
    predictions = iter(_predict(call, request, able))
    flops, moved_b = _analytic_counts(request.spec)
    costs = [
        _cost(request.spec, device, reason or next(predictions), flops, prices.get(device.name))
        for device, reason in zip(request.devices, refusals, strict=True)
    ]
    return msgspec.json.encode(answers.Comparison(request.spec.family, request.spec.timing, flops, moved_b, costs))


def roofline(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request of `/v1/roofline`.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_across(read_root(body, _WANTED), call.loaded.catalogue, most=MAX_CURVES)
    check_peaks(request)
    predictions = _predict(call, request, request.devices)
    roofs = [
        _under(call.loaded, device, on_device(request.spec, device), prediction)
        for device, prediction in zip(request.devices, predictions, strict=True)
    ]
    return msgspec.json.encode(answers.Roofline(request.spec.timing, *_analytic_counts(request.spec), roofs))


def _predict(call: Call, request: AcrossDevices, devices: Sequence[Device]) -> list[Prediction]:
    """The spec's predictions on devices, which are counted.

    Raises:
        ProblemError: 422, the model does not know the family or the coverage.
    """
    specs, names = [on_device(request.spec, device) for device in devices], [device.name for device in devices]
    try:
        predictions = call.loaded.predictor.predict(specs, names, coverage=request.coverage)
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    call.metrics.count_predictions(
        (request.spec.family, name, prediction.in_domain) for name, prediction in zip(names, predictions, strict=True)
    )
    call.metrics.count_usage(specs, names)
    return predictions


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
        flops_per_s=_per_second(flops, latency) if flops else None,
        joules_per_flop=_times(energy, 1.0 / flops) if flops and energy is not None else None,
        of_bound=max(prediction.breakdown.values()) / latency.value,
        cost_per_million_calls=None if price is None else _times(latency, price * _CALLS / _SECONDS_PER_HOUR),
    )


def _analytic_counts(spec: KernelSpec) -> tuple[float, float]:
    """Arithmetic operations and compulsory traffic in bytes of one run."""
    family, view = get_family(spec.family), View.of(spec)
    return float(family.flops(view)), float(family.bytes_moved(view))


def _per_second(amount: float, seconds: Interval) -> answers.Interval:
    """An amount over a time: the longest time gives the lower end."""
    return answers.Interval(amount / seconds.value, amount / seconds.upper, amount / seconds.lower)


def _times(interval: Interval, factor: float) -> answers.Interval:
    """An interval times a factor of 0 or more."""
    return answers.Interval(interval.value * factor, interval.lower * factor, interval.upper * factor)


def _under(loaded: LoadedModel, device: Device, spec: KernelSpec, prediction: Prediction) -> answers.DeviceRoof:
    needed = work(Cases.from_specs([spec], [device.name]), loaded.catalogue)
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
        attained_flops_per_s=_per_second(float(needed.flops[0]), prediction.latency_s),
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
