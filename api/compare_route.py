"""POST /v1/compare: one kernel on many devices side by side, with what a million calls cost where prices are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..features.device import Device
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.prediction import Prediction
from .compare_describe import NAME, bare_example, bare_schemas, devices_schema, request_schema
from .compare_request import MAX_PRICE, Across, on_device, read_across, read_prices, read_root, why_not
from .describe import EXAMPLE_DEVICE
from .model_request import MAX_DEVICES
from .openapi_parts import Refusal, post_operation
from .predict_describe import EXAMPLE_ANSWER
from .rates import on_paper, per_second, times
from .source import Loaded
from .thread_route import Call, refused
from .wire import IntervalAnswer, PredictionAnswer, prediction_answer

PATH = "/v1/compare"
_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'
_CALLS = 1_000_000
_SECONDS_PER_HOUR = 3600.0


class DeviceComparison(msgspec.Struct, frozen=True):
    """What the kernel costs on one device, or why nothing can be said of it there."""

    device: Annotated[str, Meta(description="Catalogue name")]
    title: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    prediction: PredictionAnswer | None
    refusal: Annotated[str | None, Meta(description="Why there is no prediction; null where there is one")]
    flops_per_s: Annotated[
        IntervalAnswer | None, Meta(description="Arithmetic over time; null for kernels without any")
    ]
    joules_per_flop: Annotated[
        IntervalAnswer | None, Meta(description="Energy over arithmetic; null where energy is unknown or there is none")
    ]
    of_bound: Annotated[
        float | None, Meta(description="Least time on paper over predicted time: 1 is as fast as can be")
    ]
    cost_per_million_calls: Annotated[
        IntervalAnswer | None, Meta(description="In the currency of the price; null where no price was given")
    ]


class CompareAnswer(msgspec.Struct, frozen=True):
    """One kernel on every device asked about, in the order of the request or of the catalogue."""

    family: str
    flops: Annotated[float, Meta(description="Arithmetic operations of one run")]
    bytes: Annotated[float, Meta(description="Compulsory traffic of one run in bytes")]
    answers: list[DeviceComparison]


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED, "price_per_hour")
    catalogue = call.loaded.catalogue
    whole = root if root.get("devices") is not None else root | {"devices": catalogue.names()}
    asked = read_across(whole, catalogue, "price_per_hour")
    prices = read_prices(root.get("price_per_hour"), catalogue, asked.devices)
    found = _predictions(call.loaded, asked)
    flops, moved_b = on_paper(asked.spec)
    answers = [
        _comparison(asked.spec, device, one, flops, prices.get(device.name))
        for device, one in zip(asked.devices, found, strict=True)
    ]
    call.metrics.predictions(
        (asked.spec.family, one.device, one.prediction.in_domain) for one in answers if one.prediction is not None
    )
    known = [device for device, one in zip(asked.devices, answers, strict=True) if one.prediction is not None]
    call.metrics.asked([on_device(asked.spec, device) for device in known], [device.name for device in known])
    return msgspec.json.encode(CompareAnswer(asked.spec.family, flops, moved_b, answers))


def _predictions(loaded: Loaded, asked: Across) -> Sequence[Prediction | str]:
    """Per device a prediction, or why there is none.

    Raises:
        ProblemError: 422 where no device could be asked about, as the model does not know the family or the coverage.
    """
    refusals = [why_not(asked.spec, device) for device in asked.devices]
    open_to = [device for device, reason in zip(asked.devices, refusals, strict=True) if reason is None]
    specs = [on_device(asked.spec, device) for device in open_to]
    try:
        made = loaded.predictor.predict(specs, [device.name for device in open_to], coverage=asked.coverage)
    except SpecError as error:
        raise refused(error, "family") from error
    rest = iter(made)
    return [next(rest) if reason is None else reason for reason in refusals]


def _comparison(
    spec: KernelSpec, device: Device, found: Prediction | str, flops: float, price: float | None
) -> DeviceComparison:
    if isinstance(found, str):
        return DeviceComparison(device.name, device.title, device.kind, None, found, None, None, None, None)
    latency, energy = found.latency_s, found.energy_j
    return DeviceComparison(
        device=device.name,
        title=device.title,
        kind=device.kind,
        prediction=prediction_answer(spec, device.name, found),
        refusal=None,
        flops_per_s=per_second(flops, latency) if flops else None,
        joules_per_flop=times(energy, 1.0 / flops) if flops and energy is not None else None,
        of_bound=max(found.breakdown.values()) / latency.value,
        cost_per_million_calls=None if price is None else times(latency, price * _CALLS / _SECONDS_PER_HOUR),
    )


def compare_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document."""
    prices = {"type": ["object", "null"], "propertyNames": NAME, "description": "What an hour of a device costs",
              "additionalProperties": {"type": "number", "minimum": 0, "maximum": MAX_PRICE}}  # fmt: skip
    some = devices_schema(MAX_DEVICES) | {"type": ["array", "null"], "description": "Left out: the whole catalogue"}
    return bare_schemas() | {
        "CompareRequest": request_schema(
            "One spec on several devices; `threads` are those of the CPUs among them",
            ("family", "dtype", "sizes"), devices=some, price_per_hour=prices,
        )
    }  # fmt: skip


def compare_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    flops = 137_438_953_472.0
    known = {
        "device": "nvidia-h100-sxm-80gb", "title": "NVIDIA H100 SXM5 80GB", "kind": "gpu", "prediction": EXAMPLE_ANSWER,
        "refusal": None, "of_bound": 0.69,
        "flops_per_s": {"value": 6.9e14, "lower": 6.0e14, "upper": 7.6e14},
        "joules_per_flop": {"value": 9.3e-13, "lower": 7.3e-13, "upper": 1.16e-12},
        "cost_per_million_calls": {"value": 0.166, "lower": 0.15, "upper": 0.19},
    }  # fmt: skip
    request = bare_example() | {"devices": [EXAMPLE_DEVICE, "h100-sxm"], "price_per_hour": {"h100-sxm": 2.99}}
    return post_operation(
        "One kernel on many devices side by side", "compare", ("CompareRequest", request),
        ("An answer per device, in order; one that cannot be predicted says why", "CompareAnswer",
         {"family": "gemm", "flops": flops, "bytes": 100_663_296.0, "answers": [known]}),
        refusal,
    )  # fmt: skip
