"""Counting what a call executes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from kernelcast.collectors.mlir.compilers.iree import Compiled, compile_module
from kernelcast.collectors.mlir.machine_code import CodeCounts
from kernelcast.collectors.mlir.measure.executed_instructions import (
    COMPILER,
    LONGEST_S,
    count_modules,
    executed_instructions,
    refuse_io_uring,
    valgrind,
)
from kernelcast.datasets.records.mlir_modules import (
    ModuleRun,
    ModuleText,
    append_runs,
    append_texts,
    read_runs,
    runs_of,
)


def text(size: int) -> ModuleText:
    code = f"""func.func @main(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{
      %b = stablehlo.add %a, %a : tensor<{size}xf32>
      return %b : tensor<{size}xf32>
    }}"""
    return ModuleText(code, f"test/{size}", "test", "stablehlo")


def stored(root: Path, latencies: dict[int, float | None]) -> None:
    append_texts(root, [text(size) for size in latencies], {"texts": "test"})
    rows = [
        ModuleRun(text(size).module_id, "iree", "cpu-1", 1, "ok", "b", latency_s=latency)
        for size, latency in latencies.items()
    ]
    append_runs(root, rows, {"cpu": "one"})


def compile_(module: ModuleText, path: Path, target: str) -> Compiled:
    assert target == "cpu-avx2"
    if "tensor<3xf32>" in module.text:
        return Compiled(None, "unsupported", "iree-compile: no", 0.1)
    return Compiled(path, compile_s=0.1, binary_b=5, dispatches=1, counts=CodeCounts(1, 2, 3, 4))


def count(module: ModuleText, binary: Path, folder: Path) -> float:
    if "tensor<4xf32>" in module.text:
        raise ValueError("callgrind: status 1: no")
    return 123.0


def test_small_measured_modules_are_counted_once(tmp_path: Path) -> None:
    stored(tmp_path, {2: 1e-5, 3: 1e-5, 4: 1e-5, 5: 2 * LONGEST_S, 6: None})
    ticks = iter(range(100))
    counted = count_modules(tmp_path, "cpu-1", 10, until=50.0, now=lambda: next(ticks), count=count, compile_=compile_)
    assert counted == 3
    rows = {row.module_id: row for row in runs_of(read_runs(tmp_path)) if row.compiler == COMPILER}
    assert {rows[text(size).module_id].status for size in (2,)} == {"ok"}
    good = rows[text(2).module_id]
    assert (good.executed_instructions, good.latency_s, good.spills, good.threads) == (123.0, None, 4, 1)
    assert (rows[text(3).module_id].status, rows[text(3).module_id].message) == ("unsupported", "iree-compile: no")
    assert (rows[text(4).module_id].status, rows[text(4).module_id].executed_instructions) == ("failed", None)
    assert count_modules(tmp_path, "cpu-1", 10, until=50.0, now=lambda: 0.0, count=count, compile_=compile_) == 0


def test_out_of_time_none_is_begun(tmp_path: Path) -> None:
    stored(tmp_path, {2: 1e-5})
    assert count_modules(tmp_path, "cpu-1", 10, until=1.0, now=lambda: 2.0, count=count, compile_=compile_) == 0


def test_a_command_runs_without_io_uring() -> None:
    # io_uring_setup(0, NULL) is EFAULT (14) where there is one, and ENOSYS (38) where there is none.
    code = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(425, 1, None); print(ctypes.get_errno())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        preexec_fn=refuse_io_uring,
    )
    assert done.stdout.strip() == "38"


@pytest.mark.skipif(
    valgrind() is None or importlib.util.find_spec("iree") is None, reason="valgrind or IREE is not installed"
)
def test_a_call_executes_what_its_loop_must(tmp_path: Path) -> None:
    size, binary = 65536, tmp_path / "a.vmfb"
    assert compile_module(text(size), binary, "cpu-avx2").status == "ok"
    # Each vector of eight numbers takes at least an addition and a store; start-up alone would be millions.
    assert size / 8 * 2 < executed_instructions(text(size), binary, tmp_path) < 1e6
