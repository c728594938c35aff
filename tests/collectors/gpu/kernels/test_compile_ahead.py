import glob
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kernelcast.collectors.gpu.kernels.compile_ahead import cache_environment, compile_ahead, distinct_jobs
from kernelcast.features.kernel import KernelSpec

KNOBS = {"tile_m": 16, "tile_n": 32, "tile_k": 32, "warps": 4, "stages": 2, "group_m": 1, "split_k": 1}
CUPY = KernelSpec.of("gemm", "fp32", impl="cupy-tiled", m=8, n=8, k=8, config={"tile_m": 8, "tile_n": 8, "tile_k": 8})


def gemm(m, n, k, dtype="bf16", **knobs):
    return KernelSpec.of("gemm", dtype, impl="triton", m=m, n=n, k=k, config=KNOBS | knobs)


def cached(cache_dir, name):
    """Files of that name below the cache; a folder may go away meanwhile, where pathlib's `rglob` would raise."""
    return [Path(path) for path in glob.glob(f"{cache_dir}/triton/**/{name}", recursive=True)]  # noqa: PTH207 - pathlib raises


def wait_for(what, limit_s=60.0):
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until, "not done in time"
        time.sleep(0.05)


def gone(pid):
    """Whether a process has ended; it may still wait to be reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children():
    """Processes whose parent this one is, zombies included."""
    tasks = Path("/proc/self/task").iterdir()
    return sorted(pid for task in tasks for pid in (task / "children").read_text().split())


def test_jobs_are_the_first_case_of_every_binary_in_order():
    specs = [gemm(5, 64, 64), gemm(9, 128, 64, group_m=8), gemm(5, 65, 64), CUPY, replace(CUPY, impl="torch"),
             gemm(5, 64, 64, tile_m=48), gemm(5, 64, 64, warps=8)]  # fmt: skip
    assert distinct_jobs(specs) == [specs[0], specs[2], specs[6]]


def test_fills_the_cache_goes_on_after_a_failure_and_leaves_no_process(tmp_path):
    # sm_80 has no fp8, so Triton refuses the second.
    specs = [gemm(5, 64, 64), gemm(5, 64, 64, dtype="fp8"), gemm(5, 64, 64, dtype="fp16")]
    before = children()
    with compile_ahead(specs, 80, processes=1, cache_dir=tmp_path):
        wait_for(lambda: len(cached(tmp_path, "gemm.cubin")) == 2)
    assert children() == before


def test_the_launch_finds_what_was_compiled_ahead(tmp_path):
    spec = gemm(5, 64, 64)
    with compile_ahead([spec], 90, processes=1, cache_dir=tmp_path):
        wait_for(lambda: cached(tmp_path, "__grp__gemm.json"))
    (metadata,) = cached(tmp_path, "__grp__gemm.json")
    code = (
        "import json, sys, triton\n"
        "from kernelcast.collectors.gpu.runners.triton import compiled\n"
        "from kernelcast.collectors.gpu.runners.triton import triton_binaries\n"
        "from kernelcast.features.spec_io.rows import spec_from_row\n"
        "hits = []\n"
        "triton.knobs.compilation.listener = lambda cache_hit, **_: hits.append(cache_hit)\n"
        f"spec = spec_from_row({{'family': 'gemm', 'dtype': 'bf16', 'm': 77, 'n': 4096, 'k': 1024, **{KNOBS!r}}})\n"
        "print([compiled(binary, 90).hash for binary in triton_binaries(spec)], hits)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], env=os.environ | cache_environment(tmp_path),
                          capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[True]\n")
    assert metadata.exists()


def test_stops_at_once_when_the_block_ends(tmp_path):
    specs = [gemm(5, 64, 64, tile_m=m, tile_n=n, warps=w) for m in (16, 32) for n in (16, 32, 64) for w in (1, 2, 4, 8)]
    before = children()
    with compile_ahead(specs, 90, processes=2, cache_dir=tmp_path):
        pass
    assert children() == before
    assert len(cached(tmp_path, "gemm.cubin")) < len(specs) / 2


def test_background_processes_die_with_their_parent(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from kernelcast.collectors.gpu.kernels.compile_ahead import compile_ahead\n"
        "from kernelcast.collectors.gpu.plan.tiled_kernels import tiled_gpu_plan\n"
        "with compile_ahead(tiled_gpu_plan(4000, 0), 90, 1, Path(sys.argv[1])):\n"
        "    import os\n"
        "    while not (pids := [pid for task in os.listdir('/proc/self/task')\n"
        "                        for pid in open(f'/proc/self/task/{task}/children').read().split()]):\n"
        "        time.sleep(0.05)\n"
        "    print(pids[0], flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        child = int(parent.stdout.readline())
        wait_for(lambda: cached(tmp_path, "*.cubin"))
        assert not gone(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: gone(child), 50.0)
    finally:
        parent.kill()
        parent.stdout.close()
        parent.wait()


def test_nothing_to_compile_is_no_process(tmp_path):
    before = children()
    with compile_ahead([CUPY], 90, processes=4, cache_dir=tmp_path):
        assert children() == before


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "CUPY_CACHE_DIR"])
def test_caches_lie_under_the_folder_given(name, tmp_path):
    assert cache_environment(tmp_path)[name].startswith(str(tmp_path))
