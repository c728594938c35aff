"""kernelcast-annotate writes what the models say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.tuning.family_kinds import BOUND_NAMES, VARIANT_CODES
from kernelcast.features.tuning.kind import Candidates, Task
from kernelcast.plugins import python_pass
from kernelcast.plugins.cost_model import SHIPPED, CostModel
from kernelcast.plugins.operation_costs import functions_in

from .conftest import CPU, GPU, RunPass

pytestmark = pytest.mark.slow

ANNOTATE = "kernelcast-annotate{{model={models} device={device}}}"

# Function of operations.mlir -> family, variant, dtype, sizes, whether another kernel stands in.
READ: dict[str, tuple[str, str, str, dict[str, int], bool]] = {
    "matmul": ("gemm", "", "fp32", {"batch": 1, "m": 17, "n": 33, "k": 65}, False),
    "batch_matmul": ("gemm", "batched", "bf16", {"batch": 6, "m": 16, "n": 48, "k": 64}, False),
    "matmul_transpose_a": ("gemm", "tn", "fp32", {"batch": 1, "m": 17, "n": 33, "k": 65}, False),
    "matmul_transpose_b": ("gemm", "nt", "fp32", {"batch": 1, "m": 17, "n": 33, "k": 65}, False),
    "matvec": ("gemm", "", "fp32", {"batch": 1, "m": 64, "n": 1, "k": 128}, False),
    "generic_contraction": ("gemm", "", "fp32", {"batch": 1, "m": 32, "n": 9, "k": 35}, False),
    "conv": ("conv2d", "", "fp32", {"batch": 2, "in_channels": 3, "out_channels": 16, "height": 30, "width": 28,
                                    "kernel": 3, "stride": 2, "padding": 0}, False),
    "conv_dilated": ("gemm", "", "fp32", {"batch": 1, "m": 256, "n": 8, "k": 27}, True),
    "depthwise": ("gemm", "batched", "fp32", {"batch": 4, "m": 36, "n": 1, "k": 9}, True),
    "pooling": ("reduction", "max", "fp32", {"rows": 64, "cols": 4}, True),
    "gather": ("copy", "", "fp32", {"rows": 16, "cols": 8}, True),
    "softmax": ("softmax", "", "fp32", {"rows": 48, "cols": 77}, False),
    "exp": ("elementwise", "exp", "fp32", {"rows": 32, "cols": 96}, False),
    "add": ("elementwise", "add", "fp32", {"rows": 32, "cols": 96}, False),
    "relu": ("elementwise", "relu", "fp32", {"rows": 256, "cols": 96}, False),
    "silu": ("elementwise", "silu", "fp32", {"rows": 32, "cols": 96}, True),
    "bias": ("elementwise", "addu", "fp32", {"rows": 32, "cols": 96}, False),
    "transpose": ("copy", "transpose", "fp32", {"rows": 32, "cols": 96}, False),
    "copy": ("copy", "", "fp32", {"rows": 32, "cols": 96}, False),
    "fill": ("copy", "", "fp32", {"rows": 32, "cols": 96}, True),
    "sum": ("reduction", "sum", "fp32", {"rows": 32, "cols": 96}, False),
    "max_rows": ("reduction", "max_rows", "fp32", {"rows": 32, "cols": 96}, False),
    "sum_of_squares": ("reduction", "sum", "fp32", {"rows": 32, "cols": 96}, True),
}  # fmt: skip


def functions(module: str) -> dict[str, str]:
    """The text of every function of a module by name."""
    parts = re.split(r"(?=func\.func (?:private )?@)", module)[1:]
    return {part.split("@", 1)[1].split("(", 1)[0]: part for part in parts}


def value(text: str, name: str) -> Any:
    """An attribute `kernelcast.NAME` in a text, None where it is not there."""
    result = re.search(rf'kernelcast\.{name} = ("[^"]*"|[-+.\deE]+)', text)
    if result is None:
        return None
    return result[1].strip('"') if result[1].startswith('"') else float(result[1])


def wanted(models: Path, device: str, function: str, threads: int = 0) -> tuple[CostModel, Candidates]:
    family, variant, dtype, sizes, _ = READ[function]
    codes = VARIANT_CODES[family]
    task = Task(
        f"op-{family}", {**sizes, **({"variant": codes[variant]} if codes else {}), "threads": threads}, dtype, device
    )
    return CostModel.load(task.kind, device, models / f"{task.kind}.kcm"), Candidates.of(task, [{}])


@pytest.mark.parametrize("device", [CPU, GPU])
def test_every_sort_of_operation_gets_what_python_predicts(run_pass: RunPass, models: Path, device: str) -> None:
    run = run_pass(ANNOTATE.format(models=models, device=device), "operations.mlir")
    assert (run.status, run.message) == (0, "")
    result = functions(run.module)
    for name, (family, variant, _, _, stand_in) in READ.items():
        model, candidates = wanted(models, device, name)
        text = result[name]
        assert value(text, "latency_s") == pytest.approx(model.predict(candidates)[0], rel=1e-9), name
        energy = value(text, "energy_j")
        if model.model.energy is not None:
            assert energy == pytest.approx(model.predict_energy(candidates)[0], rel=1e-9), name
        else:
            assert energy is None, name
        assert value(text, "kernel").startswith(f"{family} {variant}".strip() + " "), name
        assert (value(text, "stand_in") is not None) == stand_in, name
        assert value(text, "ops_covered") == 1.0
        assert value(text, "total_latency_s") == value(text, "latency_s")


def test_the_limit_that_binds_is_the_largest_bound(run_pass: RunPass, models: Path) -> None:
    run = run_pass(ANNOTATE.format(models=models, device=GPU), "operations.mlir")
    for name, text in functions(run.module).items():
        if name not in READ:
            continue
        model, candidates = wanted(models, GPU, name)
        flat = model.model
        facts = flat.facts_for(GPU, candidates.task.dtype)
        features = dict(zip(flat.formula.names, flat.features({**candidates.task.sizes, **facts}), strict=True))
        limits = {limit: float(features[feature]) for feature, limit in BOUND_NAMES.items()}
        assert value(text, "bound") == max(limits, key=lambda limit: limits[limit]), name


def test_what_no_kernel_is_known_for_says_so(run_pass: RunPass, models: Path) -> None:
    result = functions(run_pass(ANNOTATE.format(models=models, device=CPU), "operations.mlir").module)
    assert "loop counters" in value(result["counting"], "skipped")
    assert value(result["counting"], "latency_s") is None
    assert (value(result["counting"], "ops_covered"), value(result["counting"], "ops_skipped")) == (0.0, 1.0)


def test_python_takes_every_operation_for_the_same_kernel(run_pass: RunPass, models: Path) -> None:
    generic = run_pass("", "operations.mlir", flags=["--mlir-print-op-generic", "--mlir-print-local-scope"])
    assert (generic.status, generic.message) == (0, "")
    run = functions(run_pass(ANNOTATE.format(models=models, device=CPU), "operations.mlir").module)
    by_python = {function.name: function.operations for function in functions_in(generic.module)}
    assert by_python.keys() == run.keys()
    for name in READ:
        (operation,) = by_python[name]
        assert operation.spec is not None, name
        assert python_pass.title(operation.spec) == value(run[name], "kernel"), name


def test_an_array_that_sums_start_from_is_no_kernel(run_pass: RunPass, models: Path) -> None:
    code = """func.func @f(%a: tensor<256x512xf32>, %b: tensor<512x128xf32>, %c: tensor<256x128xf32>) -> tensor<256x128xf32> {
      %zero = arith.constant 0.0 : f32
      %0 = linalg.fill ins(%zero : f32) outs(%c : tensor<256x128xf32>) -> tensor<256x128xf32>
      %1 = linalg.matmul ins(%a, %b : tensor<256x512xf32>, tensor<512x128xf32>)
             outs(%0 : tensor<256x128xf32>) -> tensor<256x128xf32>
      return RETURNED
    }"""
    alone = run_pass(
        ANNOTATE.format(models=models, device=GPU), code.replace("RETURNED", "%1 : tensor<256x128xf32>")
    ).module
    assert (value(alone, "ops_covered"), value(alone, "ops_skipped")) == (1.0, 0.0)
    assert value(alone, "total_energy_j") == value(alone, "energy_j")
    used = code.replace("-> tensor<256x128xf32> {", "-> (tensor<256x128xf32>, tensor<256x128xf32>) {")
    both = run_pass(
        ANNOTATE.format(models=models, device=GPU),
        used.replace("RETURNED", "%0, %1 : tensor<256x128xf32>, tensor<256x128xf32>"),
    ).module
    assert value(both, "ops_covered") == 2.0


@pytest.mark.parametrize("name", ["h200", "H200-SXM", GPU.upper()])
def test_a_device_may_be_given_by_alias(run_pass: RunPass, models: Path, name: str) -> None:
    by_name, by_alias = (
        run_pass(ANNOTATE.format(models=models, device=device), "operations.mlir") for device in (GPU, name)
    )
    assert (by_alias.module, by_alias.message) == (by_name.module, "")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("dynamic", "not known at compile time"),
        ("empty", "no elements"),
        ("complex", "element type"),
        ("not_in_the_model", "does not know fp64"),
        ("two_results", "several results"),
    ],
)
def test_what_cannot_be_predicted_says_why(run_pass: RunPass, models: Path, function: str, why: str) -> None:
    run = run_pass(ANNOTATE.format(models=models, device=CPU), "odd.mlir")
    assert (run.status, run.message) == (0, "")
    text = functions(run.module)[function]
    assert why in value(text, "skipped")
    assert value(text, "latency_s") is None


def test_a_single_number_is_an_operation_too(run_pass: RunPass, models: Path) -> None:
    run = run_pass(ANNOTATE.format(models=models, device=CPU), "odd.mlir")
    assert value(functions(run.module)["scalar"], "kernel") == "elementwise exp rows=1 cols=1 fp32"


def test_buffers_sums_and_loops(run_pass: RunPass, models: Path) -> None:
    run = run_pass(ANNOTATE.format(models=models, device=CPU), "buffers.mlir")
    assert (run.status, run.message) == (0, "")
    result = functions(run.module)
    each = [float(number) for number in re.findall(r"kernelcast\.latency_s = ([-+.\deE]+)", result["layer"])]
    assert len(each) == 3
    assert value(result["layer"], "total_latency_s") == pytest.approx(sum(each), rel=1e-12)
    # One of its three models knows no energy, so the function has none.
    assert value(result["layer"], "total_energy_j") is None
    assert value(result["repeated"], "runs") == 20.0
    assert value(result["repeated"], "total_latency_s") == pytest.approx(20.0 * value(result["repeated"], "latency_s"))
    assert value(result["repeated"], "total_energy_j") == pytest.approx(20.0 * value(result["repeated"], "energy_j"))
    assert (value(result["sometimes"], "ops_covered"), value(result["sometimes"], "ops_skipped")) == (1.0, 2.0)
    assert "kernelcast" not in result["nothing"]
    assert "kernelcast" not in result["elsewhere"]


def test_threads_are_told_to_the_model(run_pass: RunPass, models: Path) -> None:
    run = run_pass(f"kernelcast-annotate{{model={models} device={CPU} threads=1}}", "operations.mlir")
    model, candidates = wanted(models, CPU, "matmul", threads=1)
    assert value(functions(run.module)["matmul"], "latency_s") == pytest.approx(model.predict(candidates)[0], rel=1e-9)


def test_a_second_run_replaces_the_first(run_pass: RunPass, models: Path) -> None:
    passes = ANNOTATE.format(models=models, device=CPU)
    once = run_pass(passes, "buffers.mlir")
    assert "kernelcast.latency_s" in once.module
    assert run_pass(passes, once.module).module == once.module
    other = run_pass(ANNOTATE.format(models=models, device=GPU), once.module)
    assert other.module == run_pass(ANNOTATE.format(models=models, device=GPU), "buffers.mlir").module
    assert other.module != once.module


def test_shipped_models_give_an_interval_and_energy_only_where_power_was_taught(run_pass: RunPass) -> None:
    code = """func.func @f(%a: tensor<256x512xf32>, %b: tensor<512x128xf32>, %c: tensor<256x128xf32>) -> tensor<256x128xf32> {
      %0 = linalg.matmul ins(%a, %b : tensor<256x512xf32>, tensor<512x128xf32>)
             outs(%c : tensor<256x128xf32>) -> tensor<256x128xf32>
      return %0 : tensor<256x128xf32>
    }"""
    for device, has_energy in ((CPU, False), (GPU, True)):
        run = run_pass(ANNOTATE.format(models=SHIPPED, device=device), code)
        assert (run.status, run.message) == (0, "")
        assert 0.0 < value(run.module, "lower_s") < value(run.module, "latency_s") < value(run.module, "upper_s")
        assert (value(run.module, "energy_j") is not None) == has_energy
        assert (value(run.module, "total_energy_j") is not None) == has_energy
