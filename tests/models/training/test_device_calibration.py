"""Calibration: a few rows of a device make its answers better and its intervals honest, and leave all others alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.family_model.artifact_files import ArtifactError
from kernelcast.models.family_model.device_correction import Adaptation
from kernelcast.models.family_model.gaussian_process import PRIOR, Points, Process, _Search
from kernelcast.models.family_model.nearby_rows import NearbyRows
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.device_calibration import calibrate_to_devices
from kernelcast.models.training.labelled_cases import LabelledCases

MadeUp = Callable[..., LabelledCases]
NEW = "nvidia-l4"


@pytest.fixture(scope="module")
def model(made_up: MadeUp, train: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "model"
    save_artifact(
        train([made_up(500, devices=("nvidia-a100-sxm-80gb", "nvidia-t4", "nvidia-v100-pcie-32gb"))]), directory
    )
    return directory


@pytest.fixture(scope="module")
def new_device(made_up: MadeUp) -> LabelledCases:
    """A card that launches slowly and streams at half its datasheet's rate."""
    rows = made_up(400, devices=(NEW,), seed=3)
    return replace(rows, latency_s=2.0 * rows.latency_s + 20e-6)


def _errors(model: Path, rows: LabelledCases) -> np.ndarray:
    value = load_predictor(model).predict_cases(rows.cases).targets["latency_s"].value
    return np.abs(value / rows.latency_s - 1.0)


