"""The table of routes: one `Route` per path and method, from which `app.create_app` serves them and describes them.

To add a route: write a module with its endpoint, add one row to `ROUTES`, and describe it under its name in
`page/openapi.json`. An endpoint is an ASGI class over what it needs of `Services`, or a function from a Starlette request to a
response. What several routes share and that must be opened or closed (a child process) is a field of `Services`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..client.answers import (
    Batch,
    Columns,
    Comparison,
    Prediction,
    Programs,
    Ranking,
    Roofline,
    Sweep,
    Wholes,
)
from ..features.device import Catalogue
from ..features.mlir.parse.parser_process import NativeReader
from .browse import accuracy, model_card, nights, reload
from .browse.measurements import endpoint as measurements
from .browse.measurements.answer import LikeAnswer, MeasuredSetsAnswer, MeasurementsAnswer
from .browse.nights_folder import NightReport, NightsAnswer, NightsFolder
from .compare import devices, rank, roofline, sweep
from .model_source import PredictorSource
from .predict import columns, mlir, model
from .predict.open_inference import endpoint as inference
from .predict.spec import SpecEndpoint
from .predict.thread_endpoint import Answer, ThreadEndpoint
from .settings import Settings
from .telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Services:
    """What endpoints are built from; there is one of each for all routes of an application.

    Attributes:
        source: the model that answers now.
        settings: the settings of the service.
        metrics: counters of requests and predictions.
        devices: the catalogue that the service lists.
        native: native MLIR parsers, in a process of their own.
        measured: questions about measured rows, to a process of their own.
        nights: the folder of nightly reports.
    """

    source: PredictorSource
    settings: Settings
    metrics: Metrics
    devices: Catalogue
    native: NativeReader
    measured: measurements.MeasuredRows
    nights: NightsFolder


@dataclass(frozen=True, slots=True)
class Route:
    """A route.

    Attributes:
        path: the path, with parameters in braces.
        method: the HTTP method.
        name: its operationId, by which `page/openapi.json` describes it; one that is not in there is not in the document.
        build: makes what answers it.
        answers: the msgspec types it answers with, whose schemas the document gets.
    """

    path: str
    method: str
    name: str
    build: Callable[[Services], Callable[..., Any]]
    answers: tuple[type, ...] = ()


def _on_thread(answer: Answer) -> Callable[[Services], ThreadEndpoint]:
    return lambda services: ThreadEndpoint(
        services.source, services.settings, services.metrics, answer, services.settings.max_body_b
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "/v1/predict", "POST", "predict",
        lambda services: SpecEndpoint(services.source, services.settings, services.metrics), (Prediction, Batch),
    ),
    Route(
        "/v1/predict/model", "POST", "predict_model",
        lambda services: model.ModelEndpoint(services.source, services.settings, services.metrics), (Wholes,),
    ),
    Route(
        "/v1/predict/mlir", "POST", "predict_mlir",
        lambda services: mlir.ProgramEndpoint(services.source, services.settings, services.metrics, services.native),
        (Programs,),
    ),
    Route(
        "/v1/predict/columns", "POST", "predict_columns",
        lambda services: ThreadEndpoint(
            services.source, services.settings, services.metrics, columns.answer, services.settings.max_columns_b
        ),
        (Columns,),
    ),
    Route("/v1/compare", "POST", "compare", _on_thread(devices.answer), (Comparison,)),
    Route("/v1/rank", "POST", "rank", _on_thread(rank.answer), (Ranking,)),
    Route("/v1/sweep", "POST", "sweep", _on_thread(sweep.answer), (Sweep,)),
    Route("/v1/roofline", "POST", "roofline", _on_thread(roofline.answer), (Roofline,)),
    Route(
        "/v1/measurements/sets", "GET", "list_measurement_sets",
        lambda services: measurements.sets_endpoint(services.measured), (MeasuredSetsAnswer,),
    ),
    Route(
        "/v1/measurements", "GET", "list_measurements",
        lambda services: measurements.rows_endpoint(services.measured, services.devices),
        (MeasurementsAnswer,),
    ),
    Route(
        "/v1/measurements/like", "POST", "list_measurements_like",
        lambda services: measurements.LikeEndpoint(services.measured, services.devices), (LikeAnswer,),
    ),
    Route(
        "/v1/accuracy", "GET", "get_accuracy",
        lambda services: accuracy.accuracy_endpoint(services.source), (accuracy.AccuracyAnswer,),
    ),
    Route("/v1/model-card", "GET", "get_model_card", lambda services: model_card.card_endpoint(services.source)),
    Route("/v1/nights", "GET", "list_nights", lambda services: nights.list_endpoint(services.nights), (NightsAnswer,)),
    Route(
        "/v1/nights/{id}", "GET", "get_night", lambda services: nights.night_endpoint(services.nights), (NightReport,),
    ),
    Route("/nights/{id}", "GET", "get_night_page", lambda services: nights.page_endpoint(services.nights)),
    Route(
        reload.PATH, "POST", "reload_model", lambda services: reload.endpoint(services.source, services.metrics),
        (reload.ReloadAnswer,),
    ),
    *(Route(*row) for row in inference.ROWS),
)  # fmt: skip
