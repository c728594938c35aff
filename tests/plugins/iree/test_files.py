"""Specs, hooks and hints do to a compilation what they say, and a hook never breaks one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.plugins.iree.compiler import (
    CONFIGURED,
    Instructions,
    compile_text,
    compile_with,
    failing,
    imposed,
    not_applied,
    packed_as_told,
    target_flags,
)
from kernelcast.plugins.iree.dispatches import CONVOLUTION
from kernelcast.plugins.iree.spec_text import HOOK_NAME, hook_program, lowering_config, tuning_spec

from .conftest import BIASED, CONV_TILES, TILES, TUNABLE, VECTOR_TILES, function

pytestmark = pytest.mark.slow

pytest.importorskip("iree.compiler")

TARGET = target_flags(TUNABLE)


def tiles_for(name: str, dispatch: Any) -> dict[str, int]:
    if name == "plain":
        return TILES | {"tile_k": 10}
    return VECTOR_TILES if name == "vector" else CONV_TILES if dispatch.kind == CONVOLUTION else TILES


@pytest.fixture
def chosen(tunable: dict[str, Any]) -> list[tuple[Any, dict[str, int]]]:
    return [(dispatch, tiles_for(name, dispatch)) for name, dispatch in tunable.items()]


def test_a_tuning_spec_configures_every_kind_of_operation(chosen: list[Any], tmp_path: Path) -> None:
    assert not_applied(TUNABLE, TARGET, chosen, tmp_path) == []


def test_what_is_not_in_the_module_is_not_applied(tunable: dict[str, Any], tmp_path: Path) -> None:
    other = function("turned", "linalg.matmul", "32x20xf32", "20x36xf32", "32x36xf32")
    named = [(tunable["turned"], TILES)]
    assert lowering_config(*named[0]) not in compile_text(other, *TARGET, *imposed(named, tmp_path), CONFIGURED)


def test_a_spec_of_nothing_is_valid(tmp_path: Path) -> None:
    spec = tmp_path / "spec.mlir"
    spec.write_text(tuning_spec([]))
    text = function("main", "linalg.matmul", "8x8xf32", "8x8xf32", "8x8xf32")
    assert "lowering_config" in compile_text(text, *TARGET, f"--iree-codegen-tuning-spec-path={spec}", CONFIGURED)


def test_the_hook_configures_what_the_spec_does(
    tunable: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = function("nhwc", "linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : "
                    "tensor<2xi64>}", "1x10x12x8xf32", "3x3x8x16xf32", "1x8x10x16xf32")  # fmt: skip
    named = [(tunable["nhwc"], CONV_TILES), (tunable["plain"], TILES)]
    instructions = Instructions.of(named)
    instructions.write(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    configured = compile_text(text, *TARGET, *instructions.flags(tmp_path, by_hook=True), CONFIGURED)
    assert lowering_config(*named[0]) in configured


def run_hook(program: str, folder: Path, given: bytes) -> subprocess.CompletedProcess[bytes]:
    path = folder / HOOK_NAME
    path.write_text(program)
    path.chmod(0o755)
    return subprocess.run([path], input=given, capture_output=True, check=False, timeout=240)


@pytest.mark.parametrize("given", [b"", b"hal.executable private @other {}\n", b"\xff\x00 no text"])
def test_the_hook_hands_through_what_it_does_not_know(tunable: dict[str, Any], tmp_path: Path, given: bytes) -> None:
    done = run_hook(hook_program([(tunable["plain"], TILES)]), tmp_path, given)
    assert (done.returncode, done.stdout, done.stderr) == (0, given, b"")


@pytest.mark.parametrize("broken", ["", "from iree.compiler import ir", "context = ir.Context()"])
def test_a_hook_in_trouble_hands_through_and_says_so(tunable: dict[str, Any], tmp_path: Path, broken: str) -> None:
    program = hook_program([(tunable["plain"], TILES)])
    if broken:
        # No IREE in this Python, and a parser that takes the whole process with it.
        program = program.replace(broken, "import no_such_module" if "import" in broken else "os.abort()")
    given = " ".join(tunable["plain"].types).encode()
    done = run_hook(program, tmp_path, given)
    assert (done.returncode, done.stdout) == (0, given)
    assert done.stderr.count(b"\n") == 1
    assert b"compiled as it was" in done.stderr


def test_hints_pack_the_products_named_and_no_others(tunable: dict[str, Any], tmp_path: Path) -> None:
    parts = ("plain", "turned", "batched", "vector", "biased")
    packed = ("turned", "vector")
    named = [
        (tunable[name], {"data_tiling": 1} if name in packed else TILES if name == "plain" else {}) for name in parts
    ]
    assert Instructions.of(named).hints
    assert packed_as_told(TUNABLE, TARGET, named, tmp_path)


def test_no_hints_where_all_products_are_packed(tunable: dict[str, Any], tmp_path: Path) -> None:
    instructions = Instructions.of([(tunable["plain"], {"data_tiling": 1}), (tunable["nhwc"], CONV_TILES)])
    assert instructions.hints == ""
    assert instructions.flags(tmp_path)[0] == "--iree-opt-data-tiling"
    assert len(instructions.write(tmp_path)) == 2


def test_slices_of_the_sum_lift_the_veto_on_large_vectors(tunable: dict[str, Any], tmp_path: Path) -> None:
    veto = "--iree-llvmcpu-fail-on-large-vector=false"
    assert veto in Instructions.of([(tunable["plain"], TILES | {"tile_k": 10})]).flags(tmp_path)
    assert veto not in Instructions.of([(tunable["plain"], TILES)]).flags(tmp_path)


def test_a_tuned_module_computes_the_same(tunable: dict[str, Any], tmp_path: Path) -> None:
    runtime = pytest.importorskip("iree.runtime")
    module = compile_with(BIASED, TARGET, [(tunable["biased"], TILES)], tmp_path)
    loaded = runtime.load_vm_flatbuffer(module.read_bytes(), driver="local-sync")
    rng = np.random.default_rng(1)
    a, bias = rng.standard_normal((40, 24), dtype=np.float32), rng.standard_normal(48, dtype=np.float32)
    weights = np.random.default_rng(0).standard_normal((24, 48), dtype=np.float32)
    assert np.allclose(loaded.biased(a, bias).to_host(), np.maximum(a @ weights + bias, 0), atol=1e-4)


def test_configurations_that_do_not_compile_are_found(
    tunable: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelcast.plugins.iree import compiler as files
    from kernelcast.plugins.iree.compiler import CompileError

    bad = lowering_config(tunable["turned"], TILES | {"inner_k": 1})

    def compile_file(text: str, flags: list[str], path: Path) -> None:
        if bad in (tmp_path / files.SPEC_NAME).read_text():
            raise CompileError("iree-compile: no")

    monkeypatch.setattr(files, "compile_file", compile_file)
    named = [(tunable["plain"], TILES), (tunable["turned"], TILES | {"inner_k": 1}), (tunable["batched"], {})]
    assert failing(TUNABLE, TARGET, named, tmp_path) == [1]
