"""The service: routes over a predictor source. `create_app` builds it, `server.py` runs it.

Import it after `server.cap_threads`, as it loads numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextvars import Context
from functools import partial
from typing import Any

import msgspec
from anyio import move_on_after
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import Route

from ..features.device import Catalogue, catalogue
from ..features.mlir.parse.parser_process import NativeReader
from ..files import home_dir
from ..models.engine.runtime import chosen_engine
from ..models.family_model.artifact import default_model_dir
from .browse.catalogue import cached_endpoint
from .browse.measurements import MeasuredRows
from .browse.nights import NightsState
from .browse.nights_folder import NightsFolder
from .browse.state import look_for_model
from .middleware.access import AccessControl
from .middleware.admission import AdmissionControl, Limits
from .middleware.api_keys import KeyRing, read_key
from .middleware.error_boundary import PROBLEM_HANDLERS, ErrorBoundary
from .middleware.proxy import check_prefix, prefix_of
from .model_source import DirectorySource, PredictorSource, Watcher
from .page.openapi import document
from .page.static_files import page_routes
from .predict.llm import LlmAnswers
from .routes import ROUTES, Services
from .settings import Settings
from .telemetry.metrics import Metrics
from .telemetry.tracing import Tracing, tracing_from_settings
from .telemetry.usage_log import LAST_WRITE_S, WRITE_S, UsageLog
from .transport.responses import Endpoint

GZIP_LEAST_B = 1024
"""Shorter answers are sent as they are: they fit one packet either way."""

GZIP_LEVEL = 1
"""A batch answer of 1.6 MB shrinks to 27 % at 180 MB/s; level 6 reaches 23 % at 16 MB/s."""

GZIP_THREAD_B = 32 << 10
"""Up to this size an answer is packed on the event loop (some 0.2 ms); larger ones on a thread."""

_MAX_PREFIXES = 8
"""Most prefixes whose OpenAPI document is kept."""


def create_app(
    source: PredictorSource,
    settings: Settings | None = None,
    devices: Catalogue | None = None,
    tracing: Tracing | None = None,
) -> Starlette:
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
    llm = LlmAnswers()
    ring = KeyRing([read_key(text) for text in settings.api_keys], settings.api_keys_file)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        models = Watcher(partial(look_for_model, source, metrics), settings.reload_s)
        await models.start()
        keys = Watcher(ring.refresh, settings.reload_s)
        await keys.start()
        # After the first look for a model, beside the first answers.
        first_questions = Watcher(lambda: llm.warm_up(source.current), settings.reload_s)
        await first_questions.start(wait_s=0)
        usage_writer = Watcher(metrics.write_usage, WRITE_S)
        await usage_writer.start(wait_s=0)
        try:
            yield
        finally:
            for watcher in (models, keys, first_questions, usage_writer):
                watcher.stop()
            # A disk that hangs does not keep the process from ending.
            with move_on_after(LAST_WRITE_S):
                await run_sync(metrics.write_usage, abandon_on_cancel=True)
            if tracing is not None:
                await run_sync(tracing.close)
            await run_sync(native.close)
            await run_sync(measured.close)

    services = Services(source, settings, metrics, devices, native, measured, nights, llm)
    # msgspec builds what it knows of a type at its first use, which two threads must not do at once: the first requests of the
    # page come together.
    for row in ROUTES:
        for kind in row.answers:
            msgspec.json.Decoder(kind)
    routes = [Route(row.path, row.build(services), methods=[row.method], name=row.name) for row in ROUTES]
    routes += [Route("/openapi.json", _document_endpoint(devices), methods=["GET"]), *page_routes()]
    paths = [route.path for route in routes]
    check_prefix(settings.root_path, paths)
    access = AccessControl(
        ring, metrics, host=settings.host, allow_open=settings.allow_open, allowed_hosts=settings.allowed_hosts
    )
    limits = Limits(settings.max_concurrency, settings.max_held_b, settings.body_timeout_s, settings.request_timeout_s)
    middleware = [
        Middleware(
            ErrorBoundary, metrics=metrics, routes=paths, access=access, prefix=settings.root_path,
            trusted=settings.trusted_proxies, log_requests=settings.access_log, tracing=tracing,
        ),
        Middleware(
            GZipMiddleware, minimum_size=GZIP_LEAST_B, compresslevel=GZIP_LEVEL, thread_minimum_size=GZIP_THREAD_B,
            exclude_content_types=(
                *DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "application/problem+json",
            ),
        ),
        Middleware(AdmissionControl, limits=limits, metrics=metrics),
    ]  # fmt: skip
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=PROBLEM_HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def build(settings: Settings) -> Starlette:
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


def _document_endpoint(devices: Catalogue) -> Endpoint:
    """What answers `/openapi.json`, whose server is the prefix that the service is reached under."""

    def make(prefix: str) -> dict[str, Any]:
        # Without the request that happens to be first: its id would be in the examples of problems.
        content = Context().run(document, devices)
        return {**content, "servers": [{"url": prefix}]} if prefix else content

    # Prefixes may come with requests, through a trusted proxy.
    return cached_endpoint(make, lambda request: prefix_of(request.scope), _MAX_PREFIXES)


def _model_of(source: PredictorSource) -> tuple[str, str] | None:
    """Name and version of the model that answers now."""
    loaded = source.current
    return None if loaded is None else (loaded.name, loaded.version)
