"""The child process that compiles for a GPU and reads the binaries, driven by JSON lines over its pipes.

    parent -> child   {"spec": {...}, "target": "sm_90"}                                            a kernel of ours
                      {"text": "...", "num_warps": 4, "num_stages": 3, "target": "sm_90"}           Triton IR
    child  -> parent  {"ready": {...}}  once;  {"label": {...}}  per request

A process of its own, since compilers hang and crash; what they started ends with the process group.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...features.cost.occupancy import LIMITS, WARP_SIZE, occupancy
from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_from_row
from ...process import die_with_parent, private_stdout, send
from ...version import required_versions, versions
from ..gpu.runners.cupy import SOURCE, defines, tile_of
from ..gpu.runners.triton import build, triton_binaries
from ..runner import UnsupportedCaseError
from .sass import read_code

_TARGET = re.compile(r"sm_(\d{2,3})")
_LONGEST_MESSAGE = 300
_ERROR_LINE = re.compile(r"^ptxas (?:fatal|error)\s*:|(?:^|[:)]) *error\s*:")
_PTXAS_SHARED = re.compile(r"(\d+) bytes smem")
_CACHED_KERNELS = 50
"""Requests after which Triton's cache is emptied: each kernel is compiled once and never requested again."""


@dataclass(frozen=True, slots=True)
class Build:
    """A binary.

    Attributes:
        cubin: Where it lies.
        compiler: What compiled it.
        threads: Threads of a block.
        shared_b: Shared memory of a block, in bytes.
    """

    cubin: Path
    compiler: str
    threads: int
    shared_b: int


def capability_of(target: str) -> int:
    """The compute capability of a target such as `sm_90`.

    Raises:
        UnsupportedCaseError: it is no such name, or its limits are not known.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UnsupportedCaseError(f"a target is written like sm_90, not {target!r}")
    if int(match.group(1)) not in LIMITS:
        raise UnsupportedCaseError(f"no limits known of {target}")
    return int(match.group(1))


def label_kernel(spec: KernelSpec, target: str, folder: Path) -> dict[str, Any]:
    """The compile-only columns of a case: an outcome and its reason, or what the binary is like.

    `folder` is where binaries may be written. Whatever a compiler raises becomes the outcome.
    """

    def compiled(capability: int) -> Build:
        if spec.impl not in _BUILDS:
            raise UnsupportedCaseError(f"kernels of {', '.join(_BUILDS)} can be compiled here, not of {spec.impl!r}")
        return _BUILDS[spec.impl](spec, capability, folder)

    return _label(target, compiled)


def label_text(text: str, target: str, *, num_warps: int, num_stages: int, folder: Path) -> dict[str, Any]:
    """The compile-only columns of Triton IR, as `label_kernel`."""
    return _label(target, lambda capability: build_text(text, capability, num_warps, num_stages, folder))


def build_text(text: str, capability: int, num_warps: int, num_stages: int, folder: Path) -> Build:
    """Compile Triton IR for a compute capability such as 90; a warp-specialised kernel adds warps of its own.

    Raises:
        RuntimeError: the text is no Triton IR.
        triton.errors.TritonError: Triton or ptxas refuses it.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    path = folder / "kernel.ttir"
    path.write_text(text, encoding="utf-8")
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return _built(triton.compile(str(path), target=GPUTarget("cuda", capability, WARP_SIZE), options=options))


def _label(target: str, build: Callable[[int], Build]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        capability = capability_of(target)
        binary = build(capability)
        compile_s = time.monotonic() - began
        code = read_code(binary.cubin)
        fits = occupancy(capability, threads=binary.threads, registers=code.registers, shared_b=binary.shared_b)
    except UnsupportedCaseError as error:
        return {"status": "unsupported", "message": str(error)}
    except OSError:  # a file that cannot be written or a tool that is missing says nothing of the kernel
        raise
    except Exception as error:  # noqa: BLE001  a compiler may raise anything; the row says what
        return {"status": "failed", "message": _reason(error)}
    return {
        "status": "ok", "registers": code.registers, "spill_b": code.stack_b, "shared_b": binary.shared_b,
        "threads_per_block": binary.threads, "blocks_per_sm": fits.blocks, "warps_per_sm": fits.warps,
        "occupancy": fits.share, **code.mix, "instructions": code.total, "compiler": binary.compiler,
        "compile_s": compile_s,
    }  # fmt: skip


def _triton(spec: KernelSpec, capability: int, folder: Path) -> Build:  # noqa: ARG001  Triton writes into its cache
    # The product or attention itself; what sums partial products up is the same for all.
    return _built(build(triton_binaries(spec)[0], capability))


def _built(kernel: Any) -> Build:
    (cubin,) = (Path(path) for name, path in kernel.metadata_group.items() if name.endswith(".cubin"))
    return Build(cubin, _triton_version(), WARP_SIZE * kernel.metadata.num_warps, kernel.metadata.shared)


def _triton_version() -> str:
    return f"triton {required_versions('triton')['triton']}"


def _nvcc(spec: KernelSpec, capability: int, folder: Path) -> Build:
    tile = tile_of(spec)
    cubin = folder / "kernel.cubin"
    command = [
        "nvcc", "-cubin", f"-arch=sm_{capability}", defines(tile), "-Xptxas", "-v", "-o", str(cubin), str(SOURCE),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own source
    except FileNotFoundError as error:
        raise RuntimeError(str(error)) from error
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
        output = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"release [\d.]+, V([\d.]+)", output)
    return f"nvcc {match.group(1)}" if match else None


def kernel_compilers() -> dict[str, str | None]:
    """Versions of what compiles kernels here; None for what is not installed."""
    return {"triton": _triton_version() if versions("triton") else None, "nvcc": nvcc_version()}


def text_compilers() -> dict[str, str | None]:
    """Versions of what compiles Triton IR here.

    Raises:
        ImportError: Triton is not installed.
    """
    from triton import knobs

    return {"triton": _triton_version(), "ptxas": f"ptxas {knobs.nvidia.ptxas.version}"}


def _reason(error: Exception) -> str:
    """The line of an error that names it, or the last one, since compilers print the source before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    named = [line for line in lines if _ERROR_LINE.search(line)] or lines[-1:] or [""]
    return f"{type(error).__name__}: {named[0]}"[:_LONGEST_MESSAGE]


def main(argv: list[str]) -> None:
    """Label kernels, or Triton IR where `argv[1]` is `texts`, as standard input says, until it closes."""
    die_with_parent()
    requests, replies = sys.stdin, private_stdout()
    with tempfile.TemporaryDirectory(prefix="kernelcast-label-") as name:
        folder, cache = Path(name), Path(name) / "triton"
        os.environ |= {"TRITON_CACHE_DIR": str(cache), "TRITON_STORE_BINARY_ONLY": "1"}
        send(replies, {"ready": {"compilers": text_compilers() if argv[1:] == ["texts"] else kernel_compilers()}})
        for count, line in enumerate(requests, start=1):
            request = json.loads(line)
            if "spec" in request:
                label = label_kernel(spec_from_row(request["spec"]), request["target"], folder)
            else:
                label = label_text(**request, folder=folder)
            send(replies, {"label": label})
            if count % _CACHED_KERNELS == 0:
                shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv)
