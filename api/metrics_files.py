"""Counts of several workers as one: each keeps a file of its own in a common folder, and whoever is asked adds them up.

A worker writes its file every few seconds, when it ends, and before it answers a scrape; so a count that was once told never
goes back, whichever workers two scrapes meet. What dead workers counted is kept; what they measured (memory, requests in
flight) is not. A worker that is killed loses at most the counts since its last writing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from ..features.errors import SpecError
from .nights_metrics import NIGHT_GAUGES
from .settings import Settings

WRITE_S = 5.0
"""Seconds between two writings of a worker's file."""

_ENDED = "ended.json"
_PATTERN = "worker-*.json"
_log = logging.getLogger("kernelcast.api")

_Key = tuple[str, tuple[tuple[str, str], ...]]


class _Series(msgspec.Struct, array_like=True):
    """One metric: its samples by name and labels."""

    name: str
    kind: str
    text: str
    samples: list[tuple[str, dict[str, str], float]]


class _Ended(msgspec.Struct):
    """What workers that are no more have counted, and whose files are in it though they may still lie there."""

    folded: list[str] = []
    series: list[_Series] = []


def _sum(one: float, other: float) -> float:
    return one + other


_MERGED: Mapping[str, Callable[[float, float], float]] = {
    "kernelcast_model_loaded": min,  # 1 where every worker has one
    "kernelcast_model_info": max,
    "process_start_time_seconds": min,
    "process_max_fds": min,
    # Every worker reads the same folder of nights.
    **dict.fromkeys(NIGHT_GAUGES, max),
}
"""How gauges of workers become one; what is not here is added up, as all counts are."""


@contextlib.contextmanager
def common_folder(settings: Settings) -> Iterator[Settings]:
    """The settings with a folder for the workers' counts, in `metrics_dir` or among temporary ones, while the context lasts.

    Raises:
        SpecError: no folder can be made there.
    """
    try:
        made = tempfile.TemporaryDirectory(
            prefix="kernelcast-metrics-", dir=settings.metrics_dir, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise SpecError(
            f"several workers need a folder to add up their metrics, and none can be made: {error.strerror or error} "
            f"({error.filename or 'TMPDIR'}); name one with KERNELCAST_METRICS_DIR",
            field="metrics_dir",
        ) from error
    with made as folder:
        yield replace(settings, metrics_dir=Path(folder))


class SharedCounts:
    """One worker's `registry` among those of the other workers that keep files in `folder`."""

    def __init__(self, folder: Path, registry: CollectorRegistry) -> None:
        self._folder = folder
        self._registry = registry
        self._turn = threading.Lock()
        # The random part tells a worker from an earlier one whose process number it got.
        self._path = folder / f"worker-{os.getpid()}-{secrets.token_hex(4)}.json"

    def write(self) -> list[_Series]:
        """Write this worker's counts for the others to read, and return them.

        A folder that is gone or full is a warning, no failure.
        """
        with self._turn:
            own = _snapshot(self._registry.collect())
            try:
                _put(self._path, msgspec.json.encode(own))
            except OSError as error:
                _log.warning("this worker's metrics cannot be written for the other workers: %s", error)
            return own

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers, those that ended among them; what `generate_latest` asks of a registry."""
        # What is told is what is written, so that the next scrape, at another worker, cannot be told less.
        own = self.write()
        try:
            with _locked(self._folder):
                ended, alive = self._others()
        except OSError as error:
            _log.warning("the other workers' metrics cannot be read: %s", error)
            ended, alive = [], []
        for one in _merged([ended, *alive, own]):
            metric = Metric(one.name, one.text, one.kind)
            for name, labels, value in one.samples:
                metric.add_sample(name, labels, value)
            yield metric

    def _others(self) -> tuple[list[_Series], list[list[_Series]]]:
        """What ended workers have counted, and what the living others have; files of the newly dead are added up for good."""
        kept = self._folder / _ENDED
        ended = msgspec.json.decode(kept.read_bytes(), type=_Ended) if kept.exists() else _Ended()
        alive, dead = [], []
        for path in sorted(self._folder.glob(_PATTERN)):
            if path.name in ended.folded:
                path.unlink(missing_ok=True)
            elif path != self._path:
                found = msgspec.json.decode(path.read_bytes(), type=list[_Series])
                if _is_alive(int(path.name.split("-")[1])):
                    alive.append(found)
                else:
                    dead.append((path, [one for one in found if one.kind != "gauge"]))
        if dead:
            series = _merged([ended.series, *(found for _, found in dead)])
            # The names first: should this end before the files are gone, they are not counted twice.
            ended = _Ended([path.name for path, _ in dead], series)
            _put(kept, msgspec.json.encode(ended))
            for path, _ in dead:
                path.unlink(missing_ok=True)
        return ended.series, alive


def _snapshot(metrics: Iterable[Metric]) -> list[_Series]:
    return [
        _Series(
            one.name,
            one.type,
            one.documentation,
            [(sample.name, sample.labels, sample.value) for sample in one.samples],
        )
        for one in metrics
    ]


def _merged(workers: Iterable[list[_Series]]) -> list[_Series]:
    heads: dict[str, _Series] = {}
    values: dict[str, dict[_Key, float]] = {}
    for one in (series for worker in workers for series in worker):
        heads.setdefault(one.name, one)
        found = values.setdefault(one.name, {})
        for name, labels, value in one.samples:
            merge = min if name.endswith("_created") else _MERGED.get(one.name, _sum)
            key = (name, tuple(labels.items()))
            found[key] = merge(found[key], value) if key in found else value
    return [
        _Series(
            name,
            head.kind,
            head.text,
            [(sample, dict(labels), value) for (sample, labels), value in values[name].items()],
        )
        for name, head in heads.items()
    ]


def _put(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    new = path.with_suffix(f".{secrets.token_hex(4)}.new")
    new.write_bytes(content)
    new.replace(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One worker at a time adds up and clears away."""
    import fcntl  # here: several workers need a POSIX system, one does not

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
