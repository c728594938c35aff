"""POST /v1/roofline: a kernel under the roofs of devices: its intensity, the analytic limits, and what it attains."""

from __future__ import annotations

import msgspec

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Device, Fact
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, get_family
from ...models.predict.prediction import Prediction
from ...workloads.answers import interval_answer
from ..model_source import LoadedModel
from ..predict.thread_endpoint import Call, refusal_problem
from .devices import analytic_counts, per_second
from .request import check_peaks, on_device, read_across, read_root

MAX_CURVES = 8
"""Most devices in one answer: as many as can be told apart in one plot."""

_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […]}'


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED)
    request = read_across(root, call.loaded.catalogue, most=MAX_CURVES)
    check_peaks(request)
    specs = [on_device(request.spec, device) for device in request.devices]
    try:
        predictions = call.loaded.predictor.predict(
            specs, [device.name for device in request.devices], coverage=request.coverage
        )
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    call.metrics.count_predictions(
        (request.spec.family, device.name, prediction.in_domain)
        for device, prediction in zip(request.devices, predictions, strict=True)
    )
    call.metrics.count_usage(specs, [device.name for device in request.devices])
    roofs = [_under(call.loaded, *row) for row in zip(request.devices, specs, predictions, strict=True)]
    return msgspec.json.encode(answers.Roofline(*analytic_counts(request.spec), roofs))


def _under(loaded: LoadedModel, device: Device, spec: KernelSpec, prediction: Prediction) -> answers.DeviceRoof:
    paper = work(Cases.from_specs([spec], [device.name]), loaded.catalogue)
    peak, bandwidth = float(paper.peak_flops_per_s[0]), float(paper.bandwidth_b_per_s[0])
    _, ran = device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    least_s = max(prediction.breakdown.values())
    return answers.DeviceRoof(
        device=device.name,
        dtype=ran,
        peak_flops_per_s=answers.Fact(peak, _peak_source(device, spec, ran, peak)),
        bandwidth_b_per_s=answers.Fact(bandwidth, device.facts["memory_bandwidth_b_per_s"].source),
        ridge_intensity=peak / bandwidth,
        intensity=float(paper.intensity[0]),
        attained_flops_per_s=per_second(float(paper.flops[0]), prediction.latency_s),
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
