"""What a compiled kernel consists of: registers, stack and instructions, read from its machine code with NVIDIA's own tools.

Starting NVIDIA's disassembler took 0.2 to 0.4 s of a processor per kernel, as much as compiling a small one. `OpcodeTable`
therefore learns from listings which encoding is which operation, and counts later kernels from their encodings.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

MIX: Mapping[str, str] = MappingProxyType({
    "tensor_ops": r"(?:H|I|B|D|Q|O)(?:G)?MMA|WGMMA|UTC\wMMA",
    "ffma_ops": r"U?FFMA2?",
    "mufu_ops": r"MUFU",
    "global_loads": r"LDG",
    "global_stores": r"STG",
    "shared_loads": r"LDS|LDSM",
    "shared_stores": r"STS|STSM",
    "local_ops": r"LDL|STL",
    "async_copies": r"LDGSTS|UTMALDG|UBLKCP",
    "barriers": r"U?BAR|BARRIER",
})  # fmt: skip
"""Groups of instructions by their operation (NVIDIA CUDA Binary Utilities, "Instruction Set Reference").

Tensor cores: HMMA, IMMA … of a warp and HGMMA, IGMMA, QGMMA of a warp group. Fused multiply-adds in fp32. Special
functions (exp2 …). Loads and stores of global, shared (matrix ones too) and local memory, the last being spills. Copies
from global to shared memory that bypass registers. Barriers of a block.
"""

_GROUPS = {name: re.compile(pattern) for name, pattern in MIX.items()}
# "/*0040*/   @!P0 LDG.E.128 R4, ... ;": an address, maybe a predicate, the operation up to its first dot.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9]*)", re.MULTILINE)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_LISTED = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9]*)[^/]*/\*\s*0x([0-9a-f]{16})\s*\*/", re.MULTILINE
)
_PADDING, _OTHER = "NOP", "other"
_LEARNED_GROUPS = _GROUPS | {_PADDING: re.compile(_PADDING)}
_INSTRUCTION_B = 16
_OPERATION_BITS = 0xFFF
_SECONDS = 60.0


class DisassemblyError(RuntimeError):
    """cuobjdump is missing or cannot read the binary; the message says which."""


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel's machine code. Instructions are counted once each, however often they run.

    Attributes:
        registers: Registers per thread.
        stack_b: Bytes of stack per thread.
        mix: Number of instructions by group.
        total: Number of instructions without padding.
    """

    registers: int
    stack_b: int
    mix: Mapping[str, int]
    total: int


def read_code(cubin: Path) -> Code:
    """The code of a cubin with one kernel.

    Raises:
        DisassemblyError: cuobjdump is missing or fails.
    """
    return parse_listing(_run_cuobjdump(cubin, "-sass", "-res-usage"))


def parse_listing(text: str) -> Code:
    """The code of a listing of `cuobjdump -sass -res-usage`.

    Raises:
        DisassemblyError: it lists no kernel, or more than one.
    """
    registers, stack_b = _usage(text)
    operations = Counter(_INSTRUCTION.findall(text))
    operations.pop(_PADDING, None)
    mix = {name: sum(count for word, count in operations.items() if pattern.fullmatch(word))
           for name, pattern in _GROUPS.items()}  # fmt: skip
    return Code(registers, stack_b, mix, operations.total())


@cache
def cuobjdump() -> str:
    """Path of the tool: the one that comes with Triton, or the one on PATH.

    Raises:
        DisassemblyError: there is neither.
    """
    triton = find_spec("triton")
    places = [] if triton is None or triton.origin is None else [
        Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    ]  # fmt: skip
    path = next((str(place) for place in places if place.is_file()), None) or shutil.which("cuobjdump")
    if path is None:
        raise DisassemblyError("no cuobjdump; install triton or put the CUDA toolkit's bin folder on PATH")
    return path


class OpcodeTable:
    """Which operation each encoding of one architecture is, as far as listings have shown it.

    On compute capability 7.0 and later an instruction has 16 bytes, and its operation is in the lowest 12 bits of the first 8
    (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018). What these bits stand for is never
    assumed: a cubin with bits that are new is disassembled, and its listing, which shows encoding and operation side by side,
    extends the table.
    """

    def __init__(self) -> None:
        self._group_of: dict[int, str | None] = {}
        """The group of an operation's bits; None where listings disagree."""

    def read_code(self, cubin: Path) -> Code:
        """The code of a cubin with one kernel; equal to what the function `read_code` reads.

        Raises:
            DisassemblyError: cuobjdump is missing or fails, or the file is no cubin.
        """
        met = operations(cubin.read_bytes())
        groups = [self._group_of.get(bits) for bits in met]
        if None in groups:
            return self._learned(cubin)
        counts: Counter[str] = Counter()
        for group, count in zip(groups, met.values(), strict=True):
            counts[str(group)] += count
        registers, stack_b = _usage(_run_cuobjdump(cubin, "-res-usage"))
        total = counts.total() - counts[_PADDING]
        return Code(registers, stack_b, {name: counts[name] for name in MIX}, total)

    def _learned(self, cubin: Path) -> Code:
        listing = _run_cuobjdump(cubin, "-sass", "-res-usage")
        for word, encoding in _LISTED.findall(listing):
            bits = int(encoding, 16) & _OPERATION_BITS
            group = next((name for name, pattern in _LEARNED_GROUPS.items() if pattern.fullmatch(word)), _OTHER)
            self._group_of[bits] = group if self._group_of.get(bits, group) == group else None
        return parse_listing(listing)


def operations(cubin: bytes) -> Counter[int]:
    """How often each operation, by its bits, is in the machine code of a cubin.

    The sections of an ELF file are listed at the offset in its header (System V ABI, "Object Files"); code is in `.text.*`.

    Raises:
        DisassemblyError: it is no such file.
    """
    try:
        (table,) = struct.unpack_from("<Q", cubin, 40)
        size, count, names = struct.unpack_from("<HHH", cubin, 58)
        sections = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
        names_at = sections[names][4]
        code = b"".join(cubin[at : at + length] for name, _, _, _, at, length in sections
                        if cubin.startswith(b".text.", names_at + name))  # fmt: skip
        firsts = struct.unpack(f"<{len(code) // 8}Q", code)[::2]
    except (struct.error, IndexError) as error:
        raise DisassemblyError(f"no cubin: {error}") from error
    if not firsts or len(code) % _INSTRUCTION_B:
        raise DisassemblyError(f"{len(code)} bytes of code are no instructions of {_INSTRUCTION_B} bytes")
    return Counter(first & _OPERATION_BITS for first in firsts)


def _usage(text: str) -> tuple[int, int]:
    """Registers and bytes of stack per thread of the one kernel in the tool's output.

    Raises:
        DisassemblyError: it lists no kernel, or more than one.
    """
    usage = _USAGE.findall(text)
    if len(usage) != 1:
        raise DisassemblyError(f"expected one kernel in the listing, found {len(usage)}")
    registers, stack_b, _, local_b = map(int, usage[0])
    return registers, stack_b + local_b


def _run_cuobjdump(cubin: Path, *options: str) -> str:
    done = subprocess.run(  # noqa: S603  NVIDIA's tool on a file of our own
        [cuobjdump(), *options, str(cubin)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise DisassemblyError(f"cuobjdump cannot read {cubin}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout
