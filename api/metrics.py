"""Counters and histograms of the service, in the Prometheus text format."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .exchange import CURRENT
from .metrics_files import SharedCounts

if TYPE_CHECKING:
    # For types alone: it loads numpy, which must come after `server.cap_threads`.
    from collections.abc import Sequence

    from ..features.cases import Cases
    from ..features.kernel import KernelSpec
    from .usage_log import UsageLog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REFUSALS = ("key_missing", "key_unknown", "key_scope", "concurrency", "time", "body", "other")
"""Why requests were turned away; `body` is one too long or of too many rows, and another reason counts as `other`."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BUCKETS_B = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)


class _ModelState(Collector):
    """Which model answers, looked up whenever metrics are read."""

    def __init__(self, model: Callable[[], tuple[str, str] | None]) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        found = self._model()
        yield GaugeMetricFamily("kernelcast_model_loaded", "1 while a model answers", value=0 if found is None else 1)
        info = GaugeMetricFamily("kernelcast_model_info", "The model that answers", labels=["name", "version"])
        if found is not None:
            info.add_metric(found, 1)
        yield info


class _UsageState(Collector):
    """What the usage log has counted, where there is one."""

    def __init__(self, usage: UsageLog | None) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Metric]:
        """The counts."""
        counted = 0.0 if self._usage is None else self._usage.counted
        failures = 0 if self._usage is None else self._usage.failures
        yield CounterMetricFamily("kernelcast_usage_kernels", "Kernels counted by the usage log", value=counted)
        yield CounterMetricFamily(
            "kernelcast_usage_write_failures", "Times the usage log could not be written", value=failures
        )


class Metrics:
    """The service's own registry, so that two apps in one process do not share counts.

    Label values come from fixed sets (routes, methods, the catalogue), never from what a request says, so that no one
    can grow the number of series. With a `folder` the counts are those of all workers that share it.
    `model` gives name and version of the model that answers, None while there is none. `usage` counts the kernels that are
    asked for, None where nobody wants that; `more` are collectors of further metrics.
    """

    def __init__(
        self,
        folder: Path | None = None,
        model: Callable[[], tuple[str, str] | None] = lambda: None,
        usage: UsageLog | None = None,
        more: Iterable[Collector] = (),
    ) -> None:
        self.usage = usage
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "kernelcast_http_requests", "Requests answered", ["route", "method", "status"], registry=registry
        )
        self._latency = Histogram(
            "kernelcast_http_request_seconds", "Time from request to last byte of the answer", ["route"],
            buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._taken = Histogram(
            "kernelcast_http_request_body_bytes", "Size of request bodies as they came", ["route"],
            buckets=_BUCKETS_B, registry=registry,
        )  # fmt: skip
        self._sent = Histogram(
            "kernelcast_http_response_body_bytes", "Size of answers as they were sent, packed or not", ["route"],
            buckets=_BUCKETS_B, registry=registry,
        )  # fmt: skip
        self.in_flight = 0
        Gauge("kernelcast_http_requests_in_flight", "Requests being answered now", registry=registry).set_function(
            lambda: self.in_flight
        )
        self._predictions = Counter(
            "kernelcast_predictions", "Predictions made", ["family", "device", "in_domain"], registry=registry
        )
        self._texts = Counter("kernelcast_mlir_texts", "MLIR texts read", ["reader"], registry=registry)
        refusals = Counter(
            "kernelcast_http_refusals", "Requests turned away by keys and limits", ["reason"], registry=registry
        )
        self._refusals = {reason: refusals.labels(reason) for reason in REFUSALS}
        for collector in (_ModelState(model), _UsageState(usage), *more):
            registry.register(collector)
        self.model_changes = Counter(
            "kernelcast_model_changes", "Times a newly found model was taken", registry=registry
        )
        self.model_refusals = Counter(
            "kernelcast_model_refusals", "Times a newly found model was not taken, or none was found", registry=registry
        )
        # What `labels` looks up takes longer than counting does.
        self._by_kind: dict[tuple[str, str, bool], Counter] = {}
        self._by_answer: dict[tuple[str, str, int], Counter] = {}
        self._by_route: dict[str, tuple[Histogram, Histogram, Histogram]] = {}
        self.shared = None if folder is None else SharedCounts(folder, registry)

    def request(
        self, route: str, method: str, status: int, seconds: float, taken_b: int | None = None, sent_b: int = 0
    ) -> None:
        """Count one request; `taken_b` is the size of its body, None where it has none, `sent_b` that of the answer's."""
        key = (route, method if method in _METHODS else "other", status)
        counter = self._by_answer.get(key)
        if counter is None:
            counter = self._by_answer[key] = self._requests.labels(route, key[1], str(status))
        counter.inc()
        found = self._by_route.get(route)
        if found is None:
            found = (self._latency.labels(route), self._taken.labels(route), self._sent.labels(route))
            self._by_route[route] = found
        latency, taken, sent = found
        latency.observe(seconds)
        if taken_b is not None:
            taken.observe(taken_b)
        sent.observe(sent_b)

    def predictions(self, made: Iterable[tuple[str, str, bool]] | Mapping[tuple[str, str, bool], int]) -> None:
        """Count predictions by family, device and whether they were in domain, here and for the request's log line.

        `made` has one entry per prediction, or says how many there were of each kind.
        """
        if isinstance(made, tuple) and len(made) == 1:
            # What most requests ask for; to tally it would take longer than to count it.
            tally = {made[0]: 1}
        else:
            tally = {kind: count for kind, count in Tally(made).items() if count}
        for kind, count in tally.items():
            counter = self._by_kind.get(kind)
            if counter is None:
                family, device, in_domain = kind
                counter = self._predictions.labels(family, device, "true" if in_domain else "false")
                self._by_kind[kind] = counter
            counter.inc(count)
        if (exchange := CURRENT.get()) is not None:
            exchange.predictions += sum(tally.values())
            exchange.families = len({family for family, _, _ in tally})
            exchange.devices = len({device for _, device, _ in tally})

    def asked(self, specs: Sequence[KernelSpec], devices: Sequence[str]) -> None:
        """Tell the usage log, where there is one, which kernels were asked for, `devices` naming one per kernel."""
        if self.usage is not None:
            self.usage.specs(specs, devices)

    def asked_rows(self, cases: Cases) -> None:
        """The same of cases in columns."""
        if self.usage is not None:
            self.usage.cases(cases)

    def text_read(self, reader: str) -> None:
        """Count an MLIR text by the reader that read it."""
        self._texts.labels(reader).inc()

    def refused(self, reason: str) -> None:
        """Count a request that a key or a limit turned away, by one of `REFUSALS`."""
        self._refusals.get(reason, self._refusals["other"]).inc()

    def text(self) -> bytes:
        """All metrics as Prometheus reads them; call it off the event loop, it may read files."""
        return generate_latest(self.registry if self.shared is None else self.shared)
