"""Sizes beyond those measured: a busy device takes time in proportion to work, and more of it is never faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases, Floats, Indices
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.vector.extract import Features, extract
from kernelcast.features.vector.schema import FeatureSchema
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.family_model.domain import (
    Domain,
    Largest,
    extrapolate,
    largest_sizes,
    log2_excess,
    size_limits,
)
from kernelcast.models.family_model.products import alignment, alignment_excess, alignment_limits
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases

T4 = "nvidia-t4"


def _softmax(*shapes: tuple[int, int]) -> Cases:
    specs = [KernelSpec.of("softmax", "fp32", rows=rows, cols=cols) for rows, cols in shapes]
    return Cases.from_specs(specs, [T4] * len(specs))


def _law(cases: Cases, rows: Indices | None = None) -> tuple[Floats, Floats]:
    """A launch, and twice the time memory takes; and that time."""
    dram_s = work(cases, catalogue()).dram_all_s
    return np.log(20e-6 + 2.0 * dram_s), np.log(dram_s)


def _continued(
    log_latency: Floats, cases: Cases, measured: Cases, wanted: bool = True, log_error: Floats | None = None
) -> Floats:
    limits = _limits(cases, largest_sizes(measured))
    errors = np.zeros(len(cases)) if log_error is None else log_error
    return extrapolate(log_latency, errors, cases, _law(cases)[1], limits, _law, np.full(len(cases), wanted))


def _features(cases: Cases) -> Features:
    return extract(cases, FeatureSchema.fit(cases), catalogue())


def _limits(cases: Cases, largest: Largest) -> Floats:
    categories = cases.categories
    return categories.column([size_limits(category, largest, cases.sizes) for category in categories.distinct]).T


def test_a_straight_law_is_followed_and_the_model_s_own_answer_counts_a_quarter() -> None:
    measured, query = _softmax((4096, 1024), (512, 2048)), _softmax((65536, 1024), (4096, 16384), (4096, 1024))
    truth, _ = _law(query)
    stuck = np.full(3, np.log(1e-3))
    log_error = np.log(np.full(3, 0.1))
    result = _continued(stuck, query, measured, log_error=log_error)
    np.testing.assert_allclose(np.exp(log_error)[:2], np.hypot(0.1, 0.25 * (truth - stuck)[:2]))
    assert log_error[2] == np.log(0.1)
    np.testing.assert_allclose(result[:2], 0.25 * stuck[:2] + 0.75 * truth[:2], rtol=1e-6)
    assert result[2] == stuck[2], "a size that was measured is left alone"
    np.testing.assert_array_equal(_continued(stuck, query, measured, wanted=False), stuck)


def test_two_launches_that_differ_by_noise_are_no_slope() -> None:
    measured, query = _softmax((1, 512)), _softmax((1, 1 << 20))
    limits = _limits(query, largest_sizes(measured))

    def noisy(cases: Cases, rows: Indices) -> tuple[Floats, Floats]:
        # A call of a microsecond, the larger one by chance a tenth longer; on paper both cost a launch too.
        _, log_base = _law(cases)
        return np.log(np.where(cases.sizes["cols"] > 200, 1.1e-6, 1.0e-6)), np.log(1e-6 + np.exp(log_base))

    log_base = np.log(1e-6 + np.exp(_law(query)[1]))
    result = extrapolate(np.log(np.array([20e-6])), np.zeros(1), query, log_base, limits, noisy, np.array([True]))
    assert np.exp(result[0]) < 1.1e-6**0.75 * 20e-6**0.25 * (np.exp(log_base[0]) / 1e-6) ** 0.75


def test_a_few_rows_far_from_thousands_are_inside_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.integers(64, 512, (4000, 2)).tolist(), [(1, 1 << 16), (1 << 16, 1), (1 << 18, 4), (4, 1 << 18)]
    cases = _softmax(*near, *far)
    features = _features(cases)
    domain = Domain.fit(features, cases.coded("device"), seed=0)
    assert len(domain.points) < 700
    assert (domain.excess(features)[0] == 0).all()
    assert (domain.excess(_features(_softmax((1 << 12, 1 << 18))))[0] > 0).all()


def test_sizes_are_those_of_the_device_and_variant() -> None:
    pairs = (("relu", 64), ("add", 4096))
    specs = [KernelSpec.of("elementwise", "fp32", variant=variant, rows=rows, cols=8) for variant, rows in pairs]
    result = largest_sizes(Cases.from_specs(specs, [T4, T4]))
    assert result == {f"{T4} relu": {"rows": 64.0, "cols": 8.0}, f"{T4} add": {"rows": 4096.0, "cols": 8.0}}
    query = Cases.from_specs(
        [KernelSpec.of("elementwise", "fp32", variant="relu", rows=256, cols=4)] * 2, [T4, "nvidia-p4"]
    )
    assert log2_excess(query.sizes, _limits(query, result)).tolist() == [2.0, 0.0]


def test_products_are_unlike_the_measured_where_their_alignment_is() -> None:
    shapes = [(7, 4096, 4096), (64, 96, 128), (4096, 4095, 4096)]
    specs = [KernelSpec.of("gemm", "bf16", batch=1, m=m, n=n, k=k) for m, n, k in shapes]
    cases = Cases.from_specs(specs, [T4] * 3)
    levels = alignment(cases.sizes)
    assert levels is not None
    np.testing.assert_array_equal(levels, [6.0, 5.0, 0.0])
    aligned = largest_sizes(cases.take(np.array([0, 1])))
    assert alignment_limits(cases.categories.distinct[0], aligned) == pytest.approx((5.01, 5.99))
    steps = alignment_excess(_features(cases), np.array([5.0]), np.array([6.0]))
    np.testing.assert_allclose(steps, [0.0, 0.0, 5.0 / 3.0])
    assert alignment(_softmax((8, 8)).sizes) is None, "only products are read along two sizes"
    assert alignment_excess(_features(_softmax((8, 8))), np.array([5.0]), np.array([6.0])) == 0
    elsewhere = Cases.from_specs(specs[:1], ["nvidia-p4"]).categories.distinct[0]
    assert alignment_limits(elsewhere, aligned) == (0.0, np.inf), "where nothing was measured, nothing is unlike it"


@pytest.fixture(scope="module")
def small_sizes(
    made_up: Callable[..., LabelledCases], train: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[LabelledCases, ArtifactPredictor]:
    """Rows of small products, and a model of them."""
    rows, directory = made_up(400, largest=2048), tmp_path_factory.mktemp("small") / "model"
    save_artifact(train([rows]), directory)
    return rows, load_predictor(directory)


@pytest.mark.parametrize("size", ["m", "n", "k"])
def test_more_work_beyond_the_measured_sizes_is_not_faster(
    size: str, small_sizes: tuple[LabelledCases, ArtifactPredictor]
) -> None:
    rows, predictor = small_sizes
    start = rows.cases.take(np.arange(40))
    before = np.zeros(40)
    for doublings in range(1, 7):
        sizes = {**start.sizes, size: np.full(40, 2048.0 * 2**doublings)}
        result = predictor.predict_cases(replace(start, sizes=sizes)).targets["latency_s"]
        # Where a launch is nearly all, networks waver by a few percent.
        assert (result.value >= 0.93 * before).all()
        assert (result.lower <= result.value).all()
        before = result.value
