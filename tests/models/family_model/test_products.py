"""Products with a vector on a GPU where none was measured take no longer than their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from kernelcast.features.batch.cases import Cases
from kernelcast.features.batch.category import CaseCategory
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.family_model.products import (
    bound_by_streams,
    unknown_sides,
    unknown_vectors,
    vector_labels,
)
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases

T4, V100 = "nvidia-t4", "nvidia-v100-pcie-16gb"


def products(*shapes: tuple[int, int, int], device: str = T4, dtype: str = "fp32") -> Cases:
    specs = [KernelSpec.of("gemm", dtype, impl="torch", m=m, n=n, k=k) for m, n, k in shapes]
    return Cases.from_specs(specs, [device] * len(specs))


def category(device: str = T4) -> CaseCategory:
    return products((2, 2, 2), device=device).categories.distinct[0]


def test_labels_say_along_which_side_where_and_how() -> None:
    assert vector_labels(products((1, 64, 64), (64, 1, 64), (64, 64, 64))) == (
        f"m {T4} fp32 torch", f"n {T4} fp32 torch",
    )  # fmt: skip
    softmax = Cases.from_specs([KernelSpec.of("softmax", "fp32", rows=1, cols=8)], [T4])
    assert vector_labels(softmax) == ()
    assert unknown_vectors(softmax, np.ones((2, 1))) is None


def test_a_side_is_unknown_where_the_gpu_was_never_measured_along_it() -> None:
    measured = (f"m {T4} fp32 torch",)
    assert unknown_sides(category(), "torch", measured) == (False, True)
    assert unknown_sides(category(V100), "torch", measured) == (True, True)
    assert unknown_sides(category(), "torch", None) == (False, False), "nobody looked"
    assert unknown_sides(category()._replace(threads=2.0), "torch", measured) == (False, False), "a CPU"
    query = products((1, 64, 64), (64, 1, 64), (64, 64, 64))
    assert unknown_vectors(query, np.array([[0.0], [1.0]])).tolist() == [False, True, False]
    assert unknown_vectors(query, np.zeros((2, 1))) is None
    assert unknown_vectors(products((64, 64, 64)), np.ones((2, 1))) is None


def test_only_what_takes_longer_than_its_bytes_is_bounded() -> None:
    cases = products((65536, 1, 4096), (65536, 1, 4096), (65536, 1, 4096))
    paper = work(cases, catalogue())
    log_latency, log_error = np.log(paper.dram_all_s * np.array([5.0, 1.1, 5.0])), np.zeros(3)
    before = log_latency.copy()
    bound_by_streams(log_latency, log_error, paper, np.array([True, True, False]))
    assert paper.dram_all_s[0] < np.exp(log_latency[0]) < 1.4 * paper.dram_all_s[0]
    assert log_error[0] < 0.0
    assert log_latency[1:].tolist() == before[1:].tolist()
    assert log_error[1:].tolist() == [0.0, 0.0]


def test_a_matrix_times_a_vector_is_bounded_by_memory_and_says_so(
    train: Callable[..., Artifact], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(2 ** rng.uniform(5, 12)) for _ in range(3)) for _ in range(200)]
    cases = products(*shapes)
    # Each of these takes as long as a column block of 64.
    latency_s = 20e-6 + 4.0 * work(products(*((m, max(n, 64), k) for m, n, k in shapes)), catalogue()).lower_bound_s
    rows = LabelledCases(cases, latency_s, np.full(len(cases), np.nan))
    save_artifact(train([rows]), tmp_path / "model")
    predictor = load_predictor(tmp_path / "model")
    assert predictor.family("gemm").model.vectors == ()
    (answer,) = predictor.predict([KernelSpec.of("gemm", "fp32", impl="torch", m=65536, n=1, k=4096)], [T4])
    assert answer.latency_s.value < 1.5 * answer.breakdown["dram"]
    assert not answer.in_domain
    assert any("n 1" in note and "memory bounds" in note for note in answer.notes)
    assert answer.latency_s.upper < 5.0 * answer.latency_s.lower
