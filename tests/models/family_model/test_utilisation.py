"""Power from how busy a device is: for families whose own power was never measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.device import Catalogue, catalogue
from kernelcast.models.family_model.artifact import (
    Artifact,
    load_family,
    read_manifest,
    save_artifact,
    shipped_model_dir,
    with_power_of,
)
from kernelcast.models.family_model.artifact_files import ArtifactError
from kernelcast.models.family_model.utilisation import PowerRows, UtilisationModel
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training import training
from kernelcast.models.training.labelled_cases import LabelledCases, joined

MadeUp = Callable[..., LabelledCases]
A100, MI300X, CPU = "nvidia-a100-sxm-80gb", "amd-mi300x", "amd-epyc-9005-vm-2c"
LAW = UtilisationModel(0.2, 0.6, 0.3, 0.5, 0.8, np.log(5e-5))


def _rows(seed: int, noise: float = 0.05) -> PowerRows:
    rng = np.random.default_rng(seed)
    latency_s = np.exp(rng.uniform(np.log(1e-6), np.log(1e-2), 500))
    compute_s, memory_s = latency_s * rng.random(500), latency_s * rng.random(500)
    share = np.exp(LAW.log_share(latency_s, compute_s, memory_s) + noise * rng.normal(size=500))
    return PowerRows(latency_s, compute_s, memory_s, share)


def test_the_law_is_learned_and_its_scores_cover_what_was_left_out() -> None:
    fitted = UtilisationModel.fit({("gemm", A100): _rows(0), ("attention", A100): _rows(1), ("moe", MI300X): _rows(2)})
    assert fitted is not None
    model, scores = fitted
    new = _rows(3, noise=0.0)
    answer = model.log_share(new.latency_s, new.compute_s, new.memory_s)
    assert np.abs(answer - np.log(new.share)).max() < 0.05
    low, high = scores.bounds(0.9)
    assert -0.12 < low < -0.05
    assert 0.05 < high < 0.12


def test_one_family_judges_no_other() -> None:
    assert UtilisationModel.fit({("gemm", A100): _rows(0), ("gemm", MI300X): _rows(1)}) is None
    assert UtilisationModel.fit({}) is None


def test_a_family_with_rows_of_its_own_is_not_answered_by_the_others() -> None:
    hungry = replace(_rows(4), share=np.minimum(1.5 * _rows(4).share, 1.0))
    groups = {("gemm", A100): _rows(0), ("attention", MI300X): _rows(1), ("rope", A100): hungry}
    rope, gemm = (UtilisationModel.of_family(groups, name) for name in ("rope", "gemm"))
    assert rope is not None
    assert gemm is not None
    new = _rows(5, noise=0.0)
    answers = [np.exp(model.log_share(new.latency_s, new.compute_s, new.memory_s)) for model in (rope, gemm)]
    unlimited = 1.5 * new.share < 0.9
    assert np.median(answers[0][unlimited] / new.share[unlimited]) == pytest.approx(1.5, rel=0.05)
    assert np.median(answers[1] / new.share) == pytest.approx(1.0, rel=0.03)
    few = PowerRows(*(column[:19] for column in (hungry.latency_s, hungry.compute_s, hungry.memory_s, hungry.share)))
    assert UtilisationModel.of_family({("gemm", A100): _rows(0), ("rope", A100): few}, "rope") is None
    assert UtilisationModel.of_family(groups, "moe") is None


def test_a_busier_device_draws_more_and_never_more_than_its_limit() -> None:
    share = LAW.log_share(np.full(50, 1e-3), np.linspace(0.0, 2e-3, 50), np.full(50, 5e-4))
    assert (np.diff(share) >= 0).all()
    hungry = replace(LAW, compute=3.0)
    assert hungry.log_share(np.array([1.0]), np.array([1.0]), np.array([1.0])) == [0.0]


def test_plain_data_and_back() -> None:
    assert UtilisationModel.from_json(LAW.to_json()) == replace(LAW, log_ramp_s=round(LAW.log_ramp_s, 5))
    with pytest.raises(ValueError, match="not a number between"):
        UtilisationModel.from_json({**LAW.to_json(), "compute": float("nan")})


@pytest.fixture(scope="module")
def predictor(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory
) -> ArtifactPredictor:
    """A model that knows the power of gemm and softmax, and none of layernorm."""
    tables = [
        made_up(),
        made_up(family="softmax", impls=("torch",)),
        made_up(family="layernorm", impls=("torch",), power=0.0),
    ]
    directory = tmp_path_factory.mktemp("utilisation") / "model"
    save_artifact(train(tables), directory)
    return load_predictor(directory)


@pytest.mark.parametrize("device", [A100, MI300X])
def test_a_family_without_power_is_answered_from_the_others(
    predictor: ArtifactPredictor, made_up: MadeUp, device: str
) -> None:
    rows = made_up(200, family="layernorm", impls=("torch",), seed=5, devices=(device,))
    answer = predictor.predict_cases(rows.cases).targets
    latency, power, energy = (answer[name] for name in ("latency_s", "power_w", "energy_j"))
    assert (power.lower <= power.value).all()
    assert (power.value <= power.upper).all()
    assert (power.upper <= catalogue().get(device).required("tdp_w")).all()
    np.testing.assert_allclose(energy.value, latency.value * power.value)
    assert (energy.lower <= energy.value).all()
    assert (energy.value <= energy.upper).all()
    assert np.mean((power.lower <= rows.power_w) & (rows.power_w <= power.upper)) > 0.85


def test_a_processor_of_another_kind_has_no_power(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    cases = made_up(5, family="layernorm", impls=("torch",)).cases
    on_cpu = replace(cases, device=np.full(5, CPU), dtype=np.full(5, "fp32"))
    assert np.isnan(predictor.predict_cases(on_cpu).targets["power_w"].value).all()


def test_a_model_without_it_loads(model_dir: Path) -> None:
    assert load_predictor(model_dir).family("softmax").model.utilisation is None


def test_a_model_of_other_rows_keeps_the_power_it_had(predictor: ArtifactPredictor, artifact: Artifact) -> None:
    before, plain = predictor.family("layernorm").model, artifact.families["softmax"]
    assert with_power_of(before, plain).utilisation == before.utilisation
    assert with_power_of(before, artifact.families["gemm"]) is artifact.families["gemm"]


@pytest.mark.parametrize(("family", "change"), [
    ("layernorm", {"utilisation": None}), ("gemm", {"utilisation": LAW.to_json()}),
])  # fmt: skip
def test_power_that_nothing_answers_is_refused(
    predictor: ArtifactPredictor, family: str, change: dict[str, object]
) -> None:
    manifest = read_manifest(predictor.directory)
    entry = {**manifest["families"][family], **change}
    with pytest.raises(ArtifactError, match="power needs members or a utilisation model"):
        load_family(predictor.directory, {**manifest, "families": {family: entry}}, family)


def test_power_that_collectors_measured_goes_before_that_of_tables(made_up: MadeUp, artifact: Artifact) -> None:
    gemm, softmax = made_up(60, devices=(A100,)), made_up(60, family="softmax", impls=("torch",), devices=(A100,))
    families = {
        **artifact.families,
        "layernorm": artifact.families["softmax"],
        "softmax": replace(artifact.families["softmax"], targets=artifact.families["gemm"].targets),
    }

    def share(source: str, watts: float) -> float:
        both = [
            joined([rows, replace(rows, power_w=np.full(60, watts), source=np.full(60, source))])
            for rows in (replace(each, source=np.full(60, "a table")) for each in (gemm, softmax))
        ]
        law = training.with_utilisation(families, both, catalogue(), 0)["layernorm"].utilisation
        assert law is not None
        return float(np.exp(law.log_share(np.array([1e-4]), np.array([5e-5]), np.array([5e-5]))[0]))

    assert share("kernelcast 0.1.0", 100.0) == pytest.approx(0.25, rel=0.15)
    assert share("kernelcast 0.1.0", 200.0) == pytest.approx(0.5, rel=0.15)
    assert share("another table", 100.0) > 0.3


def test_few_rows_of_collectors_do_not_go_before_a_table(made_up: MadeUp, artifact: Artifact) -> None:
    tables = [made_up(60, devices=(A100,)), made_up(60, family="softmax", impls=("torch",), devices=(A100,))]
    few = [
        replace(rows.take(slice(0, 10)), power_w=np.full(10, 40.0), source=np.full(10, "kernelcast")) for rows in tables
    ]
    families = {
        **artifact.families,
        "layernorm": artifact.families["softmax"],
        "softmax": replace(artifact.families["softmax"], targets=artifact.families["gemm"].targets),
    }
    both = [joined(list(pair)) for pair in zip(tables, few, strict=True)]
    law = training.with_utilisation(families, both, catalogue(), 0)["layernorm"].utilisation
    assert law is not None
    assert np.exp(law.log_share(np.array([1e-4]), np.array([5e-5]), np.array([5e-5])))[0] > 0.3


def test_rows_of_a_device_without_a_public_limit_say_nothing(
    made_up: MadeUp, artifact: Artifact, unlimited: Catalogue
) -> None:
    families = {
        **artifact.families,
        "softmax": replace(artifact.families["softmax"], targets=artifact.families["gemm"].targets),
    }
    tables = [made_up(60), made_up(60, family="softmax", impls=("torch",))]
    assert training.with_utilisation(families, tables, unlimited, 0) == families


@pytest.fixture(scope="module")
def unlimited() -> Catalogue:
    """The catalogue without the power limits of GPUs."""
    known = catalogue()
    return Catalogue(tuple(
        replace(device, facts={name: fact for name, fact in device.facts.items() if name != "tdp_w"})
        for device in known
    ))  # fmt: skip


def test_what_few_rows_of_power_teach_is_left_to_how_busy_a_board_is() -> None:
    manifest = read_manifest(shipped_model_dir())
    rope, copy = (load_family(shipped_model_dir(), manifest, name) for name in ("rope", "copy"))
    assert rope.utilisation is not None
    assert rope.steady is not None
    assert rope.targets["power"].members == ()
    assert set(rope.measured) == {"latency"}
    read = {graph for graph, *_ in rope.targets["latency"].members} | {rope.targets["latency"].scale_graph}
    assert read | {rope.free} - {None} == set(range(len(rope.graphs)))
    assert copy.targets["power"].members
