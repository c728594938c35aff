"""`kernelcast measure mlir`: what a user types, and one tiny module measured for real."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.mlir.compiler import module_runners
from kernelcast.collectors.mlir.compilers import iree as iree_module
from kernelcast.commands.measure.collect import drawn, read_modules, thread_counts
from kernelcast.datasets.records.mlir_modules import read_runs, runs_of

Run = Callable[..., Any]
DEVICE = ("--device", "amd-epyc-9005-vm-2c")
TEXT = """func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xbf16>) -> tensor<8x8xf32> {
  %c = stablehlo.convert %b : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %d = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %d : tensor<8x8xf32>
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "net").mkdir(parents=True)
    (tmp_path / "in" / "net" / "layer.mlir").write_text(TEXT)
    return tmp_path / "in"


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("iree", "jax")), reason="IREE or jax is not installed"
)
def test_a_module_is_compiled_and_measured_by_both_compilers(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ("collect-mlir", "--texts", folder, "--out", out, "--minutes", "3", "--threads", "1", *DEVICE, "--json")
    done = run(*args)
    assert done.code == 0, done
    answer = json.loads(done.out)
    assert answer["stored"] == {"ok": 2}
    rows = {row.compiler: row for row in runs_of(read_runs(out))}
    assert set(rows) == {"iree", "xla"}
    for row in rows.values():
        assert row.latency_s is not None
        assert 1e-7 < row.latency_s < 1e-2
        assert row.compile_s is not None
        assert 0.0 < row.compile_s < 30.0
        assert row.message is None or row.message.startswith("every call")
        assert row.dispatches
    assert rows["iree"].binary_b is not None
    assert rows["iree"].binary_b > 1000
    if os.access("/usr/bin/objdump", os.X_OK):
        assert rows["iree"].code_instructions is not None
        assert rows["iree"].code_instructions > 10
    again = run(*args)
    assert json.loads(again.out)["skipped"] == 2


@pytest.mark.skipif(importlib.util.find_spec("iree") is None, reason="IREE is not installed")
def test_what_iree_refuses_is_final_and_says_why(folder: Path, tmp_path: Path) -> None:
    (module,) = read_modules(folder)
    from dataclasses import replace

    refused = iree_module.compile_module(
        replace(module, text=TEXT.replace("8x8xf32>)", "8x9xf32>)")), tmp_path / "m.vmfb"
    )
    assert refused.status == "unsupported"
    assert refused.path is None
    assert str(refused.message).startswith("iree-compile: ")


@pytest.mark.parametrize(
    ("args", "said"),
    [(("--compiler", "gcc"), "--compiler is 'gcc'; compilers: iree, xla"), (("--compiler", ","), "compilers: iree, xla"),
     (("--target", "tpu"), "--target is 'tpu'; targets: cpu, cuda"), (("--threads", "0"), "on this machine: 1 to"),
     (("--threads", "x"), "thread counts on this machine"), (("--texts", "/no/such/place"), "does not exist"),
     (("--device", "no-such-device"), "no-such-device")],
)  # fmt: skip
def test_what_a_user_gets_wrong_is_one_sentence(run: Run, tmp_path: Path, args: tuple[str, str], said: str) -> None:
    raw = ("collect-mlir", "--out", tmp_path / "out", *(() if args[0] == "--device" else DEVICE), *args)
    assert said in run(*raw).error


def test_an_empty_folder_and_one_that_is_no_text_are_one_sentence(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    command = ("collect-mlir", "--out", tmp_path / "out", *DEVICE, "--texts", place)
    assert "has no modules" in run(*command).error
    (place / "bytes.mlir").write_bytes(b"\xff\xfe")
    assert "cannot read the modules" in run(*command).error


def test_a_compiler_that_is_not_installed_is_named(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    done = run("collect-mlir", "--out", tmp_path / "out", "--texts", folder, "--compiler", "xla", *DEVICE)
    assert "needs jax; run: pip install" in done.error


def test_cuda_without_a_gpu_is_one_sentence(run: Run, folder: Path, tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    done = run("collect-mlir", "--out", tmp_path / "out", "--texts", folder, "--target", "cuda")
    assert "GPU" in done.error
    done = run("collect-mlir", "--out", tmp_path / "out", "--texts", folder, "--target", "cuda", "--compiler", "iree",
                      "--device", "nvidia-h100-sxm-80gb", "--minutes", "1")  # fmt: skip
    assert "no device cuda" in done.error


def test_a_gpu_without_cuda_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run("collect-mlir", "--out", tmp_path / "out", "--texts", folder, "--target", "cuda", "--device", "mi300x")
    assert "--target is cuda, which amd-mi300x does not run; give --target cpu" in done.error


def test_a_program_of_a_folder_is_called_by_its_path(folder: Path) -> None:
    (folder / "copy.mlir").write_text(TEXT)
    (folder / "other.mlir").write_text("func.func @f(%a: tensor<2xf32>) {\n  %0 = tosa.abs %a\n}")
    modules = read_modules(folder)
    assert {(module.program, module.dialect) for module in modules} == {("net/layer", "stablehlo"), ("other", "tosa")}


def test_a_file_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [TEXT], "program": ["p"], "source": ["jax"], "dialect": ["stablehlo"]}), path)
    assert [module.program for module in read_modules(path)] == ["p"]


def test_thread_counts() -> None:
    cores = len(os.sched_getaffinity(0))
    assert thread_counts("") == sorted({1, cores})
    assert thread_counts("1,1") == [1]


def test_every_compiler_is_known_by_its_name() -> None:
    assert list(module_runners()) == ["iree", "xla"]


def test_a_count_draws_from_the_modules_and_a_larger_one_adds_to_it(folder: Path) -> None:
    for number in range(5):
        (folder / f"{number}.mlir").write_text(TEXT.replace("8x8", f"{8 + number}x{8 + number}"))
    modules = read_modules(folder)
    assert drawn(modules, None, 0) == drawn(modules, 99, 0) == modules
    assert drawn(modules, 3, 0) == drawn(modules, 4, 0)[:3]
    assert drawn(modules, 3, 0) != drawn(modules, 3, 1)
