"""What the collectors ask of a library that runs kernels, on a CPU or a GPU, and the rows of cases that it does not run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from ..datasets.rows.schema import Measurement, Status
from ..features.kernel import KernelSpec, discover
from .host import utc_now

MESSAGE_CHARS = 300
"""Longest message of a row."""

_NO_MEMORY = ("out of memory", "allocate memory", "resource_exhausted")
"""What allocators of native libraries say in the plain runtime errors that they raise."""


class UnsupportedCaseError(Exception):
    """The library cannot run this case; the message says why. It becomes a row with status `unsupported`."""


def status_of(error: Exception) -> Status:
    """The row status an error stands for."""
    if isinstance(error, UnsupportedCaseError | NotImplementedError):
        return "unsupported"
    # torch.OutOfMemoryError and CuPy's OutOfMemoryError share no base class with each other.
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return "out_of_memory"
    words = str(error).lower()
    return "out_of_memory" if any(phrase in words for phrase in _NO_MEMORY) else "failed"


def first_line(error: BaseException) -> str:
    """The kind and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:MESSAGE_CHARS]


def row_without_result(spec: KernelSpec, device: str, status: Status, message: str | None) -> Measurement:
    """The row of a case that has no latency."""
    return Measurement(spec=spec, device=device, status=status, block="", message=message, measured_at=utc_now())


def row_of_error(spec: KernelSpec, device: str, error: Exception) -> Measurement:
    """The row of a case that raised `error`."""
    return row_without_result(spec, device, status_of(error), first_line(error))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case ready to run on a CPU: operands allocated and filled, setup (compilation) done.

    Attributes:
        call: Runs the kernel once and returns only when its result is complete.
        setup_s: Seconds that preparing took beyond filling operands (compilation, packing).
    """

    call: Callable[[], Any]
    setup_s: float


@dataclass(frozen=True, slots=True)
class Runner:
    """A library that runs kernels on this machine's CPU; one file in `cpu/runners/` each, with `RUNNER = Runner(...)`.

    Attributes:
        name: The `impl` of its rows.
        prepare: Readies a case; raises `UnsupportedCaseError`, or MemoryError when operands do not fit.
        use_threads: Fixes the thread count of the whole process, once, before the first case.
        versions: Versions of the packages that run.
    """

    name: str
    prepare: Callable[[KernelSpec], Prepared]
    use_threads: Callable[[int], None]
    versions: Callable[[], Mapping[str, str]]


@cache
def runners() -> Mapping[str, Runner]:
    """Every CPU runner by name; a runner's library is imported only when it prepares a case."""
    from .cpu import runners as package

    return MappingProxyType(discover(package, "RUNNER"))


Tensor = Any
"""A torch tensor on the device."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel ready to be launched on operands that lie on the GPU.

    Attributes:
        call: Enqueues one call on torch's current stream and returns what it writes; waits for nothing and reads nothing
            back, so that a CUDA graph can capture it.
        expected: Gives the same result by a trusted library; None where the library is the reference itself.
        tolerance: Relative error in the Frobenius norm that the comparison allows.
        resources: What its compiler said (`registers`, `spill_b`, `shared_b` …); empty where it says nothing.
    """

    call: Callable[[], Tensor]
    expected: Callable[[], Tensor] | None = None
    tolerance: float = 1e-2
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRunner:
    """A library that runs kernels on a GPU; one file in `gpu/runners/` each, with `RUNNER = GpuRunner(...)`.

    Attributes:
        name: Its name.
        impls: The `impl` words of its rows.
        launch: Readies a case on a set of operands; called once per set, so what is compiled is cached between calls.
            Raises `UnsupportedCaseError` for cases it cannot run.
        versions: Versions of the packages that run.
        compile: Builds what a case needs without a GPU, for a compute capability such as 90, into the library's cache on
            disk, where `launch` reads it; None where nothing is compiled.
        binaries: What names the binaries of a case, where `compile` builds some that cases share.
        also_on: Makers of GPUs without CUDA that it runs on too.
    """

    name: str
    impls: tuple[str, ...]
    launch: Callable[[KernelSpec, tuple[Tensor, ...]], Launch]
    versions: Callable[[], Mapping[str, str]]
    compile: Callable[[KernelSpec, int], Any] | None = None
    binaries: Callable[[KernelSpec], Hashable] | None = None
    also_on: tuple[str, ...] = ()


WITHOUT_CUDA = ("amd", "intel")
"""Makers, as device files write them, whose GPUs run nothing written in CUDA."""


def runners_on(vendor: str) -> Mapping[str, GpuRunner]:
    """The runner of every `impl` that runs on GPUs of a maker."""
    return {
        impl: runner for impl, runner in gpu_runners().items() if vendor not in WITHOUT_CUDA or vendor in runner.also_on
    }


@cache
def gpu_runners() -> Mapping[str, GpuRunner]:
    """The runner of every GPU `impl`; a runner's library is imported only when it launches something.

    Raises:
        ValueError: two runners claim one `impl`.
    """
    from .gpu import runners as package

    by_impl: dict[str, GpuRunner] = {}
    for runner in discover(package, "RUNNER").values():
        for impl in runner.impls:
            if impl in by_impl:
                raise ValueError(f"impl {impl!r} is claimed by both {by_impl[impl].name} and {runner.name}")
            by_impl[impl] = runner
    return MappingProxyType(by_impl)
