import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelcast.collectors.gpu.measure.bench import TOLERANCE
from kernelcast.collectors.gpu.runners.triton import _architecture, triton_binaries, triton_steps
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.datasets.rows.schema import Measurement, to_row
from kernelcast.features.kernel import KernelSpec

PLAIN = {"tile_m": 16, "tile_n": 32, "tile_k": 32, "warps": 4, "stages": 2, "group_m": 1, "split_k": 1}


def gemm(dtype, m, n, k, **knobs):
    return KernelSpec.of("gemm", dtype, impl="triton", m=m, n=n, k=k, config=PLAIN | knobs)


# No bf16: the interpreter multiplies its bit patterns. Its code is that of fp16 but for the type.
CASES = [
    *(gemm(dtype, 33, 70, 41) for dtype in ("fp32", "tf32", "fp16", "fp8", "int8")),
    gemm("fp32", 1, 1, 1),
    gemm("fp32", 32, 64, 64),
    gemm("fp32", 1, 97, 130, group_m=8),
    gemm("fp32", 100, 90, 33, group_m=3),
    gemm("fp32", 100, 90, 33, group_m=100),
    gemm("fp32", 17, 35, 300, split_k=4),
    gemm("fp32", 17, 35, 40, split_k=8),
    gemm("fp16", 40, 50, 129, split_k=3, group_m=2),
    gemm("int8", 40, 50, 129, split_k=2),
    gemm("fp16", 64, 64, 64, tile_m=64, tile_n=16, tile_k=16),
]


def relative_errors(specs):
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("interpreted.py"))],
        input=json.dumps([to_row(Measurement(spec, "cpu", "ok", "")) for spec in specs]),
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(specs, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def errors():
    return relative_errors(CASES)


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_equals_torch(errors, spec):
    assert errors[spec] <= TOLERANCE[spec.dtype]


def test_one_binary_serves_many_shapes_and_schedules():
    item = triton_binaries(gemm("bf16", 64, 128, 256))
    assert triton_binaries(gemm("bf16", 77, 4096, 16, group_m=8)) == item
    assert triton_binaries(gemm("bf16", 64, 129, 256)) != item
    assert triton_binaries(gemm("bf16", 64, 128, 250)) != item
    assert triton_binaries(gemm("fp16", 64, 128, 256)) != item
    assert triton_binaries(gemm("bf16", 64, 128, 256, stages=3)) != item


def test_split_products_of_any_number_of_parts_share_binaries():
    two = triton_binaries(gemm("bf16", 64, 128, 256, split_k=2))
    assert len(two) == 2
    assert triton_binaries(gemm("bf16", 64, 128, 256, split_k=7)) == two


def test_offsets_beyond_32_bits_are_computed_in_64():
    def constants(spec):
        return dict(triton_binaries(spec)[0].constants)

    assert not constants(gemm("fp8", 32768, 65535, 32))["WIDE"]
    assert constants(gemm("fp8", 32768, 65536, 32))["WIDE"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            KernelSpec.of("gemm", "bf16", m=8, n=8, k=8, config={"tile_m": 16, "warps": 4}),
            "missing: tile_n, tile_k, stages",
        ),
        (KernelSpec.of("gemm", "bf16", m=8, n=8, k=8, config=PLAIN | {"inner_m": 2}), "has no inner_m"),
        (KernelSpec.of("gemm", "bf16", batch=2, m=8, n=8, k=8, config=PLAIN), "one plain product"),
        (KernelSpec.of("gemm", "bf16", variant="nt", m=8, n=8, k=8, config=PLAIN), "one plain product"),
        (gemm("fp64", 8, 8, 8), "not fp64"),
        (gemm("bf16", 8, 8, 8, tile_m=48), "power of two"),
        (gemm("bf16", 8, 8, 8, tile_m=8), "at least 16"),
        (gemm("fp8", 8, 8, 8, tile_k=16), "at least 32"),
        (gemm("bf16", 8, 8, 8, warps=3), "warps must be a power of two"),
        (gemm("bf16", 8, 8, 8, warps=64), "between 1 and 32"),
        (gemm("bf16", 8, 8, 8, split_k=0), "split_k must be between"),
        (KernelSpec.of("copy", "bf16", rows=4, cols=4), "not copy"),
    ],
    ids=str,
)
def test_says_what_it_cannot_run(spec, said):
    with pytest.raises(UnsupportedCaseError, match=said):
        triton_steps(spec)


def test_sizes_beyond_32_bits_are_unsupported() -> None:
    spec = KernelSpec.of("gemm", "bf16", impl="triton", config=PLAIN, m=2**31, n=64, k=64)
    with pytest.raises(UnsupportedCaseError, match="32 bits"):
        triton_steps(spec)


@pytest.mark.parametrize(("architecture", "warp_size"), [("gfx942", 64), ("gfx1201", 32)])
def test_it_compiles_for_an_amd_gpu(architecture, warp_size, tmp_path):
    code = (
        "from kernelcast.collectors.gpu.runners.triton import build, triton_binaries\n"
        "from kernelcast.features.kernel import KernelSpec\n"
        f"spec = KernelSpec.of('gemm', 'bf16', impl='triton', m=64, n=64, k=64, config={PLAIN!r})\n"
        f"(binary,) = (build(each, {architecture!r}) for each in triton_binaries(spec))\n"
        "print(binary.metadata.target.backend, binary.metadata.target.warp_size, 'hsaco' in binary.asm)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
                          capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.stdout == f"hip {warp_size} True\n", done.stderr


def test_on_rocm_the_architecture_is_what_torch_says_without_the_flags_of_its_memory():
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    cuda = SimpleNamespace(get_device_properties=lambda device: properties, get_device_capability=lambda device: (9, 0))
    assert _architecture(SimpleNamespace(version=SimpleNamespace(hip="7.0"), cuda=cuda), 0) == "gfx942"
    assert _architecture(SimpleNamespace(version=SimpleNamespace(hip=None), cuda=cuda), 0) == 90
