"""What machine code consists of: its size, instructions, vector instructions and stack traffic, by `objdump` of binutils."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LIMIT_S = 30.0
_SECTION = re.compile(r"^\s*\d+\s+(\.l?text\S*)\s+([0-9a-f]+)\s", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(?:(?:lock|rep\w*|notrack|bnd)\s+)?(\S+)([^\n]*)$", re.MULTILINE)
# Padding between functions and loops is never executed; `xchg %ax,%ax` is the two-byte form of it.
_PADDING = re.compile(r"nop\w*|data16|cs|int3")
_VECTOR = re.compile(r"%[xyz]mm")
_STACK = r"(?:%fs:)?-?(?:0x)?[0-9a-f]*\((?:{bases})\)"
# They handle addresses and return addresses, not values.
_NO_VALUE = re.compile(r"lea\w*|push\w*|pop\w*|call\w*|jmp\w*|ret\w*|prefetch\w*")
_KERNEL = re.compile(rb"[\w$.-]*?_dispatch_\d+(?![\w$.-]*_dispatch_\d)")


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """Machine code, counted; an instruction counts once however often it runs.

    Attributes:
        code_b: Bytes of the text sections.
        instructions: All but padding.
        vector_instructions: Those with an xmm, ymm or zmm operand (scalar floating point is among them).
        spills: Accesses to a stack slot: a memory operand that is a constant away from %rsp, or from %rbp where that is the
            frame pointer, without an index (an index means an array that lives on the stack).
    """

    code_b: int
    instructions: int
    vector_instructions: int
    spills: int


@cache
def objdump() -> str | None:
    """The disassembler, None where binutils are not installed."""
    return shutil.which("objdump")


def count_files(paths: Iterable[Path]) -> CodeCounts | None:
    """The counts of several object files or shared objects together; None without files, or without `objdump`.

    Raises:
        subprocess.SubprocessError: a file is no object file, or takes longer than 30 s to read.
    """
    tool = objdump()
    files = [str(path) for path in paths]
    if tool is None or not files:
        return None
    command = [tool, "--no-show-raw-insn", "--section-headers", "--disassemble", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)  # noqa: S603  binutils on our files
    return count_text(done.stdout)


def count_text(text: str) -> CodeCounts:
    """The counts of what `objdump --no-show-raw-insn --section-headers --disassemble` printed, AT&T syntax."""
    sizes = [int(size, 16) for _, size in _SECTION.findall(text)]
    bases = "%rsp|%rbp" if re.search(r"mov\s+%rsp,%rbp", text) else "%rsp"
    stack = re.compile(_STACK.format(bases=bases))
    instructions = vector = spills = 0
    for name, rest in _INSTRUCTION.findall(text):
        if _PADDING.fullmatch(name) or (name == "xchg" and rest.strip() == "%ax,%ax"):
            continue
        instructions += 1
        vector += _VECTOR.search(rest) is not None
        spills += stack.search(rest) is not None and not _NO_VALUE.fullmatch(name)
    return CodeCounts(sum(sizes), instructions, vector, spills)


def kernel_names(paths: Iterable[Path]) -> set[str]:
    """Names of the dispatch functions in IREE's shared objects, which list what they export by name."""
    return {name.decode() for path in paths for name in _KERNEL.findall(path.read_bytes())}
