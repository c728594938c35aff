"""Answers for devices never measured: from twins, from likenesses, and never from another kind of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import Catalogue, Fact, catalogue
from kernelcast.models.engine.runtime import Runtime
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.family_model.device_transfer import source_weight
from kernelcast.models.family_model.family_regressor import FamilyRegressor, Source, distance, near_duplicate
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training.interval_calibration import _best_shift
from kernelcast.models.training.labelled_cases import LabelledCases, joined

MadeUp = Callable[..., LabelledCases]
A100_40, A100_80, T4, H100, H200 = (
    "nvidia-a100-sxm-40gb",
    "nvidia-a100-sxm-80gb",
    "nvidia-t4",
    "nvidia-h100-sxm-80gb",
    "nvidia-h200-sxm-141gb",
)


@pytest.fixture(scope="module")
def slow(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory
) -> ArtifactPredictor:
    """A model of an A100 whose kernels take thrice what they take elsewhere, and of a T4."""
    rows = made_up(600, devices=(A100_40, T4))
    factor = np.where(rows.cases.device == A100_40, 3.0, 1.0)
    directory = tmp_path_factory.mktemp("slow") / "model"
    save_artifact(train([replace(rows, latency_s=rows.latency_s * factor)]), directory)
    return load_predictor(directory)


def _median_ratio(predictor: ArtifactPredictor, cases: Cases, device: str, other: str) -> float:
    on = [
        predictor.predict_cases(replace(cases, device=np.full(len(cases), name))).targets["latency_s"].value
        for name in (device, other)
    ]
    return float(np.median(on[0] / on[1]))


@pytest.mark.parametrize(("a", "b", "twins"), [(A100_40, A100_80, True), (H100, H200, True), (T4, H100, False)])
def test_editions_of_a_chip_are_twins(a: str, b: str, twins: bool) -> None:
    apart = distance(catalogue().get(a), catalogue().get(b))
    assert apart == pytest.approx(distance(catalogue().get(b), catalogue().get(a)))
    assert near_duplicate(apart) > 0.9 if twins else near_duplicate(apart) == 0.0
    assert distance(catalogue().get(a), catalogue().get(a)) == 0.0


def test_a_twin_is_answered_as_its_twin(slow: ArtifactPredictor, made_up: MadeUp) -> None:
    cases = made_up(100, seed=5).cases
    assert _median_ratio(slow, cases, A100_80, A100_40) == pytest.approx(1.0, abs=0.2)
    result = slow.predict_cases(replace(cases, device=np.full(len(cases), A100_80)))
    assert set(result.regimes) == {"unseen_device"}
    assert not result.in_domain.any()
    assert all("carried over" in method for method in result.method)


def test_a_variant_never_measured_on_a_device_is_not_in_domain(
    made_up: MadeUp, train: Callable[..., Any], tmp_path: Path
) -> None:
    first, predictor = _two_devices(made_up, train, tmp_path / "model", variant="bias")
    query = replace(first.cases.take(np.arange(20)), variant=np.full(20, "bias"))
    result = predictor.predict_cases(query)
    assert set(result.regimes) == {"unseen_device"}
    assert "vllm-0.24.0 bias fp16 gpu was measured on other devices only" in result.notes[0][0]
    own = predictor.predict_cases(first.cases.take(np.arange(20)))
    width = [np.median(item.targets["latency_s"].upper / item.targets["latency_s"].lower) for item in (result, own)]
    assert width[0] > width[1]


def test_an_impl_never_measured_on_a_device_is_not_in_domain(
    made_up: MadeUp, train: Callable[..., Any], tmp_path: Path
) -> None:
    first, predictor = _two_devices(made_up, train, tmp_path / "model", impl="triton")
    cases = first.cases.take(np.arange(20))
    other = predictor.predict_cases(replace(cases, impl=np.full(20, "triton")))
    assert set(other.regimes) == {"unseen_device"}
    assert not other.in_domain.any()
    assert other.notes[0] == (f"triton fp16 gpu was measured on other devices only, never on {A100_40}",)
    open_impl = predictor.predict_cases(replace(cases, impl=np.full(20, "")))
    assert set(open_impl.regimes) == {"seen"}
    assert "read as vllm-0.24.0" in open_impl.method[0]


def test_cold_caches_never_measured_are_read_as_hot(made_up: MadeUp, train: Callable[..., Any], tmp_path: Path) -> None:
    first, predictor = _two_devices(made_up, train, tmp_path / "model", impl="triton", cache_state="cold")
    cases = first.cases.take(np.arange(20))
    hot, cold = predictor.predict_cases(cases), predictor.predict_cases(replace(cases, cache_state=np.full(20, "cold")))
    # All bytes come from memory, which takes as long as it takes; nothing else is known of it.
    ratio = cold.targets["latency_s"].value / hot.targets["latency_s"].value
    assert ratio.min() > 0.999
    assert np.median(ratio) == pytest.approx(1.0)
    assert not cold.in_domain.any()
    assert cold.notes[0] == ("vllm-0.24.0 was never measured with cold caches; read as hot",)


_CALL_S = 40e-6


@pytest.fixture(scope="module")
def timed(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory
) -> ArtifactPredictor:
    """A model of an A100 and a T4 whose calls were timed, with their launch, and of an H100 whose kernels alone were."""
    rows = made_up(1200, devices=(A100_40, T4, H100), impls=("torch",), power=0.0)
    alone = rows.cases.device == H100
    cases = replace(rows.cases, timing=np.where(alone, "device", "call"))
    directory = tmp_path_factory.mktemp("timed") / "model"
    measured = replace(rows, cases=cases, latency_s=rows.latency_s + np.where(alone, 0.0, _CALL_S))
    save_artifact(train([measured], regressor="blend"), directory)
    return load_predictor(directory)


def _timed(rows: LabelledCases, device: str, timing: str = "", impl: str = "torch") -> Cases:
    n = len(rows)
    return replace(
        rows.cases, device=np.full(n, device), timing=np.full(n, timing), impl=np.full(n, impl), variant=np.full(n, "")
    )


def test_a_timing_that_is_not_given_is_the_measured_one(timed: ArtifactPredictor, made_up: MadeUp) -> None:
    rows = made_up(40, devices=(A100_40,), impls=("torch",), seed=7)
    for device, timing in ((A100_40, "call"), (H100, "device")):
        open_timing, given = (timed.predict_cases(_timed(rows, device, word)) for word in ("", timing))
        assert (open_timing.targets["latency_s"].value == given.targets["latency_s"].value).all()
        assert set(open_timing.regimes) == {"seen"}
        assert ("time of a call" in open_timing.method[0]) == (timing == "call")
    unseen = timed.predict_cases(_timed(rows, "nvidia-l4"))
    assert "time of a call" in unseen.method[0]
    assert (unseen.targets["latency_s"].value > _CALL_S / 2).all()


def test_the_other_timing_follows_from_the_measured_one(timed: ArtifactPredictor, made_up: MadeUp) -> None:
    rows = made_up(300, devices=(A100_40,), impls=("torch",), seed=8)
    truth = rows.latency_s
    for device, measured, other in ((A100_40, "call", "device"), (H100, "device", "call")):
        known, derived = (timed.predict_cases(_timed(rows, device, word)) for word in (measured, other))
        assert set(derived.regimes) == {"unseen_device"}
        timed_as = "calls" if measured == "call" else "the kernel alone"
        assert f"{device} was measured as {timed_as} only" in derived.notes[0][0]
        apart = known.targets["latency_s"].value - derived.targets["latency_s"].value
        assert np.median(apart if measured == "call" else -apart) == pytest.approx(_CALL_S, rel=0.4)
    alone = timed.predict_cases(_timed(rows, A100_40, "device")).targets["latency_s"]
    assert np.median(np.abs(alone.value / truth - 1.0)) < 0.35
    assert ((alone.lower <= truth) & (truth <= alone.upper)).mean() > 0.7


def test_without_an_impl_the_kernel_alone_is_answered(timed: ArtifactPredictor, made_up: MadeUp) -> None:
    rows = made_up(40, devices=(A100_40,), impls=("torch",), seed=9)
    none, alone = (timed.predict_cases(_timed(rows, A100_40, timing, "")) for timing in ("", "device"))
    assert (none.targets["latency_s"].value == alone.targets["latency_s"].value).all()
    assert "time of a call" not in none.method[0]


def _two_devices(
    made_up: MadeUp, train: Callable[..., Any], model: Path, **words: str
) -> tuple[LabelledCases, ArtifactPredictor]:
    """A model of two devices, the second measured with other `words` alone, and the rows of the first."""
    first, second = made_up(300, devices=(A100_40,)), made_up(300, devices=(T4,), seed=1)
    second = replace(
        second, cases=replace(second.cases, **{name: np.full(len(second), word) for name, word in words.items()})
    )
    save_artifact(train([joined([first, second])]), model)
    return first, load_predictor(model)


def test_the_less_is_known_the_lower_the_best_answer() -> None:
    rng = np.random.default_rng(0)
    sure, unsure = (_best_shift(rng.normal(0.0, size, 4000)) for size in (0.05, 0.5))
    assert sure == pytest.approx(0.0, abs=0.01)
    assert unsure < -0.05
    assert _best_shift(np.array([np.nan])) == 0.0


@pytest.mark.parametrize(("sources", "share"), [((A100_40,), (0.62, 0.9)), ((A100_40, T4, H100), (0.3, 0.61))])
def test_one_devices_slow_copies_are_not_every_devices(
    made_up: MadeUp,
    train: Callable[..., Artifact],
    tmp_path: Path,
    sources: tuple[str, ...],
    share: tuple[float, float],
) -> None:
    """Two fifths of the peak on one device say little of another; on three they do."""
    rows = made_up(400, family="softmax", impls=("torch",), devices=sources, largest=32768)
    dram_s = work(rows.cases, catalogue()).bounds_s["dram"]
    save_artifact(train([replace(rows, latency_s=5e-6 + dram_s / 0.4)]), tmp_path / "model")
    large = made_up(50, family="softmax", impls=("torch",), devices=("nvidia-a40",), largest=32768, seed=2).cases
    ideal_s = work(large, catalogue()).bounds_s["dram"]
    answer = load_predictor(tmp_path / "model").predict_cases(large).targets["latency_s"]
    reached = float(np.median((ideal_s / answer.value)[ideal_s > 500e-6]))
    assert share[0] < reached < share[1]


def test_another_edition_of_a_chip_draws_the_same_watts_up_to_its_own_limit(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path: Path
) -> None:
    b200, gb200 = "nvidia-b200-sxm-180gb", "nvidia-gb200"
    save_artifact(train([made_up(400, devices=(b200, T4))]), tmp_path / "model")
    cases, predictor = made_up(100, seed=5).cases, load_predictor(tmp_path / "model")
    watts = {
        device: predictor.predict_cases(replace(cases, device=np.full(100, device))).targets["power_w"].value
        for device in (b200, gb200, H100)
    }
    assert np.median(watts[gb200] / watts[b200]) == pytest.approx(1.0, abs=0.05)
    # Of another chip the share of the limit carries over.
    assert np.median(watts[H100] / watts[b200]) == pytest.approx(0.7, abs=0.1)


def test_power_carries_over_to_a_dtype_nobody_measured(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    cases = made_up(40, seed=6).cases
    for device in (A100_40, H100):
        others = replace(cases, device=np.full(40, device), dtype=np.full(40, "fp64"), kv_dtype=np.full(40, "fp64"))
        watts = predictor.predict_cases(others).targets["power_w"].value
        assert (watts > 0).all()
        assert (watts <= catalogue().get(device).required("tdp_w")).all()


def test_nothing_is_answered_at_the_limit_of_a_device_never_measured(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path: Path
) -> None:
    rows = made_up(400, family="softmax", impls=("torch",), devices=(A100_40, T4, H100), largest=32768)
    bound_s = work(rows.cases, catalogue()).lower_bound_s
    save_artifact(train([replace(rows, latency_s=0.9 * bound_s)]), tmp_path / "model")
    cases = made_up(100, family="softmax", impls=("torch",), devices=("nvidia-a40",), largest=32768, seed=2).cases
    answer = load_predictor(tmp_path / "model").predict_cases(cases).targets["latency_s"]
    assert (answer.value > 1.05 * work(cases, catalogue()).lower_bound_s).all()


@pytest.mark.parametrize(("weight", "share"), [(0.0, 1 / 3), (0.5, 2 / 3), (1.0, 1.0)])
def test_a_source_has_what_the_general_answers_leave(weight: float, share: float) -> None:
    source = Source("a", 0.3, 1.0, True, weight, frozenset({"latency"}), inputs=None)  # type: ignore[arg-type]
    assert source_weight(source, 2) == pytest.approx(share)


def test_each_target_comes_from_the_nearest_device_that_has_it(made_up: MadeUp, train: Callable[..., Artifact]) -> None:
    with_power = made_up(300, devices=(T4,))
    without = made_up(300, devices=(A100_40, H200), power=0.0, seed=1)
    family = train([joined([with_power, without])]).families["gemm"]
    learned = FamilyRegressor(
        family.schema, Runtime(family.graphs), {}, family.analytic, family.free, family.measured, catalogue()
    )
    sources = learned.sources_of(made_up(1, devices=(A100_80,)).cases.categories.distinct[0])
    assert {source.device: set(source.targets) for source in sources} == {A100_40: {"latency"}, T4: {"power"}}


def test_a_measured_launch_floor_holds_for_calls_on_a_device_without_rows(
    timed: ArtifactPredictor, made_up: MadeUp, tmp_path: Path
) -> None:
    rows = made_up(100, devices=(A100_40,), impls=("torch",), seed=7)
    gb200 = catalogue().get("nvidia-gb200")
    slow_host = replace(
        gb200, name="slow-host", aliases=(), measured={**gb200.measured, "launch_torch_s": Fact(5e-3, "measured")}
    )
    predictor = load_predictor(timed.directory, Catalogue(extra=(slow_host,)))
    call, alone = (
        predictor.predict_cases(_timed(rows, "slow-host", timing)).targets["latency_s"].value
        for timing in ("call", "device")
    )
    assert call.min() == pytest.approx(5e-3)
    assert np.median(alone) < 1e-3
