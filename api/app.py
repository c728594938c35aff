"""The service: routes over a predictor source. `create_app` builds it, `server.py` runs it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from anyio import move_on_after
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Route

from .. import __version__
from ..features.device import Catalogue, catalogue
from ..home import home_dir
from .access import Access
from .admin_route import look_for_model
from .bodies import json_response
from .boundary import Boundary, install_problem_handlers
from .catalogue_route import add_catalogue, add_document
from .docs_route import add_docs
from .doors import DOORS, Parts
from .keys import KeyRing, read_key
from .limits import Limits
from .measured_reader import MeasuredReader
from .measured_route import MeasuredTurns
from .metrics import CONTENT_TYPE, Metrics
from .metrics_files import WRITE_S
from .mlir_reader import NativeReader
from .nights_folder import NightsFolder
from .nights_metrics import NightsState
from .openapi import documented, install_document
from .pages import add_pages
from .proxy import BehindProxy, check_prefix
from .settings import Settings
from .source import PredictorSource, Watcher, loaded_of
from .tracing import Tracing, tracing_of
from .usage_log import LAST_WRITE_S, UsageLog
from .usage_log import WRITE_S as USAGE_WRITE_S
from .wire import HealthAnswer, ModelAnswer, ModelsAnswer


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
    metrics = Metrics(settings.metrics_dir, lambda: _model_of(source), usage, (NightsState(nights),))
    tracing = tracing or tracing_of(settings.tracing, lambda: (_model_of(source) or ("", "none"))[1])
    native = NativeReader()
    measured = MeasuredTurns(MeasuredReader())
    ring = KeyRing([read_key(text) for text in settings.api_keys], settings.api_keys_file)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher = Watcher(partial(look_for_model, source, metrics), settings.reload_s)
        await watcher.start()
        key_watcher = Watcher(ring.refresh, settings.reload_s)
        await key_watcher.start()
        if metrics.shared is not None:
            writer = Watcher(metrics.shared.write, WRITE_S)
            await writer.start()
        if usage is not None:
            usage_writer = Watcher(usage.write, USAGE_WRITE_S)
            await usage_writer.start(wait_s=0)
        try:
            yield
        finally:
            watcher.stop()
            key_watcher.stop()
            if metrics.shared is not None:
                writer.stop()
                await run_sync(metrics.shared.write)
            if usage is not None:
                usage_writer.stop()
                # A disk that hangs does not keep the process from ending.
                with move_on_after(LAST_WRITE_S):
                    await run_sync(usage.write, abandon_on_cancel=True)
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
    parts = Parts(source, settings, metrics, devices, native, measured, nights)
    for door in DOORS:
        # Plain routes: the framework's own reading of bodies and building of answers costs more than a prediction.
        app.router.routes.append(Route(door.path, door.build(parts), methods=[door.method], name=door.name))
    add_catalogue(app, devices)
    add_document(app)
    add_docs(app)
    _add_state(app, source, metrics)
    add_pages(app)
    install_document(app, devices)
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(Limits, settings=settings, metrics=metrics)
    app.add_middleware(Access, ring=ring, settings=settings, metrics=metrics)
    app.add_middleware(Boundary, metrics=metrics, routes=paths, log_requests=settings.access_log, tracing=tracing)
    # The last added is the outermost: everything inside sees paths without the proxy's prefix.
    check_prefix(settings.root_path, paths)
    app.add_middleware(BehindProxy, prefix=settings.root_path, trusted=settings.trusted_proxies, routes=paths)
    return app


def _add_state(app: FastAPI, source: PredictorSource, metrics: Metrics) -> None:
    @app.get("/v1/models", **documented(ModelsAnswer, "The model that answers, and why a newer one was not taken"))
    async def list_models() -> Response:
        loaded = source.current()
        if loaded is None:
            return json_response(ModelsAnswer([]))
        path = None if loaded.path is None else str(loaded.path)
        found = ModelAnswer(loaded.name, path, loaded.loaded_at, dict(loaded.manifest), source.problem)
        return json_response(ModelsAnswer([found]))

    @app.get("/healthz", **documented(HealthAnswer, "200 while the process answers"))
    async def healthz() -> Response:
        return json_response(HealthAnswer("ok"))

    @app.get("/readyz", **documented(HealthAnswer, "200 once a model is loaded", 503))
    async def readyz() -> Response:
        loaded_of(source)
        return json_response(HealthAnswer("ready"))

    @app.get("/metrics", **documented("Metrics", "Counters and histograms in the Prometheus text format"))
    async def get_metrics() -> Response:
        return Response(await run_sync(metrics.text), media_type=CONTENT_TYPE)


def _model_of(source: PredictorSource) -> tuple[str, str] | None:
    """Name and version of the model that answers now."""
    loaded = source.current()
    return None if loaded is None else (loaded.name, loaded.version)
