"""Counters and histograms of the service, in the Prometheus text format."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The service's own registry, so that two apps in one process do not share counts.

    Label values come from fixed sets (routes, methods, the catalogue), never from what a request says, so that no one
    can grow the number of series.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "kernelcast_http_requests", "Requests answered", ["route", "method", "status"], registry=self.registry
        )
        self._latency = Histogram(
            "kernelcast_http_request_seconds", "Time from request to last byte of the answer", ["route"],
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self._predictions = Counter(
            "kernelcast_predictions", "Predictions made", ["family", "device", "in_domain"], registry=self.registry
        )
        self._texts = Counter("kernelcast_mlir_texts", "MLIR texts read", ["reader"], registry=self.registry)
        self.model_loaded = Gauge("kernelcast_model_loaded", "1 while a model answers", registry=self.registry)
        self.model_changes = Counter(
            "kernelcast_model_changes", "Times a newly found model was taken", registry=self.registry
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def predictions(self, made: Iterable[tuple[str, str, bool]]) -> None:
        """Count predictions by family, device and whether they were in domain."""
        for (family, device, in_domain), count in Tally(made).items():
            self._predictions.labels(family, device, "true" if in_domain else "false").inc(count)

    def text_read(self, reader: str) -> None:
        """Count an MLIR text by the reader that read it."""
        self._texts.labels(reader).inc()

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self.registry)
