"""The reader of last resort: against native parsers where there are some, and on text that nobody else takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelcast.features.mlir.parse.generic_form import read_generic
from kernelcast.features.mlir.parse.native_parsers import read_native
from kernelcast.features.mlir.parse.tolerant_parser import read_tolerant
from kernelcast.features.mlir.types.graph import Module, Op, Region
from kernelcast.features.mlir.understanding import TOLERANT, no_native_parser, read

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.mlir"))
IMPLICIT = {"affine.yield", "linalg.yield", "arith.extf", "arith.mulf", "arith.addf"}
"""Operations that short forms leave out: terminators without operands, bodies of named linalg operations."""


def all_ops(regions: tuple[Region, ...]) -> Iterator[Op]:
    for region in regions:
        for block in region.blocks:
            for op in block.ops:
                yield op
                yield from all_ops(op.regions)


def ops_of(module: Module) -> list[Op]:
    return [op for function in module.functions if function.body for op in all_ops((function.body,))]


def typed(module: Module, *, attributes: bool = False) -> Counter[tuple[object, ...]]:
    def types(values: tuple[int, ...]) -> tuple[object, ...]:
        # Aliases of encodings stay unresolved in generic form of some parsers.
        return tuple((module.types[v].kind, module.types[v].shape, module.types[v].dtype) for v in values)

    return Counter(
        (op.name, types(op.operands), types(op.results), op.attributes if attributes else "") for op in ops_of(module)
    )


def tolerant(text: str) -> Module:
    return read_tolerant(text, TOLERANT)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_it_finds_what_native_parsers_find(path: Path) -> None:
    text = path.read_text()
    native = read_native(text)
    if native.generic is None:
        pytest.skip("no native parser takes it")
    ours, theirs = tolerant(text), read_generic(native.generic, native.reader)
    assert not ours.unread
    assert typed(ours) - typed(theirs) == Counter()
    assert {str(key[0]) for key in typed(theirs) - typed(ours)} <= IMPLICIT
    for our, their in zip(ours.functions, theirs.functions, strict=True):
        assert (our.name, our.is_public, our.results) == (their.name, their.is_public, their.results)
        assert [ours.types[v] for v in our.arguments] == [theirs.types[v] for v in their.arguments]


@pytest.mark.parametrize("path", [path for path in CORPUS if path.stem != "triton_gpu"], ids=lambda path: path.stem)
def test_it_reads_generic_form_like_the_fast_reader(path: Path) -> None:
    generic = read_native(path.read_text()).generic
    if generic is None:
        pytest.skip("no native parser takes it")
    assert typed(tolerant(generic), attributes=True) == typed(read_generic(generic, "x"), attributes=True)


def test_lines_are_those_of_the_text() -> None:
    module = tolerant("// one\nfunc.func @f() {\n\n  %0 = a.b\n    : f32\n  return\n}\n")
    assert [(op.name, op.line) for op in ops_of(module)] == [("a.b", 4), ("func.return", 6)]


def test_loops_have_bounds_as_operands_and_what_they_carry_as_arguments() -> None:
    module = tolerant(
        "func.func @f(%n: index, %x: tensor<4xf32>) -> tensor<4xf32> {\n  %c0 = arith.constant 0 : index\n"
        "  %r = scf.for %i = %c0 to %n step %n iter_args(%acc = %x) -> (tensor<4xf32>) {\n"
        "    %s = arith.addf %acc, %x : tensor<4xf32>\n    scf.yield %s : tensor<4xf32>\n  }\n  return %r : tensor<4xf32>\n}"
    )
    loop = next(op for op in ops_of(module) if op.name == "scf.for")
    n, x = module.functions[0].arguments
    zero = ops_of(module)[0].results[0]
    assert loop.operands == (zero, n, n, x)
    block = loop.regions[0].blocks[0]
    assert [module.types[v].text for v in block.arguments] == ["index", "tensor<4xf32>"]
    assert block.ops[0].operands == (block.arguments[1], x)
    assert [module.types[v].text for v in loop.results] == ["tensor<4xf32>"]


def test_bounds_in_the_text_have_their_generic_names() -> None:
    loop = ops_of(tolerant("affine.for %i = 2 to 130 step 4 {\n  a.b %i\n}"))[0]
    assert "lowerBoundMap = affine_map<() -> (2)>" in loop.attributes
    assert "upperBoundMap = affine_map<() -> (130)>" in loop.attributes
    assert "step = 4 : index" in loop.attributes


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [1], contracting_dims = [2] x [0] : (f32, f32) -> f32",
         "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [1], "
         "lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [0]>"),
        ("%r = stablehlo.broadcast_in_dim %a, dims = [] : (f32) -> f32", "broadcast_dimensions = array<i64>"),
        ("%r = stablehlo.slice %a [0:4, 2:8:2] : (f32) -> f32",
         "start_indices = array<i64: 0, 2>, limit_indices = array<i64: 4, 8>, strides = array<i64: 1, 2>"),
        ("%r = stablehlo.transpose %a, dims = [1, 0] : (f32) -> f32", "permutation = array<i64: 1, 0>"),
        ("%r = stablehlo.compare LT, %a, %b : (f32, f32) -> i1",
         "comparison_direction = #stablehlo<comparison_direction LT>"),
        ("%r = arith.constant dense<1.0> : tensor<4xf32>", "value = dense<1.0> : tensor<4xf32>"),
        ("%r = \"x.y\"(%a) <{p = \"a } b\"}> {q = [1, 2]} : (f32) -> f32", 'p = "a } b", q = [1, 2]'),
        ("%r = linalg.softmax dimension(0) ins(%a : f32) outs(%b : f32) -> f32", "dimension = 0 : i64 ins outs"),
        ("%r = func.call @f(%a) : (f32) -> f32", "callee = @f"),
        ("#m = affine_map<(d0) -> (d0)>\n%r = a.b %a {maps = [#m, #other]} : f32", "maps = [affine_map<(d0) -> (d0)>, #other]"),
    ],
)  # fmt: skip
def test_attributes_have_the_names_of_generic_form(text: str, attributes: str) -> None:
    assert ops_of(tolerant(text))[-1].attributes == attributes


def test_a_reduction_that_applies_one_operation_gets_its_region() -> None:
    module = tolerant(
        "%r = stablehlo.reduce(%a init: %b) applies stablehlo.maximum across dimensions = [1]"
        " : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>"
    )
    reduction = module.functions[0].body.blocks[0].ops[0]  # type: ignore[union-attr]
    assert [op.name for op in reduction.regions[0].blocks[0].ops] == ["stablehlo.maximum", "stablehlo.return"]
    assert reduction.attributes.endswith("dimensions = array<i64: 1>")


@pytest.mark.parametrize(
    ("line", "operator", "n_inputs"),
    [
        ("%r = linalg.map { math.exp } ins(%a : T) outs(%b : T)", "math.exp", 1),
        ("%r = linalg.map { arith.addf } ins(%a, %a : T, T) outs(%b : T)", "arith.addf", 2),
        ("%r = linalg.reduce { arith.maximumf } ins(%a : T) outs(%b : T) dimensions = [1]", "arith.maximumf", 2),
    ],
)
def test_the_one_operation_in_braces_is_a_region(line: str, operator: str, n_inputs: int) -> None:
    (block,) = next(op for op in ops_of(tolerant(line)) if op.dialect == "linalg").regions[0].blocks
    assert (block.ops[0].name, block.ops[0].operands) == (operator, block.arguments)
    assert len(block.arguments) == n_inputs
    assert block.ops[1].operands == block.ops[0].results


def test_what_nobody_can_read_is_kept_and_the_rest_is_read() -> None:
    module = tolerant("what is this\nfunc.func @f() {\n  ??? 3\n  %0 = a.b : f32\n  return\n}\n} more of it\n")
    assert [op.name for op in ops_of(module)] == ["a.b", "func.return"]
    assert list(module.unread) == ["what is this", "??? 3", "} more of it"]


def test_a_missing_bracket_does_not_swallow_the_rest() -> None:
    module = tolerant("func.func @f(%x: f32) {\n  %0 = a.b(%x : f32\n  %1 = a.c %0 : f32\n  return\n}")
    assert [op.name for op in ops_of(module)] == ["a.b", "a.c", "func.return"]


def test_several_operations_on_a_line() -> None:
    module = read(
        "func.func @f(%x: f32) -> f32 { %0 = a.b %x : f32 %1 = a.c %0 : f32 return %1 : f32 } a.d",
        native=no_native_parser,
    )
    assert [op.name for op in ops_of(module)] == ["a.b", "a.c", "func.return", "a.d"]


def test_values_used_but_never_defined_have_no_type() -> None:
    module = tolerant("a.b %nowhere")
    (op,) = ops_of(module)
    assert module.types[op.operands[0]].kind == "other"


def test_aliases_that_grow_without_end_are_left_by_their_names() -> None:
    lines = ["#m0 = [0, 1]", *(f"#m{i} = [#m{i - 1}, #m{i - 1}, #m{i - 1}]" for i in range(1, 60)), "a.b {m = #m59}"]
    (op,) = ops_of(tolerant("\n".join(lines)))
    assert len(op.attributes) < 1 << 16


@pytest.mark.parametrize(
    "text", ["", "}", "{", ")", "%", "%0", "%0 =", "%0:9999999 = a.b", "^", "#a =", "!a = ", '"', "//", "a.b {"]
)
def test_fragments_are_no_crash(text: str) -> None:
    tolerant(text)
