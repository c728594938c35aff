"""Compiling what a campaign will need in background processes, while the GPU is measured.

    with compile_ahead(specs, 90, processes=14, cache_dir=folder):
        measure(specs)  # in a process whose environment has cache_environment(folder)

Each process takes the next binary of one shared list, so the first cases' binaries are ready first and a slow compile
holds up nothing. A compile that fails is left to the launch, which meets the same error and makes a row of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....datasets.rows.schema import Measurement, to_row
from ....features.kernel import KernelSpec
from ....features.spec_io.rows import spec_from_row
from ....files import lock
from ....process import die_with_parent
from ...runner import UnsupportedCaseError, gpu_runners

NICENESS = 10
"""Of the compiling processes: the process that launches kernels goes first."""

_JOBS, _CLAIMED, _FINISHED = "jobs.json", "claimed", "finished"


def cache_environment(cache_dir: Path) -> dict[str, str]:
    """The environment in which a process compiles into, and finds binaries in, `cache_dir`."""
    return {"TRITON_CACHE_DIR": str(cache_dir / "triton"), "CUPY_CACHE_DIR": str(cache_dir / "cupy")}


@dataclass(frozen=True, slots=True)
class Ahead:
    """The running background compilation.

    Attributes:
        jobs: How many jobs there are.
        folder: Where finished jobs are marked.
    """

    jobs: int
    folder: Path

    def finished(self) -> tuple[int, int]:
        """Jobs that compiled, and jobs that failed."""
        lines = (self.folder / _FINISHED).read_text().splitlines()
        return lines.count("ok"), lines.count("failed")


@contextlib.contextmanager
def compile_ahead(
    specs: Sequence[KernelSpec], capability: int, processes: int, cache_dir: Path
) -> Iterator[Ahead]:  # fmt: skip
    """Compile the different binaries of `specs`, in order, in `processes` processes for as long as the block runs.

    `capability` is a compute capability such as 90. The processes see no GPU, give way to others, and are gone when the
    block ends or when this process dies.
    """
    jobs = distinct_jobs(specs)
    with tempfile.TemporaryDirectory(prefix="kernelcast-ahead-") as name:
        folder = Path(name)
        rows = [to_row(Measurement(spec, device="", status="ok", block="")) for spec in jobs]
        (folder / _JOBS).write_text(json.dumps(rows))
        (folder / _CLAIMED).write_text("0")
        (folder / _FINISHED).touch()
        environment = os.environ | cache_environment(cache_dir) | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-P",
            "-m",
            "kernelcast.collectors.gpu.kernels.compile_ahead",
            str(folder),
            str(capability),
        ]
        children: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(min(processes, len(jobs))):
                children.append(_start(command, environment))  # noqa: PERF401  a list at once would lose those started
            yield Ahead(len(jobs), folder)
        finally:
            for child in children:
                _end(child)


def _start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    # Its own session, so that Ctrl-C reaches the parent alone and what it starts can be ended with it.
    return subprocess.Popen(  # noqa: S603  our own interpreter and module
        command, env=dict(environment), stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with what it started (ptxas), and reap it."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


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
    """Compile jobs of the folder `argv[1]` for capability `argv[2]` until none is left."""
    die_with_parent()
    os.nice(NICENESS)
    folder, capability = Path(argv[1]), int(argv[2])
    jobs: list[dict[str, Any]] = json.loads((folder / _JOBS).read_text())
    while (index := _claim(folder / _CLAIMED)) < len(jobs):
        spec = spec_from_row(jobs[index])
        compile_ = gpu_runners()[spec.impl].compile
        try:
            if compile_ is not None:
                compile_(spec, capability)
            outcome = "ok"
        except Exception:  # noqa: BLE001  compilers raise anything; the launch meets it again and records it
            outcome = "failed"
        with (folder / _FINISHED).open("a") as finished:
            finished.write(outcome + "\n")


def _claim(path: Path) -> int:
    """The number of the next job, which no other process gets."""
    with lock(path, wait_s=None):
        index = int(path.read_text())
        path.write_text(str(index + 1))
    return index


if __name__ == "__main__":
    main(sys.argv)
