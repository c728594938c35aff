"""The table of routes: one `Door` per path and method, read by `app.create_app` to serve it and by `openapi` to describe it.

To add a route: write a module with its endpoint, its `…_operation(refusal)` and its `…_schemas()`, and add one row to `DOORS`.
An endpoint is an ASGI class over what it needs of `Parts`, or a function from a Starlette request to a response. What several
routes share and that must be opened or closed (a child process) is a field of `Parts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..features.device import Catalogue
from . import (
    accuracy_route,
    admin_route,
    card_route,
    columns_route,
    compare_route,
    measured_describe,
    measured_route,
    nights_route,
    rank_route,
    roofline_route,
    sweep_route,
)
from .accuracy_wire import AccuracyAnswer
from .columns_wire import ColumnsAnswer
from .inference.operations import ROWS as INFERENCE_ROWS
from .measured_route import MeasuredTurns
from .measured_wire import LikeAnswer, MeasuredSetsAnswer, MeasurementsAnswer
from .metrics import Metrics
from .mlir_describe import program_operation, program_schemas
from .mlir_reader import NativeReader
from .mlir_route import PATH as MLIR_PATH
from .mlir_route import ProgramEndpoint
from .mlir_wire import ProgramsAnswer
from .model_route import PATH as MODEL_PATH
from .model_route import ModelEndpoint, model_operation, model_schemas
from .nights_folder import NightsFolder
from .nights_wire import NightReport, NightsAnswer
from .openapi_parts import Refusal
from .predict import SpecEndpoint
from .predict_describe import predict_operation, predict_schemas
from .settings import Settings
from .source import PredictorSource
from .thread_route import Answer, ThreadEndpoint
from .wire import BatchAnswer, PredictionAnswer, WholesAnswer


@dataclass(frozen=True, slots=True)
class Parts:
    """What endpoints are built from; there is one of each for all routes of an application."""

    source: PredictorSource
    settings: Settings
    metrics: Metrics
    devices: Catalogue
    native: NativeReader
    measured: MeasuredTurns
    nights: NightsFolder


def _on_thread(parts: Parts, answer: Answer, limit_b: int) -> ThreadEndpoint:
    return ThreadEndpoint(parts.source, parts.settings, parts.metrics, answer, limit_b)


def _no_schemas() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Door:
    """A route.

    `name` is its operationId; `build` makes what answers it. `operation` gives the OpenAPI operation, complete with its
    refusals and with examples of the request and of each answer (None: not in the document, such as a page's file).
    `answers` are the msgspec types it answers with and `schemas` any further schemas, both put among the document's
    components by their name.
    """

    path: str
    method: str
    name: str
    build: Callable[[Parts], Callable[..., Any]]
    operation: Callable[[Refusal], dict[str, Any]] | None
    answers: tuple[type, ...] = ()
    schemas: Callable[[], dict[str, Any]] = _no_schemas


DOORS: tuple[Door, ...] = (
    Door(
        "/v1/predict", "POST", "predict",
        lambda parts: SpecEndpoint(parts.source, parts.settings, parts.metrics),
        predict_operation, (PredictionAnswer, BatchAnswer), predict_schemas,
    ),
    Door(
        MODEL_PATH, "POST", "predict_model",
        lambda parts: ModelEndpoint(parts.source, parts.settings, parts.metrics),
        model_operation, (WholesAnswer,), model_schemas,
    ),
    Door(
        MLIR_PATH, "POST", "predict_mlir",
        lambda parts: ProgramEndpoint(parts.source, parts.settings, parts.metrics, parts.native),
        program_operation, (ProgramsAnswer,), program_schemas,
    ),
    Door(
        columns_route.PATH, "POST", "predict_columns",
        lambda parts: _on_thread(parts, columns_route.answer, parts.settings.max_columns_b),
        columns_route.columns_operation, (ColumnsAnswer,), columns_route.columns_schemas,
    ),
    Door(
        compare_route.PATH, "POST", "compare",
        lambda parts: _on_thread(parts, compare_route.answer, parts.settings.max_body_b),
        compare_route.compare_operation, (compare_route.CompareAnswer,), compare_route.compare_schemas,
    ),
    Door(
        rank_route.PATH, "POST", "rank",
        lambda parts: _on_thread(parts, rank_route.answer, parts.settings.max_body_b),
        rank_route.rank_operation, (rank_route.RankAnswer,), rank_route.rank_schemas,
    ),
    Door(
        sweep_route.PATH, "POST", "sweep",
        lambda parts: _on_thread(parts, sweep_route.answer, parts.settings.max_body_b),
        sweep_route.sweep_operation, (sweep_route.SweepAnswer,), sweep_route.sweep_schemas,
    ),
    Door(
        roofline_route.PATH, "POST", "roofline",
        lambda parts: _on_thread(parts, roofline_route.answer, parts.settings.max_body_b),
        roofline_route.roofline_operation, (roofline_route.RooflineAnswer,), roofline_route.roofline_schemas,
    ),
    Door(
        measured_route.SETS_PATH, "GET", "list_measurement_sets",
        lambda parts: measured_route.sets_endpoint(parts.measured),
        measured_describe.sets_operation, (MeasuredSetsAnswer,),
    ),
    Door(
        measured_route.PATH, "GET", "list_measurements",
        lambda parts: measured_route.rows_endpoint(parts.measured, parts.devices),
        measured_describe.rows_operation, (MeasurementsAnswer,),
    ),
    Door(
        measured_route.LIKE_PATH, "POST", "list_measurements_like",
        lambda parts: measured_route.LikeEndpoint(parts.measured, parts.devices),
        measured_describe.like_operation, (LikeAnswer,), measured_describe.like_schemas,
    ),
    Door(
        accuracy_route.PATH, "GET", "get_accuracy",
        lambda parts: accuracy_route.accuracy_endpoint(parts.source),
        accuracy_route.accuracy_operation, (AccuracyAnswer,),
    ),
    Door(
        card_route.PATH, "GET", "get_model_card",
        lambda parts: card_route.card_endpoint(parts.source),
        card_route.card_operation,
    ),
    Door(
        nights_route.PATH, "GET", "list_nights",
        lambda parts: nights_route.list_endpoint(parts.nights),
        nights_route.list_operation, (NightsAnswer,),
    ),
    Door(
        nights_route.NIGHT_PATH, "GET", "get_night",
        lambda parts: nights_route.night_endpoint(parts.nights),
        nights_route.night_operation, (NightReport,),
    ),
    Door(
        nights_route.PAGE_PATH, "GET", "get_night_page",
        lambda parts: nights_route.page_endpoint(parts.nights),
        nights_route.page_operation,
    ),
    Door(
        admin_route.PATH, "POST", "reload_model",
        lambda parts: admin_route.endpoint(parts.source, parts.metrics),
        admin_route.reload_operation, (admin_route.ReloadAnswer,),
    ),
    *(Door(*row) for row in INFERENCE_ROWS),
)  # fmt: skip
