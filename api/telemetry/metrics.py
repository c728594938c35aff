"""Counters and histograms of the service, in the Prometheus text format, and those of several workers together.

Several workers use prometheus_client's multiprocess mode: every worker writes its counts to mapped files in the folder that
`PROMETHEUS_MULTIPROC_DIR` names, and the worker that is scraped adds up all files. The library has no `process_*` metrics
there; `WorkerProcesses` adds them up.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from ...features.errors import SpecError
from .request_log import CURRENT_REQUEST

if TYPE_CHECKING:
    # For types alone: it loads numpy, which must come after `server.cap_threads`.
    from collections.abc import Sequence

    from ...features.batch.cases import Cases
    from ...features.kernel import KernelSpec
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
        model = self._model()
        yield GaugeMetricFamily("kernelcast_model_loaded", "1 while a model answers", value=0 if model is None else 1)
        info = GaugeMetricFamily("kernelcast_model_info", "The model that answers", labels=["name", "version"])
        if model is not None:
            info.add_metric(model, 1)
        yield info


class Metrics:
    """The service's own registry, so that two apps in one process do not share counts.

    Label values come from fixed sets (routes, methods, the catalogue), never from what a request says, so that no one
    can grow the number of series. Where `PROMETHEUS_MULTIPROC_DIR` is set, the counts are those of all workers.

    Args:
        model: Name and version of the model that answers, None while there is none.
        usage: Counts the kernels that are asked for; None without a usage log.
        more: Collectors of further metrics, whose answers are the same in every worker.
    """

    def __init__(
        self,
        model: Callable[[], tuple[str, str] | None] = lambda: None,
        usage: UsageLog | None = None,
        more: Iterable[Collector] = (),
    ) -> None:
        self.usage = usage
        self.registry = registry = CollectorRegistry()
        requests = Counter(
            "kernelcast_http_requests", "Requests answered", ["route", "method", "status"], registry=registry
        )
        latency = Histogram(
            "kernelcast_http_request_seconds", "Time from request to last byte of the answer", ["route"],
            buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip
        taken = Histogram(
            "kernelcast_http_request_body_bytes", "Size of request bodies as they came", ["route"],
            buckets=_BUCKETS_B, registry=registry,
        )  # fmt: skip
        sent = Histogram(
            "kernelcast_http_response_body_bytes", "Size of answers as they were sent, packed or not", ["route"],
            buckets=_BUCKETS_B, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "kernelcast_http_requests_in_flight", "Requests being answered now", registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self._usage_kernels = Counter("kernelcast_usage_kernels", "Kernels counted by the usage log", registry=registry)
        self._usage_failures = Counter(
            "kernelcast_usage_write_failures", "Times the usage log could not be written", registry=registry
        )
        predictions = Counter(
            "kernelcast_predictions", "Predictions made", ["family", "device", "in_domain"], registry=registry
        )
        self._texts = Counter("kernelcast_mlir_texts", "MLIR texts read", ["reader"], registry=registry)
        refusals = Counter(
            "kernelcast_http_refusals", "Requests turned away by keys and limits", ["reason"], registry=registry
        )
        self._refusals = {reason: refusals.labels(reason) for reason in REFUSALS}
        self.model_changes = Counter(
            "kernelcast_model_changes", "Times a newly found model was taken", registry=registry
        )
        self.model_refusals = Counter(
            "kernelcast_model_refusals", "Times a newly found model was not taken, or none was found", registry=registry
        )
        # What `labels` looks up takes longer than counting does.
        self._answers_of = cache(lambda route, method, status: requests.labels(route, method, str(status)))
        self._histograms_of = cache(lambda route: (latency.labels(route), taken.labels(route), sent.labels(route)))
        self._predictions_of = cache(
            lambda family, device, in_domain: predictions.labels(family, device, "true" if in_domain else "false")
        )
        states = (_ModelState(model), *more)
        if FOLDER_VARIABLE in os.environ:
            self.scraped = all_workers(states)
        else:
            self.scraped = registry
            for collector in (ProcessCollector(registry=None), *states):
                registry.register(collector)

    def count_request(
        self, route: str, method: str, status: int, seconds: float, taken_b: int | None = None, sent_b: int = 0
    ) -> None:
        """Count one request; `taken_b` is the size of its body, None where it has none, `sent_b` that of the answer's."""
        self._answers_of(route, method if method in _METHODS else "other", status).inc()
        latency, taken, sent = self._histograms_of(route)
        latency.observe(seconds)
        if taken_b is not None:
            taken.observe(taken_b)
        sent.observe(sent_b)

    def count_predictions(self, kinds: Iterable[tuple[str, str, bool]] | Mapping[tuple[str, str, bool], int]) -> None:
        """Count predictions by family, device and whether they were in domain, here and for the request's log line.

        `kinds` has one entry per prediction, or says how many there were of each kind.
        """
        if isinstance(kinds, tuple) and len(kinds) == 1:
            # What most requests ask for; to tally it would take longer than to count it.
            tally = {kinds[0]: 1}
        else:
            tally = {kind: count for kind, count in Tally(kinds).items() if count}
        for kind, count in tally.items():
            self._predictions_of(*kind).inc(count)
        if (request := CURRENT_REQUEST.get()) is not None:
            request.predictions += sum(tally.values())
            request.families = len({family for family, _, _ in tally})
            request.devices = len({device for _, device, _ in tally})

    def count_usage(self, specs: Sequence[KernelSpec], devices: Sequence[str]) -> None:
        """Count kernels that a request predicts in the usage log, where there is one.

        Args:
            specs: The kernels.
            devices: The device of each kernel, by catalogue name.
        """
        if self.usage is not None:
            self.usage.specs(specs, devices)
            self._usage_kernels.inc(len(specs))

    def count_usage_cases(self, cases: Cases) -> None:
        """Count kernels in columns in the usage log, where there is one."""
        if self.usage is not None:
            self.usage.cases(cases)
            self._usage_kernels.inc(len(cases))

    def write_usage(self) -> None:
        """Write the usage log, where there is one; call it off the event loop."""
        if self.usage is not None and not self.usage.write():
            self._usage_failures.inc()

    def count_text(self, reader: str) -> None:
        """Count an MLIR text by the reader that read it."""
        self._texts.labels(reader).inc()

    def count_refusal(self, reason: str) -> None:
        """Count a request that a key or a limit turned away, by one of `REFUSALS`."""
        self._refusals.get(reason, self._refusals["other"]).inc()

    def text(self) -> bytes:
        """All metrics as Prometheus reads them; call it off the event loop, it may read files."""
        return generate_latest(self.scraped)


FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

_OLDEST = ("process_start_time_seconds", "process_max_fds")
"""Of these the least value counts; all others are added up."""


@contextlib.contextmanager
def shared_metrics(parent: Path | None) -> Iterator[None]:
    """Have processes started in this context share their metrics, through a folder in `parent` (None: a temporary one).

    Raises:
        SpecError: no folder can be made there.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="kernelcast-metrics-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise SpecError(
            f"several workers need a folder to add up their metrics, and none can be made: {error.strerror or error} "
            f"({error.filename or 'TMPDIR'}); name one with KERNELCAST_METRICS_DIR",
            field="metrics_dir",
        ) from error
    with folder:
        os.environ[FOLDER_VARIABLE] = folder.name
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def all_workers(local: Iterable[Collector]) -> CollectorRegistry:
    """A registry of the metrics of all workers, and of `local` collectors, whose answers are the same in every worker."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    registry = CollectorRegistry()
    # First, as it removes the gauges of dead workers that the second would read.
    registry.register(WorkerProcesses(folder))
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    for collector in local:
        registry.register(collector)
    return registry


class WorkerProcesses(Collector):
    """Processor time, memory and open files of all workers together; gauges of dead workers are removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        totals: dict[str, Metric] = {}
        for pid in sorted({int(path.stem.rpartition("_")[2]) for path in self._folder.glob("*.db")}):
            metrics = list(ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect())  # type: ignore[misc]
            if not metrics:
                mark_process_dead(pid, str(self._folder))  # type: ignore[no-untyped-call]
            for metric in metrics:
                total = totals.setdefault(metric.name, metric)
                if total is not metric:
                    _add(total, metric)
        yield from totals.values()


def _add(total: Metric, metric: Metric) -> None:
    merge = min if metric.name in _OLDEST else lambda values: sum(values)
    total.samples = [
        ours._replace(value=merge((ours.value, theirs.value)))
        for ours, theirs in zip(total.samples, metric.samples, strict=True)
    ]
