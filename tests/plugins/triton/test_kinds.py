"""The two kinds' formulas beside what was measured and what Triton's compiler said."""

import numpy as np
import pytest
from kernelcast.datasets.shipped import read_shipped
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_from_row
from kernelcast.features.tuning.kind import Task
from kernelcast.features.tuning.kinds import triton_attention, triton_gemm

GEMM, ATTENTION = triton_gemm.KIND, triton_attention.KIND
SIZES = {
    GEMM.name: {"batch": 1, "m": 4096, "n": 4096, "k": 4096},
    ATTENTION.name: {
        "batch": 2,
        "heads": 32,
        "kv_heads": 8,
        "q_len": 1024,
        "kv_len": 1024,
        "head_dim": 128,
        "causal": 1,
    },
}
DEFAULTS = {
    GEMM.name: {"tile_m": 128, "tile_n": 128, "tile_k": 64, "group_m": 8, "warps": 8, "stages": 3, "split_k": 1},
    ATTENTION.name: {"tile_m": 128, "tile_n": 64, "warps": 8, "stages": 3},
}


def shipped(kind):
    """Rows of a kind, and everything its formulas read, in columns."""
    table = read_shipped(kind.name.removeprefix("triton-"))
    rows = [row for row in table.to_pylist() if row["impl"] == "triton"]
    result = [kind.task_of(spec_from_row(row), row["device"]) for row in rows]
    assert all(result)
    facts = {}
    for task, _ in result:
        if (task.device, task.dtype) not in facts:
            facts[task.device, task.dtype] = kind.facts_of(catalogue().get(task.device), task.dtype)
    raw = {name: np.array([float(task.sizes[name]) for task, _ in result]) for name in kind.sizes}
    raw |= {name: np.array([float(config.get(name, 0)) for _, config in result]) for name in kind.knobs}
    raw |= {name: np.array([facts[task.device, task.dtype][name] for task, _ in result]) for name in kind.facts}
    return rows, result, raw


@pytest.fixture(
    scope="module", params=[(triton_gemm, 1241, 0.83), (triton_attention, 543, 0.97)], ids=["gemm", "attention"]
)
def measured(request):
    module, n, share = request.param
    rows, result, raw = shipped(module.KIND)
    assert len(rows) == n
    return module, n, share, rows, result, raw


def value(kind, name="bound_s", device="nvidia-h200-sxm-141gb", dtype="fp16", sizes=None, **knobs):
    raw = SIZES[kind.name] | (sizes or {}) | dict.fromkeys(kind.knobs, 0) | DEFAULTS[kind.name] | knobs
    return float(kind.features(raw | kind.facts_of(catalogue().get(device), dtype))[name])


def test_no_measured_run_beats_its_bound(measured):
    module, n, _, rows, _, raw = measured
    formula = module.KIND.formula()
    columns = formula.columns(raw, n)
    assert np.isfinite(columns).all()
    latency = np.array([row["latency_s"] for row in rows])
    paper_s, above = (columns[:, formula.names.index(name)] for name in ("bound_s", "log busy over bound"))
    assert (paper_s / 2.0**above < latency).all()


def test_shared_memory_is_what_the_compiler_said(measured):
    module, _, share, rows, _, raw = measured
    message = np.array([row["shared_b"] for row in rows])
    ratio = module.staged_b(raw) / message
    assert np.mean(np.abs(ratio - 1) < 0.02) > share
    # 8-bit operands whose k does not start rows aligned may go through registers alone.
    by_registers = (raw["element_b"] < 2) & (raw.get("k", 0) % 16 > 0)
    assert np.mean(ratio[~by_registers] > 1.02) < 0.03
    assert np.sum(ratio[by_registers] > 1.02) <= 0.3 * by_registers.sum()


def test_a_task_has_the_sizes_and_knobs_of_its_row(measured):
    _, _, _, rows, result, _ = measured
    for row, (task, config) in zip(rows, result, strict=True):
        values = {**task.sizes, **config, "dtype": task.dtype}
        assert all(row[name] == value for name, value in values.items() if name != "causal")


@pytest.mark.parametrize(
    "spec",
    [
        KernelSpec.of("gemm", "fp16", m=8, n=8, k=8),
        KernelSpec.of("gemm", "fp16", m=8, n=8, k=8, impl="cutlass", config=DEFAULTS[GEMM.name]),
        KernelSpec.of("gemm", "fp16", m=8, n=8, k=8, impl="triton", config={"tile_m": 16}),
        KernelSpec.of("gemm", "fp16", m=8, n=8, k=8, impl="triton", variant="bias", config=DEFAULTS[GEMM.name]),
        KernelSpec.of("copy", "fp16", rows=8, cols=8),
    ],
    ids=str,
)
def test_other_specs_are_of_neither_kind(spec):
    assert GEMM.task_of(spec, "nvidia-l4") is None
    assert ATTENTION.task_of(spec, "nvidia-l4") is None


