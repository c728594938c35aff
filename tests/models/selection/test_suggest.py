"""Suggested cases: the greedy choice is what its definition says, and what it suggests can be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, View, get_family
from kernelcast.features.vector.extract import extract
from kernelcast.models.family_model.artifact import load_family, read_manifest, save_artifact
from kernelcast.models.family_model.gaussian_process import PRIOR, Process
from kernelcast.models.predict.predictor import FamilyPredictor
from kernelcast.models.selection.suggest import Suggestion, _Choice, spec_at, suggest
from kernelcast.models.training.device_calibration import calibrate_to_devices
from kernelcast.models.training.labelled_cases import LabelledCases

V100, A100, T4, CPU = "nvidia-v100-sxm-32gb", "nvidia-a100-sxm-80gb", "nvidia-t4", "amd-epyc-9005-vm-2c"


def gemms(n: int, seed: int = 1, largest: float = 12, **words: Any) -> list[KernelSpec]:
    sizes = (2 ** np.random.default_rng(seed).uniform(5, largest, (n, 3))).astype(int).tolist()
    return [KernelSpec.of("gemm", words.get("dtype", "fp16"), impl="vllm-0.24.0", m=m, n=n, k=k) for m, n, k in sizes]


def cases_of(specs: Sequence[KernelSpec], device: str = V100) -> Cases:
    return Cases.from_specs(specs, [device] * len(specs))


def deviation_left(model: Path, pool: Cases, chosen: Sequence[KernelSpec]) -> float:
    """Root of the mean variance over a pool once some cases are measured, by the process itself."""
    engine = FamilyPredictor(load_family(model, read_manifest(model), "gemm"), "", catalogue())
    known = engine.estimate(cases_of(chosen)).points["latency"]
    process = Process.from_scales(known, np.zeros(len(chosen)), PRIOR)
    deviation = process.at(engine.estimate(pool).points["latency"])[1]
    return float(np.sqrt(np.mean(deviation**2 - PRIOR["noise"] ** 2)))


@pytest.fixture(scope="module")
def eight(model_dir: Path) -> list[Suggestion]:
    return suggest(model_dir, V100, 8, families=["gemm"])


def test_each_choice_lowers_the_mean_variance_most_for_its_cost() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 6))
    covariance, seconds, noise = (
        root @ root.T + 0.05 * np.eye(30),
        rng.uniform(0.05, 2.0, 30),
        rng.uniform(0.1, 0.5, 30),
    )
    cases = cases_of(gemms(30))
    choice = _Choice(cases, np.full(30, 1e-5), seconds, covariance, noise)
    left, free = covariance.copy(), list(range(30))
    for _ in range(12):
        gains = {i: (left[i] ** 2).mean() / (left[i, i] + noise[i] ** 2) for i in free}
        best = max(free, key=lambda i: gains[i] / seconds[i] ** 0.5)
        left = left - np.outer(left[best], left[best]) / (left[best, best] + noise[best] ** 2)
        free.remove(best)
        result = choice.take()
        assert result.spec == spec_at(cases, best)
        assert result.gain == pytest.approx(gains[best])
        assert result.deviation == pytest.approx(np.sqrt(np.diag(left).mean()))


def test_deviations_are_those_of_the_process(model_dir: Path) -> None:
    pool = cases_of(gemms(60))
    result = suggest(model_dir, V100, 6, [pool])
    assert result[-1].deviation == pytest.approx(
        deviation_left(model_dir, pool, [item.spec for item in result]), rel=1e-4
    )
    assert all(a.deviation > b.deviation for a, b in pairwise(result))


def test_chosen_cases_say_more_than_random_ones(model_dir: Path) -> None:
    specs = gemms(200)
    pool = cases_of(specs)
    chosen = deviation_left(model_dir, pool, [item.spec for item in suggest(model_dir, V100, 8, [pool])])
    orders = [np.random.default_rng(seed).permutation(200)[:8].tolist() for seed in range(5)]
    assert chosen < min(deviation_left(model_dir, pool, [specs[i] for i in order]) for order in orders)


def test_drawn_cases_are_different_and_like_the_trained_ones(model_dir: Path, eight: list[Suggestion]) -> None:
    assert len({item.spec for item in eight}) == 8
    family = load_family(model_dir, read_manifest(model_dir), "gemm")
    cases = cases_of([item.spec for item in eight])
    assert (family.domain.excess(extract(cases, family.schema, catalogue()))[0] == 0).all()
    assert {item.device for item in eight} == {V100}
    assert {item.spec.impl for item in eight} <= {"vllm-0.22.0", "vllm-0.24.0"}
    assert {item.spec.dtype for item in eight} == {"fp16"}
    assert all(0 < item.latency_s <= 1.0 and item.measuring_s > item.latency_s for item in eight)


def test_any_beginning_of_the_list_is_the_shorter_list(model_dir: Path, eight: list[Suggestion]) -> None:
    assert suggest(model_dir, V100, 3, families=["gemm"]) == eight[:3]
    assert suggest(model_dir, V100, 3, families=["gemm"], seed=1) != eight[:3]


def test_families_share_the_choice(model_dir: Path) -> None:
    assert {item.spec.family for item in suggest(model_dir, V100, 8)} == {"gemm", "softmax"}


def test_an_impl_can_be_asked_for(model_dir: Path) -> None:
    result = suggest(model_dir, V100, 4, families=["gemm"], impls=["vllm-0.22.0"])
    assert {item.spec.impl for item in result} == {"vllm-0.22.0"}
    # Of softmax nothing is of that impl, and nobody asked for softmax by name.
    assert {item.spec.family for item in suggest(model_dir, V100, 4, impls=["vllm-0.22.0"])} == {"gemm"}
    with pytest.raises(SpecError, match=r"softmax by vllm-0.22.0 runs on nvidia-v100-sxm-32gb.*torch in fp16"):
        suggest(model_dir, V100, 4, families=["softmax"], impls=["vllm-0.22.0"])


def test_candidates_are_put_on_the_device_and_may_run_out(model_dir: Path) -> None:
    specs = gemms(5)
    result = suggest(model_dir, V100, 9, [cases_of(specs, T4)])
    assert {item.spec for item in result} == set(specs)
    assert {item.device for item in result} == {V100}


def test_a_spec_comes_back_whole() -> None:
    specs = [
        KernelSpec.of("gemm", "bf16", impl="triton", m=8, n=8, k=8, config={"tile_m": 64, "stages": 2}),
        KernelSpec.of(
            "gemm", "fp32", variant="batched", batch=3, m=8, n=8, k=8, threads=2, cache_state="cold", timing="call"
        ),
    ]
    assert [spec_at(cases_of(specs), i) for i in range(2)] == specs


def test_what_does_not_fit_or_takes_too_long_is_never_suggested(model_dir: Path) -> None:
    small = gemms(3)
    too_large = KernelSpec.of("gemm", "fp16", impl="vllm-0.24.0", m=2**17, n=2**16, k=64)
    assert get_family("gemm").footprint_b(View.of(too_large)) > 16e9
    too_long = KernelSpec.of("gemm", "fp16", impl="vllm-0.24.0", m=2**15, n=2**15, k=2**16)
    result = suggest(model_dir, T4, 9, [cases_of([*small, too_large, too_long], T4)])
    assert {item.spec for item in result} == set(small)
    with pytest.raises(SpecError, match="no candidate of gemm fits the device"):
        suggest(model_dir, T4, 9, [cases_of([too_large, too_long], T4)])


def test_a_dtype_is_drawn_only_where_it_runs_as_it_was_measured(model_dir: Path) -> None:
    # P4 has no fp16 units: what runs there in their place was measured nowhere.
    with pytest.raises(SpecError, match="nothing the model knows of gemm runs on nvidia-p4 as it is"):
        suggest(model_dir, "nvidia-p4", 4, families=["gemm"])
    assert suggest(model_dir, "nvidia-p4", 4, families=["softmax"])


def test_what_was_measured_before_is_not_asked_again(model_dir: Path, eight: list[Suggestion], tmp_path: Path) -> None:
    cases = cases_of([item.spec for item in eight])
    latency = work(cases, catalogue()).lower_bound_s * 3.0
    calibrate_to_devices(model_dir, LabelledCases(cases, latency, np.full(8, np.nan)), tmp_path / "adapted")
    again = suggest(tmp_path / "adapted", V100, 8, [cases_of([*gemms(8), *(item.spec for item in eight)])])
    assert not {item.spec for item in again[:3]} & {item.spec for item in eight}
    first = suggest(model_dir, V100, 1, [cases_of(gemms(8))])[0]
    assert suggest(tmp_path / "adapted", V100, 1, [cases_of(gemms(8))])[0].gain < first.gain


def test_knobs_are_not_drawn_and_threads_are_those_of_the_machine(train: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (2 ** rng.uniform(5, 10, (120, 3))).astype(int).tolist()
    specs, places = [], []
    for i, (m, n, k) in enumerate(sizes):
        words = ({"impl": "triton", "config": {"tile_m": 64}}, {"impl": "torch"}, {"impl": "torch", "threads": 1})[
            i % 3
        ]
        specs.append(KernelSpec.of("gemm", "fp32", m=m, n=n, k=k, **words))
        places.append(CPU if "threads" in words else (A100, T4)[i % 2])
    cases = Cases.from_specs(specs, places)
    latency = work(cases, catalogue()).lower_bound_s * rng.uniform(1.5, 2.0, 120)
    save_artifact(train([LabelledCases(cases, latency, np.full(120, np.nan))]), tmp_path / "model")
    on_gpu = suggest(tmp_path / "model", V100, 8)
    assert {(item.spec.impl, item.spec.config, item.spec.threads) for item in on_gpu} == {("torch", (), None)}
    assert {item.spec.threads for item in suggest(tmp_path / "model", CPU, 12)} == {1, 2}
    with pytest.raises(SpecError, match="by triton"):
        suggest(tmp_path / "model", V100, 8, impls=["triton"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"n": 0}, "must be 1 or more, got 0"),
        ({"device": "nvidia-t5"}, "no device 'nvidia-t5'"),
        ({"families": ["moe"]}, "not trained on moe; it knows gemm, softmax"),
        ({"device": CPU}, "is a cpu, and the model knows gemm of gpu only"),
    ],
)
def test_bad_input_is_one_clear_sentence(model_dir: Path, words: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        suggest(model_dir, **{"device": V100, "n": 4, **words})


def test_candidates_of_other_families_are_refused_by_name(model_dir: Path) -> None:
    moe = KernelSpec.of("moe", "bf16", tokens=8, hidden=64, inter=64, topk=2, experts=4)
    with pytest.raises(SpecError, match="not trained on moe"):
        suggest(model_dir, V100, 4, [cases_of([moe])])
    with pytest.raises(SpecError, match="no candidate of softmax; there are of gemm"):
        suggest(model_dir, V100, 4, [cases_of(gemms(3))], ["softmax"])
    empty = replace(cases_of(gemms(3)), impl=np.full(3, "other"))
    with pytest.raises(SpecError, match="no candidate of gemm fits"):
        suggest(model_dir, V100, 4, [empty], impls=["vllm-0.24.0"])
