"""Cases with tuning knobs unlike those measured are told from those that are like them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.batch.category import setting_label
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.vector.extract import Features, extract
from kernelcast.features.vector.schema import FeatureSchema
from kernelcast.models.family_model.domain import TileDomain
from kernelcast.models.predict.predictor import load_predictor

H200 = "nvidia-h200-sxm-141gb"
PRETRAINED = Path(__file__).parents[3] / "models" / "pretrained" / "kernels"


def gemm(size: int, tile: int | None = None, dtype: str = "fp32", impl: str = "cupy-tiled") -> KernelSpec:
    config = {} if tile is None else {"tile_m": tile, "tile_n": tile, "tile_k": tile}
    return KernelSpec.of("gemm", dtype, impl=impl, config=config, m=size, n=size, k=size)


SMALL_TILES = [gemm(size, tile) for size, tile in itertools.product((64, 128, 256), (1, 2))]
LARGE_TILES = [gemm(size, tile) for size, tile in itertools.product((512, 1024, 2048), (16, 32))]
PLAIN = [gemm(size, impl="torch") for size in (64, 512, 4096)]
TRAINED = Cases.from_specs([*SMALL_TILES, *LARGE_TILES, *PLAIN], [H200] * 15)
SCHEMA = FeatureSchema.fit(TRAINED)


def features(*specs: KernelSpec) -> Features:
    return extract(Cases.from_specs(specs, [H200] * len(specs)), SCHEMA, catalogue())


@pytest.fixture(scope="module")
def domain() -> TileDomain:
    result = TileDomain.fit(extract(TRAINED, SCHEMA, catalogue()), 0)
    return TileDomain.from_json(result.to_json())


def test_what_was_measured_is_inside(domain: TileDomain) -> None:
    assert (domain.excess(features(*SMALL_TILES, *LARGE_TILES)) == 0).all()


def test_a_large_product_in_tiles_of_one_is_outside_though_each_is_known(domain: TileDomain) -> None:
    assert domain.excess(features(gemm(4096, 1)))[0] > 0.5
    assert domain.excess(features(gemm(240, 1), gemm(1900, 16))).tolist() == [0.0, 0.0]


def test_cases_without_knobs_are_not_judged(domain: TileDomain) -> None:
    assert domain.excess(features(gemm(100_000, impl="torch")))[0] == 0


def test_a_family_without_knobs_has_an_empty_domain() -> None:
    cases = Cases.from_specs([KernelSpec.of("softmax", "fp32", rows=8, cols=8)], [H200])
    result = extract(cases, FeatureSchema.fit(cases), catalogue())
    assert TileDomain.fit(result, 0).excess(result).tolist() == [0.0]


def test_setting_labels_tell_what_runs_where_with_which_knobs() -> None:
    on_cpu = KernelSpec.of("gemm", "fp32", impl="iree", threads=1, m=8, n=8, k=8)
    cases = Cases.from_specs([gemm(8, 4), gemm(8, impl="torch"), on_cpu], [H200] * 3)
    assert cases.categories.labels(lambda category: setting_label(category, category.impl)).strings().tolist() == [
        "cupy-tiled fp32 gpu with tile_k,tile_m,tile_n", "torch fp32 gpu", "iree fp32 cpu",
    ]  # fmt: skip


TRITON = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "warps": 8, "stages": 3, "group_m": 8, "split_k": 1}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (gemm(4096, 1), "no cupy-tiled case with knobs like these"),
        (gemm(4096, 16, dtype="bf16"), "'cupy-tiled bf16 gpu with tile_k,tile_m,tile_n' was never measured"),
        (gemm(4096, impl="iree"), "'iree fp32 gpu' was never measured"),
        (
            gemm(4096, dtype="bf16", impl="triton"),
            "was measured in configurations that also say group_m, split_k, stages",
        ),
        (
            KernelSpec.of("gemm", "bf16", impl="triton", config=TRITON | {"stages": 100}, m=4096, n=4096, k=4096),
            "knobs",
        ),
    ],
    ids=str,
)
def test_the_shipped_model_says_what_it_has_never_seen(spec: KernelSpec, words: str) -> None:
    (result,) = load_predictor(PRETRAINED).predict([spec], [H200])
    assert not result.in_domain
    assert words in " ".join(result.notes)


def test_the_shipped_model_knows_usual_tiles() -> None:
    spec = KernelSpec.of("gemm", "bf16", impl="triton", config=TRITON, m=4096, n=4096, k=4096)
    (result,) = load_predictor(PRETRAINED).predict([spec], [H200])
    assert result.in_domain
    assert result.notes == ()
    assert np.isfinite(result.latency_s.value)
