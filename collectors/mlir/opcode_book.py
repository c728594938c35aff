"""Counts instructions of a cubin from its encodings, having learned which is which from listings of the disassembler.

Starting NVIDIA's disassembler took 0.2 to 0.4 s of a processor per kernel, as much as compiling a small one. On compute
capability 7.0 and later an instruction has 16 bytes, and its operation is in the lowest 12 bits of the first 8 (Jia et al.,
"Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018). What these bits stand for is never assumed: a
cubin with bits not met before is disassembled, and its listing, which shows encoding and operation side by side, is learned.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from pathlib import Path

from ..gpu.sass import MIX, Code, DisassemblyError, cuobjdump, parse_listing

_SECONDS = 60.0
_INSTRUCTION_B = 16
_OPERATION_BITS = 0xFFF
_LISTED = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9]*)[^/]*/\*\s*0x([0-9a-f]{16})\s*\*/", re.MULTILINE
)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_PADDING = "padding"
_OTHER = "other"
_GROUPS = {name: re.compile(pattern) for name, pattern in MIX.items()} | {_PADDING: re.compile("NOP")}


class OpcodeBook:
    """What encodings of one architecture stand for, as far as they were met in listings."""

    def __init__(self) -> None:
        self._group_of: dict[int, str | None] = {}
        """The group of an operation's bits; None where listings disagree."""

    def read_code(self, cubin: Path) -> Code:
        """The code of a cubin with one kernel; equal to what `sass.read_code` reads.

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
        usage = _USAGE.findall(_said("-res-usage", cubin))
        if len(usage) != 1:
            raise DisassemblyError(f"expected one kernel in {cubin}, found {len(usage)}")
        registers, stack_b, _, local_b = map(int, usage[0])
        total = counts.total() - counts[_PADDING]
        return Code(registers, stack_b + local_b, {name: counts[name] for name in MIX}, total)

    def _learned(self, cubin: Path) -> Code:
        listing = _said("-sass", cubin, "-res-usage")
        for word, encoding in _LISTED.findall(listing):
            bits = int(encoding, 16) & _OPERATION_BITS
            group = next((name for name, pattern in _GROUPS.items() if pattern.fullmatch(word)), _OTHER)
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


def _said(option: str, cubin: Path, *more: str) -> str:
    done = subprocess.run(  # noqa: S603  NVIDIA's tool on a file of our own
        [cuobjdump(), option, *more, str(cubin)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise DisassemblyError(f"cuobjdump cannot read {cubin}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout
