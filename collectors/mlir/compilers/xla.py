"""XLA: StableHLO text compiled by jaxlib's client in the measuring process, and executed without jax around it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ....version import required_versions
from ...runner import UnsupportedCaseError
from ..compiler import Built, Job, ModuleRunner
from ..operands import Argument, Array, signature

_XLA = SimpleNamespace(client=None, device=None, devices=None, put=None, options=None, refused=(), dump=None)

# What moves nothing and computes nothing at run time.
_NO_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
_ENTRY = re.compile(r"^ENTRY [^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_OPCODE = re.compile(r"^\s+(?:ROOT )?%\S+ = .*?[\])}] ([a-z][a-z0-9-]*)\(", re.MULTILINE)


def _start(target: str, threads: int | None, dump: Path) -> None:
    """Make the client; this process's cores, which it has been confined to, are the threads XLA uses."""
    del threads
    # Read once, when the client is made. Of what is dumped only the object files are kept, after each compilation.
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump}"
    os.environ["JAX_PLATFORMS"] = target
    import jax
    from jaxlib import _jax, xla_client

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    # A call is then over when it returns.
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    try:
        device = jax.devices(target)[0]
    except RuntimeError as error:
        raise SystemExit(f"XLA has no {target} device here: {str(error).splitlines()[0]}") from error
    _XLA.client, _XLA.device, _XLA.dump = device.client, device, dump
    _XLA.devices, _XLA.options, _XLA.put = _jax.DeviceList((device,)), xla_client.CompileOptions, jax.device_put
    _XLA.refused = xla_client.XlaRuntimeError


@dataclass(slots=True)
class _XlaModule:
    """An executable of XLA."""

    executable: Any
    arguments: Sequence[Argument]
    built: Built

    def place(self, operands: Sequence[Array]) -> Callable[[], Any]:
        # A copy each: XLA may take an aligned array of numpy as it is, and it is to move in memory.
        placed = [_XLA.put(_as_xla(np.array(operand), argument.dtype), _XLA.device)
                  for argument, operand in zip(self.arguments, operands, strict=True)]  # fmt: skip
        for array in placed:
            array.block_until_ready()
        execute = self.executable.execute

        def call() -> Any:
            results = execute(placed)
            for result in results:
                result.block_until_ready()
            return results

        return call

    def results(self, call: Callable[[], Any]) -> list[Array]:
        return [_from_xla(np.asarray(result)) for result in call()]


def _as_xla(operand: Array, dtype: str) -> Array:
    if dtype != "bf16":
        return operand
    import ml_dtypes

    return operand.view(ml_dtypes.bfloat16)


def _from_xla(result: Array) -> Array:
    """Formats that numpy does not know (bfloat16 and smaller) as float32."""
    return result if result.dtype.kind in "biufc" else result.astype(np.float32)


def _load(job: Job) -> _XlaModule:
    called = signature(job.module.text)
    began = time.process_time()
    try:
        executable = _XLA.client.compile_and_load(job.module.text, _XLA.devices, _XLA.options())
    except _XLA.refused as error:
        raise UnsupportedCaseError(f"XLA: {str(error).splitlines()[0]}") from error
    compile_s = time.process_time() - began
    objects = _keep_objects(job.module.module_id)
    built = Built(compile_s, sum(path.stat().st_size for path in objects), kernels_in(executable.hlo_modules()[0].to_string()),
                  objects)  # fmt: skip
    return _XlaModule(executable, called.arguments, built)


def kernels_in(hlo: str) -> int:
    """Operations in the entry computation of an optimised HLO module that do something when it runs."""
    entry = _ENTRY.search(hlo)
    return sum(opcode not in _NO_WORK for opcode in _OPCODE.findall(entry[1])) if entry else 0


def _keep_objects(module_id: str) -> tuple[Path, ...]:
    """Move the object files that were just dumped aside, and remove the rest of the dump."""
    objects: list[Path] = []
    for path in sorted(path for path in _XLA.dump.rglob("*") if path.is_file() and ".kept" not in path.parts):
        if path.suffix == ".o":
            aside = _XLA.dump / ".kept" / f"{module_id}-{len(objects)}.o"
            aside.parent.mkdir(exist_ok=True)
            objects.append(path.rename(aside))
        else:
            path.unlink()
    return tuple(objects)


RUNNER = ModuleRunner(
    name="xla", start=_start, load=_load, versions=partial(required_versions, "jax", "jaxlib"), dialects=("stablehlo",)
)
