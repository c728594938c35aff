"""POST /v1/sweep: how time, power and energy of a kernel change along one of its sizes or knobs, on up to eight devices."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.spec_io.reading import kind_of, shown_name
from ...workloads.compare.sweep import Swept, cases_on, sweep, swept_range, swept_values
from ..predict.thread_endpoint import Call, refusal_problem
from ..transport.bodies import read_coverage
from ..transport.problems import invalid_field, naming_field
from .request import check_peaks, read_devices, read_root


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
    for curve, device in zip(result.curves, request.devices, strict=True):
        inside = sum(curve.in_domain)
        call.metrics.count_predictions(
            {(family, device.name, True): inside, (family, device.name, False): len(curve.in_domain) - inside}
        )
        call.metrics.count_usage_cases(cases_on(request.swept.specs, device))
    return msgspec.json.encode(result)


MAX_CURVES = 8
RANGE_FIELDS = ("dim", "from", "to", "points", "scale")
VALUES_FIELDS = ("dim", "values")
_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […], "sweep": {"dim": …, "from": …, "to": …}}'
_EXAMPLE = '{"dim": "m", "from": 1, "to": 8192, "points": 64, "scale": "log"}'
_BESIDE = ("devices", "coverage", "sweep")
"""Fields of a request beside those of the spec."""


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A checked request of `/v1/sweep`.

    Attributes:
        swept: The spec at each value.
        devices: The devices, each once.
        coverage: Coverage of the intervals.
    """

    swept: Swept
    devices: list[Device]
    coverage: float


def read_sweep(body: bytes, catalogue: Catalogue) -> SweepRequest:
    """The sweep in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    root = read_root(body, _WANTED, "sweep")
    span = root.get("sweep")
    if not isinstance(span, dict):
        raise invalid_field("sweep", f"must be an object such as {_EXAMPLE}, not {kind_of(span)}")
    taken = VALUES_FIELDS if "values" in span else RANGE_FIELDS
    for name in span:
        if name not in taken:
            raise invalid_field(
                f"sweep.{shown_name(name)}",
                "cannot be combined with `values`; send one or the other"
                if name in RANGE_FIELDS
                else f"unknown field; it takes {listed(RANGE_FIELDS)}, or {listed(VALUES_FIELDS)}",
            )
    devices = read_devices(root.get("devices"), catalogue, MAX_CURVES)
    coverage, dim = read_coverage(root), span.get("dim")
    swept = naming_field(
        lambda: (
            swept_values(root, dim, span["values"], *_BESIDE)
            if "values" in span
            else swept_range(root, dim, span, *_BESIDE)
        )
    )
    check_peaks(swept.specs[0], devices)
    return SweepRequest(swept, devices, coverage)
