"""What every prediction of a trained model keeps: physics, order of the interval, and honesty about what is unknown."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import Catalogue, Fact, catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, get_family
from kernelcast.models.evaluation.evaluation import evaluate
from kernelcast.models.family_model.artifact import Artifact, default_model_dir, save_artifact
from kernelcast.models.predict.prediction import TARGETS, Prediction, Predictions
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases, joined

A100, H100, T4, MI100, CPU = (
    "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-t4", "amd-mi100", "amd-epyc-9005-vm-2c",
)  # fmt: skip
MadeUp = Callable[..., LabelledCases]
Train = Callable[..., Artifact]
OnDevice = Callable[[Cases, str], Cases]

# Both train a network, which takes seconds where the others take tenths.
BLEND, PERIODIC = (pytest.param(name, marks=pytest.mark.slow) for name in ("blend", "periodic"))


@pytest.fixture(scope="module")
def cases(made_up: MadeUp) -> Cases:
    """Cases the model was not trained on."""
    return made_up(150, seed=11).cases


def _log_width(predictions: Predictions, target: str = "latency_s") -> Any:
    columns = predictions.targets[target]
    return np.log(columns.upper / columns.lower)


@pytest.mark.parametrize("device", [A100, T4, H100, MI100, CPU])
def test_never_below_the_bound_and_the_value_is_inside(
    device: str, predictor: ArtifactPredictor, cases: Cases, on: OnDevice
) -> None:
    here = on(cases, device)
    bound = work(here, catalogue()).lower_bound_s
    for coverage in (0.5, 0.9, 0.99):
        result = predictor.predict_cases(here, coverage=coverage)
        assert (result.targets["latency_s"].lower >= bound).all()
        for target in TARGETS:
            columns = result.targets[target]
            known = ~np.isnan(columns.value)
            assert (columns.lower[known] <= columns.value[known]).all()
            assert (columns.value[known] <= columns.upper[known]).all()
            assert np.isfinite(columns.upper[known]).all()


def test_energy_is_power_times_latency(predictor: ArtifactPredictor, cases: Cases) -> None:
    result = predictor.predict_cases(cases).targets
    assert result["energy_j"].value == pytest.approx(result["latency_s"].value * result["power_w"].value, rel=1e-12)


def test_power_stays_between_idle_and_limit(predictor: ArtifactPredictor, cases: Cases) -> None:
    power = predictor.predict_cases(cases).targets["power_w"]
    limit = np.array([catalogue().get(name).required("tdp_w") for name in cases.device.tolist()])
    assert (power.lower > 0).all()
    assert (power.upper <= limit).all()


def test_power_is_unknown_where_none_was_measured(predictor: ArtifactPredictor) -> None:
    spec = KernelSpec.of("softmax", "fp16", rows=512, cols=1024)
    (answer,) = predictor.predict([spec], [A100])
    assert answer.power_w is None
    assert answer.energy_j is None
    assert answer.latency_s.value > 0


def test_one_by_one_equals_the_batch(predictor: ArtifactPredictor, cases: Cases) -> None:
    batch = predictor.predict_cases(cases)
    for i in range(0, len(cases), 29):
        assert predictor.predict_cases(cases.take([i])).row(0) == batch.row(i)


def test_all_cores_are_the_same_case_as_the_core_count(made_up: MadeUp, train: Train, tmp_path: Path) -> None:
    rows = made_up(300, power=0.0)
    threads = np.where(np.arange(300) % 2, 1.0, 2.0)
    cases = replace(rows.cases, device=np.full(300, CPU), dtype=np.full(300, "fp32"),
                    kv_dtype=np.full(300, "fp32"), threads=threads)  # fmt: skip
    latency = work(cases, catalogue()).lower_bound_s * np.where(threads == 1, 2.0, 3.0) + 1e-6
    save_artifact(train([replace(rows, cases=cases, latency_s=latency)], regressor="blend"), tmp_path / "model")
    predictor = load_predictor(tmp_path / "model")
    item, two, every = (
        predictor.predict_cases(replace(cases, threads=np.full(300, count))) for count in (1.0, 2.0, np.nan)
    )
    for name in ("value", "lower", "upper"):
        result = [getattr(predictions.targets["latency_s"], name) for predictions in (item, two, every)]
        assert np.array_equal(result[1], result[2])
        assert not np.array_equal(result[0], result[1])


def test_mixed_families_come_back_in_order(predictor: ArtifactPredictor) -> None:
    specs = [
        KernelSpec.of("gemm", "fp16", m=256, n=256, k=256),
        KernelSpec.of("softmax", "fp16", rows=512, cols=1024),
        KernelSpec.of("gemm", "fp16", m=4096, n=4096, k=4096),
    ]
    together = predictor.predict(specs, [A100, T4, T4])
    apart = [predictor.predict([spec], [device])[0] for spec, device in zip(specs, [A100, T4, T4], strict=True)]
    assert together == apart
    assert together[2].latency_s.value > together[0].latency_s.value


def test_higher_coverage_is_never_narrower(predictor: ArtifactPredictor, cases: Cases) -> None:
    widths = [_log_width(predictor.predict_cases(cases, coverage=level)) for level in (0.5, 0.8, 0.9, 0.99)]
    for narrow, wide in itertools.pairwise(widths):
        assert (wide >= narrow - 1e-12).all()
        assert wide.mean() > narrow.mean()


@pytest.mark.parametrize("coverage", [0.0, 0.49, 0.999, 1.0, float("nan"), True, "90"])
def test_impossible_coverage_is_refused(coverage: Any, predictor: ArtifactPredictor, cases: Cases) -> None:
    with pytest.raises(SpecError, match="coverage must be between"):
        predictor.predict_cases(cases, coverage=coverage)


def test_wider_and_told_on_a_device_never_measured(predictor: ArtifactPredictor, cases: Cases, on: OnDevice) -> None:
    seen, unseen = (predictor.predict_cases(on(cases, device)) for device in (A100, H100))
    assert np.median(_log_width(unseen)) > 1.5 * np.median(_log_width(seen))
    assert not unseen.in_domain.any()
    assert all("on which gemm was measured" in " ".join(notes) for notes in unseen.notes)


def test_a_kind_of_processor_never_measured_falls_back_to_the_bound(
    predictor: ArtifactPredictor, cases: Cases, on: OnDevice
) -> None:
    result = predictor.predict_cases(on(cases, CPU))
    assert set(result.method) == {"scaled bound"}
    assert not result.in_domain.any()
    assert np.isnan(result.targets["power_w"].value).all()


def test_wider_and_told_outside_the_sizes_measured(predictor: ArtifactPredictor) -> None:
    inside = KernelSpec.of("gemm", "fp16", m=700, n=900, k=800, impl="vllm-0.24.0")
    outside = [
        KernelSpec.of("gemm", "fp16", m=side, n=side, k=side, impl="vllm-0.24.0") for side in (16_384, 65_536, 262_144)
    ]
    near, *far = predictor.predict([inside, *outside], [A100] * 4)
    widths = [np.log(item.latency_s.upper / item.latency_s.lower) for item in (near, *far)]
    assert near.in_domain
    assert near.notes == ()
    assert not any(item.in_domain for item in far)
    assert all(any("is beyond the largest measured on" in note for note in item.notes) for item in far)
    assert widths[0] < widths[1] < widths[2] < widths[3]


@pytest.mark.parametrize("device", ["nvidia-h200-sxm-141gb", "nvidia-h100-sxm-80gb"])
@pytest.mark.parametrize("variant", ["add", "mulu", "relu"])
def test_a_vector_of_millions_takes_what_as_many_elements_in_rows_take(device: str, variant: str) -> None:
    shapes = ((1, 1 << 26), (1 << 13, 1 << 13), (1 << 20, 1 << 6))
    specs = [KernelSpec.of("elementwise", "fp32", variant=variant, rows=rows, cols=cols) for rows, cols in shapes]
    vector, square, narrow = load_predictor(default_model_dir()).predict(specs, [device] * 3)
    for other in (vector, narrow):
        assert other.latency_s.value == pytest.approx(square.latency_s.value, rel=0.2)
        assert other.latency_s.upper < 2 * square.latency_s.upper


def test_an_unknown_version_is_read_as_the_nearest_and_says_so(predictor: ArtifactPredictor, cases: Cases) -> None:
    known = replace(cases, impl=np.full(len(cases), "vllm-0.24.0"))
    result = predictor.predict_cases(replace(cases, impl=np.full(len(cases), "vllm-0.25.1")))
    nearest = predictor.predict_cases(known)
    assert set(result.method) == {"xgboost (vllm-0.25.1: read as vllm-0.24.0)"}
    assert set(nearest.method) == {"xgboost"}
    assert (result.targets["latency_s"].value == nearest.targets["latency_s"].value).all()
    assert np.median(_log_width(result)) > np.median(_log_width(nearest))
    assert not result.in_domain.any()
    assert all("'vllm-0.25.1' was never measured" in " ".join(notes) for notes in result.notes)


def test_an_unknown_dtype_is_out_of_domain_and_wider(predictor: ArtifactPredictor) -> None:
    known, other, alike = (
        KernelSpec.of("gemm", dtype, m=700, n=900, k=800, impl="vllm-0.24.0") for dtype in ("fp16", "tf32", "bf16")
    )
    first, second, third = predictor.predict([known, other, alike], [A100] * 3)
    assert first.in_domain
    assert not second.in_domain
    assert "dtype 'tf32' was never measured" in " ".join(second.notes)
    assert third.notes == ("bf16 by vllm-0.24.0 was not measured; read as fp16, which runs at the same rate",)
    assert third.latency_s.value == pytest.approx(first.latency_s.value)
    assert third.latency_s.upper > first.latency_s.upper


def test_a_knob_that_was_never_set_is_told_and_wider(predictor: ArtifactPredictor) -> None:
    plain, tuned = (
        KernelSpec.of("gemm", "fp16", m=700, n=900, k=800, impl="vllm-0.24.0", config=config)
        for config in ({}, {"split_k": 4})
    )
    first, second = predictor.predict([plain, tuned], [A100, A100])
    assert first.in_domain
    assert not second.in_domain
    assert "split_k was never set" in " ".join(second.notes)
    assert second.latency_s.upper > first.latency_s.upper


def test_unknown_family_and_device_are_errors(predictor: ArtifactPredictor, cases: Cases, on: OnDevice) -> None:
    with pytest.raises(SpecError, match="was not trained on copy; it knows: gemm, softmax"):
        predictor.predict_cases(replace(cases, family=get_family("copy")))
    with pytest.raises(SpecError, match="no device 'nvidia-x100'"):
        predictor.predict_cases(on(cases, "nvidia-x100"))


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_coverage_is_about_right_on_made_up_noise(noise: float, made_up: MadeUp, train: Train, tmp_path: Path) -> None:
    """600 fresh rows: chance alone moves 90 % by 2.4 points (95 %); small learners and few rows by some more."""
    save_artifact(train([made_up(900, noise=noise, power=0.0)]), tmp_path / "model")
    result = evaluate(load_predictor(tmp_path / "model"), [made_up(600, noise=noise, seed=5)]).overall("latency_s")
    assert result is not None
    assert result.coverage_pct is not None
    assert 85.0 <= result.coverage_pct <= 96.0
    assert result.median_ape_pct < 100 * noise * 2


def test_one_device_alone_still_gives_wider_intervals_elsewhere(made_up: MadeUp, train: Train) -> None:
    alone = train([made_up(200, devices=(A100,), power=0.0)]).families["gemm"].targets["latency"].scores
    low, high = alone["seen"].bounds(0.9)
    assert alone["unseen_device"].bounds(0.9) == pytest.approx((4 * low, 4 * high))


def test_cpus_that_err_do_not_widen_intervals_of_gpus(made_up: MadeUp, train: Train, tmp_path: Path) -> None:
    """One more CPU among the devices left out once made half as many more of the GPUs' intervals wider than a factor of 5."""
    cpus = ("intel-xeon-platinum-8380", "amd-epyc-7763")
    gpus, noisy = made_up(200, power=0.0), made_up(200, devices=cpus, power=0.0, noise=1.0, seed=1)
    artifact = train([joined([gpus, noisy])])
    scores = artifact.families["gemm"].targets["latency"].scores
    assert not {"unseen_device gpu", "unseen_device cpu"} - scores.keys()
    save_artifact(artifact, tmp_path / "model")
    predictor = load_predictor(tmp_path / "model")
    specs = [KernelSpec.of("gemm", "fp16", m=size, n=size, k=size) for size in (64, 512, 4096)]
    gpu, cpu = (
        [answer.latency_s.upper / answer.latency_s.lower for answer in predictor.predict(specs, [device] * 3)]
        for device in ("nvidia-l4", "amd-epyc-9654")
    )
    assert max(gpu) < min(cpu)
    alone = train([gpus]).families["gemm"].targets["latency"].scores
    assert not {"unseen_device gpu", "unseen_device cpu"} & alone.keys()


