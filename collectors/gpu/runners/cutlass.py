"""CUTLASS products on tensor cores, with tile, warp tile, stages, swizzle and split along k given by the case.

One shared library per tile configuration, compiled by nvcc, kept by what it was made from.

    configuration + cutlass_gemm.cu + CUTLASS version + nvcc + architecture ─► key ─► CACHE/key.so, CACHE/key.json

The headers are looked for in the folder that `KERNELCAST_CUTLASS` names, then in the installed package `nvidia-cutlass`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ....features.kernel import KernelSpec
from ....files import home_dir, lock, write_whole
from ...runner import GpuRunner, Launch, Tensor, UnsupportedCaseError
from ..measure.bench import TOLERANCE, expected_product

HEADERS_ENV = "KERNELCAST_CUTLASS"
"""Folder with `include/cutlass/cutlass.h`, such as a clone of github.com/NVIDIA/cutlass."""

CACHE_ENV = "KERNELCAST_CUTLASS_CACHE"
"""Folder the libraries are kept in; default `cutlass` under `KERNELCAST_HOME`."""

SOURCE = Path(__file__).parents[1] / "kernels" / "cutlass_gemm.cu"

# CUTLASS's element, its result's, and the depth of one tensor-core instruction (mma.sync m16n8k16 and m16n8k8, PTX ISA).
_DTYPES: Mapping[str, tuple[str, str, int]] = MappingProxyType({
    "bf16": ("cutlass::bfloat16_t", "cutlass::bfloat16_t", 16),
    "fp16": ("cutlass::half_t", "cutlass::half_t", 16),
    "tf32": ("cutlass::tfloat32_t", "float", 8),
})  # fmt: skip

_REQUIRED = ("tile_m", "tile_n", "tile_k", "inner_m", "inner_n", "stages")
_KNOBS = frozenset((*_REQUIRED, "warps", "group_m", "split_k"))

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-Xcompiler",
    "-fPIC",
    "--expt-relaxed-constexpr",
    "-DNDEBUG",
    "-Xptxas",
    "-v",
)

_DEADLINE_S = 300.0
"""A library takes about 7 s of one core."""


@dataclass(frozen=True, slots=True)
class CutlassBinary:
    """What one library is compiled for; tiles in elements.

    Attributes:
        dtype: The operands' dtype.
        column_b: Whether B lies column by column.
        tile_m: Rows of a block's tile.
        tile_n: Columns of a block's tile.
        tile_k: Depth of one step.
        inner_m: Rows of one warp's part of the tile.
        inner_n: Columns of one warp's part.
        stages: Pipeline stages.
        group_m: The threadblock swizzle.
        split: Whether the product can be cut along k, its parts added up one after the other.
    """

    dtype: str
    column_b: bool
    tile_m: int
    tile_n: int
    tile_k: int
    inner_m: int
    inner_n: int
    stages: int
    group_m: int = 1
    split: bool = False

    def defines(self) -> list[str]:
        """The compiler's `-D` arguments."""
        element, output, depth = _DTYPES[self.dtype]
        raw = {
            "ELEMENT": element, "OUTPUT": output, "INSTRUCTION_K": depth,
            "LAYOUT_B": f"cutlass::layout::{'Column' if self.column_b else 'Row'}Major",
            "TILE_M": self.tile_m, "TILE_N": self.tile_n, "TILE_K": self.tile_k,
            "WARP_M": self.inner_m, "WARP_N": self.inner_n, "STAGES": self.stages,
            "GROUP_M": self.group_m, "SPLIT": str(self.split).lower(),
        }  # fmt: skip
        return [f"-DKC_{name}={value}" for name, value in raw.items()]


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled library and what ptxas said of its kernel.

    Attributes:
        path: The library.
        registers: Registers per thread.
        spill_b: Bytes spilled per thread.
    """

    path: Path
    registers: int
    spill_b: int


def cutlass_binary(spec: KernelSpec) -> CutlassBinary:
    """The library a case needs; cases with equal ones share it.

    Raises:
        UnsupportedCaseError: not a single product in a dtype with tensor-core instructions, or knobs missing, unknown or
            at odds with each other.
    """
    if spec.family != "gemm" or spec.dtype not in _DTYPES or spec.variant not in ("", "nt") or spec["batch"] > 1:
        raise UnsupportedCaseError(
            f"the CUTLASS kernels are single products, plain or nt, in {', '.join(_DTYPES)}; got {spec}"
        )
    knobs = dict(spec.config)
    if (missing := [name for name in _REQUIRED if not knobs.get(name)]) or set(knobs) - _KNOBS:
        wrong = f"{missing[0]} is missing" if missing else f"{min(set(knobs) - _KNOBS)} is not one of its knobs"
        raise UnsupportedCaseError(f"a CUTLASS product takes {', '.join(sorted(_KNOBS))}; {wrong}")
    if knobs["tile_m"] % knobs["inner_m"] or knobs["tile_n"] % knobs["inner_n"]:
        raise UnsupportedCaseError(f"a block's tile is a whole number of warps' tiles, got {knobs}")
    warps = knobs["tile_m"] // knobs["inner_m"] * (knobs["tile_n"] // knobs["inner_n"])
    if knobs.get("warps", warps) != warps:
        raise UnsupportedCaseError(f"these tiles make {warps} warps, not {knobs['warps']}")
    return CutlassBinary(
        dtype=spec.dtype,
        column_b=spec.variant == "nt",
        group_m=knobs.get("group_m", 1),
        split=knobs.get("split_k", 1) > 1,
        **{name: knobs[name] for name in _REQUIRED},
    )


def build(binary: CutlassBinary, capability: int) -> Built:
    """The library, compiled now unless it is in the cache; processes that want the same one wait for each other.

    Raises:
        UnsupportedCaseError: CUTLASS or nvcc is not there, or CUTLASS does not take the configuration.
    """
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(binary, capability)
    library, report = folder / f"{key}.so", folder / f"{key}.json"
    with lock(folder / f"{key}.lock", wait_s=None):
        if not report.exists():
            write_whole(report, json.dumps(_compile(binary, capability, library)))
    outcome = json.loads(report.read_text())
    if (refused := outcome.get("refused")) is not None:
        raise UnsupportedCaseError(f"CUTLASS does not take this configuration: {refused}")
    return Built(library, outcome["registers"], outcome["spill_b"])


def cache_dir() -> Path:
    """Where libraries are kept."""
    folder = os.environ.get(CACHE_ENV)
    return Path(folder).expanduser() if folder else home_dir() / "cutlass"


def include_dir() -> Path:
    """The folder that holds `cutlass/cutlass.h`.

    Raises:
        UnsupportedCaseError: there is none; the message says how to get one.
    """
    configured = os.environ.get(HEADERS_ENV)
    if configured:
        roots = [Path(configured).expanduser()]
    else:
        package = importlib.util.find_spec("cutlass_library")
        roots = [Path(place) / "source" for place in (package.submodule_search_locations or ())] if package else []
    for folder in (place for root in roots for place in (root / "include", root)):
        if (folder / "cutlass" / "cutlass.h").is_file():
            return folder
    where = "its headers are not here"
    if configured:
        where = f"{HEADERS_ENV} is {configured}, which has no include/cutlass/cutlass.h"
    raise UnsupportedCaseError(
        f"CUTLASS cannot be compiled: {where}; clone github.com/NVIDIA/cutlass and set {HEADERS_ENV} to it, "
        "or pip install --no-deps nvidia-cutlass"
    )


def has_cutlass() -> bool:
    """Whether CUTLASS's headers and nvcc are here."""
    try:
        include_dir()
        _nvcc()
    except UnsupportedCaseError:
        return False
    return True


