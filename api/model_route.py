"""POST /v1/predict/model: what a whole model costs, on one device or several."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ..features.errors import SpecError
from ..features.kernel import families
from ..models.composition import MAX_COUNT, MAX_LAUNCH_S, Kernel, Whole
from ..models.whole import predict_whole
from .describe import EXAMPLE_DEVICE, coverage_schema, family_example, family_schema
from .model_request import MAX_DEVICES, ModelRequest, kernel_path, read_model_request
from .openapi_parts import Refusal, one_of_families, post_operation, ref, schema_name
from .predict import PredictEndpoint
from .predict_describe import EXAMPLE_ANSWER
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import MAX_TEXT
from .source import Loaded, loaded_of
from .wire import WholesAnswer, whole_answer

PATH = "/v1/predict/model"


class ModelEndpoint(PredictEndpoint):
    """The ASGI application behind `/v1/predict/model`: bodies are taken as by `/v1/predict`, within the same limits."""

    def answer(self, body: bytes) -> bytes:
        """The JSON answer to a JSON request.

        Raises:
            ProblemError: no model is loaded, or the request is not acceptable.
        """
        loaded = loaded_of(self._source)
        request = read_model_request(body, loaded.catalogue, self._settings.max_specs)
        found = _predict(loaded, request)
        self._metrics.predictions(
            (part.kernel.spec.family, device, part.prediction.in_domain)
            for device, whole in zip(request.devices, found, strict=True)
            for part in whole.parts
        )
        for device, whole in zip(request.devices, found, strict=True):
            self._metrics.asked([part.kernel.spec for part in whole.parts], [device] * len(whole.parts))
        answers = [whole_answer(device, whole) for device, whole in zip(request.devices, found, strict=True)]
        return msgspec.json.encode(WholesAnswer(answers))


def _predict(loaded: Loaded, request: ModelRequest) -> list[Whole]:
    ask = partial(
        predict_whole, loaded.predictor, request.kernels,
        coverage=request.coverage, launch_s=request.launch_s, queued=request.queued,
    )  # fmt: skip
    try:
        return [ask(device) for device in request.devices]
    except SpecError as error:
        if error.field in ("coverage", "launch_s"):
            raise ProblemError(422, str(error), [field_problem(error, error.field)]) from error
        errors = _at_fault(loaded, request) or [field_problem(error, error.field or "kernels")]
        raise ProblemError(422, errors[0].detail, errors) from error


def _at_fault(loaded: Loaded, request: ModelRequest) -> list[FieldProblem]:
    """The kernels whose family the model does not know; one of each family is tried alone."""
    refused: dict[str, SpecError | None] = {}
    errors: list[FieldProblem] = []
    for index, kernel in enumerate(request.kernels):
        family = kernel.spec.family
        if family not in refused:
            refused[family] = _refusal(loaded, kernel, request)
        if (error := refused[family]) is not None and len(errors) < MAX_LISTED:
            errors.append(field_problem(error, kernel_path(index, error.field or "family"), index))
    return errors


def _refusal(loaded: Loaded, kernel: Kernel, request: ModelRequest) -> SpecError | None:
    for device in request.devices:
        try:
            loaded.predictor.predict([kernel.spec], [device], coverage=request.coverage)
        except SpecError as error:
            return error
    return None


def model_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document: a kernel of every family, and the model."""
    kernels = {schema_name(name, "Kernel"): _kernel_schema(name) for name in families()}
    return {
        **kernels,
        "Kernel": one_of_families("Kernel"),
        "ModelRequest": {
            "type": "object",
            "description": "A whole model: its kernels with counts, and the devices to run it on",
            "required": ["devices", "kernels"],
            "additionalProperties": False,
            "properties": {
                "devices": {"type": "array", "minItems": 1, "maxItems": MAX_DEVICES,
                            "items": {"type": "string", "maxLength": MAX_TEXT}},
                "kernels": {"type": "array", "minItems": 1, "items": ref("Kernel")},
                "coverage": coverage_schema(),
                "launch_s": {"type": "number", "minimum": 0, "maximum": MAX_LAUNCH_S, "default": 0,
                             "description": "Seconds between two kernels; 0: they run back to back"},
                "queued": {"type": "boolean", "default": False,
                           "description": "Work is queued ahead, which hides launches that single timings include"},
            },
        },
    }  # fmt: skip


def model_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    return post_operation(
        "What a whole model costs: kernels with counts, on one device or several", "predict_model",
        ("ModelRequest", _example_request()),
        ("One answer per device, in the order of the request", "WholesAnswer", _example_answer(EXAMPLE_ANSWER)), refusal,
    )  # fmt: skip


def _kernel_schema(family: str) -> dict[str, Any]:
    schema = family_schema(families()[family], top_level=False)
    del schema["properties"]["device"], schema["examples"]
    schema["required"].remove("device")
    # An enum of one rather than a constant, so that readers can tell the families apart by it.
    schema["properties"]["family"] = {"type": "string", "enum": [family]}
    schema["properties"]["count"] = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "default": 1,
                                     "description": "How many times the model runs it"}  # fmt: skip
    schema["properties"]["name"] = {"type": ["string", "null"], "maxLength": MAX_TEXT, "default": "",
                                    "description": "What the model calls it"}  # fmt: skip
    return schema


def _example_request() -> dict[str, Any]:
    kernels = [
        {
            "family": "gemm",
            "dtype": "bf16",
            "sizes": {"m": 512, "n": 4096, "k": 4096},
            "count": 32,
            "name": "projection",
        },
        {name: value for name, value in family_example(families()["softmax"]).items() if name != "device"}
        | {"count": 32, "name": "scores"},
    ]
    return {"devices": [EXAMPLE_DEVICE], "kernels": kernels, "coverage": 0.9}


def _example_answer(one: dict[str, Any]) -> dict[str, Any]:
    """A model of ten runs of the one example kernel."""

    def times(interval: dict[str, float]) -> dict[str, float]:
        return {end: 10 * value for end, value in interval.items()}

    share = {"time_share": 1.0, "energy_share": 1.0}
    kernel = {
        name: one[name]
        for name in ("family", "latency_s", "power_w", "energy_j", "bound", "method", "in_domain", "notes")
    }
    answer = {
        "device": one["device"], "latency_s": times(one["latency_s"]), "power_w": one["power_w"],
        "energy_j": times(one["energy_j"]), "coverage": one["coverage"], "bound_s": 10 * max(one["breakdown"].values()),
        "launch_s": 0.0, "launches": 10, "in_domain": True, "notes": [], "without_energy": [], "dominant": [0],
        "families": [{"family": one["family"], "launches": 10, "latency_s": 10 * one["latency_s"]["value"],
                      "energy_j": 10 * one["energy_j"]["value"], **share}],
        "kernels": [{"name": "projection", "count": 10, **kernel, **share}],
    }  # fmt: skip
    return {"answers": [answer]}
