"""What a compiled kernel consists of: registers, stack and instructions, read from its machine code with NVIDIA's own tools."""

from __future__ import annotations

import re
import shutil
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
_PADDING = "NOP"
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
    usage = _USAGE.findall(text)
    if len(usage) != 1:
        raise DisassemblyError(f"expected one kernel in the listing, found {len(usage)}")
    registers, stack_b, _, local_b = map(int, usage[0])
    operations = Counter(word for word in _INSTRUCTION.findall(text) if word != _PADDING)
    mix = {name: sum(count for word, count in operations.items() if pattern.fullmatch(word))
           for name, pattern in _GROUPS.items()}  # fmt: skip
    return Code(registers, stack_b + local_b, mix, operations.total())


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


def _run_cuobjdump(cubin: Path, *options: str) -> str:
    done = subprocess.run(  # noqa: S603  NVIDIA's tool on a file of our own
        [cuobjdump(), *options, str(cubin)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise DisassemblyError(f"cuobjdump cannot read {cubin}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout
