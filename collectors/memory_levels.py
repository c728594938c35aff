"""Latency and bandwidth of each memory level on one core: a small C program, built with the system's compiler.

C, since a framework's call takes longer than a trip through L1. Latency is pointer chasing, bandwidth is memcpy.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Seconds of one dependent load, and bytes per second of a copy, read and written counted; None: no clean repeat."""

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
