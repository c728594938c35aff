import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelcast.collectors.compiled import labels
from kernelcast.collectors.compiled import worker as labeller
from kernelcast.collectors.compiled.labels import compile_labels, compiling_child, label_plan
from kernelcast.collectors.gpu.runners.triton import triton_binaries
from kernelcast.datasets.records.compiled_code import read_compiled
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_from_row

KNOBS = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "warps": 4, "stages": 3, "group_m": 8, "split_k": 1}


def gemm(dtype="bf16", impl="triton", **knobs):
    return KernelSpec.of("gemm", dtype, impl=impl, m=4096, n=4096, k=4096, config=KNOBS | knobs)


def textbook(tile):
    config = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
    return KernelSpec.of("gemm", "fp32", impl="cupy-tiled", m=4096, n=4096, k=4096, config=config)


def quiet(what, done, total):
    pass


def stored(out):
    """Rows by case and target."""
    rows = [SimpleNamespace(**row) for row in read_compiled(out, "gemm").to_pylist()]
    return {(spec_from_row(vars(row)), row.target): row for row in rows}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Compiled for real: a good kernel for two targets, one no target has, one its library refuses."""
    out = tmp_path_factory.mktemp("labels")
    specs = [gemm(), gemm("fp8", tile_k=64), gemm(tile_m=48), gemm(impl="iree")]
    return out, compile_labels(specs, ["sm_80", "sm_90"], out, quiet), stored(out)


def test_tensor_core_kernels_of_two_architectures_differ(real):
    _, _, rows = real
    ampere, hopper = rows[gemm(), "sm_80"], rows[gemm(), "sm_90"]
    for row in (ampere, hopper):
        assert row.status == "ok"
        assert row.compiler.startswith("triton ")
        assert row.threads_per_block == 128
        assert 32 <= row.registers <= 255
        assert row.spill_b == 0
        assert row.async_copies > 0
        assert row.global_stores > 0
        assert row.ffma_ops == 0
        assert row.occupancy == row.warps_per_sm / 64
    # Three stages of two tiles of 64 x 32 bf16.
    assert hopper.shared_b == 3 * 2 * 64 * 32 * 2
    # A warp group of Hopper does in one instruction what takes a warp of Ampere many.
    assert ampere.tensor_ops >= 8 * hopper.tensor_ops > 0


def test_a_kernel_that_does_not_compile_is_a_row(real):
    _, summary, rows = real
    assert rows[gemm("fp8", tile_k=64), "sm_90"].status == "ok"
    broken = rows[gemm("fp8", tile_k=64), "sm_80"]
    assert broken.status == "failed"
    assert "fp8e4nv not supported" in broken.message
    assert broken.registers is None
    assert rows[gemm(tile_m=48), "sm_80"].status == "unsupported"
    assert "power of two" in rows[gemm(tile_m=48), "sm_80"].message
    assert "not of 'iree'" in rows[gemm(impl="iree"), "sm_90"].message
    assert summary.stored == {"ok": 3, "failed": 1, "unsupported": 4}
    assert str(summary) == "8 rows compiled (1 failed, 3 ok, 4 unsupported); 0 skipped as already stored"


def test_a_file_says_what_compiled_it(real):
    out, _, _ = real
    (facts,) = provenance_of(read_compiled(out, "gemm")).values()
    assert facts["compilers"]["triton"].startswith("triton ")
    assert {"source_hash", "collector_version", "started_at", "counted_by"} <= set(facts)


def test_goes_on_where_it_stopped(real):
    out, _, rows = real

    def none_needed():
        raise AssertionError("nothing is left to compile")

    again = compile_labels([gemm(), gemm("fp8", tile_k=64)], ["sm_90"], out, quiet, child=none_needed)
    assert (again.stored, again.skipped) == ({}, 2)
    assert stored(out) == rows


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to compile CUDA")
def test_cuda_kernels_are_compiled_with_nvcc(tmp_path):
    compile_labels([textbook(16)], ["sm_90"], tmp_path, quiet)
    row = stored(tmp_path)[textbook(16), "sm_90"]
    assert row.compiler.startswith("nvcc ")
    assert (row.threads_per_block, row.shared_b, row.spill_b) == (256, 2 * 16 * 16 * 4, 0)
    assert row.ffma_ops == 16
    assert row.barriers == 2
    assert row.blocks_per_sm == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PTXAS error: Internal\n`ptxas` stderr:\nptxas fatal   : (C7602) Insufficient registers\nRepro command: ptxas",
         "RuntimeError: ptxas fatal   : (C7602) Insufficient registers"),
        ('tiled.cu(3): error: identifier "x" is undefined\n1 error detected', 'RuntimeError: tiled.cu(3): error: identifier'),
        ("at 35:14:\n   lhs = tl.load(a)\n         ^\ncannot cast", "RuntimeError: cannot cast"),
        ("", "RuntimeError: "),
    ],
)  # fmt: skip
def test_a_message_is_the_line_that_tells(text, said, monkeypatch, tmp_path):
    def fail(spec, capability, folder):
        raise RuntimeError(text)

    monkeypatch.setattr(labeller, "_BUILDS", {"triton": fail})
    row = labeller.label_kernel(gemm(), "sm_90", tmp_path)
    assert row["status"] == "failed"
    assert row["message"].startswith(said)


# Plays a compiler: what it does with a case is told by the case's tile.
PLAYED = """
import json, subprocess, sys, time
print(json.dumps({"ready": {"compilers": {}}}), flush=True)
for line in sys.stdin:
    tile = json.loads(line)["spec"]["tile_m"]
    if tile == 1:
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        open(sys.argv[1], "w").write(str(child.pid))
        time.sleep(600)
    if tile == 2:
        sys.exit("segmentation fault")
    print(json.dumps({"label": {"status": "ok", "registers": tile}}), flush=True)
