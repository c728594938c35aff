"""Gains are what their definition says, case by case and several at a time; places are what correlations say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.selection.case_space import Gains, Space

H100 = "nvidia-h100-sxm-80gb"


def lowered(covariance: Any, noise: Any, index: list[int]) -> Any:
    own = covariance[np.ix_(index, index)] + np.diag(noise[index] ** 2)
    return covariance - covariance[:, index] @ np.linalg.solve(own, covariance[index])


def made_up(n: int = 25, r: int = 7) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(3)
    root = rng.normal(size=(r, r))
    return rng.normal(size=(n, r)), root @ root.T + np.eye(r), rng.uniform(0.2, 0.6, n), rng.random(n)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("batches", [[[4], [9], [0]], [[4, 9, 0]], [[4, 9], [0]]])
def test_gains_are_the_lowering_of_the_weighted_variance(dense: bool, batches: list[list[int]]) -> None:
    places, spread, noise, weights = made_up()
    covariance = places @ spread @ places.T
    gains = Gains(covariance, noise, weights=weights) if dense else Gains(spread, noise, places=places, weights=weights)
    for batch in batches:
        gains.take(batch)
    left = lowered(covariance, noise, [4, 9, 0])
    assert gains.left() == pytest.approx(weights @ np.diag(left))
    after = [weights @ np.diag(lowered(left, noise, [i])) for i in range(len(noise))]
    assert gains.gain() == pytest.approx(gains.left() - np.array(after), rel=1e-6, abs=1e-9)


def test_without_weights_all_count_alike_and_what_is_given_stays() -> None:
    places, spread, noise, _ = made_up()
    before = spread.copy()
    gains = Gains(spread, noise, places=places)
    gains.take([1, 2])
    assert (spread == before).all()
    assert gains.left() == pytest.approx(gains.variance.mean())


def space_of(sizes: list[tuple[int, int, int]], **words: Any) -> Space:
    specs = [KernelSpec.of("gemm", words.get("dtype", "fp16"), impl="torch", m=m, n=n, k=k) for m, n, k in sizes]
    return Space.of(Cases.from_specs(specs, [H100] * len(specs)), catalogue(), np.arange(len(specs)))


def test_places_give_the_correlations_back() -> None:
    rng = np.random.default_rng(1)
    space = space_of([tuple(row) for row in (2 ** rng.uniform(4, 12, (40, 3))).astype(int).tolist()])
    places, left_out = space.directions()
    exact = np.array([space.correlation(i) for i in range(40)])
    assert places @ places.T == pytest.approx(exact, abs=1e-5)
    assert left_out == pytest.approx(0.0, abs=1e-5)
    few, left_out = space.directions(10)
    assert few.shape == (40, 10)
    assert (few**2).sum(axis=1) + left_out == pytest.approx(1.0)


def test_equal_cases_need_one_direction() -> None:
    places, left_out = space_of([(64, 64, 64)] * 5).directions()
    assert places.shape == (5, 1)
    assert left_out == pytest.approx(0.0, abs=1e-9)


def test_what_differs_is_less_alike() -> None:
    specs = [
        KernelSpec.of("gemm", "fp16", impl="torch", m=256, n=256, k=256),
        KernelSpec.of("gemm", "fp16", impl="torch", m=300, n=256, k=256),
        KernelSpec.of("gemm", "bf16", impl="torch", m=300, n=256, k=256),
        KernelSpec.of("gemm", "bf16", impl="triton", m=300, n=256, k=256),
        KernelSpec.of("gemm", "bf16", impl="triton", m=300, n=256, k=256, config={"tile_m": 64}),
        KernelSpec.of("gemm", "bf16", impl="triton", m=4096, n=4096, k=64, config={"tile_m": 64}),
    ]
    cases = Cases.from_specs(specs, [H100] * len(specs))
    alike = Space.of(cases, catalogue(), np.arange(len(specs))).correlation(0)
    assert alike[0] == 1.0
    assert (np.diff(alike) < 0).all()
    tiled = [replace(specs[4], config=(("tile_m", tile),)) for tile in (16, 32, 128)]
    near = Space.of(Cases.from_specs(tiled, [H100] * 3), catalogue(), np.arange(3)).correlation(0)
    assert (np.diff(near) < 0).all()
    slow = Space.of(cases, catalogue(), np.arange(len(specs)), np.array([1e-5, 9e-2, 1e-5, 1e-5, 1e-5, 1e-5]))
    assert slow.correlation(0)[1] < alike[1]
