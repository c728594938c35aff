"""POST /v1/sweep: how time, power and energy of a kernel change along one of its sizes or knobs, on up to eight devices."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...workloads.compare.sweep import MAX_CURVES, SweptSpecs, cases_on, check_sweep, read_swept_specs, sweep
from ..predict.thread_endpoint import Call, refusal_problem
from ..transport.bodies import read_coverage
from ..transport.problems import naming_field
from .request import AcrossDevices, check_peaks, read_devices, read_root

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […], "sweep": {"dim": …, "from": …, "to": …}}'


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A checked request of `/v1/sweep`.

    Attributes:
        swept: The specs.
        devices: The devices, each once.
        coverage: Coverage of the intervals.
    """

    swept: SweptSpecs
    devices: list[Device]
    coverage: float


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_sweep(body, call.loaded.catalogue)
    try:
        result = sweep(call.loaded.predictor, request.swept, request.devices, coverage=request.coverage)
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    family = request.swept.specs[0].family
    for device, curve in zip(request.devices, result.curves, strict=True):
        inside = sum(curve.in_domain)
        call.metrics.count_predictions(
            {(family, device.name, True): inside, (family, device.name, False): len(curve.in_domain) - inside}
        )
        call.metrics.count_usage_cases(cases_on(request.swept, device))
    return msgspec.json.encode(result)


def read_sweep(body: bytes, catalogue: Catalogue) -> SweepRequest:
    """The sweep in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    root = read_root(body, _WANTED, "sweep")
    fields = naming_field(lambda: check_sweep(root.get("sweep")))
    devices = read_devices(root.get("devices"), catalogue, MAX_CURVES)
    coverage = read_coverage(root)
    swept = naming_field(lambda: read_swept_specs(root, fields, "devices", "coverage", "sweep"))
    check_peaks(AcrossDevices(swept.specs[0], devices, coverage))
    return SweepRequest(swept, devices, coverage)
