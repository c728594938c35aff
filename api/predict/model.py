"""POST /v1/predict/model: what a whole model costs, on one device or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from ...client.answers import WholeModelPredictions
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.spec_io.reading import MAX_TEXT, SETTING_FIELDS, kind_of, shown_name
from ...models.predict.carbon import ELECTRICITY_FIELDS, Electricity, read_electricity
from ...models.predict.power_law import PowerSetting, checked_setting
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.answers import whole_answer
from ...workloads.architectures.config.catalogue import model_facts
from ...workloads.architectures.config.reading import read_facts
from ...workloads.architectures.facts import ModelFacts
from ...workloads.kernel_reading import kernel_path, read_kernel
from ...workloads.whole_model import MAX_LAUNCH_S, Kernel, WholeModelPrediction, predict_whole
from ..model_source import LoadedModel, Service
from ..transport.bodies import MAX_DEVICES, is_number, named_devices, read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import (
    MAX_LISTED,
    FieldProblem,
    ProblemError,
    field_problem,
    invalid,
    invalid_field,
    naming_field,
)
from .spec import INLINE_BODY_B, refusal
from .thread_endpoint import Call, JsonEndpoint


def endpoint(service: Service) -> JsonEndpoint:
    """What answers `/v1/predict/model`: bodies are taken as by `/v1/predict`, within the same limits."""
    return JsonEndpoint(service, answer, inline_b=INLINE_BODY_B)


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_model_request(body, call.loaded.catalogue, call.settings.max_specs)
    wholes = _predict(call.loaded, request)
    for device, whole in zip(request.devices, wholes, strict=True):
        call.metrics.count_usage([part.kernel.spec for part in whole.parts], [device] * len(whole.parts))
    call.metrics.count_predictions(
        (part.kernel.spec.family, device, part.prediction.in_domain)
        for device, whole in zip(request.devices, wholes, strict=True)
        for part in whole.parts
    )
    pairs = zip(request.devices, wholes, strict=True)
    return msgspec.json.encode(
        WholeModelPredictions([whole_answer(device, whole, request.electricity) for device, whole in pairs])
    )


def _predict(loaded: LoadedModel, request: ModelRequest) -> list[WholeModelPrediction]:
    predictor = loaded.predictor
    if request.setting is not None:
        predictor = cast("ArtifactPredictor", predictor).under(request.setting)
    ask = partial(
        predict_whole, predictor, request.kernels,
        coverage=request.coverage, launch_s=request.launch_s, queued=request.queued,
    )  # fmt: skip
    try:
        return [ask(device) for device in request.devices]
    except SpecError as error:
        if error.field in ("coverage", "launch_s", *SETTING_FIELDS):
            raise ProblemError(422, str(error), [field_problem(error, error.field)]) from error
        errors = _at_fault(loaded, request) or [field_problem(error, error.field or "kernels")]
        raise ProblemError(422, errors[0].detail, errors) from error


def _at_fault(loaded: LoadedModel, request: ModelRequest) -> list[FieldProblem]:
    """The kernels whose family or implementation the model does not know; one of each is tried alone."""
    refused: dict[tuple[str, str], SpecError | None] = {}
    errors: list[FieldProblem] = []
    for index, kernel in enumerate(request.kernels):
        kind = (kernel.spec.family, kernel.spec.impl)
        if kind not in refused:
            refusals = (refusal(loaded, kernel.spec, device, request.coverage) for device in request.devices)
            refused[kind] = next(filter(None, refusals), None)
        if (error := refused[kind]) is not None and len(errors) < MAX_LISTED:
            errors.append(field_problem(error, kernel_path(index, error.field or "family"), index))
    return errors


MODEL_FIELDS = ("devices", "kernels", "coverage", "launch_s", "queued", *SETTING_FIELDS, *ELECTRICITY_FIELDS)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A checked request of `/v1/predict/model`.

    Attributes:
        kernels: The kernels of the model, with their counts.
        devices: Catalogue names of the devices.
        coverage: Coverage of the intervals.
        launch_s: Time between two kernels, seconds.
        queued: Whether work is queued ahead of the device, which hides launches: kernels alone are asked for.
        setting: How the devices are set; None: as they come.
        electricity: Where electricity is from, and what it costs; None: nobody asks.
    """

    kernels: list[Kernel]
    devices: list[str]
    coverage: float
    launch_s: float
    queued: bool
    setting: PowerSetting | None
    electricity: Electricity | None


def read_model_request(body: bytes, catalogue: Catalogue, max_specs: int) -> ModelRequest:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for more than `max_specs` predictions (kernels times devices),
            422 naming what is wrong.
    """
    root = read_object(body, '{"devices": […], "kernels": […]}')
    if unknown := [name for name in root if name not in MODEL_FIELDS]:
        raise invalid_field(shown_name(unknown[0]), f"unknown field; a model takes {listed(MODEL_FIELDS)}")
    items, names = root.get("kernels"), root.get("devices")
    if not isinstance(items, list) or not items:
        raise invalid_field("kernels", "must be a list of at least one kernel")
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_DEVICES:
        raise invalid_field("devices", f"must be a list of one to {MAX_DEVICES} device names")
    if len(items) * len(names) > max_specs:
        request = f"{len(items)} kernels on {len(names)} devices in one request"
        raise ProblemError(413, f"{request}; at most {max_specs} predictions are made, send the devices one by one")
    refuse_duplicate_names(body, root, items)
    coverage, launch_s = read_coverage(root), root.get("launch_s", 0.0)
    if not is_number(launch_s) or not 0 <= launch_s <= MAX_LAUNCH_S:
        raise invalid_field("launch_s", f"must be seconds between 0 and {MAX_LAUNCH_S:g}")
    if not isinstance(queued := root.get("queued", False), bool):
        raise invalid_field("queued", "must be true or false")
    electricity = naming_field(lambda: read_electricity(*map(root.get, ELECTRICITY_FIELDS)))
    boards = named_devices(names, catalogue)
    setting = naming_field(lambda: checked_setting(root.get("power_limit_w"), root.get("clock_hz"), *boards))
    devices = [device.name for device in boards]
    kernels: list[Kernel] = []
    errors: list[FieldProblem] = []
    for index, item in enumerate(items):
        try:
            kernels.append(read_kernel(item, devices, catalogue))
        except SpecError as error:
            errors.append(field_problem(error, kernel_path(index, error.field), index))
            if len(errors) == MAX_LISTED:
                break
    if errors:
        raise invalid(errors)
    return ModelRequest(kernels, devices, coverage, float(launch_s), queued, setting, electricity)


def facts_of_request(root: Mapping[str, Any]) -> ModelFacts:
    """The facts of the model in `model`, or else in `config`.

    Raises:
        ProblemError: 422, no such model ships, or the configuration is not read.
    """
    if (name := root.get("model")) is not None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_TEXT:
            raise invalid_field("model", f"must be the name of a model that ships, of at most {MAX_TEXT} characters")
        # The name alone: `facts_of` would read files.
        return naming_field(lambda: model_facts(name), "model")
    config = root["config"]
    if not isinstance(config, dict):
        raise invalid_field("config", f"must be the object of a config.json, not {kind_of(config)}")
    title = config.get("_name_or_path")
    try:
        return read_facts(config, title if isinstance(title, str) and title else "model", source="the request")
    except SpecError as error:
        raise invalid([field_problem(error, f"config.{error.field}" if error.field else "config")]) from error
