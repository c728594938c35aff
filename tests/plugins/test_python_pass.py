"""The annotating pass in the bindings of IREE, torch-mlir and jaxlib."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.family_kinds import task_of
from kernelcast.features.tuning.kind import Candidates
from kernelcast.plugins import python_pass
from kernelcast.plugins.cost_model import SHIPPED, CostModel
from kernelcast.plugins.python_pass import annotate

from .bindings import Binding, told

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"

LINALG = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x128xf32>) -> tensor<64x128xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x128xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x128xf32>) -> tensor<64x128xf32>
  %product = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x128xf32>) outs(%filled : tensor<64x128xf32>)
    -> tensor<64x128xf32>
  %result = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                            iterator_types = ["parallel", "parallel"]}
    ins(%product : tensor<64x128xf32>) outs(%empty : tensor<64x128xf32>) {
    ^bb0(%x: f32, %old: f32):
      %y = math.tanh %x : f32
      linalg.yield %y : f32
    } -> tensor<64x128xf32>
  return %result : tensor<64x128xf32>
}
"""

STABLEHLO = """
module {
  func.func public @main(%a: tensor<64x32xf32>, %b: tensor<32x128xf32>) -> tensor<128x64xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
    %1 = call @relu(%0) : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %2 = call @relu(%1) : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<64x128xf32>) -> tensor<128x64xf32>
    return %3 : tensor<128x64xf32>
  }
  func.func private @relu(%a: tensor<64x128xf32>) -> tensor<64x128xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<64x128xf32>
    %0 = stablehlo.maximum %a, %zero : tensor<64x128xf32>
    return %0 : tensor<64x128xf32>
  }
}
"""

TOSA = """
func.func @main(%a: tensor<1x64x32xf32>, %b: tensor<1x32x128xf32>) -> tensor<1x64x128xf32> {
  %zero = "tosa.const"() {values = dense<0.0> : tensor<1xf32>} : () -> tensor<1xf32>
  %0 = tosa.matmul %a, %b, %zero, %zero
    : (tensor<1x64x32xf32>, tensor<1x32x128xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x64x128xf32>
  %1 = tosa.tanh %0 : (tensor<1x64x128xf32>) -> tensor<1x64x128xf32>
  return %1 : tensor<1x64x128xf32>
}
"""

TORCH = """
func.func @main(%a: !torch.vtensor<[64,32],f32>, %b: !torch.vtensor<[32,128],f32>) -> !torch.vtensor<[64,128],f32> {
  %0 = torch.aten.mm %a, %b : !torch.vtensor<[64,32],f32>, !torch.vtensor<[32,128],f32> -> !torch.vtensor<[64,128],f32>
  %1 = torch.aten.tanh %0 : !torch.vtensor<[64,128],f32> -> !torch.vtensor<[64,128],f32>
  return %1 : !torch.vtensor<[64,128],f32>
}
"""

LOOP = """
func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c10 = arith.constant 10 : index
  %0 = scf.for %i = %c0 to %c10 step %c1 iter_args(%x = %a) -> (tensor<64x64xf32>) {
    %y = linalg.matmul ins(%x, %a : tensor<64x64xf32>, tensor<64x64xf32>) outs(%x : tensor<64x64xf32>) -> tensor<64x64xf32>
    scf.yield %y : tensor<64x64xf32>
  }
  return %0 : tensor<64x64xf32>
}
"""

DYNAMIC = """
func.func @main(%a: tensor<64x?xf32>, %b: tensor<?x64xf32>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<64x?xf32>, tensor<?x64xf32>) outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = linalg.matmul ins(%0, %c : tensor<64x64xf32>, tensor<64x64xf32>) outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}
"""

GEMM = "gemm batch=1 m=64 n=128 k=32 fp32"