def test_power_known_on_one_device_only_trains(made_up: MadeUp, train: Train) -> None:
    """Leaving that device out leaves no power to learn: this once raised inside numpy."""
    rows = made_up(200)
    rows = replace(rows, power_w=np.where(rows.cases.device == A100, rows.power_w, np.nan))
    scores = train([rows]).families["gemm"].targets["power"].scores
    assert scores["unseen_device"].bounds(0.9)[1] == pytest.approx(4 * scores["seen"].bounds(0.9)[1])


def test_too_few_rows_or_shapes_are_refused_with_a_reason(made_up: MadeUp, train: Train) -> None:
    rows = made_up(60)
    with pytest.raises(SpecError, match="gemm has 19 rows, at least 20 are needed"):
        train([rows.take(slice(19))])
    with pytest.raises(SpecError, match="too few different shapes"):
        train([rows.take(np.zeros(60, dtype=int))])


@pytest.mark.parametrize("name", ["analytic", BLEND, "periodic", "roofline", "xgboost"])
def test_every_regressor_s_model_keeps_the_same_promises(
    name: str, made_up: MadeUp, train: Train, cases: Cases, tmp_path: Path
) -> None:
    save_artifact(train([made_up(150)], regressor=name), tmp_path / "model")
    predictor = load_predictor(tmp_path / "model")
    result = predictor.predict_cases(cases).targets
    latency, power, energy = (result[target] for target in TARGETS)
    assert (latency.lower >= work(cases, catalogue()).lower_bound_s).all()
    for columns in (latency, power, energy):
        assert ((columns.lower <= columns.value) & (columns.value <= columns.upper)).all()
    assert energy.value == pytest.approx(latency.value * power.value, rel=1e-12)
    # Matrix products round differently in batches of other sizes.
    alone = predictor.predict_cases(cases.take([7])).targets
    for target in TARGETS:
        for column in ("value", "lower", "upper"):
            assert getattr(alone[target], column)[0] == pytest.approx(getattr(result[target], column)[7], rel=1e-4)


