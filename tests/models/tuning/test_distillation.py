"""Small models of single operations learn what a predictor answers."""

from __future__ import annotations

from pathlib import Path

import kernelcast
import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import get_family
from kernelcast.features.tuning.family_kinds import HAS_POWER, LOG_LOWER, LOG_UPPER, WEIGHTS
from kernelcast.features.tuning.kind import Candidates, Task
from kernelcast.models.family_model.artifact import load_family
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.models.selection.candidates import runnable
from kernelcast.models.training.labelled_cases import labelled_table
from kernelcast.models.tuning.distillation import Distilled, TrainingConfig, Trees, distil, errors_on_rows
from kernelcast.models.tuning.flat_model import encode, read_model, write_model
from kernelcast.models.tuning.operation_sampling import (
    drawn_operations,
    dtypes_on,
    is_measured,
    thread_counts,
    usual_impl,
)
from kernelcast.models.tuning.rows import read_tables
from kernelcast.plugins.cost_model import CostModel

CPU, GPU, NEVER = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb", "nvidia-gb200"
SMALL = TrainingConfig(rows_measured=400, rows_other=100, fresh_measured=150, fresh_other=40,
               trees={"": Trees(5, 60, 0.2)}, power_trees=Trees(3, 30, 0.3))  # fmt: skip


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


@pytest.fixture(scope="module")
def copies(predictor: ArtifactPredictor) -> Distilled:
    return distil(predictor, "copy", [predictor.devices.get(CPU), predictor.devices.get(NEVER)], SMALL)


@pytest.fixture(scope="module")
def products(predictor: ArtifactPredictor) -> Distilled:
    return distil(predictor, "gemm", [predictor.devices.get(CPU), predictor.devices.get(GPU)], SMALL)


def test_it_answers_nearly_what_the_predictor_answers(copies: Distilled, products: Distilled) -> None:
    for result, most in ((copies, 15.0), (products, 40.0)):
        assert all(item.latency["n"] > 20 for item in result.errors)
        assert float(np.mean([item.latency["median_ape_pct"] for item in result.errors])) < most
    assert {(item.device, item.measured) for item in copies.errors} == {(CPU, True), (NEVER, False)}
    assert copies.model.metadata["errors_against_teacher"][0]["latency"] == copies.errors[0].latency


def test_its_file_answers_the_same_through_the_cost_model(
    copies: Distilled, predictor: ArtifactPredictor, tmp_path: Path
) -> None:
    write_model(copies.model, tmp_path / "op-copy.kcm")
    loaded = CostModel.load("op-copy", "epyc-9005-vm-2c", tmp_path / "op-copy.kcm")
    sizes = {"rows": 512, "cols": 1024, "variant": 0, "threads": 1}
    task = Task("op-copy", sizes, "fp32", CPU)
    (seconds,) = loaded.predict(Candidates.of(task, [{}]))
    answer = kernelcast.predict("copy", device=CPU, dtype="fp32", rows=512, cols=1024, threads=1)
    assert answer.latency_s.value / 1.5 < seconds < answer.latency_s.value * 1.5
    (both,) = loaded.predict(Candidates.of(Task("op-copy", sizes | {"threads": 0}, "fp32", CPU), [{}]))
    all_cores = Task("op-copy", sizes | {"threads": 2}, "fp32", CPU)
    assert loaded.predict(Candidates.of(all_cores, [{}])) == pytest.approx([both])
    assert encode(read_model(tmp_path / "op-copy.kcm", "op-copy")) == encode(copies.model)


def test_power_only_where_it_was_taught(copies: Distilled, products: Distilled) -> None:
    assert copies.model.facts_for(NEVER, "fp32")[HAS_POWER] == 1.0
    assert copies.model.facts_for(CPU, "fp32")[HAS_POWER] == 0.0
    assert products.model.energy is not None
    assert products.model.facts_for(GPU, "bf16")[HAS_POWER] == 1.0
    assert products.model.facts_for(CPU, "fp32")[HAS_POWER] == 0.0
    messages = {(item.device, item.dtype): item for item in products.errors}
    assert messages[GPU, "bf16"].power["median_ape_pct"] < 40.0
    assert messages[CPU, "fp32"].power == {"n": 0}


