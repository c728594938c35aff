"""Counts which kernels a service is asked for, where its operator opted in, so that measuring goes where the questions are.

Nothing in the log says who asked, or when within a day, nor which timing: collectors time the device. A worker keeps one file a
day, rewritten in one piece every `WRITE_S` seconds: `<day>-<process>-<random>.jsonl`, days in UTC. Its first line is the head,
every other one a kernel, most asked first:

    {"format_version": 1, "day": "2026-11-22", "asked": 41210.0, "missed": 3.0, "left_out": 0}
    {"family": "gemm", "dtype": "bf16", "kv_dtype": null, "variant": "", "impl": "", "sizes": {"m": 1, "n": 4096, "k": 4096},
     "config": {}, "threads": null, "cache_state": "hot", "device": "nvidia-h200-sxm-141gb", "count": 128.0}

`asked` are all kernels counted that day, `missed` those of them that were forgotten to bound the memory, `left_out` is how
many different kernels the file had no room for. Of a request with more than `ALL` kernels a random sample (of
`sample_size`) is counted, each for as many as it was drawn from. `datasets/records/usage_log.py` reads the folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...features.batch.cases import Cases
from ...features.kernel import KernelSpec
from ...files import write_whole

FORMAT_VERSION = 1
CAPACITY = 4096
"""Different kernels that stay when those asked least are forgotten, at twice as many (some 5 MB a worker)."""
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
FILE_NAME = re.compile(r"\.?(\d{4}-\d{2}-\d{2})-\d+-[0-9a-f]{8}\.jsonl(?:\..*\.tmp|\.new)?")
"""Names of the files, half-written ones of workers that were killed among them; nothing else in the folder is ever touched."""

_DRAWN_OF = 64
_log = logging.getLogger("kernelcast.api")

Kernel = tuple[KernelSpec, str]
"""A kernel, and the catalogue name of the device it was asked about."""


def sample_size(n: int) -> int:
    """How many of a request's `n` kernels are counted: all up to `ALL`, else one in 64, from `ALL` to `MOST_DRAWN`."""
    return n if n <= ALL else max(ALL, min(MOST_DRAWN, n // _DRAWN_OF))


class UsageLog:
    """Counts kernels from any thread, and writes the counts into a folder.

    Args:
        folder: Where the files go.
        days: How long files are kept.
        capacity: Different kernels that are counted on.
        today: Gives the day in UTC.
    """

    def __init__(
        self, folder: Path, days: int = 30, *, capacity: int = CAPACITY, today: Callable[[], date] | None = None
    ) -> None:
        self._folder = folder
        self._days = days
        self._capacity = capacity
        self._today = today or (lambda: datetime.now(UTC).date())
        self._worker = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - a sample, no secret
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._day = self._today()
        self._counts: Counter[Kernel] = Counter()
        self._total = 0.0
        self._written = 0.0
        self._problem = ""

    def specs(self, specs: Sequence[KernelSpec], devices: Sequence[str]) -> None:
        """Count the kernels of a request, `devices` naming one per kernel."""
        n = len(specs)
        size = sample_size(n)
        rows: Iterable[int] = range(n) if size == n else self._random.sample(range(n), size)
        self._add([(specs[i], devices[i]) for i in rows], n)

    def cases(self, cases: Cases) -> None:
        """Count the rows of a request in columns; `cases.device` holds catalogue names."""
        n = len(cases)
        size = sample_size(n)
        drawn = cases if size == n else cases.take(np.array(self._random.sample(range(n), size), dtype=np.intp))
        self._add(list(_kernels(drawn)), n)

    def _add(self, kernels: Sequence[Kernel], n: int) -> None:
        if not kernels:
            return
        weight = n / len(kernels)
        with self._lock:
            counts = self._counts
            for kernel in kernels:
                counts[kernel] += weight  # type: ignore[assignment]
            self._total += n
            if len(counts) > 2 * self._capacity:
                self._counts = Counter(dict(counts.most_common(self._capacity)))

    def write(self) -> bool:
        """Write the day's file, begin a new one at a new day, and remove old files; False where the disk is bad.

        A problem is logged once, not at every write; counting goes on.
        """
        with self._write_lock:
            today = self._today()
            with self._lock:
                day, counts, total = self._day, self._counts.copy(), self._total
                if day != today:
                    self._day, self._counts, self._total = today, Counter(), 0.0
            problem = ""
            try:
                if total != self._written:
                    content = _content(day, counts, total)
                    write_whole(self._folder / f"{day}-{self._worker}.jsonl", content, durable=False)
                    self._written = total
                _remove_old(self._folder, today - timedelta(days=self._days), self._worker)
            except OSError as error:
                problem = error.strerror or type(error).__name__
            if problem and problem != self._problem:
                _log.warning("usage cannot be written to %s (%s); answers are not affected", self._folder, problem)
            elif self._problem and not problem:
                _log.info("usage is written to %s again", self._folder)
            self._problem = problem
            if day != today:
                self._written = 0.0
            return not problem


def _kernels(cases: Cases) -> Iterator[Kernel]:
    """The cases; they were checked when they were read."""
    categories = cases.categories
    for row, code in enumerate(categories.code.tolist()):
        case = categories.distinct[code]
        dims = tuple((name, int(cases.sizes[name][row])) for name in cases.family.dim_names)
        config = tuple((name, int(cases.config[name][row])) for name in case.knobs)
        kv_dtype = None if case.kv_dtype == case.dtype else case.kv_dtype
        threads = None if case.threads is None else int(case.threads)
        spec = KernelSpec(
            cases.family.name, case.dtype, dims, case.variant, case.impl, kv_dtype, config, threads, case.cache_state
        )
        yield spec, case.device


def _content(day: date, counts: Counter[Kernel], total: float) -> bytes:
    lines: list[bytes] = []
    free_b = MAX_FILE_B - 512
    for kernel, count in counts.most_common():
        line = msgspec.json.encode(_line(kernel, count))
        free_b -= len(line) + 1
        if free_b < 0:
            break
        lines.append(line)
    head = {"format_version": FORMAT_VERSION, "day": str(day), "asked": total,
            "missed": round(total - sum(counts.values()), 6), "left_out": len(counts) - len(lines)}  # fmt: skip
    return b"\n".join([msgspec.json.encode(head), *lines, b""])


def _line(kernel: Kernel, count: float) -> dict[str, Any]:
    spec, device = kernel
    return {
        "family": spec.family, "dtype": spec.dtype, "kv_dtype": spec.kv_dtype, "variant": spec.variant, "impl": spec.impl,
        "sizes": dict(spec.dims), "config": dict(spec.config), "threads": spec.threads, "cache_state": spec.cache_state,
        "device": device, "count": round(count, 6),
    }  # fmt: skip


def _remove_old(folder: Path, first: date, worker: str) -> None:
    """Remove files of days before `first`, and beyond `MAX_FOLDER_B` the oldest that are not this worker's.

    Raises:
        OSError: the folder cannot be read, or a file not removed.
    """
    if not folder.is_dir():
        return
    files: list[tuple[str, Path, int]] = []
    for path in folder.iterdir():
        match = FILE_NAME.fullmatch(path.name)
        if match is None:
            continue
        if match[1] < str(first):
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(FileNotFoundError):  # another worker removed it
            files.append((path.name, path, path.stat().st_size))
    total = sum(size for _, _, size in files)
    for name, path, size in sorted(files):
        if total <= MAX_FOLDER_B:
            return
        if worker not in name:
            path.unlink(missing_ok=True)
            total -= size
