"""What kernels a service is asked for, counted where its operator opted in, so that measuring goes where the questions are.

Nothing says who asked, or when within a day. A worker keeps one file a day, rewritten in one piece every `WRITE_S` seconds:
`<day>-<process>-<random>.jsonl` with days in UTC. Its first line is the head, every other one a kernel, most asked first:

    {"format_version": 1, "day": "2026-11-22", "asked": 41210.0, "missed": 3.0, "left_out": 0}
    {"family": "gemm", "dtype": "bf16", "kv_dtype": null, "variant": "", "impl": "", "sizes": {"m": 1, "n": 4096, "k": 4096},
     "config": {}, "threads": null, "cache_state": "hot", "device": "nvidia-h200-sxm-141gb", "count": 128.0}

`asked` are all kernels counted that day, `missed` bounds how much any kernel's count is too low, `left_out` are kernels that
the file had no room for. Kernels of a request beyond `ALL` are a random sample of `sample_size`, each of them standing for as
many as it was drawn from. `datasets/usage.py` reads the folder; the two share this text and no code, as the server imports no
datasets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..features.cases import Cases, Floats, Indices
from ..features.kernel import KernelSpec

FORMAT_VERSION = 1
KEPT = 4096
"""Kernels whose counts are kept for sure; twice as many are held at most, some 5 MB a worker."""
ALL = 8
"""Kernels of one request that are all counted; of more, a sample is."""
MOST_DRAWN = 256
"""Kernels that are drawn from one request at most."""
WRITE_S = 60.0
"""Seconds between two writings of a worker's file."""
LAST_WRITE_S = 5.0
"""Seconds that the last writing, as the process ends, may take."""
MAX_FILE_B = 4 << 20
"""Longest file of a worker and day; kernels asked least are left out."""
MAX_FOLDER_B = 256 << 20
"""Bytes of all files together; the oldest are removed beyond it, such as those of a worker that is restarted all day."""
FILE_NAME = re.compile(r"\.?(\d{4}-\d{2}-\d{2})-\d+-[0-9a-f]{8}\.jsonl(?:\.new)?")
"""Names of the files, half-written ones of workers that were killed among them; nothing else in the folder is ever touched."""

_DRAWN_OF = 64
_TEXT = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")
_log = logging.getLogger("kernelcast.api")

Pairs = tuple[tuple[str, int], ...]
Asked = tuple[str, str, Pairs, str, str, str | None, Pairs, int | None, str, str]
"""The fields of a spec in their order, and the catalogue name of the device it was asked about. A tuple, as rows in columns
would spend most of their time on becoming specs."""


