import shutil
import subprocess

import numpy as np
import pytest
from kernelcast.collectors.gpu.runners.cupy import defines, grid_of, source, tile_of
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.features.kernel import KernelSpec

# Blocks one after the other, the threads of a block as threads of the host with a barrier: slow, and the same indices.
HOST = """
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
struct Index {{ unsigned x, y; }};
static thread_local Index threadIdx, blockIdx;
static std::barrier everyone(TILE * TILE);
static void __syncthreads() {{ everyone.arrive_and_wait(); }}
{kernel}
int main(int, char** argv) {{
    const long long m = atoll(argv[1]), n = atoll(argv[2]), k = atoll(argv[3]), blocks = atoll(argv[4]);
    std::vector<float> a(m * k), b(k * n), c(m * n, NAN_FILL);
    if (fread(a.data(), 4, a.size(), stdin) != a.size() || fread(b.data(), 4, b.size(), stdin) != b.size()) return 1;
    for (unsigned block = 0; block < blocks; ++block) {{
        std::vector<std::thread> threads;
        for (unsigned y = 0; y < TILE; ++y)
            for (unsigned x = 0; x < TILE; ++x)
                threads.emplace_back([=, &a, &b, &c] {{
                    threadIdx = {{x, y}};
                    blockIdx = {{block, 0}};
                    tiled_matmul(a.data(), b.data(), c.data(), m, n, k);
                }});
        for (auto& thread : threads) thread.join();
    }}
    fwrite(c.data(), 4, c.size(), stdout);
}}
"""


def tiled(m, n, k, tile):
    return KernelSpec.of(
        "gemm", "fp32", impl="cupy-tiled", m=m, n=n, k=k, config=dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to run the CUDA source on the host")
@pytest.mark.parametrize("tile", [1, 3, 4])
def test_equals_numpy_for_any_shape(tile, tmp_path):
    program = tmp_path / "host"
    (tmp_path / "host.cpp").write_text(HOST.format(kernel=source()))
    subprocess.run(["g++", "-std=c++20", "-O1", "-w", "-pthread", defines(tile), "-DNAN_FILL=0.0f/0.0f",
                    str(tmp_path / "host.cpp"), "-o", str(program)], check=True, timeout=240)  # fmt: skip
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (8, 4, 12), (5, 7, 10), (2, 13, 3)):
        spec = tiled(m, n, k, tile)
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        command = [str(program), *map(str, (m, n, k, grid_of(spec, tile_of(spec))))]
        done = subprocess.run(command, input=a.tobytes() + b.tobytes(), capture_output=True, check=True, timeout=240)
        assert np.frombuffer(done.stdout, np.float32).reshape(m, n) == pytest.approx(a @ b, abs=1e-4)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (tiled(8, 8, 8, 33), "between 1 and 32"),
        (tiled(8, 8, 8, 0), "between 1 and 32"),
        (KernelSpec.of("gemm", "fp32", m=8, n=8, k=8, config={"tile_m": 8, "tile_n": 8, "tile_k": 4}), "equal"),
        (KernelSpec.of("gemm", "fp32", m=8, n=8, k=8), "needs tile_m, tile_n and tile_k"),
        (KernelSpec.of("gemm", "bf16", m=8, n=8, k=8, config=dict(tiled(8, 8, 8, 8).config)), "one plain fp32 product"),
        (tiled(2**17, 2**17, 8, 1), "more than 2147483647 blocks"),
    ],
    ids=str,
)
def test_says_what_it_cannot_run(spec, said):
    with pytest.raises(UnsupportedCaseError, match=said):
        tile_of(spec)
