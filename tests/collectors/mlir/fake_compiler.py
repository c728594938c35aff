"""A compiler of modules that does what a module's text says: hang, crash, refuse, be slow, be wrong, or work."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.collectors.cpu.timing import StoppingRule
from kernelcast.collectors.mlir.compiler import Built, Job, ModuleRunner
from kernelcast.collectors.mlir.measure.worker import ModuleWorkerOptions, serve
from kernelcast.collectors.mlir.operands import Argument, Array, signature
from kernelcast.collectors.runner import UnsupportedCaseError

QUICK = StoppingRule(samples_per_block=2, fewest_per_block=1, warm_up_s=0.0, warm_up_calls=1, rewarm_s=0.0, extra_blocks=0,
                     attempts=50)  # fmt: skip


class FakeModule:
    def __init__(self, text: str, compiler: str) -> None:
        self.text, self.compiler = text, compiler
        self.arguments: Sequence[Argument] = signature(text).arguments
        self.built = Built(0.5, 100, 2) if compiler == "direct" else Built()
        self.calls = 0

    def place(self, operands: Sequence[Array]) -> Callable[[], Any]:
        assert [array.nbytes for array in operands] == [argument.nbytes for argument in self.arguments]
        return lambda: self._run(operands)

    def _run(self, operands: Sequence[Array]) -> list[Array]:
        self.calls += 1
        if "HANG" in self.text:
            time.sleep(60)
        if "CRASH" in self.text:
            sys.stderr.write("something went badly wrong\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        if "SLOW" in self.text:
            time.sleep(1.6)
        if "NAN" in self.text:
            return [operands[0] * np.float32("nan")]
        if "MOODY" in self.text:
            return [operands[0] + self.calls]
        return [-operands[0] if "DIFFERS" in self.text and self.compiler == "ahead" else operands[0]]

    def results(self, call: Callable[[], Any]) -> list[Array]:
        return list(call())


def _load(job: Job) -> FakeModule:
    if "REFUSE" in job.module.text:
        raise UnsupportedCaseError("no such operation")
    if "NOMEMORY" in job.module.text:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
    if job.compiler == "ahead":
        assert job.binary is not None
        assert job.binary.read_text() == "binary"
    return FakeModule(job.module.text, job.compiler)


def _start(target: str, threads: int | None, dump: Path) -> None:
    assert dump.is_dir()


def _versions() -> Mapping[str, str]:
    return {"fake": "1.0"}


DIRECT = ModuleRunner("direct", _start, _load, _versions, dialects=("stablehlo",))
AHEAD = ModuleRunner("ahead", _start, _load, _versions, ahead=True)


if __name__ == "__main__":
    options = ModuleWorkerOptions.from_json(sys.argv[1])
    serve({"direct": DIRECT, "ahead": AHEAD}[options.compiler], options, rule=QUICK)
