"""POST /v1/predict/columns: many specs of one family in columns, for tables and searches over them."""

from __future__ import annotations

from typing import Any

import msgspec

from ..features.errors import SpecError
from ..features.kernel import families
from .column_counts import counted
from .columns_request import COLUMNS, read_columns
from .columns_wire import ColumnsAnswer, columns_answer
from .describe import EXAMPLE_DEVICE, coverage_schema, family_schema
from .openapi_parts import Refusal, one_of_families, post_operation, schema_name
from .problems import ProblemError, field_problem
from .thread_route import Call

PATH = "/v1/predict/columns"


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_columns(body, call.loaded.catalogue, call.settings.max_columns_rows)
    try:
        found = call.loaded.predictor.predict_cases(request.cases, coverage=request.coverage)
    except SpecError as error:
        field = error.field or "columns"
        path = f"columns.{field}" if field in COLUMNS else field
        raise ProblemError(422, str(error), [field_problem(error, path)]) from error
    call.metrics.predictions(counted(request.cases.family.name, request.device, found))
    call.metrics.asked_rows(request.cases)
    return msgspec.json.encode(columns_answer(request.cases.family.name, found))


def columns_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document: columns of every family."""
    tables = {schema_name(name, "Columns"): _table_schema(name) for name in families()}
    return {**tables, "ColumnsRequest": one_of_families("Columns")}


def _table_schema(family: str) -> dict[str, Any]:
    spec = family_schema(families()[family], top_level=False)
    columns = {name: spec["properties"][name] for name in COLUMNS}
    for name, column in columns.items():
        if name in ("sizes", "config"):
            column["properties"] = {
                inner: _column_schema(schema, optional=name == "config")
                for inner, schema in column["properties"].items()
            }
        else:
            columns[name] = _column_schema(column, optional=name in ("variant", "impl"))
    return {
        "type": "object",
        "description": f"Specs of {family}: a list has one value per row, anything else is for all rows",
        "required": ["family", "columns"],
        "additionalProperties": False,
        "properties": {
            "family": {"type": "string", "enum": [family]},
            "columns": {"type": "object", "required": [name for name in spec["required"] if name != "family"],
                        "additionalProperties": False, "properties": columns},
            "coverage": coverage_schema(),
        },
    }  # fmt: skip


def _column_schema(schema: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """Schema of one value for all rows, or of a list of a value per row; null is no value where it is `optional`."""
    value = {name: said for name, said in schema.items() if name not in ("description", "default", "examples")}
    if optional:
        value = {"anyOf": [value, {"type": "null"}]}
    kept = {name: schema[name] for name in ("description", "default") if name in schema}
    return {"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]} | kept


def columns_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    return post_operation(
        "What many kernels of one family cost, asked and answered in columns", "predict_columns", ("ColumnsRequest", _EXAMPLE),
        ("A column per target, in the order of the rows", ColumnsAnswer.__name__, _EXAMPLE_ANSWER), refusal,
    )  # fmt: skip


_EXAMPLE: dict[str, Any] = {
    "family": "gemm",
    "columns": {"device": EXAMPLE_DEVICE, "dtype": "bf16", "sizes": {"m": [1, 64, 4096], "n": 4096, "k": 4096}},
    "coverage": 0.9,
}
_EXAMPLE_ANSWER: dict[str, Any] = {
    "family": "gemm", "n": 3, "coverage": 0.9,
    "latency_s": {"value": [1.1e-5, 1.2e-5, 2.0e-4], "lower": [1.0e-5, 1.1e-5, 1.8e-4], "upper": [1.3e-5, 1.4e-5, 2.3e-4]},
    "power_w": {"value": [350.0, 360.0, 640.0], "lower": [300.0, 310.0, 560.0], "upper": [400.0, 410.0, 690.0]},
    "energy_j": {"value": [0.0039, 0.0043, 0.128], "lower": [0.0031, 0.0035, 0.101], "upper": [0.005, 0.0056, 0.159]},
    "bound": {"words": ["dram", "compute"], "codes": [0, 0, 1]}, "method": {"words": ["xgboost"], "codes": [0, 0, 0]},
    "in_domain": [True, True, True], "notes": [],
}  # fmt: skip
