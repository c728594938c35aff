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
    Devices,
    Prediction,
    Programs,
    Ranking,
    Roofline,
    Sweep,
    WholeModelPredictions,
)
from ..client.device_answers import DevicePage, Health, ServedModels
from ..client.estimate_answers import BestCap, Colocation, Estimates, ShippedModels
from ..client.llm_answers import ServiceFleet, ServicePlans, ServingPrediction, ServingPredictions
from ..features.mlir.parse.parser_process import NativeReader
from .browse import accuracy, catalogue, device_page, measurements, model_card, nights, state
from .browse.measurements_wire import LikeAnswer, MeasuredSetsAnswer, MeasurementsAnswer, NearestAnswer
from .browse.nights_folder import NightReport, NightsAnswer, NightsFolder
from .compare import best_cap, devices, estimate, rank, sweep
from .model_source import Service
from .predict import colocated, columns, mlir, model
from .predict.llm import LlmAnswers
from .predict.open_inference import endpoint as inference
from .predict.spec import SpecEndpoint
from .predict.thread_endpoint import Answer, JsonEndpoint


@dataclass(frozen=True, slots=True)
class Services(Service):
    """What all endpoints are built from.

    Attributes:
        native: native MLIR parsers, in a process of their own.
        measured: questions about measured rows, to a process of their own.
        nights: the folder of nightly reports.
        llm: answers for services of language models, which keep what they know of steps.
    """

    native: NativeReader
    measured: measurements.MeasuredRows
    nights: NightsFolder
    llm: LlmAnswers


@dataclass(frozen=True, slots=True)
class Route:
    """A route.

    Attributes:
        path: the path, with parameters in braces.
        method: the HTTP method.
        name: the name by which `page/openapi.json` describes it; one that is not in there is not in the document.
        build: makes what answers it.
        answers: the msgspec types it answers with, whose schemas the document gets.
    """

    path: str
    method: str
    name: str
    build: Callable[[Services], Callable[..., Any]]
    answers: tuple[type, ...] = ()


def _on_thread(answer: Answer) -> Callable[[Service], JsonEndpoint]:
    return lambda service: JsonEndpoint(service, answer)


ROUTES: tuple[Route, ...] = (
    # Starlette tries them in this order: what is asked most stands first.
    Route("/v1/predict", "POST", "predict", SpecEndpoint, (Prediction, Batch)),
    Route("/v1/devices", "GET", "list_devices", lambda s: catalogue.devices_endpoint(s.devices), (Devices,)),
    Route(
        "/v1/devices/{name}", "GET", "get_device", lambda s: device_page.device_endpoint(s.devices, s.source), (DevicePage,),
    ),
    Route("/v1/kernels", "GET", "list_kernels", lambda _: catalogue.kernels_endpoint()),
    Route("/v1/kernels/{family}", "GET", "get_kernel", lambda _: catalogue.kernel_endpoint()),
    Route("/v1/models", "GET", "list_models", lambda s: state.models_endpoint(s.source), (ServedModels,)),
    Route("/healthz", "GET", "healthz", lambda _: state.health_endpoint(), (Health,)),
    Route("/readyz", "GET", "readyz", lambda s: state.ready_endpoint(s.source), (Health,)),
    Route("/metrics", "GET", "get_metrics", lambda s: state.metrics_endpoint(s.metrics)),
    Route("/v1/predict/model", "POST", "predict_model", model.endpoint, (WholeModelPredictions,)),
    Route("/v1/predict/mlir", "POST", "predict_mlir", lambda s: mlir.ProgramEndpoint(s, s.native), (Programs,)),
    Route(
        "/v1/predict/columns", "POST", "predict_columns",
        lambda s: JsonEndpoint(s, columns.answer, s.settings.max_columns_b), (Columns,),
    ),
    Route("/v1/predict/colocated", "POST", "predict_colocated", _on_thread(colocated.answer), (Colocation,)),
    Route("/v1/estimate", "POST", "estimate", _on_thread(estimate.answer), (Estimates,)),
    Route("/v1/estimate/models", "GET", "list_shipped_models", lambda _: catalogue.models_endpoint(), (ShippedModels,)),
    Route(
        "/v1/llm/predict", "POST", "llm_predict", lambda s: JsonEndpoint(s, s.llm.predict),
        (ServingPrediction, ServingPredictions),
    ),
    Route("/v1/llm/plan", "POST", "llm_plan", lambda s: JsonEndpoint(s, s.llm.plan), (ServicePlans,)),
    Route("/v1/llm/fleet", "POST", "llm_fleet", lambda s: JsonEndpoint(s, s.llm.fleet), (ServiceFleet,)),
    Route("/v1/compare", "POST", "compare", _on_thread(devices.compare), (Comparison,)),
    Route("/v1/best-cap", "POST", "best_cap", _on_thread(best_cap.answer), (BestCap,)),
    Route("/v1/rank", "POST", "rank", _on_thread(rank.answer), (Ranking,)),
    Route("/v1/sweep", "POST", "sweep", _on_thread(sweep.answer), (Sweep,)),
    Route("/v1/roofline", "POST", "roofline", _on_thread(devices.roofline), (Roofline,)),
    Route(
        "/v1/measurements/sets", "GET", "list_measurement_sets", lambda s: measurements.sets_endpoint(s.measured),
        (MeasuredSetsAnswer,),
    ),
    Route(
        "/v1/measurements", "GET", "list_measurements", lambda s: measurements.rows_endpoint(s.measured, s.devices),
        (MeasurementsAnswer,),
    ),
    Route(
        "/v1/measurements/like", "POST", "list_measurements_like",
        lambda s: measurements.like_endpoint(s.measured, s.devices, True), (LikeAnswer,),
    ),
    Route(
        "/v1/measurements/nearest", "POST", "list_measurements_nearest",
        lambda s: measurements.like_endpoint(s.measured, s.devices, False), (NearestAnswer,),
    ),
    Route(
        "/v1/accuracy", "GET", "get_accuracy", lambda s: accuracy.accuracy_endpoint(s.source),
        (accuracy.AccuracyAnswer,),
    ),
    Route("/v1/model-card", "GET", "get_model_card", lambda s: model_card.card_endpoint(s.source)),
    Route("/v1/nights", "GET", "list_nights", lambda s: nights.list_endpoint(s.nights), (NightsAnswer,)),
    Route("/v1/nights/{id}", "GET", "get_night", lambda s: nights.night_endpoint(s.nights), (NightReport,)),
    Route("/nights/{id}", "GET", "get_night_page", lambda s: nights.page_endpoint(s.nights)),
    Route(
        state.RELOAD_PATH, "POST", "reload_model", lambda s: state.reload_endpoint(s.source, s.metrics),
        (state.ReloadAnswer,),
    ),
    *(Route(*row) for row in inference.ROWS),
)  # fmt: skip
