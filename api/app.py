"""The service: routes over a predictor source. `create_app` builds it, `server.py` runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import __version__
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from ..features.kernel import families, get_family
from .boundary import Boundary, install_problem_handlers
from .describe import device_answer, standalone_schema
from .metrics import CONTENT_TYPE, Metrics
from .mlir_reader import NativeReader
from .mlir_route import PATH as MLIR_PATH
from .mlir_route import ProgramEndpoint
from .model_route import PATH as MODEL_PATH
from .model_route import ModelEndpoint
from .openapi import documented, install_document
from .predict import PredictEndpoint
from .problems import ProblemError
from .requests import MAX_TEXT
from .settings import Settings
from .source import PredictorSource
from .wire import DeviceAnswer, DevicesAnswer, HealthAnswer, ModelAnswer, ModelsAnswer

STATIC_DIR = Path(__file__).parent / "static"
_STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/static/plot.js": ("plot.js", "text/javascript; charset=utf-8"),
    "/static/style.css": ("style.css", "text/css; charset=utf-8"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
_log = logging.getLogger("kernelcast.api")


def create_app(source: PredictorSource, settings: Settings | None = None, devices: Catalogue | None = None) -> FastAPI:
    """The ASGI application that answers from `source`; `devices` are those it lists (default: the shipped ones)."""
    settings = settings or Settings()
    devices = devices or catalogue()
    metrics = Metrics()
    native = NativeReader()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_sync(_refresh, source, metrics)
        watcher = asyncio.create_task(_watch(source, metrics, settings.reload_s))
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            await run_sync(native.close)

    app = FastAPI(
        title="kernelcast", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False,
        summary="What a kernel costs on a device: latency, power and energy, with an interval, without running it",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )  # fmt: skip
    install_problem_handlers(app)
    predict = PredictEndpoint(source, settings, metrics)
    # A plain route: the framework's own reading of bodies and building of answers costs more than the prediction.
    app.router.routes.append(Route("/v1/predict", predict, methods=["POST"], name="predict"))
    whole = ModelEndpoint(source, settings, metrics)
    app.router.routes.append(Route(MODEL_PATH, whole, methods=["POST"], name="predict_model"))
    programs = ProgramEndpoint(source, settings, metrics, native)
    app.router.routes.append(Route(MLIR_PATH, programs, methods=["POST"], name="predict_mlir"))
    _add_catalogue(app, devices)
    _add_state(app, source, metrics)
    _add_static(app)
    install_document(app, devices)
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(Boundary, metrics=metrics, routes=paths)
    return app


def _add_catalogue(app: FastAPI, devices: Catalogue) -> None:
    @app.get("/v1/devices", **documented(DevicesAnswer, "Every device, with the source of each fact"))
    def list_devices() -> Response:
        return _json(DevicesAnswer([device_answer(device) for device in devices]))

    @app.get("/v1/devices/{name}", **documented(DeviceAnswer, "One device by name or alias", 404))
    def get_device(name: str) -> Response:
        try:
            return _json(device_answer(devices.get(name[:MAX_TEXT])))
        except SpecError as error:
            raise ProblemError(404, str(error)) from error

    @app.get("/v1/kernels", **documented("KernelSchemas", "JSON Schema of a spec of every kernel family"))
    def list_kernels() -> Response:
        return _json({"kernels": {family.name: standalone_schema(family) for family in families().values()}})

    @app.get("/v1/kernels/{family}", **documented("KernelSchema", "JSON Schema of a spec of one family", 404))
    def get_kernel(family: str) -> Response:
        try:
            return _json(standalone_schema(get_family(family[:MAX_TEXT])), "application/schema+json")
        except SpecError as error:
            raise ProblemError(404, str(error)) from error


def _add_state(app: FastAPI, source: PredictorSource, metrics: Metrics) -> None:
    @app.get("/v1/models", **documented(ModelsAnswer, "The model that answers, and why a newer one was not taken"))
    async def list_models() -> Response:
        loaded = source.current()
        if loaded is None:
            return _json(ModelsAnswer([]))
        path = None if loaded.path is None else str(loaded.path)
        found = ModelAnswer(loaded.name, path, loaded.loaded_at, dict(loaded.manifest), source.problem)
        return _json(ModelsAnswer([found]))

    @app.get("/healthz", **documented(HealthAnswer, "200 while the process answers"))
    async def healthz() -> Response:
        return _json(HealthAnswer("ok"))

    @app.get("/readyz", **documented(HealthAnswer, "200 once a model is loaded", 503))
    async def readyz() -> Response:
        if source.current() is None:
            raise ProblemError(503, f"no model is loaded: {source.problem}", headers={"retry-after": "2"})
        return _json(HealthAnswer("ready"))

    @app.get("/metrics", **documented("Metrics", "Counters and histograms in the Prometheus text format"))
    async def get_metrics() -> Response:
        metrics.model_loaded.set(0 if source.current() is None else 1)
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _add_static(app: FastAPI) -> None:
    for path, (name, media_type) in _STATIC.items():
        endpoint = _file((STATIC_DIR / name).read_bytes(), media_type)
        app.router.routes.append(Route(path, endpoint, methods=["GET"], include_in_schema=False))


def _file(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def file(_: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return file


def _json(answer: Any, media_type: str = "application/json") -> Response:
    return Response(msgspec.json.encode(answer), media_type=media_type)


def _refresh(source: PredictorSource, metrics: Metrics) -> None:
    if source.refresh():
        metrics.model_changes.inc()
        loaded = source.current()
        _log.info("model %s answers now", loaded and loaded.path)


async def _watch(source: PredictorSource, metrics: Metrics, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await run_sync(_refresh, source, metrics)
