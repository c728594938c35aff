"""POST /v1/compare and /v1/roofline: one kernel on devices side by side.

A comparison has what a million calls cost where prices are given; a roofline has the kernel's intensity, the analytic limits,
and what it attains.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...features.errors import SpecError
from ...workloads.compare import side_by_side
from ...workloads.compare.side_by_side import on_device
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
        comparison = side_by_side.compare(
            call.loaded.predictor, request.spec, request.devices, coverage=request.coverage, prices=prices
        )
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    _count(
        call, request, [None if cost.prediction is None else cost.prediction.in_domain for cost in comparison.answers]
    )
    return msgspec.json.encode(comparison)


def roofline(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request of `/v1/roofline`.

    Raises:
        ProblemError: the request is not acceptable.
    """
    catalogue = call.loaded.catalogue
    request = read_across(read_root(body, _WANTED), catalogue, most=MAX_CURVES)
    check_peaks(request)
    try:
        roofs = side_by_side.roofline(
            call.loaded.predictor, catalogue, request.spec, request.devices, coverage=request.coverage
        )
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    _count(call, request, [roof.in_domain for roof in roofs.answers])
    return msgspec.json.encode(roofs)


def _count(call: Call, request: AcrossDevices, in_domain: Sequence[bool | None]) -> None:
    """Count the predictions, of which `in_domain` has a None where a device was refused, and the specs they are of."""
    spec = request.spec
    predicted = [(device, is_in) for device, is_in in zip(request.devices, in_domain, strict=True) if is_in is not None]
    call.metrics.count_predictions((spec.family, device.name, is_in) for device, is_in in predicted)
    call.metrics.count_usage(
        [on_device(spec, device) for device, _ in predicted], [device.name for device, _ in predicted]
    )