def without_annotations(text: str) -> str:
    text = re.sub(r'kernelcast\.\w+ = (?:"[^"]*"|[-+.\dEe]+ : \w+)(?:, )?', "", text)
    text = re.sub(r",?\s*(?:attributes|attrs =)?\s*\{(?:, )*\}", "", text)
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "text", "ops"),
    [
        ("iree", LINALG, 2),
        ("iree", STABLEHLO, 4),
        ("iree", TOSA, 2),
        ("torch-mlir", TORCH, 2),
        ("torch-mlir", LINALG, 2),
        ("torch-mlir", STABLEHLO, 4),
        ("torch-mlir", TOSA, 2),
        ("jaxlib", STABLEHLO, 4),
    ],
)
def test_operations_of_every_binding_are_told_their_cost(name: str, text: str, ops: int) -> None:
    binding = Binding(name)
    module = binding.run(text, annotate(CPU, threads=1))
    result = told(module)
    model = CostModel.load("op-gemm", CPU, SHIPPED / "op-gemm.kcm")
    task = task_of(KernelSpec.of("gemm", "fp32", m=64, n=128, k=32, threads=1), CPU)
    assert task is not None
    assert result[GEMM]["latency_s"] == pytest.approx(float(model.predict(Candidates.of(task, [{}]))[0]), rel=1e-12)
    assert 0 < result[GEMM]["lower_s"] < result[GEMM]["latency_s"] < result[GEMM]["upper_s"] < 1e-3
    assert result[GEMM]["bound"] == "compute"
    assert "energy_j" not in result[GEMM]
    assert result["main"]["ops_covered"] == ops
    assert result["main"]["ops_skipped"] == 0
    assert all("bound" in own for key, own in result.items() if "kernel" in own)
    # It parses again, and only attributes were added.
    binding.ir.Module.parse(str(module), binding.context())
    assert without_annotations(str(module)) == without_annotations(str(binding.run(text)))


def test_names_of_the_device_and_energy_where_it_is_known() -> None:
    result = told(Binding("iree").run(LINALG, annotate("h200-sxm")))
    assert result[GEMM]["energy_j"] == pytest.approx(result[GEMM]["latency_s"] * 100, rel=3)
    assert result[GEMM]["bound"] == "launch"
    assert "energy_j" not in result["elementwise tanh rows=64 cols=128 fp32"]
    assert "total_energy_j" not in result["main"]
    alone = told(Binding("iree").run(LOOP, annotate(GPU)))
    assert alone["main"]["total_energy_j"] > 0


def test_an_array_that_sums_start_from_is_no_kernel() -> None:
    product = LINALG[: LINALG.index("%result")] + "return %product : tensor<64x128xf32>\n}"
    alone = told(Binding("iree").run(product, annotate(GPU)))
    assert alone["main"]["total_energy_j"] == alone[GEMM]["energy_j"]
    assert (alone["main"]["ops_covered"], alone["main"]["ops_skipped"]) == (1, 0)
    returned = product.replace("return %product : t", "return %product, %filled : tensor<64x128xf32>, t")
    returned = returned.replace("-> tensor<64x128xf32> {", "-> (tensor<64x128xf32>, tensor<64x128xf32>) {")
    assert told(Binding("iree").run(returned, annotate(GPU)))["main"]["ops_covered"] == 2


def test_an_operand_that_is_written_and_not_read_counts_for_nothing() -> None:
    text = """
    func.func @main(%x: tensor<32x96xf32>, %y: tensor<32x96xf32>) -> tensor<32x96xf32> {
      %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                           iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<32x96xf32>) outs(%y : tensor<32x96xf32>) {
        ^bb0(%a: f32, %old: f32):
          %b = math.exp %a : f32
          linalg.yield %b : f32
        } -> tensor<32x96xf32>
      return %0 : tensor<32x96xf32>
    }"""
    result = told(Binding("iree").run(text, annotate(CPU)))
    assert "stand_in" not in result["elementwise exp rows=32 cols=96 fp32"]


def test_totals_follow_calls_and_loops() -> None:
    result = told(Binding("iree").run(STABLEHLO, annotate(CPU)))
    relu = result["elementwise relu rows=64 cols=128 fp32"]["latency_s"]
    copy = result["copy transpose rows=64 cols=128 fp32"]["latency_s"]
    assert result["relu"]["total_latency_s"] == pytest.approx(relu)
    assert result["main"]["total_latency_s"] == pytest.approx(result[GEMM]["latency_s"] + 2 * relu + copy)
    loop = told(Binding("iree").run(LOOP, annotate(CPU)))
    item = loop["gemm batch=1 m=64 n=64 k=64 fp32"]
    assert item["runs"] == 10
    assert loop["main"]["total_latency_s"] == pytest.approx(10 * item["latency_s"])


