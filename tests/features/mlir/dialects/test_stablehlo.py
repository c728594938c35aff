"""Rules of StableHLO and CHLO: windows, sorts and what is read of them, and axes of one element."""

from __future__ import annotations

import pytest
from kernelcast.features.mlir.program import Node, Program
from kernelcast.features.mlir.understanding import read, understand
from kernelcast.features.mlir.vectors.op_columns import NUMBERS, op_table


def program(text: str) -> Program:
    return understand(read(text))


def only(found: Program, kind: str) -> Node:
    nodes = [node for node in found.nodes if node.kind == kind]
    assert len(nodes) == 1, [(node.op, node.kind) for node in found.nodes]
    return nodes[0]


def windowed(window: str, padding: str, result: str, strides: str = "1, 1", more: str = "") -> Node:
    """A sum over windows of a 64x32 array."""
    found = program(
        f"func.func @f(%x: tensor<64x32xf32>, %z: tensor<f32>) -> {result} {{\n"
        '%r = "stablehlo.reduce_window"(%x, %z) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : '
        'tensor<f32> "stablehlo.return"(%c) : (tensor<f32>) -> () }) '
        f"{{window_dimensions = array<i64: {window}>, window_strides = array<i64: {strides}>, {more}"
        f"padding = dense<{padding}> : tensor<2x2xi64>}} : (tensor<64x32xf32>, tensor<f32>) -> {result}\n"
        f" return %r : {result}\n}}"
    )
    return only(found, "reduction")


SAME = "tensor<64x32xf32>"


@pytest.mark.parametrize("padding", ["[[63, 0], [0, 0]]", "[[0, 63], [0, 0]]"])
def test_a_window_as_long_as_its_axis_padded_on_one_side_is_a_cumulative_sum(padding: str) -> None:
    assert windowed("64, 1", padding, SAME).flops == 64 * 32


@pytest.mark.parametrize(
    ("window", "padding", "result", "strides", "more"),
    [
        ("3, 1", "[[2, 0], [0, 0]]", SAME, "1, 1", ""),
        ("64, 1", "[[0, 0], [0, 0]]", "tensor<1x32xf32>", "1, 1", ""),
        ("64, 1", "[[31, 32], [0, 0]]", SAME, "1, 1", ""),
        ("64, 32", "[[63, 0], [31, 0]]", SAME, "1, 1", ""),
        ("64, 1", "[[63, 0], [0, 0]]", "tensor<32x32xf32>", "2, 1", ""),
        ("64, 1", "[[126, 0], [0, 0]]", SAME, "1, 1", "window_dilations = array<i64: 2, 1>, "),
    ],
)
def test_other_windows_take_every_element_in_them(
    window: str, padding: str, result: str, strides: str, more: str
) -> None:
    node = windowed(window, padding, result, strides, more)
    assert node.flops == node.loops[1] * node.loops[3]


SORTED = "tensor<4x100xf32>"
DESCENDING = "%e = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>"


def sort_node(reads: list[str], returned: str, body: str = DESCENDING, beside: str = "", axis: int = 1) -> Node:
    """A sort along an axis of a 4x100 array, of whose result `%s#0` something is read; `beside` makes a second operand."""
    operands = ["%x", "%y"] if beside else ["%x"]
    kinds = [SORTED, SORTED.replace("f32", "i32")][: len(operands)]
    arguments = ", ".join(
        ["%a: tensor<f32>", "%b: tensor<f32>", "%c: tensor<i32>", "%d: tensor<i32>"][: 2 * len(operands)]
    )
    lines = "\n".join(f"%r{i} = stablehlo.{line}" for i, line in enumerate(reads))
    last = f"r{len(reads) - 1}" if reads else "s#0"
    text = (
        f"func.func @f(%x: {SORTED}, %z: {SORTED.replace('f32', 'i32')}, %i: tensor<i32>) -> {returned} {{\n{beside}\n"
        f'%s:{len(operands)} = "stablehlo.sort"({", ".join(operands)}) ({{ ^bb0({arguments}): {body} '
        '"stablehlo.return"(%e) : (tensor<i1>) -> () }) '
        f"{{dimension = {axis} : i64}} : ({', '.join(kinds)}) -> ({', '.join(kinds)})\n{lines}\n"
        f" return %{last} : {returned}\n}}"
    )
    return only(program(text), "sort")


FIRST_8, FIRST_2 = (f"slice %s#0 [0:4, 0:{n}] : ({SORTED}) -> tensor<4x{n}xf32>" for n in (8, 2))
JOINED = "concatenate %r0, %r1, dim = 1 : (tensor<4x8xf32>, tensor<4x{}xf32>) -> tensor<4x{}xf32>"


