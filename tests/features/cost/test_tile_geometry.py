"""Features of a kernel's own tiles against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.collectors.gpu.runners.triton import triton_steps
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.tile_geometry import TILING_NAMES, has_tiling, tiling_columns
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.vector.extract import extract
from kernelcast.features.vector.schema import FeatureSchema

H200 = "nvidia-h200-sxm-141gb"
KNOBS = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "warps": 8, "stages": 3, "split_k": 1, "group_m": 8}


def columns(spec: KernelSpec) -> dict[str, float]:
    result = tiling_columns(Cases.from_specs([spec], [H200]), np.array([132.0]), np.array([233472.0]))
    return {name: float(column[0]) for name, column in result}


def test_a_product_is_cut_into_blocks_of_its_result() -> None:
    result = columns(KernelSpec.of("gemm", "bf16", impl="triton", config=KNOBS, m=4000, n=4096, k=1000))
    blocks = 32 * 16
    assert 2 ** result["log own waves"] == pytest.approx(blocks / 132)
    assert result["own wave filling"] == pytest.approx(blocks / 132 / 4)
    assert 2 ** result["log own steps"] == pytest.approx(16)
    assert 2 ** result["log own intensity"] == pytest.approx(128 * 256 / 384)
    assert 2 ** result["log own sums per warp"] == pytest.approx(128 * 256 / 8)
    assert 2 ** result["log own staged bytes"] == pytest.approx(3 * 64 * 384 * 2)
    assert 2 ** result["log own staged over shared"] == pytest.approx(3 * 64 * 384 * 2 / 233472)


def test_splitting_k_makes_more_blocks_of_fewer_steps() -> None:
    whole = columns(KernelSpec.of("gemm", "bf16", impl="triton", config=KNOBS, m=128, n=256, k=4096))
    split = columns(KernelSpec.of("gemm", "bf16", impl="triton", config=KNOBS | {"split_k": 4}, m=128, n=256, k=4096))
    assert split["log own waves"] == pytest.approx(whole["log own waves"] + 2)
    assert split["log own steps"] == pytest.approx(whole["log own steps"] - 2)


def test_attention_is_cut_by_queries_and_steps_through_keys() -> None:
    config = {"tile_m": 64, "tile_n": 32, "warps": 4, "stages": 2}
    result = columns(KernelSpec.of("attention", "bf16", impl="triton", config=config, batch=2, heads=16, kv_heads=4,
                                  q_len=1000, kv_len=1000, head_dim=128))  # fmt: skip
    # Four query heads share keys and a block: 4000 rows of 64.
    assert 2 ** result["log own waves"] == pytest.approx(2 * 4 * 63 / 132)
    assert 2 ** result["log own steps"] == pytest.approx(32)
    assert 2 ** result["log own staged bytes"] == pytest.approx(2 * 128 * 96 * 2)


CASES = (
    KernelSpec.of("gemm", "bf16", impl="triton", config=KNOBS | {"split_k": 2}, m=1000, n=700, k=900),
    KernelSpec.of("gemm", "fp16", impl="triton", config=KNOBS, m=1, n=16, k=16),
    KernelSpec.of("attention", "bf16", impl="triton", config={"tile_m": 64, "tile_n": 32, "warps": 4, "stages": 2},
                  batch=3, heads=32, kv_heads=8, q_len=1, kv_len=777, head_dim=128),
    KernelSpec.of("attention", "bf16", impl="triton", config={"tile_m": 64, "tile_n": 32, "warps": 4, "stages": 2},
                  batch=1, heads=16, kv_heads=1, q_len=100, kv_len=300, head_dim=64),
)  # fmt: skip


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_blocks_are_those_the_kernel_launches(spec: KernelSpec) -> None:
    launched = np.prod(triton_steps(spec).steps[0].grid)
    assert 2 ** columns(spec)["log own waves"] * 132 == pytest.approx(launched)


def test_without_knobs_there_is_nothing_to_say() -> None:
    result = columns(KernelSpec.of("gemm", "bf16", impl="torch", m=128, n=256, k=4096))
    assert all(np.isnan(value) for value in result.values())
    assert not has_tiling(("tile_m", "warps"))


def test_the_columns_are_features_only_where_training_saw_knobs() -> None:
    tiled = KernelSpec.of("gemm", "bf16", impl="triton", config=KNOBS, m=512, n=512, k=512)
    plain = KernelSpec.of("gemm", "bf16", impl="torch", m=512, n=512, k=512)
    with_knobs = FeatureSchema.fit(Cases.from_specs([tiled, plain], [H200] * 2))
    without = FeatureSchema.fit(Cases.from_specs([plain], [H200]))
    assert set(TILING_NAMES) <= set(with_knobs.names)
    assert not set(TILING_NAMES) & set(without.names)
    assert extract(Cases.from_specs([tiled, plain], [H200] * 2), with_knobs, catalogue()).values.shape == (
        2,
        len(with_knobs.names),
    )
