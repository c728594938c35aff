"""Compiling what a campaign will need in background processes, while the GPU is measured.

    with compile_ahead(specs, 90, processes=14, cache_dir=folder):
        measure(specs)  # in a process whose environment has cache_environment(folder)

Whichever process is free takes the next binary, so the first cases' binaries are ready first and a slow compile holds up
nothing. A compile that fails is left to the launch, which meets the same error and makes a row of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

from ....features.kernel import KernelSpec
from ....features.spec_io.rows import spec_from_row, spec_row
from ....process import ChildPool, JsonChild, die_with_parent, private_stdout, python_command, send
from ...runner import UnsupportedCaseError, gpu_runners

NICENESS = 10
"""Of the compiling processes: the process that launches kernels goes first."""

_DEADLINE_S = 600.0


def cache_environment(cache_dir: Path) -> dict[str, str]:
    """The environment in which a process compiles into, and finds binaries in, `cache_dir`."""
    return {"TRITON_CACHE_DIR": str(cache_dir / "triton"), "CUPY_CACHE_DIR": str(cache_dir / "cupy")}


@contextlib.contextmanager
def compile_ahead(specs: Sequence[KernelSpec], capability: int, processes: int, cache_dir: Path) -> Iterator[None]:
    """Compile the different binaries of `specs`, in order, in `processes` processes for as long as the block runs.

    `capability` is a compute capability such as 90. The processes see no GPU, give way to others, and are gone when the
    block ends or when this process dies.
    """
    jobs = distinct_jobs(specs)
    command = python_command("kernelcast.collectors.gpu.kernels.compile_ahead", str(capability))
    environment = cache_environment(cache_dir) | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with ChildPool([JsonChild("compiling", command, environment) for _ in range(min(processes, len(jobs)))]) as pool:
        if jobs:
            pool.map(_compile, jobs)
        yield


def _compile(child: JsonChild, spec: KernelSpec) -> None:
    child.start()
    child.write({"spec": spec_row(spec)})
    child.read(_DEADLINE_S)


def distinct_jobs(specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """The first case of every different set of binaries, in order; cases that need none or are not possible are left out."""
    first: dict[Hashable, KernelSpec] = {}
    for spec in specs:
        runner = gpu_runners().get(spec.impl)
        if runner is None or runner.compile is None:
            continue
        with contextlib.suppress(UnsupportedCaseError):  # the launch makes a row of it
            first.setdefault((spec.impl, spec if runner.binaries is None else runner.binaries(spec)), spec)
    return list(first.values())


def main(argv: list[str]) -> None:
    """Compile what standard input names for capability `argv[1]`, until it closes."""
    die_with_parent()
    os.nice(NICENESS)
    replies = private_stdout()
    send(replies, {"ready": {}})
    for line in sys.stdin:
        spec = spec_from_row(json.loads(line)["spec"])
        compile_ = gpu_runners()[spec.impl].compile
        # Compilers raise anything; the launch meets it again and records it.
        with contextlib.suppress(Exception):
            if compile_ is not None:
                compile_(spec, int(argv[1]))
        send(replies, {"done": spec.case_id})


if __name__ == "__main__":
    main(sys.argv)
