"""OpenTelemetry traces, where they are enabled: a span per request, in the trace that its `traceparent` names.

Needs the packages of the extra `otel`. Where traces are not enabled, nothing that makes them is imported and no request does
any work for them. Where spans go and which are kept is set by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`).
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...features.errors import SpecError
from .request_log import RequestContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Routes that machines ask every few seconds; their spans would only hide the others."""

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_INSTALL = "pip install 'kernelcast[otel]'"
_log = logging.getLogger("kernelcast.api")


OpenSpan = tuple["Span", Any]
"""A span that has not ended yet, and what `opentelemetry.context.detach` needs to restore the context before it."""


class Tracing:
    """Spans of requests, through `provider`; `version` tells the version of the model that answers."""

    def __init__(self, provider: TracerProvider, version: Callable[[], str]) -> None:
        from opentelemetry import context, propagate, trace

        self._provider = provider
        self._version = version
        self._tracer = provider.get_tracer("kernelcast")
        self._context = context
        self._trace = trace
        self._extract = propagate.extract

    def begin(
        self, request: RequestContext, method: str, route: str, headers: Mapping[bytes, bytes]
    ) -> OpenSpan | None:
        """Open the span of a request; None for a route that is not traced."""
        if route in UNTRACED:
            return None
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate", "baggage")
            if name.encode() in headers
        }
        parent = self._extract(carrier)
        attributes = {
            "http.request.method": method[:20],
            "http.route": route,
            "kernelcast.request_id": request.request_id,
        }
        span = self._tracer.start_span(
            f"{method[:20]} {route}", parent, kind=self._trace.SpanKind.SERVER, attributes=attributes
        )
        request.trace_id = f"{span.get_span_context().trace_id:032x}"
        return span, self._context.attach(self._trace.set_span_in_context(span, parent))

    def end(self, open_span: OpenSpan, request: RequestContext, status: int) -> None:
        """Close the span of a request that was answered with `status`, 0 where it was not."""
        span, token = open_span
        if span.is_recording():
            span.set_attributes({"http.response.status_code": status, "kernelcast.model_version": self._version()})
            if request.predictions:
                span.set_attributes({
                    "kernelcast.predictions": request.predictions,
                    "kernelcast.families": request.families,
                    "kernelcast.devices": request.devices,
                })  # fmt: skip
            if status >= 500 or not status:
                span.set_status(self._trace.StatusCode.ERROR)
        span.end()
        self._context.detach(token)

    def close(self) -> None:
        """Send what waits; may take seconds where the collector does not answer."""
        self._provider.shutdown()


def require_packages(setting: bool | None) -> None:
    """Check that the packages are installed, where the setting enables traces.

    Raises:
        SpecError: traces are enabled and a package is not installed.
    """
    if setting and (missing := _missing()):
        raise SpecError(
            f"KERNELCAST_TRACING asks for traces, but {missing} is not installed; {_INSTALL}", field="tracing"
        )


def tracing_from_settings(
    setting: bool | None, version: Callable[[], str], env: Mapping[str, str] | None = None
) -> Tracing | None:
    """Traces where the setting asks for them, or, where it says nothing (None), the environment names a collector.

    Raises:
        SpecError: the setting asks for them and the packages are not installed.
    """
    env = os.environ if env is None else env
    named = next((name for name in ENDPOINTS if env.get(name, "").strip()), None)
    if setting is False or (setting is None and named is None):
        return None
    require_packages(setting)
    if missing := _missing():
        _log.warning("%s is set, but %s is not installed: no traces are sent; %s", named, missing, _INSTALL)
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if env.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "kernelcast"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, version)


def _missing() -> str | None:
    """The package that traces need and that is not installed, None where all are."""
    try:
        for name in _NEEDED:
            importlib.import_module(name)
    except ImportError as error:
        return error.name or str(error)
    return None
