"""The service: routes over a predictor source. `create_app` builds it, `server.py` runs it.

Import it after `server.cap_threads`, as it loads numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

from ..client.answers import Health, ServedModel, ServedModels
from ..features.device import Catalogue, catalogue
from ..features.mlir.parse.parser_process import NativeReader
from ..files import home_dir
from ..models.engine.runtime import chosen_engine
from ..models.family_model.artifact import default_model_dir
from ..version import __version__
from .browse.catalogue import add_catalogue, add_document
from .browse.measurements.endpoint import MAX_DEVICES as MAX_QUESTION_DEVICES
from .browse.measurements.endpoint import MeasuredRows
from .browse.nights import NightsState
from .browse.nights_folder import NightsFolder
from .browse.reload import look_for_model
from .middleware.access import AccessControl
from .middleware.admission import AdmissionControl, Limits
from .middleware.api_keys import KeyRing, read_key
from .middleware.error_boundary import ErrorBoundary, install_problem_handlers
from .middleware.proxy import check_prefix
from .model_source import DirectorySource, PredictorSource, Watcher, require_model
from .page.openapi import install_document, route_description
from .page.static_files import add_docs, add_pages
from .routes import ROUTES, Services
from .settings import Settings
from .telemetry.metrics import CONTENT_TYPE, Metrics
from .telemetry.tracing import Tracing, tracing_from_settings
from .telemetry.usage_log import LAST_WRITE_S, WRITE_S, UsageLog
from .transport.bodies import json_response

GZIP_LEAST_B = 1024
"""Shorter answers are sent as they are: they fit one packet either way."""

GZIP_LEVEL = 1
"""A batch answer of 1.6 MB shrinks to 27 % at 180 MB/s; level 6 reaches 23 % at 16 MB/s."""

GZIP_THREAD_B = 32 << 10
"""Up to this size an answer is packed on the event loop (some 0.2 ms); larger ones on a thread."""


def create_app(
    source: PredictorSource,
    settings: Settings | None = None,
    devices: Catalogue | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The ASGI application that answers from `source`; `devices` are those it lists (default: the shipped ones).

    `tracing` makes spans of requests (default: as the settings and the environment say).

    Raises:
        SpecError: the settings ask for traces and the packages for them are not installed.
    """
    settings = settings or Settings()
    devices = devices or catalogue()
    usage = None if settings.usage_log is None else UsageLog(settings.usage_log, settings.usage_days)
    nights = NightsFolder(settings.nights or home_dir() / "nights")
    metrics = Metrics(lambda: _model_of(source), usage, (NightsState(nights),))
    tracing = tracing or tracing_from_settings(settings.tracing, lambda: (_model_of(source) or ("", "none"))[1])
    native = NativeReader()
    measured = MeasuredRows()
    ring = KeyRing([read_key(text) for text in settings.api_keys], settings.api_keys_file)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher = Watcher(partial(look_for_model, source, metrics), settings.reload_s)
        await watcher.start()
        key_watcher = Watcher(ring.refresh, settings.reload_s)
        await key_watcher.start()
        if usage is not None:
            usage_writer = Watcher(metrics.write_usage, WRITE_S)
            await usage_writer.start(wait_s=0)
        try:
            yield
        finally:
            watcher.stop()
            key_watcher.stop()
            if usage is not None:
                usage_writer.stop()
                # A disk that hangs does not keep the process from ending.
                with move_on_after(LAST_WRITE_S):
                    await run_sync(metrics.write_usage, abandon_on_cancel=True)
            if tracing is not None:
                await run_sync(tracing.close)
            await run_sync(native.close)
            await run_sync(measured.close)

    app = FastAPI(
        title="kernelcast", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None,
        # Spans are `tracing`'s, and metrics ours: the framework's own would tell of bodies and of every function.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,
        summary="What a kernel costs on a device: latency, power and energy, with an interval, without running it",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )  # fmt: skip
    install_problem_handlers(app)
    services = Services(source, settings, metrics, devices, native, measured, nights)
    for route in ROUTES:
        # Plain routes: the framework's own reading of bodies and building of answers costs more than a prediction.
        app.router.routes.append(Route(route.path, route.build(services), methods=[route.method], name=route.name))
    add_catalogue(app, devices)
    add_document(app)
    add_docs(app)
    _add_state(app, source, metrics)
    add_pages(app)
    install_document(app, devices, ROUTES, MAX_QUESTION_DEVICES)
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    limits = Limits(settings.max_concurrency, settings.max_held_b, settings.body_timeout_s, settings.request_timeout_s)
    app.add_middleware(AdmissionControl, limits=limits, metrics=metrics)
    app.add_middleware(
        GZipMiddleware, minimum_size=GZIP_LEAST_B, compresslevel=GZIP_LEVEL, thread_minimum_size=GZIP_THREAD_B,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "application/problem+json"),
    )  # fmt: skip
    access = AccessControl(
        ring, metrics, host=settings.host, allow_open=settings.allow_open, allowed_hosts=settings.allowed_hosts
    )
    check_prefix(settings.root_path, paths)
    # The last added is the outermost.
    app.add_middleware(
        ErrorBoundary, metrics=metrics, routes=paths, access=access, prefix=settings.root_path,
        trusted=settings.trusted_proxies, log_requests=settings.access_log, tracing=tracing,
    )  # fmt: skip
    return app


def build(settings: Settings) -> FastAPI:
    """The application that answers from the settings' artifact directory; its source is `app.state.source`.

    Raises:
        SpecError: a device file is no device file, or the environment asks for an engine that is not there.
    """
    chosen_engine()
    devices = settings.devices()
    model = settings.model
    source = DirectorySource(default_model_dir if model is None else lambda: model, devices)
    app = create_app(source, settings, devices)
    app.state.source = source
    return app


def _add_state(app: FastAPI, source: PredictorSource, metrics: Metrics) -> None:
    @app.get(
        "/v1/models", **route_description(ServedModels, "The model that answers, and why a newer one was not taken")
    )
    async def list_models() -> Response:
        loaded = source.current
        if loaded is None:
            return json_response(ServedModels([]))
        path = None if loaded.path is None else str(loaded.path)
        model = ServedModel(loaded.name, path, loaded.loaded_at, dict(loaded.manifest), source.problem)
        return json_response(ServedModels([model]))

    @app.get("/healthz", **route_description(Health, "200 while the process answers"))
    async def healthz() -> Response:
        return json_response(Health("ok"))

    @app.get("/readyz", **route_description(Health, "200 once a model is loaded", 503))
    async def readyz() -> Response:
        require_model(source)
        return json_response(Health("ready"))

    @app.get("/metrics", **route_description("Metrics", "Counters and histograms in the Prometheus text format"))
    async def get_metrics() -> Response:
        return Response(await run_sync(metrics.text), media_type=CONTENT_TYPE)


def _model_of(source: PredictorSource) -> tuple[str, str] | None:
    """Name and version of the model that answers now."""
    loaded = source.current
    return None if loaded is None else (loaded.name, loaded.version)
