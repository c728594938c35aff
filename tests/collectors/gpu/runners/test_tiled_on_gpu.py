"""The tiled kernels on a real device: right results, also out of a CUDA graph, and what their compilers say."""

import pytest
from kernelcast.collectors.gpu.measure.operands import make_operands
from kernelcast.collectors.runner import UnsupportedCaseError, gpu_runners
from kernelcast.features.kernel import KernelSpec

pytestmark = pytest.mark.gpu

KNOBS = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "warps": 4, "stages": 3, "group_m": 8, "split_k": 1}


@pytest.fixture(scope="module")
def torch():
    library = pytest.importorskip("torch")
    if not library.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    return library


def gemm(dtype, m, n, k, **knobs):
    return KernelSpec.of("gemm", dtype, impl="triton", m=m, n=n, k=k, config=KNOBS | knobs)


def attention(dtype, batch, heads, kv_heads, q_len, kv_len, head_dim, **knobs):
    config = {"tile_m": 64, "tile_n": 64, "warps": 4, "stages": 2} | knobs
    return KernelSpec.of("attention", dtype, impl="triton", batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len,
                         kv_len=kv_len, head_dim=head_dim, config=config)  # fmt: skip


def textbook(tile):
    config = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
    return KernelSpec.of("gemm", "fp32", impl="cupy-tiled", m=65, n=77, k=129, config=config)


CASES = [
    *(gemm(dtype, 500, 512, 1024) for dtype in ("tf32", "bf16", "fp16", "fp8", "int8")),
    *(gemm(dtype, 33, 515, 301) for dtype in ("tf32", "bf16", "fp16", "fp8", "int8")),
    gemm("fp32", 100, 200, 300, tile_k=32),
    gemm("bf16", 1, 4096, 4096, tile_m=16, split_k=8),
    gemm("int8", 16, 256, 4096, split_k=4),
    gemm("bf16", 2048, 2048, 2048, tile_m=128, tile_n=256, warps=8),
    attention("bf16", 2, 32, 8, 512, 512, 128),
    attention("fp16", 1, 14, 2, 333, 500, 64),
    attention("bf16", 3, 8, 4, 100, 100, 256, tile_n=32),
    attention("fp16", 2, 12, 12, 77, 77, 80),
    attention("bf16", 8, 32, 8, 1, 3001, 128, tile_m=16),
    *(textbook(tile) for tile in (1, 5, 16, 32)),
]


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_equals_the_reference_out_of_a_graph_too(torch, spec):
    launch = gpu_runners()[spec.impl].launch(spec, make_operands(torch, spec, "cuda"))
    expected = launch.expected().double()

    def off(result):
        return float((result.double() - expected).norm() / expected.norm())

    assert off(launch.call()) <= launch.tolerance
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = launch.call()
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert off(result) <= launch.tolerance
    assert 16 <= launch.resources["registers"] <= 255
    assert launch.resources["spill_b"] >= 0
    assert launch.resources["shared_b"] >= 0


def test_what_does_not_fit_the_device_is_unsupported_every_time(torch):
    spec = gemm("bf16", 512, 512, 512, tile_m=256, tile_n=256, tile_k=128, warps=8, stages=8)
    operands = make_operands(torch, spec, "cuda")
    for _ in range(2):
        with pytest.raises(UnsupportedCaseError, match="does not fit the device: out of resource: shared memory"):
            gpu_runners()["triton"].launch(spec, operands)