def test_dynamic_sizes_are_skipped_and_counted() -> None:
    result = told(Binding("iree").run(DYNAMIC, annotate(CPU)))
    assert result["linalg.matmul"] == {"skipped": "its sizes are not known at compile time"}
    assert "gemm batch=1 m=64 n=64 k=64 fp32" in result
    assert (result["main"]["ops_covered"], result["main"]["ops_skipped"]) == (1, 1)


def test_unknown_operations_and_number_formats_are_skipped_and_counted() -> None:
    text = """
    func.func @main(%a: tensor<64x64xf64>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %0 = linalg.matmul ins(%a, %a : tensor<64x64xf64>, tensor<64x64xf64>) outs(%a : tensor<64x64xf64>) -> tensor<64x64xf64>
      %1 = "strange.op"(%0, %c) : (tensor<64x64xf64>, tensor<64x64xf32>) -> tensor<64x64xf32>
      return %1 : tensor<64x64xf32>
    }"""
    binding = Binding("iree")
    context = binding.context()
    context.allow_unregistered_dialects = True
    module = binding.ir.Module.parse(text, context)
    manager = binding.passes.PassManager("builtin.module", context=context)
    manager.add(annotate(CPU))
    manager.run(module.operation)
    result = told(module)
    assert result["linalg.matmul"]["skipped"] == f"the model of op-gemm does not know fp64 on {CPU}"
    assert "strange.op" in result["strange.op"]["skipped"]
    assert result["main"] == {"ops_covered": 0, "ops_skipped": 2}


def test_again_is_the_same_and_another_device_replaces() -> None:
    binding = Binding("iree")
    once = str(binding.run(LINALG, annotate(CPU)))
    assert str(binding.run(LINALG, annotate(CPU), annotate(CPU))) == once
    assert str(binding.run(LINALG, annotate(GPU), annotate(CPU))) == once


@pytest.mark.parametrize("name", ["iree", "torch-mlir", "jaxlib"])
def test_it_takes_functions_as_well_as_modules(name: str) -> None:
    text = STABLEHLO if name == "jaxlib" else LINALG
    result = told(Binding(name).run(text, annotate(CPU), anchor="func.func"))
    assert "latency_s" in result[GEMM]
    assert result["main"]["total_latency_s"] > 0


@pytest.mark.parametrize("name", ["iree", "torch-mlir", "jaxlib"])
@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_without_models_one_warning_and_the_module_as_it_was(name: str, what: str, tmp_path: Path) -> None:
    binding = Binding(name)
    if what == "damaged":
        for shipped in SHIPPED.glob("op-*.kcm"):
            (tmp_path / shipped.name).write_bytes(shipped.read_bytes()[:-9])
    item = annotate(CPU, models=tmp_path)
    with pytest.warns(UserWarning, match=r"op-.*; operations are left without annotations") as caught:
        first, second = (str(binding.run(STABLEHLO, item)) for _ in range(2))
    assert first == second
    assert len({str(warning.message) for warning in caught}) == len(caught)
    assert first == str(binding.run(STABLEHLO))


def test_one_missing_model_leaves_out_its_operations_only(tmp_path: Path) -> None:
    (tmp_path / "op-gemm.kcm").write_bytes((SHIPPED / "op-gemm.kcm").read_bytes())
    with pytest.warns(UserWarning, match="op-elementwise"):
        result = told(Binding("iree").run(TOSA, annotate(CPU, models=tmp_path)))
    assert "latency_s" in result[GEMM]
    assert "op-elementwise" in result["tosa.tanh"]["skipped"]
    assert (result["main"]["ops_covered"], result["main"]["ops_skipped"]) == (1, 1)


def test_where_nothing_runs_nothing_is_written() -> None:
    for text in ("module {}", "func.func @empty() { return }", "func.func private @elsewhere(tensor<4xf32>)"):
        assert told(Binding("iree").run(text, annotate(CPU))) == {}


