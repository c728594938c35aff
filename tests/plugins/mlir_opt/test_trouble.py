"""A model that cannot be used: one sentence, and the code as it was; an error where the user wants that."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import CPU, ROOT, RunPass

pytestmark = pytest.mark.slow


def missing_folder(models: Path) -> None:
    shutil.rmtree(models)


def missing_file(models: Path) -> None:
    for file in models.iterdir():
        file.unlink()


def changed(at: int) -> Callable[[Path], None]:
    def change(models: Path) -> None:
        for file in models.iterdir():
            content = bytearray(file.read_bytes())
            content[at] ^= 0xFF
            file.write_bytes(bytes(content))

    return change


def newer(models: Path) -> None:
    for file in models.iterdir():
        content = bytearray(file.read_bytes())
        content[8] = 77
        file.write_bytes(bytes(content))


def cut(models: Path) -> None:
    for file in models.iterdir():
        file.write_bytes(file.read_bytes()[:-9])


def empty(models: Path) -> None:
    for file in models.iterdir():
        file.write_bytes(b"")


def swapped(models: Path) -> None:
    shutil.copy(models / "op-softmax.kcm", models / "op-gemm.kcm")
    shutil.copy(models / "op-softmax.kcm", models / "mlir-opt-tiles.kcm")


TROUBLES = [
    (missing_folder, "there is no folder"),
    (missing_file, "there is no model file"),
    (changed(-1), "checksum"),
    (changed(60), "checksum"),
    (changed(0), "is not a kernelcast model file"),
    (newer, "newer"),
    (cut, "cut short"),
    (empty, "not a kernelcast model file"),
    (swapped, "is a model of op-softmax, not of"),
]
MATMUL = """
func.func @first(%a: memref<8x8xf32>, %b: memref<8x8xf32>, %c: memref<8x8xf32>) {
  linalg.matmul {kernelcast.latency_s = 1.0 : f64} ins(%a, %b : memref<8x8xf32>, memref<8x8xf32>) outs(%c : memref<8x8xf32>)
  return
}
func.func @second(%a: memref<8x8xf32>, %b: memref<8x8xf32>, %c: memref<8x8xf32>) {
  linalg.matmul ins(%a, %b : memref<8x8xf32>, memref<8x8xf32>) outs(%c : memref<8x8xf32>)
  return
}
"""


@pytest.fixture
def own_models(models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models, tmp_path / "models"))


@pytest.mark.parametrize("name", ["kernelcast-annotate", "kernelcast-tile"])
@pytest.mark.parametrize(("spoil", "sentence"), TROUBLES, ids=[sentence for _, sentence in TROUBLES])
def test_an_unusable_model_is_one_warning_and_no_change(
    run_pass: RunPass, own_models: Path, name: str, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(own_models)
    run = run_pass(f"{name}{{model={own_models} device={CPU}}}", MATMUL)
    assert run.status == 0
    assert run.module == run_pass("", MATMUL).module
    assert run.message.count("warning:") == 1
    assert sentence in run.message
    strict = run_pass(f"{name}{{model={own_models} device={CPU} strict=true}}", MATMUL)
    assert strict.status == 1
    assert "error:" in strict.message
    assert sentence in strict.message


@pytest.mark.parametrize("name", ["kernelcast-annotate", "kernelcast-tile"])
def test_an_unknown_device_is_told_with_those_there_are(run_pass: RunPass, models: Path, name: str) -> None:
    run = run_pass(f"{name}{{model={models} device=abacus}}", MATMUL)
    assert (run.status, run.module) == (0, run_pass("", MATMUL).module)
    assert "does not know the device 'abacus'" in run.message
    assert CPU in run.message
    assert run_pass(f"{name}{{model={models} device=abacus strict=true}}", MATMUL).status == 1


@pytest.mark.parametrize("name", ["kernelcast-annotate", "kernelcast-tile"])
@pytest.mark.parametrize("options", ["", "{model=/nowhere}", "{device=x}"])
def test_missing_options_are_said(run_pass: RunPass, name: str, options: str) -> None:
    run = run_pass(name + options, MATMUL)
    assert (run.status, run.module) == (0, run_pass("", MATMUL).module)
    assert "needs the options model=DIR" in run.message


def test_one_missing_family_leaves_the_others_answered(run_pass: RunPass, own_models: Path) -> None:
    (own_models / "op-elementwise.kcm").unlink()
    run = run_pass(f"kernelcast-annotate{{model={own_models} device={CPU}}}", "buffers.mlir")
    assert run.status == 0
    assert run.message.count("warning:") == 1
    assert run.module.count("kernelcast.latency_s") == 4
    assert "there is no model of elementwise to ask" in run.module


def test_sizes_beyond_numbers_are_no_crash(run_pass: RunPass, models: Path) -> None:
    side = 2**62
    code = (
        f"func.func @f(%a: tensor<{side}x{side}xf32>, %b: tensor<{side}x{side}xf32>) -> tensor<{side}x{side}xf32> {{\n"
        f"  %0 = linalg.matmul ins(%a, %b : tensor<{side}x{side}xf32>, tensor<{side}x{side}xf32>) "
        f"outs(%a : tensor<{side}x{side}xf32>) -> tensor<{side}x{side}xf32>\n"
        f"  %1 = linalg.exp ins(%0 : tensor<{side}x{side}xf32>) outs(%a : tensor<{side}x{side}xf32>) "
        f"-> tensor<{side}x{side}xf32>\n  return %1 : tensor<{side}x{side}xf32>\n}}\n"
    )
    for name in ("kernelcast-annotate", "kernelcast-tile"):
        run = run_pass(f"{name}{{model={models} device={CPU}}}", code)
        assert (run.status, run.message) == (0, "")
        assert "whole number from 0 to 2**40" in run.module


def test_missing_headers_are_one_sentence(plugin: Path, tmp_path: Path) -> None:
    build = ROOT / "plugins" / "mlir_opt" / "build.sh"
    for settings, sentence in (
        ({"LLVM_PREFIX": str(tmp_path)}, "libmlir-19-dev"),
        ({"CXX": "no-such-compiler"}, "no-such-compiler is missing"),
    ):
        done = subprocess.run(
            ["sh", build, tmp_path / "x.so"], env={"PATH": "/usr/bin:/bin"} | settings, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "x.so").exists()
