"""Metrics of several workers: prometheus_client's multiprocess mode, with what it leaves out.

In that mode every worker writes its counts to mapped files in the folder that `PROMETHEUS_MULTIPROC_DIR` names, and the worker
that is scraped adds up all files. The library has no `process_*` metrics there; `WorkerProcesses` adds them up.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from ...features.errors import SpecError

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