def test_nesting_too_deep_to_follow_is_one_sentence() -> None:
    loops = 300
    text = f"""
    func.func @main(%c: i1, %a: tensor<4x4xf32>) {{ {"scf.if %c {" * loops}
      %x = linalg.matmul ins(%a, %a : tensor<4x4xf32>, tensor<4x4xf32>) outs(%a : tensor<4x4xf32>) -> tensor<4x4xf32>
      {"}" * loops} return }}"""
    with pytest.warns(UserWarning, match="nests more than 180 loops"):
        assert told(Binding("iree").run(text, annotate(CPU))) == {}


def test_an_unknown_device_is_one_sentence() -> None:
    with pytest.warns(UserWarning, match="does not know the device 'h1000'; it knows: amd"):
        result = told(Binding("iree").run(LINALG, annotate("h1000")))
    assert result == {}


def test_nothing_is_thrown_through_the_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(text: str) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(python_pass, "functions_in", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("iree", "torch-mlir", "jaxlib"):
            binding = Binding(name)
            assert str(binding.run(STABLEHLO, annotate(CPU))) == str(binding.run(STABLEHLO))
    message = capsys.readouterr().err.splitlines()
    assert (
        message == ["kernelcast: the module could not be read: too deep; operations are left without annotations"] * 3
    )


def test_threads_must_be_a_number_of_threads() -> None:
    for threads in (-1, 5000, True, 1.5):
        with pytest.raises(SpecError, match="threads must be a whole number from 0"):
            annotate(CPU, threads=threads)  # type: ignore[arg-type]
    item, two = (told(Binding("iree").run(LOOP, annotate(CPU, threads=threads))) for threads in (1, 2))
    every = told(Binding("iree").run(LOOP, annotate(CPU)))
    assert item["main"]["total_latency_s"] != two["main"]["total_latency_s"]
    assert every["main"]["total_latency_s"] == pytest.approx(two["main"]["total_latency_s"])
    # A GPU has no threads to speak of.
    on_gpu = [told(Binding("iree").run(LOOP, annotate(GPU, threads=threads))) for threads in (0, 4)]
    assert on_gpu[0] == on_gpu[1]


def test_iree_compiles_and_computes_what_it_did() -> None:
    compiler = pytest.importorskip("iree.compiler")
    runtime = pytest.importorskip("iree.runtime")
    binding, draw = Binding("iree"), np.random.default_rng(0)
    a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((64, 32), (32, 128)))
    results = []
    for module in (binding.run(LINALG), binding.run(LINALG, annotate(CPU))):
        compiled = compiler.compile_str(str(module), target_backends=["llvm-cpu"])
        loaded = runtime.load_vm_flatbuffer(compiled, driver="local-sync")
        results.append(np.asarray(loaded.main(a, b)))
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[1], np.tanh(a @ b), rtol=1e-4, atol=1e-5)


def test_xla_compiles_and_computes_what_it_did() -> None:
    """In a process of its own: what is imported there is told too."""
    pytest.importorskip("jax")
    program = textwrap.dedent(f"""
        import sys
        import numpy as np
        from jaxlib.mlir import ir, passmanager
        from kernelcast.plugins.python_pass import annotate
        heavy = [name for name in ("jax", "torch", "pandas", "xgboost", "onnxruntime", "iree.compiler") if name in sys.modules]
        assert not heavy, heavy
        import jax
        import jax.numpy as jnp
        function = jax.jit(lambda a, b: jax.nn.softmax(a @ b))
        a, b = np.ones((64, 32), np.float32), np.ones((32, 128), np.float32)
        lowered = function.lower(a, b)
        module = lowered.compiler_ir()
        with module.context:
            manager = passmanager.PassManager("builtin.module")
            manager.add(annotate({CPU!r}))
            manager.run(module.operation)
        assert "kernelcast.latency_s" in str(module), str(module)
        assert "kernelcast.total_latency_s" in str(module)
        np.testing.assert_allclose(lowered.compile()(a, b), np.full((64, 128), 1 / 128, np.float32), rtol=1e-6)
        print("done")
    """)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("done")