def sample_size(n: int) -> int:
    """How many of a request's `n` kernels are counted: all up to `ALL`, else one in 64, from `ALL` to `MOST_DRAWN`."""
    return n if n <= ALL else max(ALL, min(MOST_DRAWN, n // _DRAWN_OF))


class Sketch:
    """Counts of the things seen most often, in bounded memory; not safe for threads.

    Misra-Gries with pruning in one go (Agarwal et al., "Mergeable Summaries", PODS 2012): when more than `2 * kept` are held,
    the count of the (`kept` + 1)-th largest is taken off every one, and those left without any are dropped. A count is never
    too high, and too low by `missed` at most, which is at most `total / (kept + 1)`.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self.counts: dict[Asked, float] = {}
        self.total = 0.0
        self.missed = 0.0

    def add(self, one: Asked, weight: float) -> None:
        """Count `one`, `weight` times."""
        counts = self.counts
        counts[one] = counts.get(one, 0.0) + weight
        self.total += weight
        if len(counts) > 2 * self._kept:
            floor = sorted(counts.values(), reverse=True)[self._kept]
            self.counts = {key: count - floor for key, count in counts.items() if count > floor}
            self.missed += floor


class UsageLog:
    """Counts kernels from any thread; `write` puts them into `folder`, whose files are kept for `days` days.

    `today` gives the day in UTC. What fails while writing is told once in the log and counted in `failures`; counting goes on.
    """

    def __init__(
        self, folder: Path, days: int = 30, *, kept: int = KEPT, today: Callable[[], date] | None = None
    ) -> None:
        self._folder = folder
        self._days = days
        self._kept = kept
        self._today = today or (lambda: datetime.now(UTC).date())
        self._mine = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - a sample, no secret
        self._turn = threading.Lock()
        self._writing = threading.Lock()
        self._day = self._today()
        self._sketch = Sketch(kept)
        self._written = 0.0
        self._told = ""
        self.counted = 0.0
        self.failures = 0

    def specs(self, specs: Sequence[KernelSpec], devices: Sequence[str]) -> None:
        """Count the kernels of a request, `devices` naming one per kernel."""
        n = len(specs)
        if n == 1:
            # What most requests ask for.
            with self._turn:
                self._sketch.add(_asked(specs[0], devices[0]), 1.0)
                self.counted += 1.0
            return
        size = sample_size(n)
        rows: Iterable[int] = range(n) if size == n else self._random.sample(range(n), size)
        self._add([_asked(specs[i], devices[i]) for i in rows], n)

    def cases(self, cases: Cases) -> None:
        """Count the rows of a request in columns; `cases.device` holds catalogue names."""
        n = len(cases)
        size = sample_size(n)
        # Drawn before any row becomes an object: the rest costs nothing.
        rows = None if size == n else np.array(self._random.sample(range(n), size), dtype=np.intp)
        self._add(list(_rows(cases, rows)), n)

    def _add(self, rows: Sequence[Asked], n: int) -> None:
        if not rows:
            return
        weight = n / len(rows)
        with self._turn:
            for one in rows:
                self._sketch.add(one, weight)
            self.counted += n

    def write(self) -> None:
        """Write the day's file, begin a new one at a new day, and remove what is too old; never raises for a bad disk."""
        with self._writing:
            today = self._today()
            with self._turn:
                day, sketch = self._day, self._sketch
                counts, total, missed = dict(sketch.counts), sketch.total, sketch.missed
                if day != today:
                    self._day, self._sketch = today, Sketch(self._kept)
            try:
                if total != self._written:
                    _put(self._folder / f"{day}-{self._mine}.jsonl", _content(day, counts, total, missed))
                    self._written = total
                _tidy(self._folder, today - timedelta(days=self._days), self._mine)
            except OSError as error:
                self.failures += 1
                said = error.strerror or type(error).__name__
                if said != self._told:
                    _log.warning("usage cannot be written to %s (%s); answers are not affected", self._folder, said)
                self._told = said
            else:
                if self._told:
                    _log.info("usage is written to %s again", self._folder)
                self._told = ""
            if day != today:
                self._written = 0.0


def _asked(spec: KernelSpec, device: str) -> Asked:
    return (spec.family, spec.dtype, spec.dims, spec.variant, spec.impl, spec.kv_dtype, spec.config, spec.threads,
            spec.cache_state, device)  # fmt: skip


def _rows(cases: Cases, rows: Indices | None) -> Iterator[Asked]:
    """The cases at `rows` (None: all of them); they were checked when they were read."""
    family, n = cases.family, len(cases) if rows is None else len(rows)
    sizes = zip(*(_whole(cases.sizes[name], rows) for name in family.dim_names), strict=True)
    knobs = {name: column for name, column in sorted(cases.config.items()) if not np.isnan(column).all()}
    config: Iterable[tuple[int | None, ...]] = zip(*(_whole(column, rows) for column in knobs.values()), strict=True)
    text = zip(*(_texts(cases, name, rows, n) for name in _TEXT), strict=True)
    columns = zip(text, sizes, config if knobs else repeat((), n), _whole(cases.threads, rows), strict=True)
    for (device, dtype, kv_dtype, variant, impl, cache_state), size, values, threads in columns:
        dims: Any = tuple(zip(family.dim_names, size, strict=True))
        given = (
            tuple((name, value) for name, value in zip(knobs, values, strict=True) if value is not None)
            if values
            else ()
        )
        kv_dtype = None if kv_dtype == dtype else kv_dtype
        yield family.name, dtype, dims, variant, impl, kv_dtype, given, threads, cache_state, device


def _whole(column: Floats, rows: Indices | None) -> list[int | None]:
    """Numbers of a column as whole ones; NaN, the only number unlike itself, is one that was not given."""
    found = (column if rows is None else column[rows]).tolist()
    return [int(value) if value == value else None for value in found]


def _texts(cases: Cases, name: str, rows: Indices | None, n: int) -> Iterable[str]:
    """The words of a text column."""
    coded = cases.coded(name)
    if len(coded.words) == 1:
        return repeat(str(coded.words[0]), n)
    return [str(coded.words[code]) for code in (coded.code if rows is None else coded.code[rows]).tolist()]


def _content(day: date, counts: dict[Asked, float], total: float, missed: float) -> bytes:
    lines: list[bytes] = []
    room = MAX_FILE_B - 512
    for asked, count in sorted(counts.items(), key=lambda item: item[1], reverse=True):
        line = msgspec.json.encode(_line(asked, count))
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    head = {"format_version": FORMAT_VERSION, "day": str(day), "asked": total, "missed": missed,
            "left_out": len(counts) - len(lines)}  # fmt: skip
    return b"\n".join([msgspec.json.encode(head), *lines, b""])


def _line(asked: Asked, count: float) -> dict[str, Any]:
    family, dtype, dims, variant, impl, kv_dtype, config, threads, cache_state, device = asked
    return {
        "family": family, "dtype": dtype, "kv_dtype": kv_dtype, "variant": variant, "impl": impl, "sizes": dict(dims),
        "config": dict(config), "threads": threads, "cache_state": cache_state, "device": device, "count": round(count, 6),
    }  # fmt: skip


def _put(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees half of it.

    Raises:
        OSError: the folder is full or not writable; the file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(content)
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def _tidy(folder: Path, first: date, mine: str) -> None:
    """Remove files of days before `first`, and beyond `MAX_FOLDER_B` the oldest that are not this worker's.

    Raises:
        OSError: the folder cannot be read, or a file not removed.
    """
    if not folder.is_dir():
        return
    kept: list[tuple[str, Path, int]] = []
    for path in folder.iterdir():
        found = FILE_NAME.fullmatch(path.name)
        if found is None:
            continue
        if found[1] < str(first):
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(FileNotFoundError):  # another worker removed it
            kept.append((path.name, path, path.stat().st_size))
    total = sum(size for _, _, size in kept)
    for name, path, size in sorted(kept):
        if total <= MAX_FOLDER_B:
            return
        if mine not in name:
            path.unlink(missing_ok=True)
            total -= size
