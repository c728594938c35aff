"""POST /v1/roofline: where a kernel stands under the roofs of devices: its intensity, the limits on paper, what it attains."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..features.cases import Cases
from ..features.device import Device, Fact
from ..features.errors import SpecError
from ..features.kernel import KernelSpec, get_family
from ..features.work import work
from ..models.prediction import Prediction
from .compare_describe import bare_example, bare_schemas, devices_schema, request_schema
from .compare_request import check_peaks, on_device, read_across, read_root
from .describe import EXAMPLE_DEVICE
from .openapi_parts import Refusal, post_operation
from .rates import on_paper, per_second
from .source import Loaded
from .thread_route import Call, refused
from .wire import FactAnswer, IntervalAnswer

PATH = "/v1/roofline"
MAX_CURVES = 8
"""Most devices in one answer: as many as can be told apart in one plot."""

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'


class RooflineOnDevice(msgspec.Struct, frozen=True):
    """The kernel under the roof of one device."""

    device: Annotated[str, Meta(description="Catalogue name")]
    dtype: Annotated[str, Meta(description="What the spec's dtype runs as there; the peak is that dtype's")]
    peak_flops_per_s: Annotated[
        FactAnswer, Meta(description="The roof's level part; of a CPU, that of the threads used")
    ]
    bandwidth_b_per_s: Annotated[FactAnswer, Meta(description="Slope of the roof: the memory's bandwidth")]
    ridge_intensity: Annotated[float, Meta(description="Operations per byte where both parts meet")]
    intensity: Annotated[float, Meta(description="Operations per byte of the kernel")]
    attained_flops_per_s: Annotated[
        IntervalAnswer, Meta(description="Arithmetic over predicted time; above the slope where a cache serves it")
    ]
    of_limit: Annotated[
        float, Meta(description="Least time on paper over predicted time: the share of the binding limit")
    ]
    bound: Annotated[str, Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    lower_bound_s: Annotated[float, Meta(description="Seconds that no run can beat")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Predicted time of one run in seconds")]
    breakdown: Annotated[dict[str, float], Meta(description="Seconds that each limit alone would take")]
    in_domain: Annotated[bool, Meta(description="Whether the model was trained on cases like this one")]


class RooflineAnswer(msgspec.Struct, frozen=True):
    """One kernel under the roofs of the devices, in the order of the request."""

    flops: Annotated[float, Meta(description="Arithmetic operations of one run")]
    bytes: Annotated[float, Meta(description="Compulsory traffic of one run in bytes")]
    answers: list[RooflineOnDevice]


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED)
    asked = read_across(root, call.loaded.catalogue, most=MAX_CURVES)
    check_peaks(asked)
    specs = [on_device(asked.spec, device) for device in asked.devices]
    try:
        made = call.loaded.predictor.predict(specs, [device.name for device in asked.devices], coverage=asked.coverage)
    except SpecError as error:
        raise refused(error, "family") from error
    call.metrics.predictions(
        (asked.spec.family, device.name, one.in_domain) for device, one in zip(asked.devices, made, strict=True)
    )
    call.metrics.asked(specs, [device.name for device in asked.devices])
    found = [_under(call.loaded, *row) for row in zip(asked.devices, specs, made, strict=True)]
    return msgspec.json.encode(RooflineAnswer(*on_paper(asked.spec), found))


def _under(loaded: Loaded, device: Device, spec: KernelSpec, found: Prediction) -> RooflineOnDevice:
    paper = work(Cases.of([spec], [device.name]), loaded.catalogue)
    peak, bandwidth = float(paper.peak_flops_per_s[0]), float(paper.bandwidth_b_per_s[0])
    _, ran = device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    least_s = max(found.breakdown.values())
    return RooflineOnDevice(
        device=device.name,
        dtype=ran,
        peak_flops_per_s=FactAnswer(peak, _peak_source(device, spec, ran, peak)),
        bandwidth_b_per_s=FactAnswer(bandwidth, device.facts["memory_bandwidth_b_per_s"].source),
        ridge_intensity=peak / bandwidth,
        intensity=float(paper.intensity[0]),
        attained_flops_per_s=per_second(float(paper.flops[0]), found.latency_s),
        of_limit=least_s / found.latency_s.value,
        bound=found.bound,
        lower_bound_s=least_s,
        latency_s=IntervalAnswer(found.latency_s.value, found.latency_s.lower, found.latency_s.upper),
        breakdown=dict(found.breakdown),
        in_domain=found.in_domain,
    )


def _peak_source(device: Device, spec: KernelSpec, ran: str, peak: float) -> str:
    """Where the peak comes from; of a CPU with fewer threads than cores, that it is their share."""
    matrix = get_family(spec.family).unit == "matrix"
    tables = (device.matrix_flops_per_s, device.vector_flops_per_s) if matrix else (device.vector_flops_per_s,)
    fact: Fact = next(table[ran] for table in tables if ran in table)
    cores = device.required("compute_units")
    part = f"; {spec.threads} of {cores:g} cores" if spec.threads is not None and peak < fact.value else ""
    return fact.source + part


def roofline_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document."""
    return bare_schemas() | {
        "RooflineRequest": request_schema(
            "One spec on up to eight devices; `threads` are those of the CPUs among them",
            ("family", "dtype", "sizes", "devices"), devices=devices_schema(MAX_CURVES),
        )
    }  # fmt: skip


def roofline_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    under = {
        "device": EXAMPLE_DEVICE, "dtype": "bf16", "peak_flops_per_s": {"value": 9.895e14, "source": "the maker's data sheet"},
        "bandwidth_b_per_s": {"value": 4.8e12, "source": "the maker's data sheet"}, "ridge_intensity": 206.1,
        "intensity": 1365.3,
        "attained_flops_per_s": {"value": 6.9e14, "lower": 6.0e14, "upper": 7.6e14}, "of_limit": 0.69, "bound": "compute",
        "lower_bound_s": 1.389e-4, "latency_s": {"value": 2.0e-4, "lower": 1.8e-4, "upper": 2.3e-4},
        "breakdown": {"compute": 1.389e-4, "dram": 2.1e-5, "cache": 6.0e-6, "launch": 7e-7}, "in_domain": True,
    }  # fmt: skip
    return post_operation(
        "Where one kernel stands under the roofs of devices", "roofline",
        ("RooflineRequest", bare_example() | {"devices": [EXAMPLE_DEVICE, "h100-sxm"]}),
        ("An answer per device, in order", "RooflineAnswer",
         {"flops": 137_438_953_472.0, "bytes": 100_663_296.0, "answers": [under]}),
        refusal,
    )  # fmt: skip