def test_attention_with_a_window_is_no_task():
    sizes = {"batch": 1, "heads": 4, "kv_heads": 4, "q_len": 64, "kv_len": 64, "head_dim": 64}
    spec = KernelSpec.of("attention", "fp16", impl="triton", config=DEFAULTS[ATTENTION.name], window=8, **sizes)
    assert ATTENTION.task_of(spec, "nvidia-l4") is None


# Capabilities of the catalogue's GPUs that Triton does not compile for; Intel's and Apple's have none.
UNKNOWN_TO_TRITON = {"3.7", "5.2", "gfx803", "gfx900", "gfx906", None}


@pytest.mark.parametrize("kind", [GEMM, ATTENTION], ids=["gemm", "attention"])
def test_every_gpu_that_triton_compiles_for_has_facts_and_a_space(kind):
    gpus = [device for device in catalogue() if device.kind == "gpu"]
    known = [device for device in gpus if device.compute_capability not in UNKNOWN_TO_TRITON]
    assert len(known) >= 70
    for device in known:
        facts = kind.facts_of(device, "fp16")
        assert set(facts) == set(kind.facts)
        assert all(value >= 0 for value in facts.values())
        space = kind.space(Task(kind.name, SIZES[kind.name], "fp16", device.name))
        assert 5 <= len(space) <= 300
        assert {len(set(map(str, (space.config(i) for i in range(len(space))))))} == {len(space)}


@pytest.mark.parametrize("name", ["nvidia-k80", "amd-mi50", "intel-arc-b580", "apple-m1-max"])
def test_a_gpu_that_triton_does_not_compile_for_is_refused(name):
    with pytest.raises(SpecError, match=f"no limits known for compute capability .* of {name}"):
        GEMM.facts_of(catalogue().get(name), "fp16")


@pytest.mark.parametrize("kind", [GEMM, ATTENTION], ids=["gemm", "attention"])
def test_small_sizes_have_a_space_too(kind):
    sizes = dict.fromkeys(kind.sizes, 1)
    assert len(kind.space(Task(kind.name, sizes, "fp16", "nvidia-l4"))) >= 1


def test_a_cpu_has_no_facts():
    with pytest.raises(SpecError, match="is a cpu"):
        GEMM.facts_of(catalogue().get("amd-epyc-9005-vm-2c"), "fp32")


def test_what_engineers_know_of_products():
    assert value(GEMM) < value(GEMM, tile_m=16, tile_n=16)
    assert value(GEMM) < value(GEMM, device="nvidia-l4")
    # 132 blocks fill an H200's multiprocessors once; one more takes another round.
    full, over = ({"m": 128 * 12, "n": 128 * n} for n in (11, 12))
    assert value(GEMM, "wave filling", sizes=full) == 1.0
    assert value(GEMM, "log rounds", sizes=over) == 1.0
    assert value(GEMM, "padding m", sizes={"m": 1}) == 128.0
    assert value(GEMM, "sum over bound", split_k=4) > 0.0 == value(GEMM, "sum over bound")
    # Triton's defaults where a configuration does not say.
    assert value(GEMM, warps=0, stages=0) == value(GEMM, warps=4, stages=3)
    assert value(GEMM, "log refetched", group_m=8) < value(GEMM, "log refetched", group_m=1)
    assert value(GEMM, "warp groups") == 1.0
    assert value(GEMM, "warp groups", device="nvidia-a100-sxm-80gb") == 0.0
    assert value(GEMM, "warp groups", tile_m=32) == 0.0
    assert value(GEMM, "log pressure", max_registers=64) > value(GEMM, "log pressure")
    assert value(GEMM, "log tile_m", ctas=2) == 6.0


def test_what_engineers_know_of_attention():
    assert value(ATTENTION, sizes={"causal": 0}) > value(ATTENTION)
    assert value(ATTENTION, "log longest") == 4.0
    assert value(ATTENTION, "log mean", sizes={"causal": 0}) == 4.0 > value(ATTENTION, "log mean")
    assert value(ATTENTION, "padding width", sizes={"head_dim": 80}) == pytest.approx(1.6)
    assert value(ATTENTION, tile_m=16) > value(ATTENTION)
    # Decoding: the four query heads of a key head share a tile.
    assert value(ATTENTION, "log rows", sizes={"q_len": 1}) == 2.0
