"""What descriptions of routes in the OpenAPI document are put together from: references, bodies, answers and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..features.kernel import families

REF = "#/components/schemas/{name}"
"""Where a schema is found by its name."""

Refusal = Callable[[int], dict[str, Any]]
"""How the document describes an HTTP status that refuses: `openapi.refusal`."""

BODY_REFUSALS = (400, 413, 415, 422, 500, 503)
"""What every route that predicts from a body in JSON may refuse with."""


def ref(name: str) -> dict[str, str]:
    """The schema of that name."""
    return {"$ref": REF.format(name=name)}


def schema_name(family: str, suffix: str) -> str:
    """Name of a schema that each family has one of, such as `GemmSpec`."""
    return family.title().replace("_", "") + suffix


def one_of_families(suffix: str) -> dict[str, Any]:
    """Any one of the families' schemas with that suffix; readers tell them apart by `family`."""
    refs = {family: REF.format(name=schema_name(family, suffix)) for family in families()}
    return {
        "oneOf": [{"$ref": found} for found in refs.values()],
        "discriminator": {"propertyName": "family", "mapping": refs},
    }


def json_of(schema: str, example: Any) -> dict[str, Any]:
    """The content of a body in JSON: the name of its schema, and an example."""
    return {"application/json": {"schema": ref(schema), "example": example}}


def responses(
    content: dict[str, Any], refusal: Refusal, refusals: tuple[int, ...], description: str = "OK"
) -> dict[str, Any]:
    """What a route answers: a 200 with that content, or a refusal."""
    return {
        "200": {"description": description, "content": content},
        **{str(status): refusal(status) for status in refusals},
    }


def post_operation(
    summary: str, name: str, request: tuple[str, Any], answer: tuple[str, str, Any], refusal: Refusal
) -> dict[str, Any]:
    """A route that takes JSON; `request` is its schema's name and an example, `answer` a description before the same."""
    description, *answered = answer
    return {
        "summary": summary,
        "operationId": name,
        "requestBody": {"required": True, "content": json_of(*request)},
        "responses": responses(json_of(*answered), refusal, BODY_REFUSALS, description),
    }