def cutlass_version() -> str:
    """The version of the headers found, such as `4.2.0`.

    Raises:
        UnsupportedCaseError: see `include_dir`.
    """
    return _version_in(include_dir() / "cutlass" / "version.h")


@cache
def _version_in(header: Path) -> str:
    text = header.read_text(encoding="utf-8") if header.is_file() else ""
    numbers = re.findall(r"#define\s+CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text)
    return ".".join(numbers) or "unknown"


def _nvcc() -> str:
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise UnsupportedCaseError("CUTLASS cannot be compiled: no nvcc on PATH; install the CUDA toolkit")
    return compiler


@cache
def _nvcc_version(nvcc: str) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


def _key(binary: CutlassBinary, capability: int) -> str:
    content = [SOURCE.read_text(encoding="utf-8"), binary.defines(), _FLAGS, capability, cutlass_version(),
               _nvcc_version(_nvcc())]  # fmt: skip
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=12).hexdigest()


def _compile(binary: CutlassBinary, capability: int, library: Path) -> dict[str, int | str]:
    """What ptxas said, or what CUTLASS or the compiler refused; the library lies at `library` if it was made.

    Raises:
        UnsupportedCaseError: nvcc took too long or was killed, which may go better another time.
    """
    # A compiler that outlived the process that started it, and with it the lock, may still write to its own name.
    unfinished = library.with_name(f"{library.stem}.{os.getpid()}.tmp.so")
    try:
        output, refused = _run_nvcc(binary, capability, unfinished)
        if refused is not None:
            return {"refused": refused}
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)
    return {
        "registers": _largest(r"Used (\d+) registers", output),
        "spill_b": _largest(r"(\d+) bytes spill stores", output),
    }