"""


@pytest.fixture
def played(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "DEADLINE_S", 5.0)
    return lambda: compiling_child(command=[sys.executable, "-c", PLAYED, str(tmp_path / "pid")])


def test_a_compiler_that_hangs_or_crashes_is_a_row_and_the_rest_goes_on(played, tmp_path):
    specs = [textbook(tile) for tile in (1, 2, 3, 4)]
    out = tmp_path / "out"
    done = compile_labels(specs, ["sm_90"], out, quiet, processes=2, child=played)
    rows = {row.tile_m: row for row in stored(out).values()}
    assert (rows[1].status, rows[1].message) == ("timeout", "the compiling process took longer than 5 s")
    assert rows[2].status == "crashed"
    assert "segmentation fault" in rows[2].message
    assert (rows[3].registers, rows[4].registers) == (3, 4)
    assert done.stored == {"ok": 2, "timeout": 1, "crashed": 1}
    hung = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    until = time.monotonic() + 60
    while hung.exists() and hung.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < until, "what the compiler started still runs"
        time.sleep(0.05)


def test_a_crash_is_tried_again_and_a_hang_is_not(played, tmp_path):
    specs = [textbook(tile) for tile in (1, 2)]
    compile_labels(specs, ["sm_90"], tmp_path / "out", quiet, child=played)
    again = compile_labels(specs, ["sm_90"], tmp_path / "out", quiet, child=played)
    assert (again.stored, again.skipped) == ({"crashed": 1}, 1)


def test_ctrl_c_stores_what_is_done(played, tmp_path):
    def stop(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    done = compile_labels([textbook(tile) for tile in (3, 4, 5, 6)], ["sm_90"], tmp_path, stop, child=played)
    assert done.interrupted
    assert done.stored == {"ok": 2}
    assert len(stored(tmp_path)) == 2


def test_a_plan_has_different_binaries_and_every_textbook_tile():
    plan = label_plan(400, 0)
    assert len(plan) == len(set(plan)) == 400
    triton = [spec for spec in plan if spec.impl == "triton"]
    assert len({triton_binaries(spec) for spec in triton}) == len(triton) == 368
    assert sorted(dict(spec.config)["tile_k"] for spec in plan if spec.impl == "cupy-tiled") == list(range(1, 33))
    kinds = Counter(spec.family for spec in triton)
    assert kinds["attention"] == 110
    assert {spec.dtype for spec in triton if spec.family == "gemm"} == {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"}
    assert label_plan(400, 0) == plan
