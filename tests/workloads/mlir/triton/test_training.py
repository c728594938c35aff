"""Models of compiled code: training, the artifact, what is answered, and the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelcast.datasets.records.compiled_code import TritonModule, append_modules
from kernelcast.features.cost.occupancy import occupancy
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.understanding import no_native_parser, read
from kernelcast.models.family_model.artifact_files import ArtifactError, write_manifest
from kernelcast.models.pretrained import TRITON_CODE
from kernelcast.workloads.mlir.triton.code_model import load_code_model
from kernelcast.workloads.mlir.triton.labels import compiled_rows, read_labels
from kernelcast.workloads.mlir.triton.predictor import CodePredictor, load_code_predictor
from kernelcast.workloads.mlir.triton.training import (
    TrainingConfig,
    area_under_curve,
    errors_of,
    expected_calibration_error,
    fit_platt,
    r_squared,
    train_labels,
)

QUICK = TrainingConfig(folds=2, rounds=20)


def kernel(block: int, functions: int, arguments: int = 2) -> str:
    """A kernel that adds up blocks and takes so many exponentials of the sum."""
    loads = "\n".join(
        f"    %p{i} = tt.splat %x{i} : !tt.ptr<f32> -> tensor<{block}x!tt.ptr<f32>>\n"
        f"    %a{i} = tt.addptr %p{i}, %r : tensor<{block}x!tt.ptr<f32>>, tensor<{block}xi32>\n"
        f"    %v{i} = tt.load %a{i} : tensor<{block}x!tt.ptr<f32>>"
        for i in range(arguments)
    )
    sums = "\n".join(
        f"    %s{i} = arith.addf %{'v0' if i == 1 else f's{i - 1}'}, %v{i} : tensor<{block}xf32>"
        for i in range(1, arguments)
    )
    last = f"s{arguments - 1}"
    powers = "\n".join(
        f"    %e{i} = math.exp %{last if i == 0 else f'e{i - 1}'} : tensor<{block}xf32>" for i in range(functions)
    )
    names = ", ".join(f"%x{i}: !tt.ptr<f32> {{tt.divisibility = 16 : i32}}" for i in range(arguments))
    return (
        f"module {{\n  tt.func public @kernel({names}) attributes {{noinline = false}} {{\n"
        f"    %r = tt.make_range {{end = {block} : i32, start = 0 : i32}} : tensor<{block}xi32>\n{loads}\n{sums}\n{powers}\n"
        f"    tt.store %a0, %e{functions - 1} : tensor<{block}x!tt.ptr<f32>>\n    tt.return\n  }}\n}}\n"
    )


def modules() -> list[TritonModule]:
    """Kernels whose code follows a law: registers by elements per thread, spills beyond 60 of them."""
    result = []
    for number in range(48):
        block, warps, arguments = 2 ** (8 + number % 6), 2 ** (number % 4), 2 + number % 3
        each = block / (32 * warps)
        wanted = 10 + 1.1 * arguments * each
        limit = 255
        result.append(TritonModule(
            f"family{number % 7}/p{number // 2}", f"case{number}", warps, 3,
            target="sm_90" if number % 2 else "sm_80", status="ok", block="block",
            text=kernel(block, 1 + number % 5, arguments), registers=int(min(wanted, limit)),
            spill_b=int(max(wanted - 60, 0) * 8), shared_b=0, threads_per_block=32 * warps, blocks_per_sm=1, warps_per_sm=warps,
            occupancy=warps / 64, instructions=int(30 + 4 * each * (arguments + number % 5)), compiler="triton 0",
        ))  # fmt: skip
    return result


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    append_modules(folder, modules(), {})
    return folder


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("model") / "code"
    report = train_labels([store], out, QUICK)
    assert report.n_rows == 48
    assert report.left_out == ()
    assert report.errors["all"]["registers_r2"] > 0.5
    return out


@pytest.fixture(scope="module")
def predictor(trained) -> CodePredictor:
    return load_code_predictor(trained)


MODULE = read(kernel(4096, 2), native=no_native_parser)


def test_answers_follow_what_a_thread_holds(predictor):
    few, many = (predictor.predict(MODULE, None, "sm_90", num_warps=warps) for warps in (8, 1))
    assert few.registers.value < many.registers.value <= many.limits["registers"]
    assert few.instructions.value < many.instructions.value
    assert few.spill_probability < many.spill_probability
    assert many.spill_b > 0
    assert few.function == "kernel"
    assert few.reader == "tolerant"
    assert few.shared_b.value == 0
    for item in (few, many):
        for target in (item.registers, item.instructions, item.shared_b, item.occupancy):
            assert target.lower <= target.value <= target.upper
            assert np.isfinite([target.lower, target.upper]).all()


def test_intervals_widen_with_coverage(predictor):
    narrow, wide = (predictor.predict(MODULE, None, "sm_80", coverage=item) for item in (0.5, 0.95))
    assert wide.instructions.lower <= narrow.instructions.lower
    assert wide.instructions.upper >= narrow.instructions.upper
    with pytest.raises(SpecError, match="coverage"):
        predictor.predict(MODULE, None, "sm_80", coverage=1.0)


def test_occupancy_is_what_the_rules_make_of_registers_and_shared_memory(predictor):
    result = predictor.predict(MODULE, None, "sm_90", num_warps=4)
    own = occupancy(90, threads=128, registers=int(result.registers.value), shared_b=int(result.shared_b.value))
    assert (result.occupancy.value, result.blocks_per_sm) == (own.share, own.blocks)


def test_what_was_never_compiled_is_said_and_widens(predictor):
    inside = predictor.predict(MODULE, None, "sm_90")
    assert inside.in_domain
    far = predictor.predict(read(kernel(2**20, 2), native=no_native_parser), None, "sm_90")
    assert not far.in_domain
    assert "outside what was compiled" in far.notes[0]
    strange = kernel(4096, 2).replace("math.exp", "math.strange")
    assert any(
        "not known" in note for note in predictor.predict(read(strange, native=no_native_parser), None, "sm_90").notes
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "sm_75"}, "sm_80, sm_90"),
        ({"num_warps": 5}, "num_warps"),
        ({"num_stages": 99}, "num_stages"),
        ({"function": "f"}, "kernel"),
    ],
)
def test_what_there_is_none_of_is_refused(predictor, given, said):
    options = {"function": None, "target": "sm_90"} | given
    with pytest.raises(SpecError, match=said):
        predictor.predict(MODULE, options.pop("function"), options.pop("target"), **options)


def test_other_mlir_is_refused(predictor):
    plain = read(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", native=no_native_parser
    )
    with pytest.raises(SpecError, match="no Triton IR"):
        predictor.predict(plain, None, "sm_90")


def test_equal_seeds_give_equal_models(store, trained, tmp_path):
    train_labels([store], tmp_path / "again", QUICK)
    item, two = (json.loads((folder / "manifest.json").read_text()) for folder in (trained, tmp_path / "again"))
    assert item["files"] == two["files"]


@pytest.mark.parametrize("harm", ["manifest", "graph", "missing graph", "features", "kind", "numbers"])
def test_a_damaged_artifact_is_refused(trained, tmp_path, harm):
    copy = tmp_path / "model"
    shutil.copytree(trained, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    if harm == "manifest":
        (copy / "manifest.json").write_text("{")
    elif harm == "graph":
        (copy / "registers.onnx.gz").write_bytes(b"other")
    elif harm == "missing graph":
        (copy / "registers.onnx.gz").unlink()
    else:
        manifest |= {"features": {"schema_hash": "0"}, "kind": {"kind": "programs"}, "numbers": {"low": [1.0]}}[harm]
        write_manifest(copy, manifest)
    with pytest.raises(ArtifactError):
        load_code_predictor(copy)


def test_a_folder_without_a_model_says_how_to_make_one(tmp_path):
    with pytest.raises(ArtifactError, match="train triton"):
        load_code_predictor(tmp_path)


def test_too_little_to_learn_from_is_refused(tmp_path):
    with pytest.raises(SpecError, match="holds no compiled programs"):
        read_labels([tmp_path])
    with pytest.raises(SpecError, match=r"missing\.parquet"):
        read_labels([tmp_path / "missing.parquet"])
    append_modules(tmp_path, modules()[:4], {})
    with pytest.raises(SpecError, match="takes 20"):
        train_labels([tmp_path], tmp_path / "model", QUICK)


def test_rows_that_cannot_be_read_are_left_out_with_a_reason():
    good, bad = modules()[0], replace(modules()[1], text="func.func @f() { return }")
    rows, refusals = compiled_rows([good, bad], lambda text: read(text, native=no_native_parser))
    assert len(rows) == 1
    assert "no Triton IR" in refusals[0]
    with pytest.raises(SpecError, match="none of 1"):
        compiled_rows([bad], lambda text: read(text, native=no_native_parser))


def test_measures_of_error():
    true = np.array([1.0, 2.0, 3.0, 4.0])
    assert r_squared(true, true) == 1.0
    assert r_squared(true, np.full(4, 2.5)) == 0.0
    assert area_under_curve(np.array([True, True, False]), np.array([0.5, 0.9, 0.5])) == 0.75
    assert np.isnan(area_under_curve(np.array([True]), np.array([0.5])))
    assert expected_calibration_error(np.array([True, False]), np.array([1.0, 0.0])) == 0.0
    slope, intercept = fit_platt(
        np.array([True] * 30 + [False] * 30), np.concatenate([np.full(30, 2.0), np.full(30, -2.0)])
    )
    assert slope > 1.0
    assert abs(intercept) < 0.1


def test_errors_name_only_what_was_predicted():
    rows, _ = compiled_rows(modules(), lambda text: read(text, native=no_native_parser))
    assert set(errors_of(rows, registers=rows.registers)) == {
        "n", "registers_r2", "registers_r2_kept", "registers_mae", "registers_median_ae",
    }  # fmt: skip


@pytest.mark.skipif(not TRITON_CODE.exists(), reason="no model of compiled code is shipped")
class TestShipped:
    def test_it_is_small_and_good_for_programs_held_out(self):
        assert sum(file.stat().st_size for file in TRITON_CODE.iterdir()) < 1.5e6
        model = load_code_model(TRITON_CODE)
        errors = model.metrics["out of fold"]["all"]
        assert errors["spill_auc"] >= 0.95
        assert errors["registers_r2"] >= 0.75
        assert errors["shared_exact_pct"] >= 80
        for target in ("registers", "instructions"):
            assert abs(model.metrics[f"{target} coverage"]["0.9"] - 0.9) < 0.05

    def test_serving_imports_no_training_library(self):
        code = (
            "import sys; from kernelcast.workloads.mlir.triton.predictor import load_code_predictor; "
            "from kernelcast.features.mlir.understanding import no_native_parser, read; p = load_code_predictor(); "
            f"p.predict(read({kernel(1024, 1)!r}, native=no_native_parser), None, 'sm_90'); "
            "never = {'torch', 'xgboost', 'sklearn', 'onnx', 'pandas', 'scipy', 'kernelcast.datasets', 'triton'}; "
            "bad = never & set(sys.modules); "
            "sys.exit(', '.join(sorted(bad)) or 0)"
        )
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
