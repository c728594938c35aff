"""What a CPU can do, measured in seconds: peak rates per dtype, bandwidth and latency per memory level, dispatch, power.

The same fixed cases on every CPU (only sizes follow its caches), through the same workers and timing as a campaign.
Every peak is taken over two sizes and the better one kept; where the larger is more than 5 % better, the fact says that it
may lie higher still. Power is what the rows of the largest cases carry, and what a package draws at rest. `matrix` is
the rate of a matrix product; `vector` that of layernorm in L2 by its family's count of operations: what elementwise code
reaches, not the most the units could do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.rows.schema import Measurement
from ...features.kernel import KernelSpec, View, get_family
from ...process import core_count
from ..collector import Collector, WorkerLostError
from ..host import cache_sizes_b, measured_fact
from ..meters.find import find_meter
from ..meters.protocol import EnergyMeter, EnergyRefusedError, NoMeter
from .worker import local_workers

# A random cycle through all cache lines (Sattolo's algorithm), so that no prefetcher can guess the next one. Huge pages
# keep address translation out of the number. Repeats during which the process was preempted do not count.
_SOURCE = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { LINE = 64, HUGE_PAGE = 1 << 21, REPEATS = 40, TRIES = 200, LOADS = 20000, COPIED = 1 << 24 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long preemptions(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

static uint64_t state = 88172645463325252ULL;
static uint64_t xorshift(void) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}

/* Fastest of the clean ones of `work`'s times, since whatever else runs only adds; -1 where there is none. */
static double fastest_s(void (*work)(size_t), size_t bytes) {
    double fastest = -1;
    work(bytes);
    for (int i = 0, clean = 0; i < TRIES && clean < REPEATS; i++) {
        long before = preemptions();
        double began = now();
        work(bytes);
        double spent = now() - began;
        if (preemptions() != before) continue;
        clean++;
        if (fastest < 0 || spent < fastest) fastest = spent;
    }
    return fastest;
}

static char *memory;
static void *volatile place; /* volatile: the chase may be neither dropped nor moved out of the timed part */

static void chase(size_t bytes) {
    (void)bytes;
    void **at = place;
    for (int load = 0; load < LOADS; load++) at = (void **)*at;
    place = at;
}

static size_t copies(size_t bytes) { return COPIED / bytes + 1; }

static void copy(size_t bytes) {
    for (size_t i = copies(bytes); i > 0; i--) {
        memcpy(memory + bytes / 2, memory, bytes / 2);
        __asm__ volatile("" : : "r"(memory) : "memory");
    }
}

static int link_cycle(size_t bytes) {
    size_t lines = bytes / LINE, *order = malloc(lines * sizeof *order);
    if (!order) return 0;
    for (size_t i = 0; i < lines; i++) order[i] = i;
    for (size_t i = lines - 1; i > 0; i--) {
        size_t j = xorshift() % i, kept = order[i];
        order[i] = order[j]; order[j] = kept;
    }
    for (size_t i = 0; i < lines; i++) *(void **)(memory + i * LINE) = memory + order[i] * LINE;
    free(order);
    void **at = (void **)memory;
    for (size_t i = 0; i < 2 * lines; i++) at = (void **)*at;
    place = at;
    return 1;
}

int main(int argc, char **argv) {
    cpu_set_t cores;
    CPU_ZERO(&cores); CPU_SET((size_t)atoi(argv[1]), &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    for (int i = 2; i < argc; i++) {
        size_t bytes = (size_t)atoll(argv[i]);
        memory = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
        if (!memory) return 1;
        madvise(memory, bytes, MADV_HUGEPAGE);
        if (!link_cycle(bytes)) return 1;
        double load_s = fastest_s(chase, bytes) / LOADS;
        double copy_s = fastest_s(copy, bytes);
        printf("%.6e %.6e\n", load_s, (double)(copies(bytes) * bytes) / copy_s);
        free(memory);
    }
    return 0;
}
"""


