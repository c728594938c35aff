"""The child process that compiles kernels for a target and reads their binaries, driven by JSON lines over its pipes.

    parent -> child   {"spec": {...}, "target": "sm_90"}
    child  -> parent  {"ready": {...}}  once;  {"label": {...}}  per request

A fresh process for the sake of its end: compilers hang and crash, and what they started goes with the process group.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...datasets.schema import spec_of
from ...features.kernel import KernelSpec
from ...features.occupancy import WARP_SIZE, occupancy
from ..child import die_with_parent, private_stdout, send
from ..runner import UnsupportedCaseError
from .sass import read_code
from .tiled_matmul import SOURCE, defines, tile_of
from .triton_steps import triton_binaries

_TARGET = re.compile(r"sm_(\d{2,3})")
_LONGEST_MESSAGE = 300
_TELLING = re.compile(r"^ptxas (?:fatal|error)\s*:|\): error\s*:")
_PTXAS_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Build:
    """A binary: where it lies, what compiled it, and what its launch adds: threads and shared memory of a block."""

    cubin: Path
    compiler: str
    threads: int
    shared_b: int


def capability_of(target: str) -> int:
    """The compute capability of a target such as `sm_90`.

    Raises:
        UnsupportedCaseError: it is no such name.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UnsupportedCaseError(f"a target is written like sm_90, not {target!r}")
    return int(match.group(1))


def label(spec: KernelSpec, target: str, folder: Path) -> dict[str, Any]:
    """The compile-only columns of a case: an outcome and its reason, or what the binary is like.

    `folder` is where binaries may be written. Whatever a compiler raises becomes the outcome.
    """
    began = time.monotonic()
    try:
        capability = capability_of(target)
        if spec.impl not in _BUILDS:
            raise UnsupportedCaseError(f"kernels of {', '.join(_BUILDS)} can be compiled here, not of {spec.impl!r}")
        build = _BUILDS[spec.impl](spec, capability, folder)
        compile_s = time.monotonic() - began
        code = read_code(build.cubin)
        fits = occupancy(capability, threads=build.threads, registers=code.registers, shared_b=build.shared_b)
    except UnsupportedCaseError as error:
        return {"status": "unsupported", "message": str(error)}
    except Exception as error:  # noqa: BLE001  a compiler may raise anything; the row says what
        return {"status": "failed", "message": _reason(error)}
    return {
        "status": "ok", "registers": code.registers, "spill_b": code.stack_b, "shared_b": build.shared_b,
        "threads_per_block": build.threads, "blocks_per_sm": fits.blocks, "warps_per_sm": fits.warps,
        "occupancy": fits.share, **code.mix, "instructions": code.total, "compiler": build.compiler,
        "compile_s": compile_s,
    }  # fmt: skip


def _triton(spec: KernelSpec, capability: int, folder: Path) -> Build:  # noqa: ARG001  Triton writes into its cache
    from .triton_compile import build

    # The product or attention itself; what sums partial products up is the same for all.
    binary = triton_binaries(spec)[0]
    kernel = build(binary, capability)
    (cubin,) = (Path(path) for name, path in kernel.metadata_group.items() if name.endswith(".cubin"))
    return Build(cubin, f"triton {version('triton')}", WARP_SIZE * binary.warps, kernel.metadata.shared)


def _nvcc(spec: KernelSpec, capability: int, folder: Path) -> Build:
    tile = tile_of(spec)
    cubin = folder / "kernel.cubin"
    command = [
        "nvcc",
        "-cubin",
        f"-arch=sm_{capability}",
        defines(tile),
        "-Xptxas",
        "-v",
        "-o",
        str(cubin),
        str(SOURCE),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own source
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or done.stdout.strip())
    shared = _PTXAS_SHARED.search(done.stderr)
    return Build(cubin, nvcc_version() or "nvcc", tile * tile, int(shared.group(1)) if shared else 0)


_BUILDS: Mapping[str, Callable[[KernelSpec, int, Path], Build]] = MappingProxyType(
    {"triton": _triton, "cupy-tiled": _nvcc}
)


def nvcc_version() -> str | None:
    """`nvcc` and its version, None where there is none."""
    try:
        said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"release [\d.]+, V([\d.]+)", said)
    return f"nvcc {match.group(1)}" if match else None


def compilers() -> dict[str, str | None]:
    """Versions of what compiles here; None for what is not installed."""
    try:
        triton: str | None = f"triton {version('triton')}"
    except PackageNotFoundError:
        triton = None
    return {"triton": triton, "nvcc": nvcc_version()}


def _reason(error: Exception) -> str:
    """The line of an error that tells: the one that names it, or the last, since compilers print the source before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    telling = [line for line in lines if _TELLING.search(line)] or lines[-1:] or [""]
    return f"{type(error).__name__}: {telling[0]}"[:_LONGEST_MESSAGE]


def main() -> None:
    """Label what standard input asks for, until it closes."""
    die_with_parent()
    requests, replies = sys.stdin, private_stdout()
    with tempfile.TemporaryDirectory(prefix="kernelcast-label-") as name:
        folder = Path(name)
        os.environ |= {"TRITON_CACHE_DIR": str(folder / "triton"), "TRITON_STORE_BINARY_ONLY": "1"}
        send(replies, {"ready": {"compilers": compilers()}})
        for line in requests:
            request = json.loads(line)
            answer = label(spec_of(request["spec"]), request["target"], folder)
            send(replies, {"label": answer})


if __name__ == "__main__":
    main()