@pytest.mark.parametrize(
    ("reads", "returned", "window"),
    [
        ([FIRST_8], "tensor<4x8xf32>", (8,)),
        ([FIRST_8, FIRST_2], "tensor<4x2xf32>", (2,)),
        ([FIRST_8, FIRST_8, JOINED.format(8, 16)], "tensor<4x16xf32>", (8,)),
        ([FIRST_8, FIRST_2, JOINED.format(2, 10)], "tensor<4x10xf32>", None),
        ([FIRST_8, f"exponential %s#0 : {SORTED}"], SORTED, None),
        ([f"slice %s#0 [0:1, 0:100] : ({SORTED}) -> tensor<1x100xf32>"], "tensor<1x100xf32>", None),
        ([f"slice %s#0 [0:4, 92:100] : ({SORTED}) -> tensor<4x8xf32>"], "tensor<4x8xf32>", None),
        ([f"slice %s#0 [0:4, 40:48] : ({SORTED}) -> tensor<4x8xf32>"], "tensor<4x8xf32>", None),
        ([f"slice %s#0 [0:4, 0:100:2] : ({SORTED}) -> tensor<4x50xf32>"], "tensor<4x50xf32>", None),
        ([f"slice %s#0 [0:2, 0:8] : ({SORTED}) -> tensor<2x8xf32>"], "tensor<2x8xf32>", None),
        (
            [f"dynamic_slice %s#0, %i, %i, sizes = [4, 8] : ({SORTED}, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>"],
            "tensor<4x8xf32>", None,
        ),
        ([], SORTED, None),
    ],
)  # fmt: skip
def test_a_descending_sort_of_which_the_first_elements_are_read_is_a_top_k(
    reads: list[str], returned: str, window: tuple[int, ...] | None
) -> None:
    sort = sort_node(reads, returned)
    assert sort.loops == (1.0, 4.0, 1.0, 100.0)
    assert sort.detail.get("window") == window


@pytest.mark.parametrize(
    ("body", "is_top_k"),
    [
        (DESCENDING, True),
        (DESCENDING.replace(" :", ", TOTALORDER :"), True),
        (DESCENDING.replace("GT", "LT"), False),
        (DESCENDING.replace("GT", "GE"), False),
        (DESCENDING.replace("%a, %b", "%b, %a"), False),
        (DESCENDING.replace("%e =", "%g =") + " %e = stablehlo.not %g : tensor<i1>", False),
    ],
)
def test_a_top_k_compares_the_first_with_the_second_and_nothing_else(body: str, is_top_k: bool) -> None:
    assert ("window" in sort_node([FIRST_8], "tensor<4x8xf32>", body).detail) == is_top_k


@pytest.mark.parametrize(
    ("beside", "is_top_k"),
    [
        ("%y = stablehlo.iota dim = 1 : tensor<4x100xi32>", True),
        ("%y = stablehlo.add %z, %z : tensor<4x100xi32>", False),
    ],
)
def test_a_top_k_has_nothing_but_indices_beside_it(beside: str, is_top_k: bool) -> None:
    assert ("window" in sort_node([FIRST_8], "tensor<4x8xf32>", beside=beside).detail) == is_top_k


@pytest.mark.parametrize(
    "line",
    [
        '%v, %p = chlo.top_k(%x, k = 8) : tensor<4x100xf32> -> (tensor<4x8xf32>, tensor<4x8xi32>)',
        '%v, %p = "chlo.top_k"(%x) {k = 8 : i64} : (tensor<4x100xf32>) -> (tensor<4x8xf32>, tensor<4x8xi32>)',
    ],
)  # fmt: skip
def test_a_top_k_in_one_operation_tells_its_k(line: str) -> None:
    found = program(
        f"func.func @f(%x: {SORTED}) -> (tensor<4x8xf32>, tensor<4x8xi32>) {{\n{line}\n"
        " return %v, %p : tensor<4x8xf32>, tensor<4x8xi32>\n}"
    )
    assert only(found, "sort").detail["window"] == (8,)


def reduced(argument: str, op: str) -> Program:
    """A reduction of an axis of one element, of a square of the argument, its result returned."""
    return program(
        f"func.func @f(%x: {argument}, %z: tensor<f32>, %i: tensor<i32>) -> tensor<64xf32> {{\n"
        f"%y = stablehlo.exponential %x : {argument}\n{op}\n return %r : tensor<64xf32>\n}}"
    )


SUM = (
    "%r = stablehlo.reduce(%y init: %z) applies stablehlo.add across dimensions = [1] : "
    "(tensor<64x1xf32>, tensor<f32>) -> tensor<64xf32>"
)


def test_a_reduction_of_one_element_each_is_no_kernel() -> None:
    assert [group.kind for group in reduced("tensor<64x1xf32>", SUM).groups] == ["elementwise"]


def test_a_convolution_with_a_deep_filter_is_not_one_of_single_elements() -> None:
    window = NUMBERS.index("log window")
    taps = []
    for deep in (1, 3):
        out = f"tensor<1x8x{9 - deep}x8x4xf32>"
        found = program(
            f"func.func @f(%x: tensor<1x8x8x8x2xf32>, %w: tensor<1x{deep}x1x2x4xf32>) -> {out} {{\n"
            "%r = stablehlo.convolution(%x, %w) dim_numbers = [b, 1, 0, 2, f]x[1, 0, 2, i, o]->[b, 1, 0, 2, f], window = {} "
            "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
            f"(tensor<1x8x8x8x2xf32>, tensor<1x{deep}x1x2x4xf32>) -> {out}\n return %r : {out}\n}}"
        )
        taps.append(2.0 ** op_table(found).numbers[0, window] - 1.0)
    assert taps == pytest.approx([1.0, 3.0])
