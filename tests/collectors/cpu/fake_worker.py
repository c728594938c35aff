"""A worker whose cases do what their number of rows says: hang, crash, run out of memory, or work."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping

from kernelcast.collectors.cpu.timing import StoppingRule
from kernelcast.collectors.cpu.worker import WorkerOptions, serve
from kernelcast.collectors.runner import Prepared, Runner, UnsupportedCaseError
from kernelcast.features.kernel import KernelSpec

HANG, CRASH, NO_MEMORY, UNSUPPORTED, NATIVE_NO_MEMORY, BROKEN, CHATTY = 1001, 1002, 1003, 1004, 1005, 1006, 1007

QUICK = StoppingRule(samples_per_block=3, warm_up_s=0.0, rewarm_s=0.0, extra_blocks=0)


def _prepare(spec: KernelSpec) -> Prepared:
    rows = spec["rows"]
    if rows == NO_MEMORY:
        raise MemoryError("operands do not fit")
    if rows == UNSUPPORTED:
        raise UnsupportedCaseError("no such kernel")
    if rows == NATIVE_NO_MEMORY:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    if rows == BROKEN:
        raise ValueError("first line\nsecond line")
    if rows == CHATTY:
        os.write(1, b"a native library says hello\n")
    return Prepared(lambda: _run(rows), 0.0)


def _run(rows: int) -> None:
    if rows == HANG:
        time.sleep(600)
    if rows == CRASH:
        sys.stderr.write("something went badly wrong\n")
        os.kill(os.getpid(), signal.SIGSEGV)


def _use_threads(threads: int) -> None:
    os.environ["FAKE_THREADS"] = str(threads)


def _versions() -> Mapping[str, str]:
    return {"fake": "1.0"}


if __name__ == "__main__":
    serve(
        Runner("fake", _prepare, _use_threads, _versions), WorkerOptions.from_json(sys.argv[1]), hot=QUICK, cold=QUICK
    )
