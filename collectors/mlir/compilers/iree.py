"""IREE: a module compiled by `iree-compile` in a process of its own, and called through IREE's virtual machine."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from ....datasets.records.mlir_modules import ModuleText
from ....datasets.rows.schema import Status
from ....process import first_diagnostic
from ....version import required_versions
from ...cpu.runners.iree import compiler
from ...runner import UnsupportedCaseError
from ..compiler import Built, Job, ModuleRunner
from ..machine_code import CodeCounts, count_files, kernel_names
from ..operands import Argument, Array, signature

COMPILE_LIMIT_S = 30
"""Processor time allowed for a compilation; most modules take under a second or two."""

_PATIENCE_S = 10.0 * COMPILE_LIMIT_S
"""Wall time allowed for it: a compiler shares its core with others and goes last."""

# Nothing to share out on one core; and what is written in double precision is computed in it, which is not IREE's default.
_COMMON = ("--mlir-disable-threading", "--iree-input-demote-f64-to-f32=false")

TARGET_FLAGS = MappingProxyType({
    # No debug information: it does not change the code.
    "cpu": ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", *_COMMON,
            "--iree-llvmcpu-debug-symbols=false"),
    "cuda": ("--iree-hal-target-backends=cuda", *_COMMON),
})  # fmt: skip
"""What `iree-compile` is told, by target."""

_ELEMENTS = MappingProxyType({
    "f16": "FLOAT_16", "f32": "FLOAT_32", "f64": "FLOAT_64", "bf16": "BFLOAT_16", "i1": "BOOL_8", "index": "INT_64",
    **{f"{sign}{bits}": f"{name}_{bits}" for sign, name in (("i", "INT"), ("ui", "UINT")) for bits in (8, 16, 32, 64)},
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling a module gave. A module that does not compile has a status and a message instead of a path.

    Attributes:
        path: The binary.
        status: Status of its row.
        message: What the compiler said.
        compile_s: The compiler's processor time on one thread: what it takes on an idle core, whatever else runs.
        binary_b: Bytes of the binary.
        dispatches: Number of dispatches.
        counts: Machine code, counted.
    """

    path: Path | None
    status: Status = "ok"
    message: str | None = None
    compile_s: float | None = None
    binary_b: int | None = None
    dispatches: int | None = None
    counts: CodeCounts | None = None


def compile_module(module: ModuleText, path: Path, target: str = "cpu") -> Compiled:
    """Compile `module` into the file `path`, in a process that is killed when `COMPILE_LIMIT_S` are used up."""
    with tempfile.TemporaryDirectory(prefix="kernelcast-iree-") as folder:
        command = [*compiler(), *TARGET_FLAGS[target], f"--iree-hal-dump-executable-binaries-to={folder}", "-o", str(path),
                   f"--iree-input-type={'torch' if module.dialect == 'torch' else 'auto'}"]  # fmt: skip
        code, errors, spent_s = _run(command, module.text)
        if code is None:
            return Compiled(None, "timeout", f"iree-compile took longer than {COMPILE_LIMIT_S} s")
        if code != 0:
            # Refusing is final, dying may have been an accident.
            status: Status = "crashed" if code < 0 else "unsupported"
            return Compiled(None, status, f"iree-compile: {first_diagnostic(errors, code)}", spent_s)
        dumped = sorted(Path(folder).iterdir())
        objects = [file for file in dumped if file.suffix == ".so"]
        return Compiled(path, compile_s=spent_s, binary_b=path.stat().st_size, counts=count_files(objects),
                        dispatches=len(kernel_names(dumped)))  # fmt: skip


def _run(command: Sequence[str], text: str) -> tuple[int | None, str, float]:
    """Exit status (None: out of time), what it said, and its processor time in seconds."""
    with tempfile.TemporaryFile("w+") as raw, tempfile.TemporaryFile("w+") as output:
        raw.write(text)
        raw.seek(0)
        process = subprocess.Popen(command, stdin=raw, stdout=subprocess.DEVNULL, stderr=output)  # noqa: S603  the installed compiler
        # A compiler that is already over has no limits to set.
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (COMPILE_LIMIT_S, COMPILE_LIMIT_S))
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(_PATIENCE_S, end)
        timer.start()
        # Its own account of this very process: several may be compiling at once.
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        used_up = overdue.is_set() or usage.ru_utime + usage.ru_stime >= COMPILE_LIMIT_S - 1
        return None if used_up else process.returncode, output.read(), usage.ru_utime + usage.ru_stime