def test_a_few_rows_help_and_more_help_more(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    rest = new_device.take(np.arange(128, 400))
    errors = [_errors(model, rest).mean()]
    for k in (8, 128):
        calibrate_to_devices(model, new_device.take(np.arange(k)), tmp_path / str(k))
        errors.append(_errors(tmp_path / str(k), rest).mean())
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.8 * errors[1]
    assert errors[2] < 0.12


def test_rows_of_one_timing_make_that_timing_known(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    def timed(timing: str) -> LabelledCases:
        return replace(new_device, cases=replace(new_device.cases, timing=np.full(len(new_device), timing)))

    calibrate_to_devices(model, timed("call").take(np.arange(64)), tmp_path / "out")
    predictor = load_predictor(tmp_path / "out")
    call, alone = (predictor.predict_cases(timed(timing).take(np.arange(64)).cases) for timing in ("call", "device"))
    assert call.in_domain.mean() > 0.9
    assert not alone.in_domain.any()
    assert all(f"{NEW} was measured as calls only" in notes[0] for notes in alone.notes)
    width = [
        np.median(answer.targets["latency_s"].upper / answer.targets["latency_s"].lower) for answer in (call, alone)
    ]
    assert width[0] < width[1]


@pytest.mark.parametrize("k", [8, 32, 128])
def test_intervals_of_a_calibrated_device_hold(k: int, model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    reports = calibrate_to_devices(model, new_device.take(np.arange(k)), tmp_path / "out")
    assert reports[0].rows == k
    rest = new_device.take(np.arange(128, 400))
    result = load_predictor(tmp_path / "out").predict_cases(rest.cases)
    latency = result.targets["latency_s"]
    inside = (rest.latency_s >= latency.lower) & (rest.latency_s <= latency.upper)
    assert inside.mean() > 0.8
    if k == 128:
        assert np.median(latency.upper / latency.lower) < 1.6
    assert set(result.regimes) == {"adapted"}
    assert all("calibrated" in method for method in result.method)
    assert result.in_domain.mean() > 0.9


def test_other_devices_answer_as_before(
    model: Path, new_device: LabelledCases, made_up: MadeUp, tmp_path: Path
) -> None:
    calibrate_to_devices(model, new_device.take(np.arange(16)), tmp_path / "out")
    cases = made_up(60, devices=("nvidia-t4", "nvidia-h100-sxm-80gb"), seed=9).cases
    before, after = (load_predictor(path).predict_cases(cases) for path in (model, tmp_path / "out"))
    for target, columns in before.targets.items():
        np.testing.assert_array_equal(columns.value, after.targets[target].value)
        np.testing.assert_array_equal(columns.upper, after.targets[target].upper)


def test_power_and_energy_are_calibrated_with_the_rows_that_have_it(
    model: Path, new_device: LabelledCases, tmp_path: Path
) -> None:
    thirsty = replace(new_device, power_w=np.full(len(new_device), 60.0))
    calibrate_to_devices(model, thirsty.take(np.arange(48)), tmp_path / "out")
    rest = thirsty.take(np.arange(128, 228))
    result = load_predictor(tmp_path / "out").predict_cases(rest.cases)
    assert np.median(np.abs(result.targets["power_w"].value / 60.0 - 1.0)) < 0.1
    energy = result.targets["energy_j"]
    product = result.targets["power_w"].value * result.targets["latency_s"].value
    np.testing.assert_allclose(energy.value, product)
    inside = (rest.power_w * rest.latency_s >= energy.lower) & (rest.power_w * rest.latency_s <= energy.upper)
    assert inside.mean() > 0.8


def test_a_second_calibration_replaces_the_first(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    calibrate_to_devices(model, new_device.take(np.arange(8)), tmp_path / "once")
    calibrate_to_devices(tmp_path / "once", new_device.take(np.arange(64)), tmp_path / "twice")
    calibrate_to_devices(model, new_device.take(np.arange(64)), tmp_path / "at once")
    rest = new_device.take(np.arange(200, 260))
    np.testing.assert_allclose(_errors(tmp_path / "twice", rest), _errors(tmp_path / "at once", rest))


def test_without_power_energy_stays_as_unsure_as_power(model: Path, made_up: MadeUp, tmp_path: Path) -> None:
    rows = made_up(16, devices=("nvidia-t4",), power=0.0, seed=4)
    calibrate_to_devices(model, rows, tmp_path / "out")
    result = load_predictor(tmp_path / "out").predict_cases(made_up(50, devices=("nvidia-t4",), seed=5).cases).targets
    width = {target: np.log(columns.upper / columns.lower) for target, columns in result.items()}
    assert (width["energy_j"] >= 0.9 * width["power_w"]).all()


def test_repeats_of_a_case_count_once(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    (report,) = calibrate_to_devices(model, new_device.take(np.zeros(20, dtype=np.intp)), tmp_path / "out")
    assert report.rows == 1
    assert report.after["latency"] == report.before["latency"], "one case says nothing of itself left out"


def test_a_kind_of_device_never_trained_on_is_refused(model: Path, made_up: MadeUp, tmp_path: Path) -> None:
    rows = made_up(20, devices=("nvidia-t4",), power=0.0)
    cases = replace(rows.cases, device=np.full(20, "amd-epyc-9005-vm-2c"), dtype=np.full(20, "fp32"))
    rows = replace(rows, cases=cases)
    with pytest.raises(SpecError, match="is a cpu"):
        calibrate_to_devices(model, rows, tmp_path / "out")


def test_power_above_the_limit_is_refused(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="limit allows"):
        calibrate_to_devices(model, replace(new_device, power_w=np.full(len(new_device), 5000.0)), tmp_path / "out")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda rows, model, out: (rows.take(np.arange(0)), model, out), "no measured rows"),
        (lambda rows, model, out: (rows, out / "nowhere", out), "is no model"),
        (lambda rows, model, out: (rows, model, model), "is the model that is adapted"),
    ],
)
def test_what_cannot_be_calibrated_is_told(
    spoil: Callable[..., tuple[LabelledCases, Path, Path]],
    says: str,
    model: Path,
    new_device: LabelledCases,
    tmp_path: Path,
) -> None:
    rows, source, out = spoil(new_device, model, tmp_path / "out")
    with pytest.raises((SpecError, ArtifactError), match=says):
        calibrate_to_devices(source, rows, out)


def test_a_family_the_model_does_not_know_is_told(model: Path, made_up: MadeUp, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not trained on softmax"):
        calibrate_to_devices(model, made_up(20, family="softmax", power=0.0), tmp_path / "out")


def _points(n: int, seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    words = np.array(["a", "b"], dtype=np.str_)
    return Points(
        words[rng.integers(0, 2, n)],
        words[rng.integers(0, 2, n)],
        words[rng.integers(0, 2, n)],
        rng.normal(size=(n, 3)),
        rng.random((n, 2)),
        np.ones(n),
        rng.normal(size=(n, 2)),
    )


def test_a_variant_may_be_off_in_one_dtype_alone() -> None:
    points, other = _points(60), _points(40, seed=1)
    y, there = (np.where((each.group == "a") & (each.variant == "b"), 0.6, 0.0) for each in (points, other))
    mean, _ = Process.fit(points, y).at(other)
    assert np.abs(mean - there).max() < 0.15


def test_what_depends_on_tiling_alone_is_learned() -> None:
    points, other = _points(200), _points(60, seed=1)
    y, there = (np.where(each.tiling[:, 1] > 0.0, 0.5, -0.2) for each in (points, other))
    without = [replace(each, tiling=np.zeros((len(each), 0))) for each in (points, other)]
    errors = [np.abs(Process.fit(a, y).at(b)[0] - there).mean() for a, b in ((points, other), without)]
    assert errors[0] < 0.3 * errors[1]


def test_the_search_follows_the_gradient_of_its_loss() -> None:
    from scipy.optimize import check_grad

    points = _points(25)
    y = np.sin(points.place[:, 0]) + 0.2 * points.tiling[:, 1]
    start = np.log(np.linspace(0.2, 3.0, len(PRIOR) - 1 + 5))
    search = _Search.of(points, y, start + 0.3, np.full(len(start), 0.7))
    error = check_grad(lambda at: search.loss(at, points.doubt)[0], lambda at: search.loss(at, points.doubt)[1], start)
    assert error < 1e-4 * np.linalg.norm(search.loss(start, points.doubt)[1])


def test_more_rows_than_the_scales_are_searched_with_all_count() -> None:
    points, other = _points(700), _points(40, seed=1)
    y, there = (np.sin(3.0 * each.place[:, 0]) for each in (points, other))
    mean, _ = Process.fit(points, y).at(other)
    some, _ = Process.fit(points.take(np.arange(0, 700, 2)), y[::2]).at(other)
    assert np.abs(mean - there).mean() < np.abs(some - there).mean()


def test_an_adaptation_answers_the_same_from_the_manifest() -> None:
    points, other = _points(40), _points(12, seed=1)
    adaptation = Adaptation.fit(points, 0.3 * points.place[:, 0] + 0.1 * points.tiling[:, 0])
    again = Adaptation.from_json(adaptation.to_json())
    for mean, other_mean in zip(adaptation.at(other), again.at(other), strict=True):
        np.testing.assert_allclose(mean, other_mean, atol=1e-3)


def test_no_case_is_corrected_by_more_than_any_row_was_off() -> None:
    points = _points(60)
    y = np.where(points.place[:, 0] > 1.0, 4.0, 0.0)
    steep = replace(points, place=3.0 * points.place, direction=4.0 * points.direction)
    mean, _ = Adaptation.fit(points, y).at(steep)
    assert mean.max() <= 4.0


def test_adaptations_of_earlier_versions_answer_as_they_did() -> None:
    points, other = _points(20), _points(5, seed=1)
    scales = {name: scale for name, scale in PRIOR.items() if name not in ("variant", "kind")}
    y = np.linspace(-0.2, 0.2, 20)
    plain = Adaptation.fit(points, y).to_json() | {"scales": scales, "trust": 1.0, "caution": 0.0, "doubt": [1.0] * 20}
    del plain["lengths"], plain["tiling"]
    earlier = Adaptation.from_json(plain)
    # One Gaussian remainder, and variants shared half the variance of groups.
    then = {**PRIOR, "variant": np.sqrt(0.5) * PRIOR["group"], "kind": 0.0}
    np.testing.assert_allclose(earlier.at(other)[0], Process.from_scales(points, y, then).at(other)[0], atol=1e-4)


@pytest.mark.parametrize("lengths", [None, np.array([1.0, 2.0, 0.5, 3.0, 4.0])])
def test_the_process_is_a_gaussian_process(lengths: np.ndarray | None) -> None:
    """Against scikit-learn's, for the parts both have: a constant, a smooth remainder, noise."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    scales = {**PRIOR, "group": 1e-9, "variant": 1e-9, "kind": 1e-9, "context": 1e-9, "direction": 1e-9, "own": 1e-9}
    points, other = _points(30), _points(12, seed=1)
    y = np.sin(points.place[:, 0]) + 0.3
    mean, deviation = Process.from_scales(points, y, scales, lengths).at(other)
    remainder = RBF(scales["length"] * np.sqrt(3)) if lengths is None else Matern(lengths, nu=1.5)
    kernel = (
        ConstantKernel(scales["common"] ** 2) + ConstantKernel(scales["smooth"] ** 2) * remainder
        + WhiteKernel(scales["noise"] ** 2)
    )  # fmt: skip
    columns, there = (
        each.place if lengths is None else np.column_stack([each.place, each.tiling]) for each in (points, other)
    )
    theirs = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-8).fit(columns, y)
    their_mean, their_deviation = theirs.predict(there, return_std=True)
    np.testing.assert_allclose(mean, their_mean, atol=1e-5)
    np.testing.assert_allclose(deviation, their_deviation, atol=1e-5)


@pytest.mark.parametrize("lengths", [None, np.array([1.0, 2.0, 0.5, 3.0, 4.0])])
def test_left_out_errors_are_those_of_leaving_out(lengths: np.ndarray | None) -> None:
    points = _points(20)
    y = points.place[:, 0]
    process = Process.from_scales(points, y, PRIOR, lengths)
    closed, claimed = process.left_out_errors(), process.left_out_deviations(points.doubt)
    for i in (0, 7, 19):
        rest = np.delete(np.arange(20), i)
        mean, deviation = Process.from_scales(points.take(rest), y[rest], PRIOR, lengths).at(points.take([i]))
        assert closed[i] == pytest.approx(y[i] - mean[0], abs=1e-5)
        assert claimed[i] == pytest.approx(deviation[0], rel=1e-3)


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_no_row_is_in_the_median_it_is_judged_by(n: int) -> None:
    y = np.random.default_rng(n).normal(size=n)
    rows = NearbyRows.fit(_points(n), y, "median")
    others = [np.median(np.delete(y, i)) if n > 1 else 0.0 for i in range(n)]
    np.testing.assert_allclose(rows.left_out_errors(), y - others)


def test_two_tables_of_a_family_teach_together(model: Path, new_device: LabelledCases, tmp_path: Path) -> None:
    parts = [new_device.take(np.arange(20)), new_device.take(np.arange(20, 64))]
    (report,) = calibrate_to_devices(model, parts, tmp_path / "parts")
    assert report.rows == 64
    calibrate_to_devices(model, new_device.take(np.arange(64)), tmp_path / "whole")
    rest = new_device.take(np.arange(200, 260))
    np.testing.assert_allclose(_errors(tmp_path / "parts", rest), _errors(tmp_path / "whole", rest))


def test_plain_rules_calibrate_too_and_come_back_from_disk(
    model: Path, new_device: LabelledCases, tmp_path: Path
) -> None:
    rest, errors = new_device.take(np.arange(128, 400)), {}
    for method in ("median", "nearby", "process"):
        calibrate_to_devices(model, new_device.take(np.arange(64)), tmp_path / method, method=method)
        errors[method] = _errors(tmp_path / method, rest).mean()
    assert errors["process"] < errors["nearby"] < errors["median"] < _errors(model, rest).mean()
