"""Schemas of a spec without a device, and of requests that ask about one, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from ..features.kernel import families
from .describe import coverage_schema, family_example, family_schema
from .openapi_parts import one_of_families, schema_name
from .requests import MAX_TEXT

NAME = {"type": "string", "maxLength": MAX_TEXT}


def bare_schemas() -> dict[str, Any]:
    """Schemas of the fields of a spec without a device: one of every family, which others add to.

    Sizes without a default are needed, but for one that is swept; that is said in words, so that one schema serves all.
    """
    return {schema_name(name, "Fields"): _bare_schema(name) for name in families()}


def request_schema(description: str, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """A request of a spec's fields together with `properties`."""
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        **one_of_families("Fields"),
        "properties": {**properties, "coverage": coverage_schema()},
        "unevaluatedProperties": False,
    }


def devices_schema(most: int) -> dict[str, Any]:
    """A list of devices."""
    return {"type": "array", "minItems": 1, "maxItems": most, "items": NAME}


def bare_example(family: str = "gemm") -> dict[str, Any]:
    """Fields of a spec that can be sent with devices."""
    return {name: value for name, value in family_example(families()[family]).items() if name != "device"}


def _bare_schema(family: str) -> dict[str, Any]:
    schema = family_schema(families()[family], top_level=False)
    del schema["properties"]["device"], schema["examples"], schema["additionalProperties"]
    schema["required"].remove("device")
    # An enum of one rather than a constant, so that readers can tell the families apart by it.
    schema["properties"]["family"] = {"type": "string", "enum": [family]}
    sizes = schema["properties"]["sizes"]
    sizes["description"] = f"Needed: {', '.join(sizes.pop('required'))}"
    return schema
