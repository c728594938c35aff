"""How many instructions one call of a module executes: IREE's code for AVX2, counted by callgrind.

valgrind knows no AVX-512, so a module is compiled for x86-64-v3, which is not the code that is timed: counts are rows of a
compiler of their own, `iree-avx2`. A count is the difference between two runs with different numbers of calls, so start-up is
not in it, and the runtime's part of a call is.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ....datasets.records.mlir_modules import (
    ModuleRun,
    ModuleText,
    append_runs,
    read_runs,
    read_texts,
    runs_of,
    texts_of,
)
from ...campaign import Progress, new_block_name
from ...host import machine_facts, utc_now
from ..compilers.iree import TARGET_FLAGS, Compiled, compile_module
from ..operands import operands, signature
from .bench import Measured, finished

COMPILER = "iree-avx2"
LONGEST_S = 2e-3
"""Latency of a call above which a module is left out: callgrind is some fifty times slower than the processor."""

_FEW, _MANY = 5, 25
_LIMIT_S = 120.0
_BLOCK = 20
_COLLECTED = re.compile(r"Collected : (\d+)")


def valgrind() -> str | None:
    """The simulator, None where it is not installed."""
    return shutil.which("valgrind")


def executed_instructions(module: ModuleText, binary: Path, folder: Path) -> float:
    """Instructions of one call of the module compiled into `binary`, on operands that are written to `folder`.

    Raises:
        ValueError: callgrind or the module did not run; the message says why.
    """
    called = signature(module.text)
    inputs = []
    for i, (argument, data) in enumerate(
        zip(called.arguments, operands(called.arguments, int(module.module_id, 16)), strict=True)
    ):
        if argument.shape is None:
            inputs.append(f"--input={data.item()}")
        elif argument.dtype == "bf16":
            # numpy files have no bfloat16; what the numbers are decides little of what is executed.
            inputs.append(f"--input={'x'.join(map(str, argument.shape))}{'x' if argument.shape else ''}bf16=1")
        else:
            np.save(folder / f"{i}.npy", data)
            inputs.append(f"--input=@{folder / f'{i}.npy'}")
    command = [_benchmark(), "--device=local-sync", f"--module={binary}", f"--function={called.function}", *inputs]
    few, many = (_collected([*command, f"--benchmark_min_time={calls}x"]) for calls in (_FEW, _MANY))
    return (many - few) / (_MANY - _FEW)


def _collected(command: Sequence[str]) -> int:
    simulated = [str(valgrind()), "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
    try:
        done = subprocess.run(  # noqa: S603  installed tools on our own files
            simulated, capture_output=True, text=True, timeout=_LIMIT_S, check=False, preexec_fn=refuse_io_uring
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"callgrind took longer than {_LIMIT_S:g} s") from None
    result = _COLLECTED.search(done.stderr)
    if done.returncode or result is None:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("==")]
        raise ValueError(f"callgrind: status {done.returncode}: {lines[-1][:200] if lines else 'no output'}")
    return int(result[1])


_LIBC = ctypes.CDLL(None, use_errno=True)
_IO_URING_SETUP = 425  # the same number on every architecture
_SET_SECCOMP, _MODE_FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38  # prctl(2)
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_io_uring() -> None:
    """Let `io_uring_setup` fail in this process and what it becomes, as on a kernel that does not have it.

    valgrind (3.19) blocks for ever in `io_uring_enter`, which IREE's runtime waits in; refused it, the runtime uses poll
    instead. A seccomp filter does that (seccomp(2), and linux/filter.h for the instructions).

    Raises:
        OSError: the kernel takes no filter.
    """
    instructions = ((_LOAD_WORD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, _IO_URING_SETUP), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
                    (_RETURN, 0, 0, _ALLOW))  # fmt: skip
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    program = _Program(len(instructions), ctypes.addressof(packed))
    # A filter is allowed without being root where no privileges can be gained any more.
    refused = _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if refused or _LIBC.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


@cache
def _benchmark() -> str:
    import iree._runtime_libs as libraries

    return str(Path(next(iter(libraries.__path__))) / "iree-benchmark-module")


Count = Callable[[ModuleText, Path, Path], float]
Build = Callable[[ModuleText, Path, str], Compiled]


def count_modules(
    root: Path, device: str, most: int, *, until: float, now: Callable[[], float], progress: Progress | None = None,
    count: Count = executed_instructions,
    compile_: Build = compile_module,
) -> int:  # fmt: skip
    """Count up to `most` of the modules that take at most `LONGEST_S` by the rows of `root`, and store that; how many.

    What has been counted on `device` is left out. No module is begun after `until`.
    """
    chosen = list(_small(root, device))[:most]
    rows: list[ModuleRun] = []
    stored = 0
    with tempfile.TemporaryDirectory(prefix="kernelcast-count-") as name:
        for done, module in enumerate(chosen, 1):
            if now() >= until:
                break
            rows.append(_row(module, device, Path(name), count, compile_))
            if len(rows) == _BLOCK:
                stored += _stored(root, device, rows)
                rows = []
            if progress is not None:
                progress(done, len(chosen))
    return stored + _stored(root, device, rows)


def _small(root: Path, device: str) -> Iterator[ModuleText]:
    """The modules to count, in an order that is always the same and says nothing of them."""
    runs = [run for run in runs_of(read_runs(root)) if run.device == device]
    counted = {run.module_id for run in runs if run.compiler == COMPILER}
    small = {
        run.module_id
        for run in runs
        if run.compiler == "iree" and run.latency_s is not None and run.latency_s <= LONGEST_S
    }
    texts = {text.module_id: text for text in texts_of(read_texts(root))}
    wanted = (small - counted) & set(texts)
    return (texts[name] for name in sorted(wanted, key=lambda name: hashlib.blake2b(name.encode()).digest()))


def _row(module: ModuleText, device: str, folder: Path, count: Count, compile_: Build) -> ModuleRun:
    binary = folder / "module.vmfb"
    compiled = compile_(module, binary, "cpu-avx2")
    row = ModuleRun(
        module.module_id, COMPILER, device, 1, compiled.status, "", message=compiled.message, measured_at=utc_now()
    )
    row = finished(Measured(row), compiled, {})
    if compiled.path is None:
        return row
    try:
        return replace(row, executed_instructions=count(module, binary, folder))
    except ValueError as error:
        return replace(row, status="failed", message=str(error))


def _stored(root: Path, device: str, rows: Sequence[ModuleRun]) -> int:
    if not rows:
        return 0
    block = new_block_name()
    flags = list(TARGET_FLAGS["cpu-avx2"])
    facts = machine_facts(device) | {"target": "cpu-avx2", "iree_flags": flags, "counted_by": _version()}
    append_runs(root, [replace(row, block=block) for row in rows], facts)
    return len(rows)


@cache
def _version() -> str:
    tool = valgrind()
    if tool is None:
        return "no valgrind"
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=False, timeout=30.0).stdout.strip()  # noqa: S603
