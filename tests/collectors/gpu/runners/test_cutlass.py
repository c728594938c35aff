"""CUTLASS products: what is compiled, kept, launched and planned."""

from __future__ import annotations

import ctypes
import os
import shutil
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelcast.collectors.gpu.measure.operands import make_operands
from kernelcast.collectors.gpu.plan.cutlass_tiles import ALIGNMENT, CONFIGS_PER_SHAPE, TILES, cutlass_gpu_plan
from kernelcast.collectors.gpu.runners import cutlass
from kernelcast.collectors.gpu.runners.cutlass import build, cutlass_binary, cutlass_version, include_dir
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.features.kernel import KernelSpec

CONFIG = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "inner_m": 32, "inner_n": 32, "stages": 4}

# Plays nvcc: writes down its arguments, reports as ptxas does, and fails on two stages as a compiler, on three by dying,
# on five by taking too long; the last two leave a part of the library behind.
FAKE_NVCC = """#!/bin/sh
[ "$1" = --version ] && echo "release 13.0" && exit 0
echo "$@" >> "$(dirname "$0")/calls"
for last; do :; done
case "$*" in
  *STAGES=2*) echo "gemm.h(7): error: static assertion failed" >&2; exit 2;;
  *STAGES=3*) echo part > "$last"; exit 137;;
  *STAGES=5*) echo part > "$last"; exec sleep 600;;
esac
echo library > "$last"
echo "    0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads" >&2
echo "ptxas info    : Used 96 registers, used 1 barriers" >&2
"""


def _spec(dtype: str = "bf16", *, config: dict[str, int] | None = None, **settings: Any) -> KernelSpec:
    sizes = {"m": 33, "n": 64, "k": 128} | settings
    return KernelSpec.of("gemm", dtype, impl="cutlass", config=CONFIG if config is None else config, **sizes)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a played nvcc, headers and an empty cache."""
    headers = tmp_path / "cutlass" / "include" / "cutlass"
    headers.mkdir(parents=True)
    (headers / "cutlass.h").touch()
    (headers / "version.h").write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(FAKE_NVCC)
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(cutlass.HEADERS_ENV, str(tmp_path / "cutlass"))
    monkeypatch.setenv(cutlass.CACHE_ENV, str(tmp_path / "cache"))
    return tmp_path


def _calls(toolkit: Path) -> list[str]:
    calls = toolkit / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_a_library_is_compiled_once_and_its_registers_are_kept(toolkit: Path) -> None:
    built = build(cutlass_binary(_spec()), 90)
    assert (built.registers, built.spill_b) == (96, 12)
    assert built.path.read_text() == "library\n"
    assert build(cutlass_binary(_spec(m=1000)), 90) == built
    (call,) = _calls(toolkit)
    assert "-arch=sm_90" in call
    assert f"-I {toolkit}/cutlass/include" in call
    for define in ("TILE_K=32", "WARP_M=32", "STAGES=4", "SPLIT=false", "ELEMENT=cutlass::bfloat16_t"):
        assert f"-DKC_{define}" in call


@pytest.mark.parametrize(
    "other",
    [_spec("fp16"), _spec(config=CONFIG | {"split_k": 2}), _spec(variant="nt"), _spec(config=CONFIG | {"group_m": 8})],
)
def test_what_changes_the_code_changes_the_library(toolkit: Path, other: KernelSpec) -> None:
    assert build(cutlass_binary(other), 90).path != build(cutlass_binary(_spec()), 90).path
    assert build(cutlass_binary(_spec()), 80).path != build(cutlass_binary(_spec()), 90).path
    assert len(_calls(toolkit)) == 3


def test_the_number_of_parts_does_not_change_the_library() -> None:
    two, four = (cutlass_binary(_spec(config=CONFIG | {"split_k": parts})) for parts in (2, 4))
    assert two == four != cutlass_binary(_spec(config=CONFIG | {"split_k": 1}))


@pytest.mark.parametrize(
    ("times", "stages", "deadline_s", "message"),
    [
        (1, 2, 60.0, "static assertion failed"),
        (2, 3, 60.0, "nvcc ended with 137: it said nothing"),
        (2, 5, 3.0, "nvcc took more than 3 s"),
    ],
)
def test_refused_configurations_are_remembered_and_accidents_are_not(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch, times: int, stages: int, deadline_s: float, message: str
) -> None:
    monkeypatch.setattr(cutlass, "_DEADLINE_S", deadline_s)
    for _ in range(2):
        with pytest.raises(UnsupportedCaseError, match=message):
            build(cutlass_binary(_spec(config=CONFIG | {"stages": stages})), 90)
    assert len(_calls(toolkit)) == times
    assert list((toolkit / "cache").glob("*.so")) == []
    assert _calls(toolkit)[0].endswith(f".{os.getpid()}.tmp.so")


def test_missing_headers_and_compiler_say_what_to_install(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cutlass_version() == "4.2.0"
    monkeypatch.setenv(cutlass.HEADERS_ENV, str(toolkit))
    with pytest.raises(UnsupportedCaseError, match=r"has no include/cutlass/cutlass.h; clone .* pip install"):
        build(cutlass_binary(_spec()), 90)
    monkeypatch.delenv(cutlass.HEADERS_ENV)
    monkeypatch.setattr(cutlass.importlib.util, "find_spec", lambda name: None)
    assert cutlass.RUNNER.versions() == {"cutlass": "none"}
    package = types.SimpleNamespace(submodule_search_locations=[str(toolkit)])
    (toolkit / "cutlass").rename(toolkit / "source")
    monkeypatch.setattr(cutlass.importlib.util, "find_spec", lambda name: package)
    assert include_dir() == toolkit / "source" / "include"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedCaseError, match="no nvcc on PATH; install the CUDA toolkit"):
        build(cutlass_binary(_spec()), 90)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_spec("fp32"), "in bf16, fp16, tf32; got"),
        (_spec(batch=2), "single products"),
        (_spec(variant="tn"), "plain or nt"),
        (_spec(config={}), "tile_m is missing"),
        (_spec(config=CONFIG | {"inner_k": 8}), "inner_k is not one of its knobs"),
        (_spec(config=CONFIG | {"inner_m": 48}), "a whole number of warps' tiles"),
        (_spec(config=CONFIG | {"warps": 8}), "make 4 warps, not 8"),
    ],
)
def test_what_cutlass_is_not_asked_for(spec: KernelSpec, message: str) -> None:
    with pytest.raises(UnsupportedCaseError, match=message):
        cutlass_binary(spec)


class PlayedLibrary:
    """A library whose product is torch's, at the addresses it is given."""

    def __init__(self) -> None:
        self.status, self.seen = 0, []

    def workspace_b(self, *sizes: int) -> int:
        return 64 * sizes[-1]

    def shared_b(self) -> int:
        return 1234

    def can_run(self, *_: int) -> int:
        return 0

    def launch(self, a: int, b: int, d: int, *rest: int) -> int:
        m, n, k, ldb, split_k, _, stream = rest
        self.seen.append((ldb, split_k, stream))

        def matrix(address: int, elements: int) -> Any:
            return torch.frombuffer((ctypes.c_char * (4 * elements)).from_address(address), dtype=torch.float32)

        right = matrix(b, k * n)
        right = right.view(k, n) if ldb == n else right.view(n, k).t()
        matrix(d, m * n).view(m, n).copy_(matrix(a, m * k).view(m, k) @ right)
        return self.status


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedLibrary:
    library = PlayedLibrary()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(cutlass, "build", lambda binary, capability: cutlass.Built(Path("x"), 96, capability))
    monkeypatch.setattr(cutlass, "_library", lambda path: library)
    return library


