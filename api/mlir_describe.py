"""`/v1/predict/mlir` as the OpenAPI document describes it: the request's schema, its parameters, and examples of both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models.mlir.predictor import COMPILERS
from .describe import EXAMPLE_DEVICE, coverage_schema
from .mlir_request import MAX_BINDS, MAX_FUNCTION, MAX_THREADS
from .mlir_route import TEXT
from .model_request import MAX_DEVICES
from .openapi_parts import BODY_REFUSALS, Refusal, json_of, responses
from .requests import MAX_TEXT

_EXAMPLE_TEXT = """\
func.func @main(%x: tensor<?x1024xf32>, %w: tensor<1024x4096xf32>) -> tensor<?x4096xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x1024xf32>, tensor<1024x4096xf32>) -> tensor<?x4096xf32>
  return %y : tensor<?x4096xf32>
}
"""
_EXAMPLE_QUERY: Mapping[str, Any] = {
    "device": ["amd-epyc-9005-vm-2c"], "function": "main", "bind": ["dim0:128"], "compiler": "iree", "threads": 1,
    "coverage": 0.9,
}  # fmt: skip


def _example_answer() -> dict[str, Any]:
    """A product of matrices on one device."""
    latency = {"value": 2.4e-5, "lower": 1.9e-5, "upper": 3.1e-5}
    energy = {"value": 0.0072, "lower": 0.0049, "upper": 0.0102}
    group = {
        "title": "matmul 128x4096x1024", "kind": "contraction", "ops": ["stablehlo.dot_general"], "lines": [2],
        "runs": 1.0, "latency_s": 2.4e-5, "energy_j": 0.0072, "time_share": 1.0, "flops": 1073741824.0,
        "bytes": 19398656.0, "bound": "compute", "spec": "gemm[batch=1,m=128,n=4096,k=1024]:fp32", "stand_in": "",
        "understood": True,
    }  # fmt: skip
    answer = {
        "function": "main", "device": EXAMPLE_DEVICE, "compiler": "", "threads": None, "latency_s": latency,
        "power_w": {"value": 300.0, "lower": 240.0, "upper": 360.0}, "energy_j": energy, "coverage": 0.9,
        "method": "composition", "in_domain": True, "notes": [], "bound_s": 1.6e-5,
        "breakdown": {"compute": 1.6e-5, "dram": 0.0, "cache": 0.0, "launch": 0.0}, "flops": 1073741824.0,
        "bytes": 19398656.0, "footprint_b": 19398656.0, "intensity": 55.35, "utilization": 0.67, "groups": [group],
        "not_understood": [], "characteristics": {},
    }  # fmt: skip
    return {"reader": "iree", "refusals": [], "functions": ["main"], "answers": [answer]}


def program_schemas() -> dict[str, Any]:
    """Schema of the request for the OpenAPI document."""
    name = {"type": "string", "maxLength": MAX_TEXT}
    return {
        "ProgramRequest": {
            "type": "object",
            "description": "MLIR text, the devices to run it on, and what the text leaves open",
            "required": ["text"],
            "oneOf": [{"required": ["device"]}, {"required": ["devices"]}],
            "additionalProperties": False,
            "properties": {
                "text": {"type": "string", "description": "The module; weights printed short"},
                "devices": {"type": "array", "minItems": 1, "maxItems": MAX_DEVICES, "items": name},
                **_settings(),
            },
        },
    }


def _settings() -> dict[str, dict[str, Any]]:
    """Schemas of everything but the text, by name."""
    return {
        "device": {"type": "string", "maxLength": MAX_TEXT, "description": "A device, by name or alias"},
        "function": {"type": ["string", "null"], "maxLength": MAX_FUNCTION,
                     "description": "The function; default: the only public one"},
        "bind": {"type": ["object", "null"], "maxProperties": MAX_BINDS, "additionalProperties": {"type": "integer"},
                 "description": "Sizes of dynamic dimensions, by the names that the error for a missing one lists"},
        "compiler": {"type": ["string", "null"], "enum": ["", *COMPILERS, None], "default": "",
                     "description": "Who compiles it; default: who the device's programs were measured with"},
        "threads": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_THREADS,
                    "description": "Threads of the CPUs among the devices; default: all cores"},
        "coverage": coverage_schema(),
    }  # fmt: skip


def program_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    described = {
        name: {"name": name, "in": "query", "required": False, "schema": schema,
               "description": f"{schema.get('description', name)}. For a body that is the text itself"}
        for name, schema in _settings().items()
    }  # fmt: skip
    several = {"type": "array", "maxItems": MAX_DEVICES, "items": {"type": "string", "maxLength": MAX_TEXT}}
    described["device"]["schema"] = several
    described["bind"]["schema"] = several | {"maxItems": MAX_BINDS}
    for name, example in _EXAMPLE_QUERY.items():
        described[name]["example"] = example
    plain = {"schema": {"type": "string"}, "example": _EXAMPLE_TEXT}
    return {
        "summary": "What a function of MLIR text costs, on one device or several",
        "operationId": "predict_mlir",
        "parameters": list(described.values()),
        "requestBody": {
            "required": True,
            "content": {
                **json_of("ProgramRequest", {"text": _EXAMPLE_TEXT, "device": EXAMPLE_DEVICE, "bind": {"dim0": 128}}),
                **dict.fromkeys(sorted(TEXT), plain),
            },
        },
        "responses": responses(
            json_of("ProgramsAnswer", _example_answer()), refusal, BODY_REFUSALS,
            "One answer per device, in the order of the request",
        ),
    }  # fmt: skip
