"""What the GPU collector asks of a library that runs kernels: turn a case and its operands into a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from ....features.kernel import KernelSpec, discover

Tensor = Any
"""A torch tensor on the device."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel ready to be launched on operands that lie on the device.

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
    """A library that runs kernels on a GPU; one file in `runners/` each, with `RUNNER = GpuRunner(...)`.

    Attributes:
        name: Its name.
        impls: The `impl` words of its rows.
        launch: Readies a case on a set of operands; called once per set, so what is compiled is cached between calls.
            Raises `UnsupportedCaseError` for cases it cannot run.
        versions: Versions of the packages that run.
        compile: Builds what a case needs without a GPU, for a compute capability such as 90, into the library's cache on
            disk, where `launch` reads it; None where nothing is compiled.
    """

    name: str
    impls: tuple[str, ...]
    launch: Callable[[KernelSpec, tuple[Tensor, ...]], Launch]
    versions: Callable[[], Mapping[str, str]]
    compile: Callable[[KernelSpec, int], Any] | None = None


@cache
def gpu_runners() -> Mapping[str, GpuRunner]:
    """The runner of every GPU `impl`; a runner's library is imported only when it launches something.

    Raises:
        ValueError: two runners claim one `impl`.
    """
    from .. import runners as package

    by_impl: dict[str, GpuRunner] = {}
    for runner in discover(package, "RUNNER").values():
        for impl in runner.impls:
            if impl in by_impl:
                raise ValueError(f"impl {impl!r} is claimed by both {by_impl[impl].name} and {runner.name}")
            by_impl[impl] = runner
    return MappingProxyType(by_impl)
