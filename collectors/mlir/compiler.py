"""What the collector asks of a compiler of modules: load a module, place operands, give back a zero-argument call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ...datasets.records.mlir_modules import ModuleText
from ...features.kernel import discover
from .operands import Argument, Array


@dataclass(frozen=True, slots=True)
class Job:
    """One module to measure with one compiler.

    Attributes:
        module: The module.
        compiler: Name of the compiler.
        threads: Thread count; None on a GPU.
        binary: What was compiled of it before.
    """

    module: ModuleText
    compiler: str
    threads: int | None
    binary: Path | None = None

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What a resumed campaign skips it by."""
        return self.module.module_id, self.compiler, self.threads


@dataclass(frozen=True, slots=True)
class Built:
    """What loading said of the module's build; None where it was compiled elsewhere.

    Attributes:
        compile_s: Seconds of compiling.
        binary_b: Bytes of the binary.
        dispatches: Number of dispatches.
        objects: Files of machine code.
    """

    compile_s: float | None = None
    binary_b: int | None = None
    dispatches: int | None = None
    objects: tuple[Path, ...] = ()


class Loaded(Protocol):
    """A module that is ready to be called."""

    @property
    def arguments(self) -> Sequence[Argument]:
        """What its function takes."""
        ...

    @property
    def built(self) -> Built:
        """What compiling it said."""
        ...

    def place(self, operands: Sequence[Array]) -> Callable[[], Any]:
        """The call on fresh copies of `operands` on the device; it returns when all results are complete."""
        ...

    def results(self, call: Callable[[], Any]) -> list[Array]:
        """Call once, and its results on the host."""
        ...


@dataclass(frozen=True, slots=True)
class ModuleRunner:
    """A compiler and its runtime.

    Attributes:
        name: Its name.
        start: `start(target, threads, dump)` readies the runtime in this process, which is confined to its cores; `dump` is
            a folder for machine code.
        load: Makes a module callable.
        versions: Versions of the packages.
        dialects: Dialects of the texts it takes; empty for any.
        ahead: Whether modules are compiled before they are loaded, by another process.
    """

    name: str
    start: Callable[[str, int | None, Path], None]
    load: Callable[[Job], Loaded]
    versions: Callable[[], Mapping[str, str]]
    dialects: tuple[str, ...] = ()
    ahead: bool = False


@cache
def module_runners() -> Mapping[str, ModuleRunner]:
    """Every compiler by name."""
    from . import compilers as package

    return MappingProxyType(discover(package, "RUNNER"))
