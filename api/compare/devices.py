"""POST /v1/compare: one kernel on many devices side by side, with what a million calls cost where prices are given."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...client import answers
from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, View, get_family
from ...models.predict.prediction import Interval, Prediction
from ...workloads.answers import prediction_answer
from ..model_source import LoadedModel
from ..predict.thread_endpoint import Call, refusal_problem
from .request import AcrossDevices, on_device, read_across, read_prices, read_root, why_refused

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'
_CALLS = 1_000_000
_SECONDS_PER_HOUR = 3600.0


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED, "price_per_hour")
    catalogue = call.loaded.catalogue
    complete = root if root.get("devices") is not None else root | {"devices": catalogue.names()}
    request = read_across(complete, catalogue, "price_per_hour")
    prices = read_prices(root.get("price_per_hour"), catalogue, request.devices)
    predictions = _predictions(call.loaded, request)
    flops, moved_b = analytic_counts(request.spec)
    costs = [
        _cost(request.spec, device, prediction, flops, prices.get(device.name))
        for device, prediction in zip(request.devices, predictions, strict=True)
    ]
    predicted = [
        (device, cost.prediction)
        for device, cost in zip(request.devices, costs, strict=True)
        if cost.prediction is not None
    ]
    call.metrics.count_predictions(
        (request.spec.family, device.name, prediction.in_domain) for device, prediction in predicted
    )
    specs = [on_device(request.spec, device) for device, _ in predicted]
    call.metrics.count_usage(specs, [device.name for device, _ in predicted])
    return msgspec.json.encode(answers.Comparison(request.spec.family, flops, moved_b, costs))


def _predictions(loaded: LoadedModel, request: AcrossDevices) -> Sequence[Prediction | str]:
    """Per device a prediction, or why there is none.

    Raises:
        ProblemError: 422 where no device could be asked about, as the model does not know the family or the coverage.
    """
    refusals = [why_refused(request.spec, device) for device in request.devices]
    able = [device for device, reason in zip(request.devices, refusals, strict=True) if reason is None]
    specs = [on_device(request.spec, device) for device in able]
    try:
        predictions = iter(loaded.predictor.predict(specs, [device.name for device in able], coverage=request.coverage))
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    return [next(predictions) if reason is None else reason for reason in refusals]


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
        flops_per_s=per_second(flops, latency) if flops else None,
        joules_per_flop=times(energy, 1.0 / flops) if flops and energy is not None else None,
        of_bound=max(prediction.breakdown.values()) / latency.value,
        cost_per_million_calls=None if price is None else times(latency, price * _CALLS / _SECONDS_PER_HOUR),
    )


def analytic_counts(spec: KernelSpec) -> tuple[float, float]:
    """Arithmetic operations and compulsory traffic in bytes of one run."""
    family, view = get_family(spec.family), View.of(spec)
    return float(family.flops(view)), float(family.bytes_moved(view))


def per_second(amount: float, seconds: Interval) -> answers.Interval:
    """An amount over a time: the longest time gives the lower end."""
    return answers.Interval(amount / seconds.value, amount / seconds.upper, amount / seconds.lower)


def times(interval: Interval, factor: float) -> answers.Interval:
    """An interval times a factor of 0 or more."""
    return answers.Interval(interval.value * factor, interval.lower * factor, interval.upper * factor)