def test_facts_that_are_fitted(copies: Distilled) -> None:
    facts = copies.model.facts_for(CPU, "fp32")
    assert all(facts[name] >= 0.0 for name in WEIGHTS)
    assert any(facts[name] != 1.0 for name in WEIGHTS)
    assert 0.0 < facts[LOG_LOWER] < 3.0
    assert 0.0 < facts[LOG_UPPER] < 3.0
    assert copies.model.facts_for(NEVER, "fp32")[LOG_UPPER] > facts[LOG_UPPER]


def test_the_same_seed_gives_the_same_file(predictor: ArtifactPredictor) -> None:
    devices = [predictor.devices.get(CPU)]
    tiny = TrainingConfig(rows_measured=80, fresh_measured=30, trees={"": Trees(3, 10, 0.3)}, seed=3)
    first, second = (encode(distil(predictor, "softmax", devices, tiny).model) for _ in range(2))
    assert first == second


def test_measured_rows_judge_it_too(copies: Distilled, predictor: ArtifactPredictor) -> None:
    table = labelled_table(read_tables()["copy"][0], "copy", predictor.devices)
    result = errors_on_rows(copies.model, table, predictor)
    assert {item.device for item in result} == {CPU}
    assert all(item.latency["n"] > 50 and item.latency["median_ape_pct"] < 40.0 for item in result)


def test_what_cannot_be_distilled(predictor: ArtifactPredictor) -> None:
    with pytest.raises(SpecError, match="none of the devices runs a dtype of copy"):
        distil(predictor, "copy", [], SMALL)
    only = ArtifactPredictor(predictor.directory, {**predictor.manifest, "families": {}}, predictor.devices)
    with pytest.raises(SpecError, match="was not trained on copy"):
        distil(only, "copy", [predictor.devices.get(CPU)], SMALL)


def test_a_recipe_of_fewer_rows_keeps_its_proportions() -> None:
    usual, less = TrainingConfig(), TrainingConfig.of_rows(1200, seed=5)
    assert less.rows_measured == 1200
    assert less.rows_other == round(usual.rows_other * 1200 / usual.rows_measured)
    assert less.seed == 5
    assert TrainingConfig.of_rows(50, seed=0).fresh_other >= 1


@pytest.mark.parametrize("family", ["gemm", "conv2d", "reduction"])
@pytest.mark.parametrize("device", [CPU, GPU, "nvidia-p4"])
def test_operations_drawn_are_possible(predictor: ArtifactPredictor, family: str, device: str) -> None:
    fam, known = get_family(family), predictor.devices.get(device)
    model = load_family(predictor.directory, predictor.manifest, family)
    for dtype in dtypes_on(model, known, fam):
        cases = drawn_operations(fam, model, known, dtype, 64, np.random.default_rng(0))
        assert 20 < len(cases) <= 64
        assert runnable(cases, known).all()
        assert set(cases.impl.tolist()) == {usual_impl(model, known, dtype)}
        for i in range(len(cases)):
            sizes = {name: int(column[i]) for name, column in cases.sizes.items()}
            assert not fam.impossible(sizes)
            assert all(sizes[dim.name] >= dim.minimum for dim in fam.dims)
        if family == "gemm":
            assert ((cases.variant == "batched") <= (cases.sizes["batch"] > 1)).all()
            assert ((cases.sizes["batch"] > 1) <= ~np.isin(cases.variant, ("", "bias"))).all()
        query = set(cases.threads[~np.isnan(cases.threads)].tolist())
        assert query == (set(thread_counts(known)) if known.kind == "cpu" else set())


def test_what_was_measured_where(predictor: ArtifactPredictor) -> None:
    model = load_family(predictor.directory, predictor.manifest, "gemm")
    assert is_measured(model, GPU, "bf16")
    assert not is_measured(model, NEVER, "bf16")
    assert not is_measured(model, CPU, "fp16")
    assert "nvfp4" not in dtypes_on(model, predictor.devices.get("nvidia-b200-sxm-180gb"), get_family("gemm"))
    assert dtypes_on(model, predictor.devices.get(CPU), get_family("gemm")) == ["bf16", "fp32"]
    assert usual_impl(model, predictor.devices.get(CPU), "fp32") == "torch"
    assert usual_impl(model, predictor.devices.get(GPU), "fp32") == "torch"
