"""Dynamic sizes: their names, what binding refuses, and how bound sizes reach every operation."""

from __future__ import annotations

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.program import Program
from kernelcast.features.mlir.semantics.dynamic_sizes import broadcast_shape, open_sizes
from kernelcast.features.mlir.types.graph import value_type
from kernelcast.features.mlir.understanding import read, understand

MATMUL = """func.func @f(%a: tensor<?x128xf32>, %b: tensor<128x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %a, %c0 : tensor<?x128xf32>
  %n = tensor.dim %b, %c1 : tensor<128x?xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x128xf32>, tensor<128x?xf32>) outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32> }"""


def program(text: str, **bind: int) -> Program:
    return understand(read(text), bind={key.replace("_", "."): number for key, number in bind.items()})


def test_sizes_are_named_in_order_of_appearance() -> None:
    sizes = open_sizes([value_type("tensor<?x128x?xf32>"), value_type("f32"), value_type("memref<?xf16>")])
    assert [(size.name, size.place) for size in sizes] == [("dim0", "arg0.0"), ("dim1", "arg0.2"), ("dim2", "arg2.0")]


@pytest.mark.parametrize(
    "bind", [{"dim0": 64, "dim1": 32}, {"arg0_0": 64, "arg1_1": 32}, {"dim0": 64, "arg0_0": 64, "dim1": 32}]
)
def test_bound_sizes_reach_the_product(bind: dict[str, int]) -> None:
    result = program(MATMUL, **bind)
    (node,) = (node for node in result.nodes if node.kind == "contraction")
    assert node.loops == (1, 64, 32, 128)
    assert result.types[result.outputs[0]].shape == (64, 32)
    assert not result.not_understood


