"""Running `iree-compile`, in a process of its own, since it may abort or never end; and what a tuned module is compiled with.

That is files, the flags that name them, and whether the compiler does as they say.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...features.errors import SpecError
from ...process import first_diagnostic
from .dispatches import CONTRACTION, Dispatch, read_dispatches, symbol, walk
from .spec_text import (
    DATA_TILING,
    HOOK_NAME,
    Config,
    data_tiling_hints,
    hook_program,
    is_tiled,
    lowering_config,
    tuning_spec,
)

HOST = "host"
COMPILE_LIMIT_S = 900.0
"""Longest compilation waited for: whole models with their weights take minutes."""

CONFIGURED = "--compile-to=executable-configurations"

# Weights are not read here, and printing them takes longer than compiling.
_BRIEF = ("--mlir-elide-elementsattrs-if-larger=16", "--mlir-elide-resource-strings-if-larger=16")
_TORCH = re.compile(r"!torch\.|\btorch\.(?:aten|prims|constant)\b")


class CompileError(SpecError):
    """`iree-compile` did not take the module: what it output first."""


def target_flags(text: str, target_cpu: str = HOST) -> tuple[str, ...]:
    """What `iree-compile` has to be told about `text` and the CPU to make code for."""
    flags = ("--iree-hal-target-backends=llvm-cpu", f"--iree-llvmcpu-target-cpu={target_cpu}")
    return (*flags, "--iree-input-type=torch") if _TORCH.search(text) else flags


def compile_text(text: str, *flags: str, brief: bool = False, limit_s: float = COMPILE_LIMIT_S) -> str:
    """What the compiler writes as text for `text` with `flags`, which name the phase to stop at; `brief` leaves weights out.

    Raises:
        CompileError: the compiler refused, died, or took longer than `limit_s`.
        ImportError: IREE's compiler is not installed.
    """
    return _run(text, (*flags, *(_BRIEF if brief else ())), limit_s).decode(errors="replace")


def compile_file(text: str, flags: Sequence[str], path: Path) -> None:
    """Compile `text` with `flags` into the module file `path`.

    Raises:
        CompileError: the compiler refused, died, or took longer than `COMPILE_LIMIT_S`.
        ImportError: IREE's compiler is not installed.
    """
    _run(text, (*flags, "-o", str(path)), COMPILE_LIMIT_S)


def _run(text: str, flags: Sequence[str], limit_s: float) -> bytes:
    command = [*_compiler(), "--mlir-disable-threading", "--iree-llvmcpu-debug-symbols=false", *flags]
    try:
        done = subprocess.run(  # noqa: S603  the installed compiler; the text goes through a pipe
            command, input=text.encode(), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"iree-compile took longer than {limit_s:g} s") from None
    if done.returncode:
        raise CompileError(f"iree-compile: {first_diagnostic(done.stderr.decode(errors='replace'), done.returncode)}")
    return done.stdout


@cache
def _compiler() -> tuple[str, ...]:
    from iree.compiler.tools.binaries import find_tool

    return (find_tool("iree-compile"), "-", f"--iree-llvmcpu-embedded-linker-path={find_tool('iree-lld')}")


SPEC_NAME, HINTS_NAME, MODULE_NAME = "tuning_spec.mlir", "data_tiling.mlir", "module.vmfb"

Chosen = Sequence[tuple[Dispatch, Config]]


@dataclass(frozen=True, slots=True)
class Instructions:
    """Configurations of dispatches in the form the compiler takes.

    Attributes:
        spec: A tuning spec, valid and empty where nothing is tiled.
        hook: A program that does the same.
        hints: The preprocessing spec that says which products are packed, empty where all or none are.
        tiled: Whether any dispatch is tiled.
        packs: Whether any product is packed.
        large_vectors: Whether the flag for large vectors is needed.
    """

    spec: str
    hook: str
    hints: str
    tiled: bool
    packs: bool
    large_vectors: bool

    @classmethod
    def of(cls, chosen: Chosen) -> Instructions:
        """What `chosen` asks for; dispatches without a configuration are the compiler's own affair."""
        packed = [dispatch for dispatch, config in chosen if DATA_TILING in config]
        products = sum(dispatch.kind == CONTRACTION for dispatch, _ in chosen)
        return cls(
            spec=tuning_spec(chosen),
            hook=hook_program(chosen),
            hints=data_tiling_hints(packed) if 0 < len(packed) < products else "",
            tiled=any(is_tiled(config) for _, config in chosen),
            packs=bool(packed),
            # Slices of the sum make IREE zero a whole block at once, which it refuses to unroll unless it is told to.
            large_vectors=any(config.get("tile_k") for _, config in chosen),
        )

    def flags(self, folder: Path, *, by_hook: bool = False) -> tuple[str, ...]:
        """The compiler's flags, with files in `folder`; `by_hook` configures by the hook instead of the tuning spec."""
        items = []
        if self.packs:
            items.append("--iree-opt-data-tiling")
        if self.hints:
            items.append(f"--iree-preprocessing-transform-spec-filename={folder / HINTS_NAME}")
        if self.tiled:
            by_spec = f"--iree-codegen-tuning-spec-path={folder / SPEC_NAME}"
            items.append(f"--iree-hal-preprocess-executables-with={HOOK_NAME}" if by_hook else by_spec)
        if self.large_vectors:
            items.append("--iree-llvmcpu-fail-on-large-vector=false")
        return tuple(items)

    def write(self, folder: Path) -> list[Path]:
        """Write the spec and the hook (and the hints, where there are any) into `folder`, which is made if need be.

        Raises:
            OSError: they cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / SPEC_NAME, folder / HOOK_NAME]
        written[0].write_text(self.spec)
        written[1].write_text(self.hook)
        written[1].chmod(0o755)
        if self.hints:
            written.append(folder / HINTS_NAME)
            written[-1].write_text(self.hints)
        return written


def imposed(chosen: Chosen, folder: Path) -> tuple[str, ...]:
    """Write what makes the compiler take the configurations `chosen` into `folder`, and give the flags that name it.

    Raises:
        OSError: the files cannot be written.
    """
    instructions = Instructions.of(chosen)
    instructions.write(folder)
    return instructions.flags(folder)


def compile_with(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> Path:
    """Compile `text` with configurations imposed, into a module file in `folder`.

    Raises:
        CompileError: the compiler refused or failed.
        OSError: files cannot be written.
    """
    flags = imposed(chosen, folder)
    path = folder / MODULE_NAME
    compile_file(text, (*target, *flags), path)
    return path


def packed_as_told(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> bool:
    """Whether the compiler packs just the products it is told to; hints may be lost when it rewrites an operation.

    Raises:
        CompileError: the compiler refused.
    """
    flags = imposed(chosen, folder)
    flow = compile_text(text, *target, *flags, "--compile-to=flow", brief=True)
    wanted = {dispatch.key: DATA_TILING in config for dispatch, config in chosen}
    result = {item.key: all("#iree_encoding" in each for each in item.types) for item in read_dispatches(flow).tunable}
    return all(result.get(key, packed) == packed for key, packed in wanted.items())


def not_applied(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> list[int]:
    """Positions of configurations with tile sizes that the compiler does not apply.

    Raises:
        CompileError: the compiler refused.
    """
    tiled = [i for i, (_, config) in enumerate(chosen) if is_tiled(config)]
    if not tiled:
        return []
    configured = compile_text(text, *target, *imposed(chosen, folder), CONFIGURED, brief=True)
    return [i for i in tiled if not _has(configured, chosen[i][0].names, lowering_config(*chosen[i]))]


def _has(configured: str, names: Sequence[str], wanted: str) -> bool:
    """Whether every function of these names has an operation that is configured as `wanted`.

    A function that is not there any more was found equal to another.
    """
    from iree.compiler import ir

    module = ir.Module.parse(configured, ir.Context())
    attribute = ir.Attribute.parse(wanted, module.context)
    return all(
        any(
            "lowering_config" in op.attributes and op.attributes["lowering_config"] == attribute
            for op in walk(function)
        )
        for function in walk(module.operation, "func.func")
        if symbol(function) in names
    )


def failing(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> list[int]:
    """Positions of configurations with tile sizes that do not compile, found by compiling with one of them at a time.

    All of them where each compiles alone and they do not together.

    Raises:
        CompileError: the module does not compile without any of them either.
    """
    without = [(dispatch, {} if is_tiled(config) else config) for dispatch, config in chosen]
    compile_with(text, target, without, folder)
    tiled = [i for i, (_, config) in enumerate(chosen) if is_tiled(config)]
    items = []
    for i in tiled:
        try:
            compile_with(text, target, [*without[:i], chosen[i], *without[i + 1 :]], folder)
        except CompileError:
            items.append(i)
    return items or tiled