class NoMemoryLevelsError(Exception):
    """Memory levels could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """What one level of memory reaches; None where no repeat was clean.

    Attributes:
        latency_s: Seconds of one dependent load.
        bandwidth_b_per_s: Bytes per second of a copy, read and written counted.
    """

    latency_s: float | None
    bandwidth_b_per_s: float | None


def memory_levels(sizes_b: Sequence[int], core: int, compiler: str | None = None) -> list[MemoryLevel]:
    """What `core` reaches within each of `sizes_b` bytes.

    Raises:
        NoMemoryLevelsError: no C compiler, or the program did not build or run.
    """
    cc = compiler or shutil.which("cc")
    if cc is None:
        raise NoMemoryLevelsError("no C compiler (cc)")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "levels.c", Path(folder) / "levels"
        source.write_text(_SOURCE)
        _run([cc, "-O2", "-o", str(program), str(source)])
        lines = _run([str(program), str(core), *map(str, sizes_b)]).splitlines()
    return [MemoryLevel(*(value if (value := float(word)) > 0 else None for word in line.split())) for line in lines]


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise NoMemoryLevelsError(f"{command[0]} failed: {error.stderr.strip()[:200]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMemoryLevelsError(f"{command[0]}: {error}") from error


_LAUNCH = KernelSpec.of("elementwise", "fp32", variant="addu", impl="torch", threads=1, rows=1, cols=1)
_SMALLEST = {
    dtype: KernelSpec.of("gemm", dtype, impl="torch", threads=1, m=16, n=16, k=16) for dtype in ("fp32", "bf16")
}
_LARGEST_COPY_B = 256 * 2**20
_PRODUCTS = (512, 768)
_OVER_LAUNCH = 1.2
"""A case this close to bare dispatch says nothing of the rate it was meant to show."""

_TRIES = 5
"""On a busy machine a case may give no clean sample; it is measured again so many times in all."""

_LARGER_IS_BETTER = 0.05
"""A larger case better by more than this share says that the smaller did not reach the peak; so may the larger."""

_NO_SENSOR = "no energy sensor; a CPU's is RAPL through Linux powercap, which only root may read on many systems"


@dataclass(frozen=True, slots=True)
class Probe:
    """One fact to measure.

    Attributes:
        name: Name of the fact.
        cases: The cases that show it.
        in_bytes: Whether work is counted in bytes rather than in flops.
    """

    name: str
    cases: tuple[KernelSpec, ...]
    in_bytes: bool = False

    def work(self, spec: KernelSpec) -> float:
        """Bytes or flops of one call."""
        family = get_family(spec.family)
        return float((family.bytes_moved if self.in_bytes else family.flops)(View.of(spec)))


def probes(caches_b: Mapping[str, int], threads: int) -> list[Probe]:
    """Every rate to measure on a CPU with these cache sizes, on one thread (suffix `_1t`) and on all `threads`."""
    results: list[Probe] = []
    for count, suffix in ((1, "_1t"), (threads, "")):
        for dtype in ("fp32", "bf16"):
            products = tuple(_gemm(dtype, count, size) for size in _PRODUCTS)
            results.append(Probe(f"matrix_{dtype}_flops_per_s{suffix}", products))
            # Small enough for L2, so that arithmetic and not memory is what takes the time.
            rows = tuple(_layernorm(dtype, count, size) for size in (64, 128))
            results.append(Probe(f"vector_{dtype}_flops_per_s{suffix}", rows))
        results.append(Probe(f"bandwidth_dram_b_per_s{suffix}", _copies(_dram_sizes_b(caches_b), count), in_bytes=True))
    return results


def characterize(
    device: str,
    *,
    collector_for: Callable[[str, int], Collector] | None = None,
    caches_b: Mapping[str, int] | None = None,
    threads: int | None = None,
    core: int | None = None,
    levels: Callable[[Sequence[int], int], list[MemoryLevel]] = memory_levels,
    meter: EnergyMeter | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure this CPU; half a minute. Nothing is stored.

    Args:
        device: name given to the workers.
        collector_for: as of `run_campaign`.
        caches_b: cache sizes in bytes by level (`l1` …); default: what the system says.
        threads: what "all threads" is; default: all cores.
        core: where one-thread cases run; default: the last core.
        levels: measures latency and bandwidth within sizes in bytes, on a core.
        meter: reads power at rest; default: the machine's own.

    Returns:
        Flat names to `{"value": number or None, "source": when and by what}`, SI units; the source of a None says why
        there is no value.

    Raises:
        ChildStartError: a worker cannot start; torch is not installed, say.
    """
    core = max(os.sched_getaffinity(0)) if core is None else core
    caches = dict(cache_sizes_b() if caches_b is None else caches_b)
    count = threads or core_count()
    facts = {"power_idle_w": _idle_fact(find_meter() if meter is None else meter)}
    workers = _Workers(collector_for or local_workers(device, core))
    try:
        launch_s = workers.latency_s([_LAUNCH])[0]
        facts["launch_torch_s"] = _fact(launch_s)
        facts |= {f"launch_torch_{dtype}_s": _fact(workers.latency_s([spec])[0]) for dtype, spec in _SMALLEST.items()}
        facts |= {probe.name: _rate(probe, workers, launch_s) for probe in probes(caches, count)}
    finally:
        workers.close()
    facts |= {"power_compute_w": _fact(workers.power_w(_gemm("bf16", count, _PRODUCTS[-1])), _NO_SENSOR)}
    facts |= {"power_bandwidth_w": _fact(workers.power_w(_copies(_dram_sizes_b(caches), count)[-1]), _NO_SENSOR)}
    return facts | _level_facts(caches, core, levels)


