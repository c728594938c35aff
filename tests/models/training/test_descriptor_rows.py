"""A measured descriptor becomes rows again, and a model learns from them."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.training.labelled_cases import descriptor_rows, with_descriptors

H200 = "nvidia-h200-sxm-141gb"


def test_the_facts_of_the_h200_are_rows() -> None:
    tables = {rows.cases.family.name: rows for rows in descriptor_rows(catalogue().get(H200), catalogue())}
    assert {"gemm", "elementwise", "attention"} <= set(tables)
    gemm = tables["gemm"]
    result = {
        (dtype, impl, int(m)): latency_s
        for dtype, impl, m, latency_s in zip(
            gemm.cases.dtype.tolist(), gemm.cases.impl.tolist(), gemm.cases.sizes["m"].tolist(), gemm.latency_s.tolist(),
            strict=True,
        )
    }  # fmt: skip
    assert result["bf16", "torch", 4096] == pytest.approx(2 * 4096**3 / 7.82944e14)
    assert result["bf16", "torch", 32] == pytest.approx(2.16038e-6)
    assert result["bf16", "triton", 4096] == pytest.approx(2 * 4096**3 / 7.57034e14)
    triton = gemm.cases.config["tile_n"][(gemm.cases.impl == "triton") & (gemm.cases.sizes["m"] == 4096)]
    assert triton.tolist() == [256.0]
    assert np.isnan(gemm.power_w).all()


def test_a_device_without_measured_facts_says_so() -> None:
    with pytest.raises(SpecError, match="no measured facts of kernels"):
        with_descriptors([], ["nvidia-l4"], catalogue(), ["gemm"])


def test_only_families_the_model_knows_are_taken() -> None:
    tables = with_descriptors([], [H200], catalogue(), ["gemm"])
    assert [rows.cases.family.name for rows in tables] == ["gemm"]
