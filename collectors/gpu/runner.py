"""What the GPU collector asks of a library that runs kernels: turn a case and its operands into a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from ...features.kernel import KernelSpec, discover

Tensor = Any
"""A torch tensor on the device."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel ready to be launched on operands that lie on the device.

    `call` enqueues one call on torch's current stream and returns what it writes; it waits for nothing and reads nothing
    back, so that a CUDA graph can capture it. `expected` gives the same result by a trusted library, for comparison
    within `tolerance` (relative error in the Frobenius norm); None where the library is the reference itself.
    `resources` is what its compiler said (`registers`, `spill_b`, `shared_b` …), empty where it says nothing.
    """

    call: Callable[[], Tensor]
    expected: Callable[[], Tensor] | None = None
    tolerance: float = 1e-2
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuRunner:
    """A library that runs kernels on a GPU; one file in `runners/` each, with `RUNNER = GpuRunner(...)`.

    `impls` are the `impl` words of its rows. `launch` raises `UnsupportedCaseError` for cases it cannot run; it is
    called once per set of operands, so what is compiled is kept between calls. `versions` names what ran. `compile`
    builds what a case needs without a GPU, for a compute capability such as 90, into the library's cache on disk, so
    that `launch` finds it there; None where nothing is compiled.
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
    from . import runners as package

    found: dict[str, GpuRunner] = {}
    for runner in discover(package, "RUNNER").values():
        for impl in runner.impls:
            if impl in found:
                raise ValueError(f"impl {impl!r} is claimed by both {found[impl].name} and {runner.name}")
            found[impl] = runner
    return MappingProxyType(found)
