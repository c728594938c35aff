"""What ships: enough rows, all of them physical, and a model that comes from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from kernelcast.datasets.rows.checks import BOUND_SLACK
from kernelcast.datasets.rows.table_columns import text
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.kind import Task, get_kind
from kernelcast.models.family_model.artifact import read_manifest, save_artifact
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.regressor import get_regressor
from kernelcast.models.training import training
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_table
from kernelcast.plugins.cost_model import CostModel

ROOT = Path(__file__).parents[1]
PRETRAINED = ROOT / "models" / "pretrained" / "kernels"
LAST = ("causal_conv1d", "latent_attention", "linear_attention", "quantize")


@pytest.fixture(scope="module")
def tables() -> dict[str, LabelledCases]:
    return {family: labelled_table(read_shipped(family), family) for family in shipped_families()}


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return load_predictor(PRETRAINED)


def test_there_are_as_many_rows_as_promised(tables: dict[str, LabelledCases]) -> None:
    assert len(tables) == 17
    kernels = {family: int((rows.cases.impl == "torch").sum()) for family, rows in tables.items()}
    # The last campaign of a CPU, of kernels that are long.
    assert min(kernels[family] for family in LAST) >= 70
    assert min(count for family, count in kernels.items() if family not in LAST) >= 280
    assert sum(kernels.values()) >= 6_000
    tiled = tables["gemm"].take(tables["gemm"].cases.impl == "iree")
    shapes = {tuple(row) for row in np.stack([tiled.cases.sizes[name] for name in "mnk"], axis=1).tolist()}
    assert len(tiled) >= 1_500
    assert len(shapes) >= 30
    assert sum(path.stat().st_size for path in (ROOT / "datasets" / "data" / "shipped").iterdir()) < 20e6


def test_shapes_are_not_powers_of_two(tables: dict[str, LabelledCases]) -> None:
    for family, rows in tables.items():
        exponents = np.log2(np.maximum(np.stack(list(rows.cases.sizes.values())), 1))
        # Published models with linear attention have such sizes throughout.
        assert (exponents % 1 == 0).all(axis=0).mean() < (0.3 if family == "linear_attention" else 0.2), family


def test_no_row_beats_its_lower_bound(tables: dict[str, LabelledCases]) -> None:
    for family, rows in tables.items():
        bound = work(rows.cases, catalogue()).lower_bound_s
        assert (rows.latency_s >= bound * (1 - BOUND_SLACK)).all(), family


def test_every_row_has_provenance() -> None:
    for family in shipped_families():
        table = read_shipped(family)
        facts = provenance_of(table)
        assert set(text(table, "block").tolist()) <= set(facts), family


def test_the_model_is_small_and_trained_on_these_tables() -> None:
    manifest = read_manifest(PRETRAINED)
    assert sum(path.stat().st_size for path in PRETRAINED.iterdir()) < 25e6
    assert set(manifest["sources"]) == {
        "aiconfigurator", "neusight", "vidur", "llmservingsim", "xla", "aiter", "tensile", "miopen", "deepbench", "apex_plus",
        "kernel_tuner",
    }  # fmt: skip
    assert all(source["licence"] and source["link"] and source["rows"] > 0 for source in manifest["sources"].values())
    assert manifest["own_data"]
    for item in manifest["own_data"]:
        content = (ROOT / "datasets" / "data" / "shipped" / item["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == item["sha256"], item["name"]


def test_the_model_fits_what_it_was_trained_on(tables: dict[str, LabelledCases], predictor: ArtifactPredictor) -> None:
    for family, rows in tables.items():
        result = predictor.predict_cases(rows.cases)
        latency = result.targets["latency_s"]
        assert np.median(np.abs(latency.value / rows.latency_s - 1)) < 0.06, family
        inside = (latency.lower <= rows.latency_s) & (rows.latency_s <= latency.upper)
        assert inside.mean() > 0.88, family
        assert result.in_domain.mean() > 0.95, family


@pytest.mark.slow
def test_a_model_trained_again_answers_alike(
    tables: dict[str, LabelledCases], predictor: ArtifactPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests of models put small regressors in place for their whole session; here the real ones count.
    monkeypatch.setattr(training, "get_regressor", get_regressor)
    rows = tables["softmax"]
    save_artifact(training.train([rows], seed=read_manifest(PRETRAINED)["seed"]), tmp_path / "again")
    shipped = predictor.predict_cases(rows.cases).targets["latency_s"]
    again = load_predictor(tmp_path / "again").predict_cases(rows.cases).targets["latency_s"]
    # Other processors round other ways, and trees turn a last bit into another leaf now and then.
    assert np.median(np.abs(again.value / shipped.value - 1)) < 0.02
    assert np.quantile(np.abs(again.value / shipped.value - 1), 0.95) < 0.1


def test_operands_that_do_not_fit_the_memory_are_told(predictor: ArtifactPredictor) -> None:
    spec = KernelSpec.of("softmax", "fp32", rows=2**24, cols=2**20)
    answer = predictor.predict([spec], ["nvidia-h100-sxm-80gb"])[0]
    assert not answer.in_domain
    assert any("do not fit" in note for note in answer.notes)


TASKS: Mapping[str, Mapping[str, int]] = {
    "iree-contraction": {"batch": 1, "m": 250, "n": 384, "k": 512, "a_transposed": 0, "b_transposed": 0, "threads": 1},
    "iree-conv2d": {"batch": 1, "out_h": 28, "out_w": 28, "out_c": 96, "kernel_h": 3, "kernel_w": 3, "in_c": 64, "stride": 1,
                    "layout": 0, "threads": 1},
    "mlir-opt-tiles": {"batch": 1, "m": 250, "n": 384, "k": 512, "a_transposed": 0, "b_transposed": 0},
}  # fmt: skip


@pytest.mark.parametrize("kind", TASKS)
def test_tiles_are_ranked_on_every_cpu_of_the_catalogue_and_said_where_nothing_was_measured(kind: str) -> None:
    for device in catalogue():
        if device.kind != "cpu":
            continue
        model = CostModel.load(kind, device.name)
        measured = ("amd-epyc-9005-vm-2c", *(["amd-epyc-7003-vm-2c"] if kind.startswith("iree") else []))
        assert (model.caveat == "") == (device.name in measured), device.name
        candidates = get_kind(kind).space(Task(kind, TASKS[kind], "fp32", device.name))
        seconds = model.predict(candidates)
        assert np.isfinite(seconds).all()
        assert seconds.max() > 1.2 * seconds.min() > 0
        assert (model.rank(candidates, 3) == np.argsort(seconds, kind="stable")[:3]).all()
