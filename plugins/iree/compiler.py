"""Running `iree-compile`: in a process of its own, since a compiler may abort or never end."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...features.errors import SpecError

HOST = "host"
COMPILE_LIMIT_S = 900.0
"""Longest compilation waited for: whole models with their weights take minutes."""

CONFIGURED = "--compile-to=executable-configurations"

# Weights are not read here, and printing them takes longer than compiling.
_BRIEF = ("--mlir-elide-elementsattrs-if-larger=16", "--mlir-elide-resource-strings-if-larger=16")
_TORCH = re.compile(r"!torch\.|\btorch\.(?:aten|prims|constant)\b")
_SAID_CHARS = 300


class CompileError(SpecError):
    """`iree-compile` did not take the module: what it output first. `output` is all it output."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.output = text


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


def compile_file(text: str, flags: Sequence[str], path: Path, *, limit_s: float = COMPILE_LIMIT_S) -> None:
    """Compile `text` with `flags` into the module file `path`.

    Raises:
        CompileError: the compiler refused, died, or took longer than `limit_s`.
        ImportError: IREE's compiler is not installed.
    """
    _run(text, (*flags, "-o", str(path)), limit_s)


def _run(text: str, flags: Sequence[str], limit_s: float) -> bytes:
    command = [*_compiler(), "--mlir-disable-threading", "--iree-llvmcpu-debug-symbols=false", *flags]
    try:
        done = subprocess.run(  # noqa: S603  the installed compiler; the text goes through a pipe
            command, input=text.encode(), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"iree-compile took longer than {limit_s:g} s") from None
    if done.returncode:
        decode = done.stderr.decode(errors="replace")
        raise CompileError(f"iree-compile: {_first_diagnostic(decode, done.returncode)}", decode)
    return done.stdout


def _first_diagnostic(message: str, status: int) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    match = next((line for line in lines if "error:" in line), lines[0] if lines else "no diagnostic")
    # Signals (the compiler aborted) come as negative statuses.
    ending = f" (killed by signal {-status})" if status < 0 else ""
    return match.rpartition("error: ")[2].strip()[:_SAID_CHARS] + ending


@cache
def _compiler() -> tuple[str, ...]:
    from iree.compiler.tools.binaries import find_tool

    return (find_tool("iree-compile"), "-", f"--iree-llvmcpu-embedded-linker-path={find_tool('iree-lld')}")