class _Workers:
    """The collectors in use, one per thread count."""

    def __init__(self, collector_for: Callable[[str, int], Collector]) -> None:
        self._collector_for = collector_for
        self._open: dict[int, Collector] = {}
        self._power_w: dict[KernelSpec, float | None] = {}

    def latency_s(self, cases: Sequence[KernelSpec]) -> list[float | None]:
        """Median latency of each case; None where it could not be measured."""
        threads = cases[0].threads or 1
        if threads not in self._open:
            self._open[threads] = self._collector_for(cases[0].impl, threads)
        latency_s: dict[KernelSpec, float | None] = dict.fromkeys(cases)
        for _ in range(_TRIES):
            missing = [spec for spec, seconds in latency_s.items() if seconds is None]
            if not missing:
                break
            with contextlib.suppress(WorkerLostError):
                rows: list[Measurement] = self._open[threads].collect(missing)
                self._power_w |= {row.spec: row.power_w for row in rows}
                latency_s |= {row.spec: row.latency_s for row in rows}
        return list(latency_s.values())

    def power_w(self, spec: KernelSpec) -> float | None:
        """Power of a case that was measured; None where it has none."""
        return self._power_w.get(spec)

    def close(self) -> None:
        for collector in self._open.values():
            collector.close()


def _rate(probe: Probe, workers: _Workers, launch_s: float | None) -> dict[str, Any]:
    """Best work per second over the probe's cases, dispatch taken off: in L1 it is most of the time."""
    launch = launch_s or 0.0
    rates = [
        probe.work(spec) / (seconds - launch)
        for spec, seconds in zip(probe.cases, workers.latency_s(probe.cases), strict=True)
        if seconds is not None and seconds > _OVER_LAUNCH * launch
    ]
    fact = _fact(max(rates, default=None))
    if len(rates) == len(probe.cases) and rates[-1] > (1 + _LARGER_IS_BETTER) * rates[0]:
        fact["source"] += f"; {rates[-1] / rates[0] - 1:.0%} above the smaller case, so the peak may lie higher still"
    return fact


class _Rest:
    """A `SteadyLoop` of doing nothing."""

    def __init__(self) -> None:
        self._count = 0

    def turn(self) -> int:
        """Sleep a hundredth of a second."""
        time.sleep(0.01)
        self._count += 1
        return self._count


def _idle_fact(meter: EnergyMeter) -> dict[str, Any]:
    if isinstance(meter, NoMeter):
        return _fact(None, _NO_SENSOR)
    try:
        energy = meter.measure(_Rest())
    except EnergyRefusedError as refused:
        return _fact(None, str(refused))
    return _fact(None if energy is None else energy.power_w, _NO_SENSOR)


def _level_facts(
    caches_b: Mapping[str, int], core: int, levels: Callable[[Sequence[int], int], list[MemoryLevel]]
) -> dict[str, dict[str, Any]]:
    """Latency of every level, and one core's bandwidth of every cache.

    Half of a private cache surely fits; of the last one, shared with other cores and on a rented machine with other
    tenants, only an eighth can be counted on.
    """
    sizes = {level: size // (8 if level == "l3" else 2) for level, size in caches_b.items()}
    sizes["dram"] = max(_dram_sizes_b(caches_b))
    facts: dict[str, dict[str, Any]] = {}
    try:
        measured_levels = levels(list(sizes.values()), core)
    except NoMemoryLevelsError as error:
        names = [f"latency_{level}_s" for level in sizes] + [f"bandwidth_{level}_b_per_s_1t" for level in caches_b]
        return {name: _fact(None, str(error)) for name in names}
    for level, reached in zip(sizes, measured_levels, strict=True):
        facts[f"latency_{level}_s"] = _fact(reached.latency_s)
        if level in caches_b:
            facts[f"bandwidth_{level}_b_per_s_1t"] = _fact(reached.bandwidth_b_per_s)
    return facts


def _dram_sizes_b(caches_b: Mapping[str, int]) -> tuple[int, int]:
    last = max(caches_b.values(), default=32 * 2**20)
    return min(4 * last, _LARGEST_COPY_B // 2), min(8 * last, _LARGEST_COPY_B)


def _copies(sizes_b: tuple[int, int], threads: int) -> tuple[KernelSpec, ...]:
    """Copies whose source and target together take each of `sizes_b`."""
    return tuple(
        KernelSpec.of("copy", "fp32", impl="torch", threads=threads, rows=1, cols=size // 8) for size in sizes_b
    )


def _gemm(dtype: str, threads: int, size: int) -> KernelSpec:
    return KernelSpec.of("gemm", dtype, impl="torch", threads=threads, m=size, n=size, k=size)


def _layernorm(dtype: str, threads: int, rows: int) -> KernelSpec:
    return KernelSpec.of("layernorm", dtype, variant="layernorm", impl="torch", threads=threads, rows=rows, cols=512)


def _fact(value: float | None, otherwise: str = "no clean sample") -> dict[str, Any]:
    return measured_fact(value, otherwise=otherwise)
