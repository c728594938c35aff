"""POST /v1/sweep: how time, power and energy of a kernel change along one of its sizes or knobs, on up to eight devices."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ..features.cases import Cases
from ..features.errors import SpecError
from ..features.kernel import MAX_DIM
from .columns_wire import IntervalColumns, interval_columns, known_columns
from .compare_describe import bare_example, bare_schemas, devices_schema, request_schema
from .compare_request import on_device
from .describe import EXAMPLE_DEVICE
from .openapi_parts import Refusal, post_operation
from .requests import MAX_TEXT
from .sweep_request import MAX_CURVES, MAX_POINTS, RANGE_FIELDS, SCALES, VALUES_FIELDS, SweepRequest, read_sweep
from .thread_route import Call, refused

PATH = "/v1/sweep"


class SweepCurve(msgspec.Struct, frozen=True):
    """The kernel along the sweep on one device; every list has one value per swept value."""

    device: Annotated[str, Meta(description="Catalogue name")]
    latency_s: Annotated[IntervalColumns, Meta(description="Time of one run in seconds")]
    power_w: Annotated[IntervalColumns | None, Meta(description="Mean power in watts; null where none is known")]
    energy_j: Annotated[
        IntervalColumns | None, Meta(description="Energy of one run in joules; null where none is known")
    ]
    lower_bound_s: Annotated[list[float], Meta(description="Seconds that no run can beat")]
    bound: Annotated[list[str], Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    in_domain: Annotated[list[bool], Meta(description="Whether the model was trained on cases like each")]


class SweepAnswer(msgspec.Struct, frozen=True):
    """The swept values, rising where they were spread over a range, and a curve per device in the order of the request."""

    dim: Annotated[str, Meta(description="The size or knob that was swept")]
    values: list[int]
    curves: list[SweepCurve]


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_sweep(body, call.loaded.catalogue)
    try:
        curves = [_curve(call, request, i) for i in range(len(request.across.devices))]
    except SpecError as error:
        raise refused(error, "family") from error
    return msgspec.json.encode(SweepAnswer(request.dim, request.values, curves))


def _curve(call: Call, request: SweepRequest, i: int) -> SweepCurve:
    device = request.across.devices[i]
    specs = [on_device(spec, device) for spec in request.specs]
    cases = Cases.of(specs, [device.name] * len(specs))
    found = call.loaded.predictor.predict_cases(cases, coverage=request.across.coverage)
    inside = int(np.count_nonzero(found.in_domain))
    family = cases.family.name
    call.metrics.predictions({(family, device.name, True): inside, (family, device.name, False): len(specs) - inside})
    call.metrics.asked_rows(cases)
    return SweepCurve(
        device=device.name,
        latency_s=interval_columns(found.targets["latency_s"]),
        power_w=known_columns(found.targets["power_w"]),
        energy_j=known_columns(found.targets["energy_j"]),
        lower_bound_s=np.maximum.reduce(list(found.breakdown.values())).tolist(),
        bound=[str(word) for word in found.bound],
        in_domain=found.in_domain.tolist(),
    )


def sweep_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document."""
    whole = {"type": "integer", "minimum": 0, "maximum": MAX_DIM}
    dim = {"type": "string", "maxLength": MAX_TEXT, "description": "A size or a knob of the family"}
    spread = {
        "type": "object", "required": list(RANGE_FIELDS[:3]), "additionalProperties": False,
        "properties": {
            "dim": dim, "from": whole, "to": whole,
            "points": {"type": "integer", "minimum": 1, "maximum": MAX_POINTS, "default": 64,
                       "description": "How many; fewer are answered where they round to the same whole number"},
            "scale": {"enum": list(SCALES), "default": "log"},
        },
    }  # fmt: skip
    given = {
        "type": "object", "required": list(VALUES_FIELDS), "additionalProperties": False,
        "properties": {"dim": dim, "values": {"type": "array", "minItems": 1, "maxItems": MAX_POINTS, "items": whole}},
    }  # fmt: skip
    return bare_schemas() | {
        "SweepRequest": request_schema(
            "One spec along one of its sizes or knobs, which may be left out of it; `threads` are those of CPUs",
            ("family", "dtype", "sizes", "devices", "sweep"),
            devices=devices_schema(MAX_CURVES), sweep={"oneOf": [spread, given]},
        )
    }  # fmt: skip


def sweep_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    curve = {
        "device": EXAMPLE_DEVICE,
        "latency_s": {"value": [1.1e-5, 1.2e-5, 2.0e-4], "lower": [1.0e-5, 1.1e-5, 1.8e-4], "upper": [1.3e-5, 1.4e-5, 2.3e-4]},
        "power_w": None, "energy_j": None, "lower_bound_s": [7e-6, 7e-6, 1.4e-4], "bound": ["dram", "dram", "compute"],
        "in_domain": [True, True, True],
    }  # fmt: skip
    request = bare_example() | {
        "devices": [EXAMPLE_DEVICE, "h100-sxm"],
        "sweep": {"dim": "m", "from": 1, "to": 4096, "points": 3, "scale": "log"},
    }
    return post_operation(
        "One kernel along one of its sizes or knobs, on up to eight devices", "sweep", ("SweepRequest", request),
        ("A curve per device, in order", "SweepAnswer", {"dim": "m", "values": [1, 64, 4096], "curves": [curve]}),
        refusal,
    )  # fmt: skip
