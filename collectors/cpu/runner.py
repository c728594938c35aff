"""What the collector asks of a library that runs kernels: check a case, prepare it, give back a zero-argument call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from ...features.kernel import KernelSpec, discover


class UnsupportedCaseError(Exception):
    """The library cannot run this case; the message says why. It becomes a row with status `unsupported`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case ready to run: operands allocated and filled, setup (compilation) done.

    Attributes:
        call: Runs the kernel once and returns only when its result is complete.
        setup_s: Seconds that preparing took beyond filling operands (compilation, packing).
        working_set_b: Bytes it keeps in memory.
    """

    call: Callable[[], Any]
    setup_s: float
    working_set_b: float


@dataclass(frozen=True, slots=True)
class Runner:
    """A library that runs kernels on this machine; one file in `runners/` each, with `RUNNER = Runner(...)`.

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
    """Every runner by name; a runner's library is imported only when it prepares a case."""
    from . import runners as package

    return MappingProxyType(discover(package, "RUNNER"))
