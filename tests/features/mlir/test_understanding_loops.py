"""Loops and branches: how often they run, matrix products written as loops, and what is assumed where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.features.mlir.program import Node, Program
from kernelcast.features.mlir.understanding import no_native_parser, read, understand

COSTED = Path(__file__).parent / "costed"


def program(text: str, **how: object) -> Program:
    return understand(read(text), **how)  # type: ignore[arg-type]


def of(found: Program, kind: str) -> list[Node]:
    return [node for node in found.nodes if node.kind == kind]


@pytest.mark.parametrize(("name", "steps"), [("scan", 10), ("fori", 25)])
def test_loops_of_jax_run_as_often_as_they_count(name: str, steps: int) -> None:
    found = program((COSTED / f"{name}.mlir").read_text())
    (product,) = of(found, "contraction")
    assert product.runs == steps
    assert found.flops > steps * product.flops
    assert not any("how often" in note for note in found.notes)


TYPE = "tensor<16xf32>"


def scf_for(lower: str, upper: str, step: str) -> Program:
    return program(f"""func.func @f(%x: {TYPE}, %n: index) -> {TYPE} {{
      %lower = arith.constant {lower} : index
      %c3 = arith.constant 3 : index
      %upper = {upper}
      %step = arith.constant {step} : index
      %r = scf.for %i = %lower to %upper step %step iter_args(%v = %x) -> {TYPE} {{
        %e = math.exp %v : {TYPE}
        scf.yield %e : {TYPE}
      }}
      return %r : {TYPE} }}""")


@pytest.mark.parametrize(
    ("lower", "upper", "step", "runs"),
    [("0", "arith.constant 10 : index", "1", 10), ("0", "arith.constant 10 : index", "4", 3),
     ("2", "arith.muli %c3, %c3 : index", "1", 7),
     ("5", "arith.constant 5 : index", "1", 0)],
)  # fmt: skip
def test_trip_counts_are_folded(lower: str, upper: str, step: str, runs: int) -> None:
    (node,) = of(scf_for(lower, upper, step), "elementwise")
    assert node.runs == runs


def test_an_unknown_trip_count_is_one_and_is_said() -> None:
    found = scf_for("0", "arith.addi %n, %c3 : index", "1")
    assert of(found, "elementwise")[0].runs == 1
    assert any("how often it runs is not known, counted as once" in note for note in found.notes)


def test_an_integer_argument_can_be_given() -> None:
    text = """func.func @f(%x: tensor<16xf32>, %n: index) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      scf.for %i = %c0 to %n step %c1 { %e = math.exp %x : tensor<16xf32> }
      return }"""
    assert of(program(text, bind={"arg1": 12}), "elementwise")[0].runs == 12


def test_the_dearer_branch_counts() -> None:
    found = program("""func.func @f(%p: i1, %x: tensor<16x16xf32>) -> tensor<16x16xf32> {
      %r = scf.if %p -> tensor<16x16xf32> {
        %a = math.exp %x : tensor<16x16xf32>
        scf.yield %a : tensor<16x16xf32>
      } else {
        %b = linalg.matmul ins(%x, %x : tensor<16x16xf32>, tensor<16x16xf32>) outs(%x : tensor<16x16xf32>) -> tensor<16x16xf32>
        scf.yield %b : tensor<16x16xf32>
      }
      return %r : tensor<16x16xf32> }""")
    assert [node.kind for node in found.nodes] == ["contraction"]
    assert found.outputs == found.nodes[0].results
    assert any("most expensive branch" in note for note in found.notes)


AFFINE = """func.func @f(%a: memref<64x32xf32>, %b: memref<32x48xf32>, %c: memref<64x48xf32>) {{
  affine.for %i = 0 to 64 {{ affine.for %j = 0 to 48 {{
    {before}
    affine.for %k = 0 to 32 {{
      %0 = affine.load %a[%i, %k] : memref<64x32xf32>
      %1 = affine.load %b[%k, %j] : memref<32x48xf32>
      %2 = affine.load %c[%i, %j] : memref<64x48xf32>
      %3 = arith.mulf %0, %1 : f32
      %4 = arith.{sum} %2, %3 : f32
      affine.store %4, %c[%i, %j] : memref<64x48xf32>
    }}
  }} }}
  return }}"""


class TestNests:
    def test_a_matrix_product_is_one_node(self) -> None:
        found = program(AFFINE.format(before="", sum="addf"))
        (node,) = of(found, "contraction")
        assert (node.loops, node.runs, node.flops) == ((1, 64, 48, 32), 1, 2 * 64 * 48 * 32)
        assert node.bytes_in == 4 * (64 * 32 + 32 * 48 + 64 * 48)
        assert node.bytes_out == 4 * 64 * 48
        assert not of(found, "elementwise")
        assert found.outputs == node.results

    def test_so_it_is_when_read_without_a_parser(self) -> None:
        found = understand(read(AFFINE.format(before="", sum="addf"), native=no_native_parser))
        assert of(found, "contraction")[0].loops == (1, 64, 48, 32)

    def test_an_accumulator_in_a_register_is_one_too(self) -> None:
        found = program("""func.func @f(%a: memref<64x32xf16>, %b: memref<32x48xf16>, %c: memref<64x48xf32>) {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c32 = arith.constant 32 : index
          %z = arith.constant 0.0 : f32
          affine.parallel (%i, %j) = (0, 0) to (64, 48) {
            %r = scf.for %k = %c0 to %c32 step %c1 iter_args(%acc = %z) -> f32 {
              %0 = memref.load %a[%i, %k] : memref<64x32xf16>
              %1 = memref.load %b[%k, %j] : memref<32x48xf16>
              %2 = arith.extf %0 : f16 to f32
              %3 = arith.extf %1 : f16 to f32
              %4 = arith.mulf %2, %3 : f32
              %5 = arith.addf %acc, %4 : f32
              scf.yield %5 : f32
            }
            memref.store %r, %c[%i, %j] : memref<64x48xf32>
          }
          return }""")
        (node,) = of(found, "contraction")
        assert (node.dtype, node.loops, node.runs) == ("fp16", (1, 64, 48, 32), 1)
        (store,) = of(found, "movement")
        assert store.bytes_out == 4 * 64 * 48

    def test_what_only_looks_like_one_is_not(self) -> None:
        found = program(AFFINE.format(before="", sum="subf"))
        assert not of(found, "contraction")
        assert found.flops == 2 * 64 * 48 * 32

    def test_an_access_in_a_loop_moves_its_memory_once(self) -> None:
        found = program(AFFINE.format(before="", sum="subf"))
        loads = [node for node in found.nodes if node.op == "affine.load"]
        assert [node.bytes_in * node.runs for node in loads] == [4 * 64 * 32, 4 * 32 * 48, 4 * 64 * 48]

    def test_a_scalar_loop_is_one_kernel(self) -> None:
        found = program("""func.func @f(%a: memref<1024xf32>) {
          affine.for %i = 0 to 1024 {
            %0 = affine.load %a[%i] : memref<1024xf32>
            %1 = math.exp %0 : f32
            affine.store %1, %a[%i] : memref<1024xf32>
          }
          return }""")
        (node,) = of(found, "elementwise")
        assert (node.runs, node.loops, node.flops) == (1, (1, 1024, 1, 1), 1024)

    def test_triangular_bounds_are_halved(self) -> None:
        found = program("""func.func @f(%a: memref<100x100xf32>) {
          affine.for %i = 0 to 100 { affine.for %j = 0 to affine_map<(d0) -> (d0)>(%i) {
            %0 = affine.load %a[%i, %j] : memref<100x100xf32>
            %1 = math.exp %0 : f32
            affine.store %1, %a[%i, %j] : memref<100x100xf32>
          } }
          return }""")
        assert found.flops == pytest.approx(100 * 99 / 2, rel=0.02)


def test_parallel_inserts_make_the_result_of_forall() -> None:
    found = program("""func.func @f(%x: tensor<128x64xf32>, %o: tensor<128x64xf32>) -> tensor<128x64xf32> {
      %r = scf.forall (%i) = (0) to (128) step (32) shared_outs(%s = %o) -> tensor<128x64xf32> {
        %e = tensor.extract_slice %x[%i, 0] [32, 64] [1, 1] : tensor<128x64xf32> to tensor<32x64xf32>
        %q = math.exp %e : tensor<32x64xf32>
        scf.forall.in_parallel {
          tensor.parallel_insert_slice %q into %s[%i, 0] [32, 64] [1, 1] : tensor<32x64xf32> into tensor<128x64xf32>
        }
      }
      return %r : tensor<128x64xf32> }""")
    (node,) = of(found, "elementwise")
    assert (node.runs, found.flops) == (4, 128 * 64)
    assert any(set(found.outputs) <= set(other.results) and other.operands == node.results for other in found.nodes)


def test_a_launch_on_a_gpu_runs_its_threads() -> None:
    text = """func.func @f(%m: memref<1024xf32>) {
      %c8 = arith.constant 8 : index
      %c128 = arith.constant 128 : index
      %c1 = arith.constant 1 : index
      gpu.launch blocks(%bx, %by, %bz) in (%gx = %c8, %gy = %c1, %gz = %c1)
        threads(%tx, %ty, %tz) in (%sx = %c128, %sy = %c1, %sz = %c1) {
        %v = memref.load %m[%tx] : memref<1024xf32>
        %e = math.exp %v : f32
        memref.store %e, %m[%tx] : memref<1024xf32>
        gpu.terminator
      }
      return }"""
    assert program(text).flops == 1024


@pytest.mark.parametrize("depth", [3, 40])
def test_nested_loops_multiply_and_stay_finite(depth: int) -> None:
    opening = "".join(f"affine.for %i{level} = 0 to 1000000 {{\n" for level in range(depth))
    text = f"func.func @f(%x: tensor<4xf32>) {{ {opening} %e = math.exp %x : tensor<4xf32>\n {'}' * depth} return }}"
    found = program(text)
    assert found.flops == pytest.approx(4 * min(1e6**depth, 2.0**100))


def test_blocks_that_jump_are_counted_once_and_it_is_said() -> None:
    found = program("""func.func @f(%p: i1, %x: tensor<8xf32>) -> tensor<8xf32> {
      cf.cond_br %p, ^a, ^b
    ^a:
      %0 = math.exp %x : tensor<8xf32>
      return %0 : tensor<8xf32>
    ^b:
      %1 = math.sin %x : tensor<8xf32>
      return %1 : tensor<8xf32> }""")
    assert found.flops == 16
    assert any("between blocks" in note for note in found.notes)
