"""Rows of a LayerNorm beyond all measured take at least the time of a block, streams that of their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.floors import log_rows_s, log_streamed_s
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor

BLOCK_S = 4_194_304 / (0.46 * 1.965e9)
"""Of a row on a B200, whose boost clock is 1.965 GHz."""


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return load_predictor(default_model_dir())


def norm(cols: int, variant: str = "layernorm", rows: int = 16) -> KernelSpec:
    return KernelSpec.of("layernorm", "fp32", variant=variant, impl="torch", rows=rows, cols=cols)


def test_long_rows_take_a_blocks_time_however_few_they_are(predictor: ArtifactPredictor) -> None:
    answers = predictor.predict([norm(4_194_304), norm(4_194_304, rows=1)], ["b200"] * 2)
    assert all(answer.latency_s.value >= 0.999 * BLOCK_S for answer in answers)
    (short,) = predictor.predict([replace(norm(4096), timing="device")], ["b200"])
    assert short.latency_s.value < 0.01 * BLOCK_S


def test_only_columns_beyond_the_measured_ones_of_layer_norms_are_bounded() -> None:
    cases = Cases.from_specs([norm(1000), norm(3000)], ["b200"] * 2)
    log_column = np.array([np.log(2e-9)])
    bounds = log_rows_s(cases, log_column, np.array([2000.0]))
    assert bounds is not None
    assert bounds.tolist() == [-np.inf, pytest.approx(np.log(6e-6))]
    everywhere = log_rows_s(cases, log_column, np.array([np.inf]))
    assert everywhere is not None
    assert everywhere == pytest.approx(np.log([2e-6, 6e-6]))
    assert log_rows_s(Cases.from_specs([KernelSpec.of("softmax", "fp32", rows=1, cols=8)], ["b200"]), log_column,
                      np.array([np.inf])) is None  # fmt: skip


def test_a_cpu_and_another_norm_have_no_such_bound(predictor: ArtifactPredictor) -> None:
    records = predictor.family("layernorm").records
    cases = Cases.from_specs([norm(4096), norm(4096, "rmsnorm"), norm(4096)], ["b200", "b200", "amd-epyc-9005-vm-2c"])
    bounds = [records[category].columns.log_column_s[0] for category in cases.categories.distinct]
    assert np.isfinite(bounds).sum() == 1


def test_kernels_that_outgrow_the_cache_take_at_least_their_bytes(predictor: ArtifactPredictor) -> None:
    """An H200 with 63 MB of cache and 4.8 TB/s: twice as many bytes find nothing there, fewer may."""
    large = KernelSpec.of("gemm", "bf16", impl="torch", m=1, n=28672, k=4096)
    small = KernelSpec.of("gemm", "bf16", impl="torch", m=1, n=4096, k=4096)
    answers = predictor.predict([large, small], ["h200"] * 2)
    assert answers[0].latency_s.value >= 0.999 * 2 * 28672 * 4096 / (0.98 * 4.8e12)
    cases = Cases.from_specs([large, small], ["h200"] * 2)
    floors = log_streamed_s(work(cases.with_catalogue_names(catalogue()), catalogue()), np.zeros(2))
    assert np.isfinite(floors).tolist() == [True, False]
