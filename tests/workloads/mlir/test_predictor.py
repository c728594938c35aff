"""The shipped model of programs and the measured modules it was trained on."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from kernelcast.datasets.records.mlir_modules import PROGRAMS_DIR, ModuleRun, read_packed
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.understanding import functions, read, understand
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.interval_calibration import folds_of
from kernelcast.workloads.mlir.predictor import ModulePredictor, load_module_predictor

DEVICE = "amd-epyc-9005-vm-2c"
SHIPPED = Path(__file__).parents[3] / "models" / "pretrained" / "mlir"
MATMUL = """
func.func @main(%a: tensor<256x512xf32>, %b: tensor<512x384xf32>) -> tensor<256x384xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<256x512xf32>, tensor<512x384xf32>) -> tensor<256x384xf32>
  return %0 : tensor<256x384xf32>
}
"""


SORT = """
func.func @main(%a: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %0 = "stablehlo.sort"(%a) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {dimension = 1 : i64} : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %0 : tensor<512x1024xf32>
}
"""

RANDOM = """
func.func @main(%s: tensor<2xui64>) -> (tensor<2xui64>, tensor<1048576xui32>) {
  %a, %b = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<1048576xui32>)
  return %a, %b : tensor<2xui64>, tensor<1048576xui32>
}
"""


@pytest.fixture(scope="module")
def predictor() -> ModulePredictor:
    return load_module_predictor(load_predictor(default_model_dir()))


@pytest.fixture(scope="module")
def to_ragged_batch() -> tuple[dict[str, str], dict[str, str], list[ModuleRun]]:
    texts, runs = read_packed()
    return {item.module_id: item.text for item in texts}, {item.module_id: item.program for item in texts}, runs


def test_at_least_two_thousand_modules_are_measured(
    to_ragged_batch: tuple[dict[str, str], dict[str, str], list[ModuleRun]],
) -> None:
    texts, programs, runs = to_ragged_batch
    measured = {run.module_id for run in runs if run.status == "ok" and run.latency_s}
    assert len(measured) >= 2_000
    assert measured <= set(texts)
    assert len({programs[module] for module in measured}) >= 900
    assert {run.compiler for run in runs if run.latency_s} == {"iree", "xla"}


def test_sizes_of_a_program_are_never_on_two_sides_of_a_split(
    to_ragged_batch: tuple[dict[str, str], dict[str, str], list[ModuleRun]],
) -> None:
    names = sorted(to_ragged_batch[1].values())
    sides: dict[str, set[int]] = {}
    for name, fold in zip(names, folds_of(names, 5).tolist(), strict=True):
        sides.setdefault(name.partition("#")[0], set()).add(fold)
    assert all(len(own) == 1 for own in sides.values())


def test_what_is_shipped_is_small_and_beats_its_own_base() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 4e6
    assert sum(path.stat().st_size for path in PROGRAMS_DIR.iterdir()) < 14e6
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    assert set(manifest["devices"]) == {DEVICE, "amd-epyc-7003-vm-2c"}
    for model in manifest["devices"].values():
        errors = {name: own["all"]["median_ape_pct"] for name, own in model["metrics"].items()}
        assert errors["blend"] < errors["analytic"]


@pytest.mark.parametrize("device", [DEVICE, "amd-epyc-7003-vm-2c"])
def test_measured_modules_lie_in_their_intervals(
    predictor: ModulePredictor, to_ragged_batch: tuple[dict[str, str], dict[str, str], list[ModuleRun]], device: str
) -> None:
    texts, _, all_runs = to_ragged_batch
    runs = [run for run in all_runs if run.device == device]
    chosen = sorted((run for run in runs if run.latency_s and run.threads == 1 and len(texts[run.module_id]) < 8_000),
                    key=lambda run: zlib.crc32(f"{run.compiler}{run.module_id}".encode()))[:80]  # fmt: skip
    inside, errors = [], []
    for run in chosen:
        result = predictor.predict(understand(read(texts[run.module_id])), device, compiler=run.compiler, threads=1)
        assert result.method.startswith("learned")
        assert run.latency_s is not None
        inside.append(result.latency_s.lower <= run.latency_s <= result.latency_s.upper)
        errors.append(abs(result.latency_s.value / run.latency_s - 1.0))
    assert np.mean(inside) >= 0.75
    assert np.median(errors) < 0.3


@pytest.mark.parametrize("compiler", ["iree", "xla"])
def test_each_compiler_has_its_own_answer_on_the_measured_device(predictor: ModulePredictor, compiler: str) -> None:
    result = predictor.predict(understand(read(MATMUL)), DEVICE, compiler=compiler, threads=1)
    assert result.compiler == compiler
    assert result.bound_s <= result.latency_s.lower <= result.latency_s.value <= result.latency_s.upper
    # What is left is the call itself.
    assert 0.9 * result.latency_s.value <= sum(group.latency_s for group in result.groups) <= result.latency_s.value
    if compiler == "iree":
        assert result.characteristics["code_instructions"].value > 10


@pytest.mark.parametrize("compiler", ["iree", "xla"])
@pytest.mark.parametrize("threads", [1, 2])
def test_no_answer_has_products_faster_than_the_cores(predictor: ModulePredictor, compiler: str, threads: int) -> None:
    text = MATMUL.replace("256x512", "4096x3072").replace("512x384", "3072x768").replace("256x384", "4096x768")
    result = predictor.predict(understand(read(text)), DEVICE, compiler=compiler, threads=threads)
    device = catalogue().get(DEVICE)
    peak, _ = device.peak_flops_per_s("fp32", "matrix")
    least_s = 2 * 4096 * 3072 * 768 / peak * device.required("compute_units") / threads
    assert least_s <= 1.01 * result.bound_s
    assert result.bound_s <= result.latency_s.lower
    assert sum(result.breakdown.values()) == pytest.approx(result.bound_s)
    assert sum(group.time_share for group in result.groups) <= 1.0 + 1e-9


@pytest.mark.parametrize("compiler", ["iree", "xla"])
def test_an_operation_that_nothing_measured_is_like_is_wide_within_reason(
    predictor: ModulePredictor, compiler: str
) -> None:
    result = predictor.predict(understand(read(RANDOM)), DEVICE, compiler=compiler, threads=1)
    assert not result.in_domain
    down, up = result.latency_s.value / result.latency_s.lower, result.latency_s.upper / result.latency_s.value
    assert 100 < down < 2_000
    assert 100 < up < 2_000
    for item in result.characteristics.values():
        assert item.upper < 2_000 * (1 + item.value)


@pytest.mark.parametrize(("compiler", "least_s", "most_s"), [("iree", 0.05, 1.0), ("xla", 5e-3, 0.1)])
def test_sorts_are_known_and_take_the_square_of_their_length_by_iree(
    predictor: ModulePredictor, compiler: str, least_s: float, most_s: float
) -> None:
    result = predictor.predict(understand(read(SORT)), DEVICE, compiler=compiler, threads=1)
    assert result.in_domain
    assert least_s < result.latency_s.value < most_s


def test_a_device_of_which_no_program_was_measured_is_answered_by_composition(predictor: ModulePredictor) -> None:
    result = predictor.predict(understand(read(MATMUL)), "nvidia-h100-sxm-80gb")
    assert result.method == "composition"


@pytest.mark.parametrize("compiler", ["", "iree", "xla"])
def test_a_program_without_a_kernel_is_a_call(predictor: ModulePredictor, compiler: str) -> None:
    text = (
        "func.func @main(%x: tensor<4x8xf32>) -> tensor<32xf32> {\n"
        "  %0 = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<32xf32>\n  return %0 : tensor<32xf32>\n}"
    )
    result = predictor.predict(understand(read(text)), DEVICE, compiler=compiler, threads=1)
    assert not result.groups
    assert 0 < result.latency_s.lower <= result.latency_s.value <= result.latency_s.upper


def test_every_text_of_the_corpus_is_answered(predictor: ModulePredictor) -> None:
    folder = Path(__file__).parents[2] / "features" / "mlir"
    texts = sorted([*(folder / "corpus").glob("*.mlir"), *(folder / "exported").glob("*.mlir")])
    assert len(texts) > 50
    for path in texts:
        module = read(path.read_text())
        for name in functions(module):
            try:
                program = understand(module, name)
            except SpecError as error:  # dynamic sizes, which only a user can bind
                assert "--bind" in str(error) or "bind" in str(error), (path.name, str(error))  # noqa: PT017
                continue
            for compiler in ("iree", "xla"):
                result = predictor.predict(program, DEVICE, compiler=compiler, threads=1)
                assert 0 < result.latency_s.lower <= result.latency_s.value <= result.latency_s.upper, path.name