_RUNTIME = SimpleNamespace(library=None, instance=None, device=None)


def _start(target: str, threads: int | None, dump: Path) -> None:
    """Make the device: local-sync runs everything on the calling thread, local-task on `threads` workers."""
    del dump  # compiled elsewhere
    import iree.runtime as library

    if target == "cpu" and threads != 1:
        library.flags.parse_flags(f"--task_topology_group_count={threads}")
    uri = "cuda" if target == "cuda" else "local-sync" if threads == 1 else "local-task"
    try:
        _RUNTIME.device = library.get_device(uri)
    except (RuntimeError, ValueError) as error:
        raise SystemExit(f"IREE has no device {uri} here: {str(error).splitlines()[0]}") from error
    _RUNTIME.library, _RUNTIME.instance = library, library.VmInstance()


@dataclass(slots=True)
class _IreeModule:
    """A module in IREE's virtual machine."""

    context: Any
    function: Any
    arguments: Sequence[Argument]
    built: Built = field(default_factory=Built)

    def place(self, operands: Sequence[Array]) -> Callable[[], Any]:
        library = _RUNTIME.library
        raw = library.VmVariantList(len(operands))
        for argument, operand in zip(self.arguments, operands, strict=True):
            if argument.shape is None:
                push = raw.push_float if argument.dtype.startswith(("f", "bf")) else raw.push_int
                push(operand.item())
                continue
            raw.push_ref(_buffer(operand, argument.dtype))
        invoke, function, new_list = self.context.invoke, self.function, library.VmVariantList

        def call() -> Any:
            # The virtual machine directly: the Python wrapper around it packs and reflects arguments on every call.
            results = new_list(1)
            invoke(function, raw, results)
            return results

        return call

    def results(self, call: Callable[[], Any]) -> list[Array]:
        library, outcome = _RUNTIME.library, call()
        results = []
        for i in range(len(outcome)):
            value = outcome.get_variant(i)
            if not isinstance(value, library.VmRef):
                results.append(np.asarray(value))
                continue
            view = value.deref(library.HalBufferView)
            host = np.array(library.DeviceArray(_RUNTIME.device, view).to_host())
            # Formats that numpy does not know (bfloat16 and smaller) as float32.
            results.append(host if host.dtype.kind in "biufc" else host.astype(np.float32))
        return results


def _buffer(operand: Array, dtype: str) -> Any:
    library, device = _RUNTIME.library, _RUNTIME.device
    kind, usage = library.MemoryType, library.BufferUsage
    return device.allocator.allocate_buffer_copy(
        memory_type=kind.DEVICE_LOCAL, allowed_usage=usage.DEFAULT | usage.MAPPING, device=device,
        buffer=np.ascontiguousarray(operand).view(np.uint8) if dtype == "i1" else operand,
        element_type=getattr(library.HalElementType, _ELEMENTS[dtype]),
    )  # fmt: skip


def _load(job: Job) -> _IreeModule:
    if job.binary is None:
        raise UnsupportedCaseError("the module was not compiled")
    library = _RUNTIME.library
    called = signature(job.module.text)
    code = library.VmModule.copy_buffer(_RUNTIME.instance, job.binary.read_bytes())
    hal = library.create_hal_module(_RUNTIME.instance, _RUNTIME.device)
    context = library.VmContext(_RUNTIME.instance, modules=[hal, code])
    return _IreeModule(context, code.lookup_function(called.function), called.arguments)


RUNNER = ModuleRunner(
    name="iree",
    start=_start,
    load=_load,
    versions=partial(required_versions, "iree-base-compiler", "iree-base-runtime"),
    ahead=True,
)
