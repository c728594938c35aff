"""POST /v1/best-cap: the power limit or the clock of a GPU at which work takes least energy, and what each setting costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ...client import estimate_answers
from ...features.device import Catalogue, Device
from ...features.errors import listed
from ...features.spec_io.reading import kind_of, shown_name
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.compare.best_cap import (
    POINTS,
    Budget,
    CostUnder,
    best_cap,
    measured_cost,
    model_cost,
    service_cost,
)
from ...workloads.kernel_reading import read_kernels
from ...workloads.serving.predict import ServingPredictor
from ...workloads.serving.replicas import simulated_requests
from ..predict.llm import read_prediction
from ..predict.thread_endpoint import Call
from ..transport.bodies import is_number, named_devices
from ..transport.problems import FieldProblem, ProblemError, invalid, invalid_field, naming_field
from .request import read_root

MAX_CAP_KERNELS = 500
"""Most kernels of a request: each is predicted under some sixty settings."""
SERVICE_POINTS = 10
"""Fewest limits tried for a service, each of which is simulated under every one of them: about six seconds in all."""
MAX_CAP_REQUESTS = 4000
"""Most requests simulated of a service."""

SOURCES = ("kernels", "service", "measured")
OTHERS = ("device", "slowdown", "budget")
_MEASURED, _BUDGET = ("time_s", "power_w"), ("budget_w", "gpus", "host_w")
_NOT_OF_A_SERVICE = ("device", "power_limit_w", "clock_hz", "price_per_hour", "grid", "electricity_price", "pue")
_WANTED = '{"device": "h100-sxm", "kernels": [{"family": "gemm", "dtype": "bf16", "sizes": {…}}], "slowdown": 0.05}'


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    root = read_root(body, _WANTED, *SOURCES, "budget")
    if unknown := [name for name in root if name not in (*SOURCES, *OTHERS)]:
        raise invalid_field(shown_name(unknown[0]), f"unknown field; possible are {listed((*SOURCES, *OTHERS))}")
    sources = [name for name in SOURCES if root.get(name) is not None]
    if len(sources) != 1:
        got = f", got {listed(sources)}" if sources else ""
        raise invalid_field(sources[-1] if sources else SOURCES[0], f"give one of {listed(SOURCES)}{got}; {_WANTED}")
    device = _device(root, call.loaded.catalogue)
    cost = _cost(call, root, sources[0], device)
    slowdown = root.get("slowdown")
    if slowdown is not None and not is_number(slowdown):
        raise invalid_field("slowdown", f"must be a number of at least 0, not {kind_of(slowdown)}")
    budget = None if root.get("budget") is None else naming_field(lambda: _budget(root["budget"]), paths=_IN_BUDGET)
    points = SERVICE_POINTS if sources == ["service"] else POINTS
    result = naming_field(
        lambda: best_cap(cost, device, slowdown=slowdown, budget=budget, points=points), sources[0], _IN_BUDGET
    )
    return msgspec.json.encode(msgspec.convert(result, estimate_answers.BestCap, from_attributes=True))


_IN_BUDGET: Mapping[str, str] = {name: f"budget.{name}" for name in _BUDGET}


def _device(root: Mapping[str, Any], catalogue: Catalogue) -> Device:
    if not isinstance(name := root.get("device"), str):
        raise invalid_field("device", f"must be the name of a device, not {kind_of(name)}")
    try:
        return named_devices([name], catalogue)[0]
    except ProblemError as error:
        raise invalid([FieldProblem("device", item.detail) for item in error.errors]) from error


def _cost(call: Call, root: Mapping[str, Any], source: str, device: Device) -> CostUnder:
    """What the work costs under settings.

    Raises:
        ProblemError: 413 for too much of it, 422 naming what is wrong.
    """
    work, predictor = root[source], cast("ArtifactPredictor", call.loaded.predictor)
    if source == "kernels":
        if not isinstance(work, list) or not 1 <= len(work) <= MAX_CAP_KERNELS:
            raise invalid_field("kernels", f"must be a list of one to {MAX_CAP_KERNELS} kernels")
        kernels = naming_field(lambda: read_kernels(work, [device.name], call.loaded.catalogue), "kernels")
        return model_cost(predictor, kernels, device)
    if source == "measured":
        numbers = _numbers(work, source, _MEASURED, _MEASURED)
        paths = {name: f"measured.{name}" for name in _MEASURED}
        return naming_field(lambda: measured_cost(numbers["time_s"], numbers["power_w"], device), paths=paths)
    if not isinstance(work, dict):
        raise invalid_field("service", f"must be an object of fields of /v1/llm/predict, not {kind_of(work)}")
    if misplaced := [name for name in _NOT_OF_A_SERVICE if name in work]:
        raise invalid_field(f"service.{misplaced[0]}", "does not go here; the device stands beside the service")
    try:
        question = read_prediction(msgspec.json.encode({**work, "device": device.name}), call.loaded.catalogue)
    except ProblemError as error:
        fields = [msgspec.structs.replace(item, field=f"service.{item.field}") for item in error.errors]
        raise ProblemError(error.status, error.detail, fields) from error
    if question.is_list:
        raise invalid_field("service.concurrency", "must be one number, not a list")
    request = question.requests[0]
    count = simulated_requests(request.load, request.replicas)
    if count > MAX_CAP_REQUESTS:
        raise ProblemError(
            413, f"{count:,} requests are too many; at most {MAX_CAP_REQUESTS:,} are simulated under each limit"
        )
    return service_cost(ServingPredictor(predictor), request)


def _budget(raw: Any) -> Budget:
    numbers = _numbers(raw, "budget", _BUDGET, _BUDGET[:1])
    gpus = numbers.get("gpus", 8)
    if gpus != int(gpus):
        raise invalid_field("budget.gpus", f"must be a whole number, got {gpus:g}")
    return Budget(numbers["budget_w"], int(gpus), numbers.get("host_w", 0.0))


def _numbers(raw: Any, name: str, fields: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, float]:
    if not isinstance(raw, dict):
        raise invalid_field(name, f"must be an object of {listed(fields)}, not {kind_of(raw)}")
    for field, value in raw.items():
        if field not in fields:
            raise invalid_field(f"{name}.{shown_name(field)}", f"unknown field; possible are {listed(fields)}")
        if not is_number(value):
            raise invalid_field(f"{name}.{field}", f"must be a number, not {kind_of(value)}")
    if missing := [field for field in needed if field not in raw]:
        raise invalid_field(f"{name}.{missing[0]}", "is missing")
    return raw
