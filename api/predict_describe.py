"""`/v1/predict` as the OpenAPI document describes it: schemas of a spec of every family, and examples."""

from __future__ import annotations

from typing import Any

from ..features.kernel import families
from .describe import coverage_schema, family_example, family_schema
from .openapi_parts import BODY_REFUSALS, Refusal, one_of_families, ref, responses, schema_name

_BOUNDS = {"compute": 1.389e-4, "dram": 3.0e-5, "cache": 6.0e-6, "launch": 1e-6}
EXAMPLE_ANSWER: dict[str, Any] = {
    "family": "gemm", "device": "nvidia-h100-sxm-80gb",
    "latency_s": {"value": 2.0e-4, "lower": 1.8e-4, "upper": 2.3e-4},
    "power_w": {"value": 640.0, "lower": 560.0, "upper": 690.0},
    "energy_j": {"value": 0.128, "lower": 0.101, "upper": 0.159},
    "coverage": 0.9, "bound": "compute", "breakdown": _BOUNDS, "method": "xgboost", "in_domain": True, "notes": [],
}  # fmt: skip
"""The answer to one spec that examples show."""


def predict_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document: a spec of every family, and a batch of them."""
    known = families().values()
    specs = {schema_name(family.name, "Spec"): family_schema(family, top_level=False) for family in known}
    single = {schema_name(family.name, "Request"): family_schema(family) for family in known}
    for schema in (*specs.values(), *single.values()):
        # Required, so that readers can tell the families apart by it.
        schema["properties"]["family"] = {"type": "string", "enum": [schema["properties"]["family"]["const"]]}
    return {
        **specs,
        **single,
        "Spec": one_of_families("Spec"),
        "SpecRequest": one_of_families("Request"),
        "BatchRequest": {
            "type": "object",
            "description": "Any mix of families and devices, answered in this order",
            "required": ["requests"],
            "additionalProperties": False,
            "properties": {
                "requests": {"type": "array", "minItems": 1, "items": ref("Spec")},
                "coverage": coverage_schema(),
            },
        },
    }


def predict_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    gemm = family_example(families()["gemm"]) | {"sizes": {"m": 4096, "n": 4096, "k": 4096}}
    attention = family_example(families()["attention"])
    answered = {
        "application/json": {
            "schema": {"anyOf": [ref("PredictionAnswer"), ref("BatchAnswer")]},
            "examples": {
                "one": {"summary": "Answer to one spec", "value": EXAMPLE_ANSWER},
                "many": {"summary": "Answer to a batch", "value": {"predictions": [EXAMPLE_ANSWER]}},
            },
        }
    }
    return {
        "summary": "What kernels cost: one spec, or many of any mix of families and devices",
        "operationId": "predict",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"oneOf": [ref("SpecRequest"), ref("BatchRequest")]},
                    "examples": {
                        "one": {"summary": "One spec", "value": gemm},
                        "many": {"summary": "A batch", "value": {"requests": [gemm, attention], "coverage": 0.8}},
                    },
                }
            },
        },
        "responses": responses(
            answered, refusal, BODY_REFUSALS, "A prediction for a single spec, predictions in order for a batch"
        ),
    }