@pytest.mark.parametrize("name", [BLEND, PERIODIC, "xgboost"])
def test_every_learner_learns_latency_and_power(name: str, made_up: MadeUp, train: Train, tmp_path: Path) -> None:
    """With power in every row the forest learns both at once; power once came out as 0 there, the limit itself."""
    save_artifact(train([made_up(400, noise=0.01)], regressor=name), tmp_path / "model")
    result = evaluate(load_predictor(tmp_path / "model"), [made_up(150, seed=31, noise=0.01)])
    errors = {target: result.overall(target) for target in ("latency_s", "power_w")}
    for target, metrics in errors.items():
        assert metrics is not None
        assert metrics.median_ape_pct < 20, target


def test_a_plain_product_is_read_as_one_with_a_bias_where_that_was_measured_nearer_by() -> None:
    """Tables of fp32 have products with a bias alone on an A100; on an H200 the plain ones were measured."""
    shipped = kernelcast.load()

    def ask(device: str, variant: str, **other: Any) -> Prediction:
        spec = KernelSpec.of(
            "gemm", "fp32", variant=variant, m=4096, n=4096, k=4096, timing="device", impl="torch", **other
        )
        return shipped.predict([spec], [device])[0]

    for device in ("nvidia-a100-pcie-40gb", A100):
        plain, biased = ask(device, ""), ask(device, "bias")
        assert plain.latency_s.value == pytest.approx(biased.latency_s.value, rel=1e-3)
        assert plain.latency_s.upper / plain.latency_s.lower > biased.latency_s.upper / biased.latency_s.lower
        assert any(
            f"variant plain was not measured near {device} in fp32; read as bias" in note for note in plain.notes
        )
        assert not plain.in_domain
    h200 = "nvidia-h200-sxm-141gb"
    assert ask(h200, "").latency_s.value != ask(h200, "bias").latency_s.value
    assert not any("read as bias" in note for note in ask(h200, "").notes)


def test_other_days_of_a_shared_machine_are_within_the_interval(
    predictor: ArtifactPredictor, model_dir: Path, cases: Cases, on: OnDevice
) -> None:
    device = catalogue().get(A100)
    shared = replace(device, measured={**device.measured, "state_deviation": Fact(0.3, "sentinels of four days")})
    quiet, other = (
        each.predict_cases(on(cases, A100)) for each in (predictor, load_predictor(model_dir, Catalogue((shared,))))
    )
    for target in ("latency_s", "energy_j"):
        before, after = quiet.targets[target], other.targets[target]
        np.testing.assert_array_equal(before.value, after.value)
        assert (after.lower <= before.lower).all()
        assert (after.upper > before.upper).all()
    after = other.targets["latency_s"]
    # 90 % of a normal deviation of 0.3 alone; that of the model is added in squares.
    assert (after.upper >= after.value * np.exp(1.64 * 0.3)).all()
    bound = work(on(cases, A100), catalogue()).lower_bound_s
    assert (after.lower <= np.maximum(after.value * np.exp(-1.64 * 0.3), bound)).all()
    np.testing.assert_array_equal(quiet.targets["power_w"].upper, other.targets["power_w"].upper)
