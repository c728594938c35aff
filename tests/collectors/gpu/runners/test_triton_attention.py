import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernelcast.collectors.gpu.measure.bench import TOLERANCE
from kernelcast.collectors.gpu.runners.triton import triton_binaries, triton_steps
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.datasets.rows.schema import Measurement, to_row
from kernelcast.features.kernel import KernelSpec

PLAIN = {"tile_m": 16, "tile_n": 16, "warps": 4, "stages": 2}


def attention(dtype, batch, heads, kv_heads, q_len, kv_len, head_dim, window=0, **knobs):
    return KernelSpec.of("attention", dtype, impl="triton", batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len,
                         kv_len=kv_len, head_dim=head_dim, window=window, config=PLAIN | knobs)  # fmt: skip


# No bf16: the interpreter multiplies its bit patterns. Its code is that of fp16 but for the type.
CASES = [
    attention("fp16", 1, 1, 1, 37, 37, 32),
    attention("fp16", 2, 4, 2, 32, 32, 64),
    attention("fp16", 1, 6, 2, 19, 19, 80),
    attention("fp16", 1, 2, 1, 5, 50, 32),
    attention("fp16", 1, 3, 3, 40, 47, 16, tile_m=32, tile_n=64),
    attention("fp16", 1, 4, 4, 70, 70, 32, tile_m=64, tile_n=16),
    attention("fp16", 3, 8, 2, 1, 65, 32),
    attention("fp16", 1, 32, 1, 1, 16, 32),
    attention("fp16", 2, 3, 3, 1, 3, 48),
    attention("fp16", 1, 1, 1, 1, 1, 32),
]


@pytest.fixture(scope="module")
def errors():
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("interpreted.py"))],
        input=json.dumps([to_row(Measurement(spec, "cpu", "ok", "")) for spec in CASES]),
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_equals_torch(errors, spec):
    assert errors[spec] <= TOLERANCE[spec.dtype]


def test_one_binary_serves_prefill_decode_and_every_grouping():
    item = triton_binaries(attention("bf16", 1, 8, 8, 128, 128, 64))
    assert triton_binaries(attention("bf16", 4, 32, 2, 1, 999, 64)) == item
    assert triton_binaries(attention("bf16", 1, 8, 8, 128, 128, 128)) != item


def test_decoding_shares_a_tile_among_the_heads_of_a_group():
    (step,) = triton_steps(attention("bf16", 3, 32, 8, 1, 500, 64)).steps
    assert step.grid == (3 * 8, 1, 1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (attention("bf16", 1, 1, 1, 8, 8, 32, window=4), "no sliding window; window is 4"),
        (attention("fp32", 1, 1, 1, 8, 8, 32), "takes one of bf16, fp16"),
        (attention("bf16", 1, 1, 1, 8, 8, 32, tile_m=24), "power of two"),
        (KernelSpec.of("attention", "bf16", kv_dtype="fp8", batch=1, heads=1, kv_heads=1, q_len=1, kv_len=8, head_dim=32,
                       config=PLAIN), "keys in fp8"),
        (KernelSpec.of("attention", "bf16", batch=1, heads=1, kv_heads=1, q_len=1, kv_len=8, head_dim=32),
         "missing: tile_m, tile_n, warps, stages"),
    ],
    ids=str,
)  # fmt: skip
def test_says_what_it_cannot_run(spec, said):
    with pytest.raises(UnsupportedCaseError, match=said):
        triton_steps(spec)
