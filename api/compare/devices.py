"""POST /v1/compare and /v1/roofline: one kernel on devices side by side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...features.device import Device
from ...features.errors import SpecError
from ...workloads.compare import devices as side_by_side
from ...workloads.compare.spec_on_devices import on_device
from ..predict.thread_endpoint import Call, refusal_problem
from .request import AcrossDevices, check_peaks, read_across, read_prices, read_root

MAX_CURVES = 8
"""Most devices of a roofline: as many as can be told apart in one plot."""

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'


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
    try:
        result = side_by_side.compare(
            call.loaded.predictor, request.spec, request.devices, coverage=request.coverage, prices=prices
        )
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    able = [
        (device, item.prediction.in_domain)
        for device, item in zip(request.devices, result.answers, strict=True)
        if item.prediction is not None
    ]
    _count(call, request, able)
    return msgspec.json.encode(result)


def roofline(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request of `/v1/roofline`.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_across(read_root(body, _WANTED), call.loaded.catalogue, most=MAX_CURVES)
    check_peaks(request.spec, request.devices)
    try:
        result = side_by_side.roofline(call.loaded.predictor, request.spec, request.devices, coverage=request.coverage)
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    _count(
        call, request, [(device, item.in_domain) for device, item in zip(request.devices, result.answers, strict=True)]
    )
    return msgspec.json.encode(result)


def _count(call: Call, request: AcrossDevices, answered: Sequence[tuple[Device, bool]]) -> None:
    """Count the spec's predictions on devices, with whether each is inside the domain."""
    family = request.spec.family
    call.metrics.count_predictions((family, device.name, in_domain) for device, in_domain in answered)
    specs = [on_device(request.spec, device) for device, _ in answered]
    call.metrics.count_usage(specs, [device.name for device, _ in answered])