def test_open_sizes_are_listed_with_an_example() -> None:
    with pytest.raises(
        SpecError, match=r"dim0 \(or arg0.0\): size 0 of argument 0, tensor<\?x128xf32>; dim1 .*--bind dim0=128"
    ):
        program(MATMUL)
    with pytest.raises(SpecError, match="dim1"):
        program(MATMUL, dim0=3)


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"dim7": 3}, "no dynamic size 'dim7'; there are: dim0"),
        ({"dim0": 0, "dim1": 1}, "a size is from 1 to"),
        ({"dim0": -5, "dim1": 1}, "a size is from 1 to"),
        ({"dim0": 2**50, "dim1": 1}, "a size is from 1 to"),
        ({"dim0": 1.5, "dim1": 1}, "a size is a whole number"),
        ({"dim0": True, "dim1": 1}, "a size is a whole number"),
        ({"dim0": 4, "arg0.0": 5, "dim1": 1}, "bound to both 4 and 5"),
    ],
)
def test_impossible_bindings_are_refused(bind: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        understand(read(MATMUL), bind=bind)


def test_nothing_to_bind_is_said() -> None:
    with pytest.raises(SpecError, match="this function has none, leave it out"):
        understand(read("func.func @f(%a: tensor<4xf32>) { return }"), bind={"dim0": 4})


@pytest.mark.parametrize(
    "line",
    [
        "%r = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x8xf32>) -> tensor<8x?xf32>",
        "%r = stablehlo.add %x, %x : tensor<?x8xf32>",
        "%r = stablehlo.concatenate %x, %x, dim = 0 : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>",
        "%r = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<?x8xf32>, tensor<?x8xf32>) "
        "-> tensor<?x?xf32>",
        "%r = tensor.collapse_shape %x [[0, 1]] : tensor<?x8xf32> into tensor<?xf32>",
        "%r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1] "
        ": (tensor<?x8xf32>, tensor<f32>) -> tensor<?xf32>",
        "%c = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x8xf32>) -> tensor<i32>\n"
        "%s = stablehlo.reshape %c : (tensor<i32>) -> tensor<1xi32>\n"
        "%r = stablehlo.dynamic_broadcast_in_dim %z, %s, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>",
        "%s = shape.shape_of %x : tensor<?x8xf32> -> tensor<2xindex>\n"
        "%r = stablehlo.dynamic_broadcast_in_dim %z, %s, dims = [] : (tensor<f32>, tensor<2xindex>) -> tensor<?x?xf32>",
    ],
)
def test_sizes_propagate(line: str) -> None:
    # Two sizes that differ, so that nothing can be guessed from there being one only.
    result = program(
        f"func.func @f(%x: tensor<?x8xf32>, %y: tensor<?xf32>, %z: tensor<f32>) {{\n{line}\n return }}", dim0=5, dim1=9
    )
    last = result.nodes[-1]
    assert not result.not_understood
    assert all(result.types[value].is_static for value in last.results)
    assert 9 not in {size for value in last.results for size in result.types[value].shape or ()}


def test_torch_sizes_propagate_through_views() -> None:
    vtensor = "!torch.vtensor"
    result = program(f"""func.func @f(%x: {vtensor}<[?,?,64],f32>) -> {vtensor}<[?,?,4,16],f32> {{
      %i0 = torch.constant.int 0
      %i1 = torch.constant.int 1
      %i4 = torch.constant.int 4
      %i16 = torch.constant.int 16
      %n = torch.aten.size.int %x, %i0 : {vtensor}<[?,?,64],f32>, !torch.int -> !torch.int
      %m = torch.aten.size.int %x, %i1 : {vtensor}<[?,?,64],f32>, !torch.int -> !torch.int
      %s = torch.prim.ListConstruct %n, %m, %i4, %i16 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
      %v = torch.aten.view %x, %s : {vtensor}<[?,?,64],f32>, !torch.list<int> -> {vtensor}<[?,?,4,16],f32>
      %r = torch.aten.relu %v : {vtensor}<[?,?,4,16],f32> -> {vtensor}<[?,?,4,16],f32>
      return %r : {vtensor}<[?,?,4,16],f32> }}""", dim0=2, dim1=7)  # fmt: skip
    assert result.types[result.outputs[0]].shape == (2, 7, 4, 16)
    assert result.flops == 2 * 7 * 64


def test_a_size_that_nothing_tells_makes_an_operation_unknown() -> None:
    text = """func.func @f(%x: tensor<?xf32>, %y: tensor<?xf32>, %i: tensor<?xi1>) -> tensor<?xf32> {
      %r = "mine.compress"(%x) : (tensor<?xf32>) -> tensor<?xf32>
      %e = math.exp %r : tensor<?xf32>
      return %e : tensor<?xf32> }"""
    result = program(text, dim0=4, dim1=5, dim2=6)
    assert [node.op for node in result.not_understood] == ["mine.compress", "math.exp"]
    assert "a size of it is not known" in result.not_understood[1].note


def test_one_bound_size_is_taken_where_no_other_can_be_meant() -> None:
    text = """func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {
      %r = "mine.compress"(%x) : (tensor<?xf32>) -> tensor<?xf32>
      %e = math.exp %r : tensor<?xf32>
      return %e : tensor<?xf32> }"""
    assert [node.op for node in program(text, dim0=4).not_understood] == ["mine.compress"]


def test_contradictory_text_makes_no_negative_costs() -> None:
    text = """func.func @f(%x: tensor<?x4x4x2xf32>) -> tensor<?x?x?x2xf32> {
      %r = tosa.max_pool2d %x {kernel = array<i64: 9, 9>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>}
        : (tensor<?x4x4x2xf32>) -> tensor<?x?x?x2xf32>
      return %r : tensor<?x?x?x2xf32> }"""
    result = program(text, dim0=3)
    assert all(node.flops >= 0 and node.bytes_out >= 0 for node in result.nodes)


@pytest.mark.parametrize(
    ("shapes", "joined"),
    [([(4, 1), (1, 5)], (4, 5)), ([(3,), (2, 3)], (2, 3)), ([(None, 3), (1, 3)], (None, 3)),
     ([(None,), (7,)], (7,)), ([(2,), (3,)], None), ([()], ())],
)  # fmt: skip
def test_shapes_broadcast(shapes: list[tuple[int | None, ...]], joined: tuple[int | None, ...] | None) -> None:
    assert broadcast_shape(shapes) == joined
