"""A process of a pair whose kernels are loops of Python: `rows` says how long, or that there is none."""

from __future__ import annotations

import os
import signal
import sys
import time

from kernelcast.collectors.cpu.pairs.worker import serve
from kernelcast.collectors.cpu.worker import WorkerOptions
from kernelcast.collectors.runner import Prepared, Runner, UnsupportedCaseError
from kernelcast.features.kernel import KernelSpec

UNSUPPORTED, CRASH, LONG = 1001, 1002, 1003


def _prepare(spec: KernelSpec) -> Prepared:
    rows = spec["rows"]
    if rows == UNSUPPORTED:
        raise UnsupportedCaseError("no such kernel")
    if rows == CRASH:
        os.kill(os.getpid(), signal.SIGSEGV)
    if rows == LONG:  # too long for a slot however fast the machine is
        return Prepared(lambda: time.sleep(0.1), 0.0)
    return Prepared(lambda: sum(range(rows)), 0.0)


if __name__ == "__main__":
    runner = Runner("fake", _prepare, lambda threads: None, lambda: {"fake": "1.0"})
    serve(runner, WorkerOptions.from_json(sys.argv[1]))