def _run_nvcc(binary: CutlassBinary, capability: int, output: Path) -> tuple[str, str | None]:
    """What nvcc said, and the first error where it refused the configuration."""
    command = [_nvcc(), *_FLAGS, f"-arch=sm_{capability}", "-I", str(include_dir()), *binary.defines(), str(SOURCE),
               "-o", str(output)]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)  # noqa: S603
    except subprocess.TimeoutExpired:  # A busy machine, perhaps: nothing to remember.
        raise UnsupportedCaseError(f"nvcc took more than {_DEADLINE_S:g} s") from None
    printed = done.stdout + done.stderr
    if not done.returncode:
        return printed, None
    errors = [line for line in printed.splitlines() if "error" in line.lower()]
    if not errors:  # Killed, or out of disk: nothing the configuration is to blame for, so nothing to remember.
        raise UnsupportedCaseError(f"nvcc ended with {done.returncode}: {printed.strip()[-300:] or 'it said nothing'}")
    return printed, errors[0].strip()[:300]


def _largest(pattern: str, text: str) -> int:
    return max((int(number) for number in re.findall(pattern, text)), default=0)


_ACCESS_B = 16
"""Bytes of one vector access; rows start at multiples of it, or the kernels would be others."""

_SIZES = (ctypes.c_int,) * 5
_POINTER = ctypes.c_void_p


@cache
def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.workspace_b.argtypes, library.workspace_b.restype = _SIZES, ctypes.c_longlong
    library.can_run.argtypes = (_POINTER, _POINTER, _POINTER, *_SIZES)
    library.launch.argtypes = (_POINTER, _POINTER, _POINTER, *_SIZES, _POINTER, _POINTER)
    return library


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    binary = cutlass_binary(spec)
    a, b = operands[0][0], operands[1][0]
    for name, size in (("n", spec["n"]), ("k", spec["k"])):
        if size * a.element_size() % _ACCESS_B:
            raise UnsupportedCaseError(
                f"the CUTLASS kernels take {name} in multiples of {_ACCESS_B // a.element_size()}, got {size}"
            )
    # CUTLASS's own check of addresses counts in elements.
    if any(operand.data_ptr() % _ACCESS_B for operand in (a, b)):
        raise UnsupportedCaseError(f"the CUTLASS kernels need operands aligned to {_ACCESS_B} bytes")
    if binary.column_b:
        b = b.t().contiguous().t()
    major, minor = torch.cuda.get_device_capability(a.device)
    built = build(binary, 10 * major + minor)
    library = _library(built.path)
    out = torch.empty((spec["m"], spec["n"]), dtype=a.dtype, device=a.device)
    sizes = (spec["m"], spec["n"], spec["k"], spec["k"] if binary.column_b else spec["n"],
             dict(spec.config).get("split_k", 1))  # fmt: skip
    workspace = torch.empty(max(1, library.workspace_b(*sizes)), dtype=torch.uint8, device=a.device)
    if status := library.can_run(a.data_ptr(), b.data_ptr(), out.data_ptr(), *sizes):
        raise UnsupportedCaseError(f"CUTLASS cannot run this case: its status is {status}")

    def call() -> Tensor:
        stream = torch.cuda.current_stream(a.device).cuda_stream
        # Addresses are asked for here: the library keeps nothing alive, this call keeps its operands.
        where = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        if status := library.launch(*where, *sizes, workspace.data_ptr(), stream):
            raise UnsupportedCaseError(
                f"CUTLASS could not launch this case, status {status}; "
                f"it needs {library.shared_b()} B of shared memory per block"
            )
        return out

    call()  # What does not fit the device shows now, and the kernel is loaded: a graph being captured could not.
    return Launch(
        call,
        expected=expected_product(spec, *operands),
        tolerance=TOLERANCE[spec.dtype],
        resources={"registers": built.registers, "spill_b": built.spill_b, "shared_b": library.shared_b()},
    )


def _versions() -> Mapping[str, str]:
    try:
        version = cutlass_version()
    except UnsupportedCaseError:
        version = "none"
    return {"cutlass": version}


RUNNER = GpuRunner(
    name="cutlass", impls=("cutlass",), launch=_launch, versions=_versions, binaries=cutlass_binary,
    compile=lambda spec, capability: build(cutlass_binary(spec), capability),
)  # fmt: skip