@pytest.mark.parametrize(("variant", "row_b"), [("", 64), ("nt", 128)])
def test_operands_sizes_and_stream_reach_the_library(played: PlayedLibrary, variant: str, row_b: int) -> None:
    spec = _spec("tf32", variant=variant, config=CONFIG | {"split_k": 4})
    launch = cutlass.RUNNER.launch(spec, make_operands(torch, spec, "cpu"))
    assert launch.expected is not None
    got, wanted = launch.call().double(), launch.expected().double()
    assert (got - wanted).norm() / wanted.norm() < launch.tolerance
    assert played.seen == [(row_b, 4, 7)] * 2
    assert launch.resources == {"registers": 96, "spill_b": 90, "shared_b": 1234}


def test_a_launch_that_fails_and_rows_that_do_not_align_are_unsupported(played: PlayedLibrary) -> None:
    odd = _spec("tf32", k=126)
    with pytest.raises(UnsupportedCaseError, match="take k in multiples of 4, got 126"):
        cutlass.RUNNER.launch(odd, make_operands(torch, odd, "cpu"))
    spec = _spec("tf32")
    shifted = tuple(torch.empty(x.numel() + 1)[1:].view(x.shape) for x in make_operands(torch, spec, "cpu"))
    with pytest.raises(UnsupportedCaseError, match="operands aligned to 16 bytes"):
        cutlass.RUNNER.launch(spec, shifted)
    played.status = 7
    with pytest.raises(UnsupportedCaseError, match="status 7; it needs 1234 B of shared memory"):
        cutlass.RUNNER.launch(spec, make_operands(torch, spec, "cpu"))


def test_a_real_library_knows_its_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on PATH")
    try:
        include_dir()
    except UnsupportedCaseError as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv(cutlass.CACHE_ENV, str(tmp_path))
    built = build(cutlass_binary(_spec(config=CONFIG | {"split_k": 2})), 90)
    library = cutlass._library(built.path)
    assert 32 <= built.registers <= 255
    # Four stages of a 64×32 and a 32×64 tile of two bytes.
    assert library.shared_b() == 4 * 2 * 64 * 32 * 2
    # One counter of four bytes per tile of 64 × 64.
    assert library.workspace_b(130, 64, 128, 64, 2) == 3 * 4
    assert library.workspace_b(130, 64, 128, 64, 1) == 0
    assert library.can_run(16, 16, 16, 33, 64, 128, 64, 2) == 0
    assert library.can_run(4, 16, 16, 33, 64, 128, 64, 2) != 0
    assert library.can_run(16, 16, 16, 33, 64, 127, 64, 2) != 0


def test_the_plan_is_reproducible_legal_and_ranks_configurations_on_equal_shapes() -> None:
    plan = cutlass_gpu_plan(600, 3)
    assert plan == cutlass_gpu_plan(600, 3) != cutlass_gpu_plan(600, 4)
    assert len(set(plan)) == 600
    binaries = {cutlass_binary(spec) for spec in plan}
    assert len(TILES) * 3 <= len(binaries) <= len(TILES) * 6
    assert all(spec["n"] % ALIGNMENT == spec["k"] % ALIGNMENT == 0 for spec in plan)
    assert Counter(Counter(spec.shape_id for spec in plan).values()).most_common(1)[0][0] == CONFIGS_PER_SHAPE
    assert any(spec["m"] % 2 for spec in plan)
    splits = Counter(dict(spec.config)["split_k"] for spec in plan)
    assert set(splits) == {1, 2, 4, 8}
    assert splits[1] > 300
