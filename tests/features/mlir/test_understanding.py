"""Understanding MLIR: which function, what its operations cost, and what is said of those that are not understood."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.program import FREE, KINDS, Node, Program
from kernelcast.features.mlir.understanding import functions, no_native_parser, read, understand

HERE = Path(__file__).parent
TEXTS = sorted([*(HERE / "exported").glob("*.mlir"), *(HERE / "costed").glob("*.mlir")])

XLA = {
    "matmul": 33554432, "mlp": 67698688 + 65536, "attention": 68417536 + 262144, "conv": 6931200, "depthwise": 2262016,
    "layernorm": 1769987 + 256, "softmax": 2096640 + 524288, "block": 211295744 + 196864, "grad": 1323008,
    "rmsnorm": 524416 + 128, "logsumexp": 98496 + 32832, "vit_patch": 38535168, "conv1d": 1298432, "checkpoint": 532480 + 2048,
    "einsum3": 49152,
}  # fmt: skip
"""Flops and transcendentals of XLA's HloCostAnalysis: `jax.jit(f).lower(...).cost_analysis()`, jax 0.10.2, on the functions
whose lowered texts are in `costed/`."""


def program(text: str, **how: object) -> Program:
    return understand(read(text), **how)  # type: ignore[arg-type]


def only(found: Program, kind: str) -> Node:
    nodes = [node for node in found.nodes if node.kind == kind]
    assert len(nodes) == 1, [(node.op, node.kind) for node in found.nodes]
    return nodes[0]


def one_op(op: str, types: str, result: str) -> Program:
    """A function of one operation in generic form."""
    arguments = ", ".join(f"%a{i}: {kind}" for i, kind in enumerate(types.split("; ")))
    names = ", ".join(f"%a{i}" for i in range(types.count("; ") + 1))
    name, _, attributes = op.partition(" ")
    kinds = types.replace("; ", ", ")
    return program(
        f'func.func @f({arguments}) -> {result} {{\n  %r = "{name}"({names}) {attributes} : ({kinds}) -> {result}\n'
        f"  return %r : {result}\n}}"
    )


@pytest.mark.parametrize("name", XLA)
def test_flops_are_those_of_xla(name: str) -> None:
    found = program((HERE / "costed" / f"{name}.mlir").read_text())
    assert not found.not_understood
    assert found.flops == pytest.approx(XLA[name], rel=0.1)


@pytest.mark.parametrize("path", TEXTS, ids=[path.stem for path in TEXTS])
def test_programs_of_exporters_are_understood_whole(path: Path) -> None:
    found = program(path.read_text())
    assert not found.not_understood
    assert found.flops > 0 or path.stem.startswith("embedding")
    for node in found.nodes:
        assert node.kind in KINDS
        assert min(node.flops, node.transcendentals, node.bytes_in, node.bytes_out) >= 0
        assert node.kind in FREE or node.bytes_in + node.bytes_out > 0, node
        assert all(0 <= value < len(found.types) for value in (*node.operands, *node.results))


@pytest.mark.parametrize("path", TEXTS, ids=[path.stem for path in TEXTS])
def test_the_tolerant_reader_leads_to_the_same_costs(path: Path) -> None:
    # It keeps attributes as they are written, so this is also a test of those spellings.
    text = path.read_text()
    native, tolerant = program(text), understand(read(text, native=no_native_parser))
    assert tolerant.flops == pytest.approx(native.flops, rel=1e-6)


@pytest.mark.parametrize("model", ["attention", "layernorm", "mlp", "rmsnorm", "softmax"])
def test_one_model_costs_the_same_whatever_exported_it(model: str) -> None:
    found = {way: program((HERE / "exported" / f"{model}.{way}.mlir").read_text()).flops
             for way in ("linalg", "stablehlo", "torch", "tosa")}  # fmt: skip
    # Softmax in linalg keeps the place of the maximum along, and StableHLO has no erf of its own.
    assert max(found.values()) < 1.5 * min(found.values()), found


def test_values_flow_from_what_makes_them_to_what_uses_them() -> None:
    found = program((HERE / "costed" / "block.mlir").read_text())
    made = {value for node in found.nodes for value in node.results}
    for node in found.nodes:
        for value in node.operands:
            assert value in made or value in found.arguments, (node.op, value)
        made.update(node.results)
    assert set(found.outputs) <= made


class TestWhichFunction:
    TWO = "func.func @a() { return }\nfunc.func @b() { return }\n"

    def test_the_only_public_one(self) -> None:
        text = "func.func private @help() { return }\nfunc.func @work() { return }"
        assert functions(read(text)) == ["work"]
        assert program(text).function == "work"

    def test_main_or_forward_of_several(self) -> None:
        assert program(self.TWO + "func.func @forward() { return }").function == "forward"

    def test_several_without_an_entry_are_listed(self) -> None:
        with pytest.raises(SpecError, match=r"several functions; name one of: a, b"):
            program(self.TWO)

    def test_by_name_private_ones_too(self) -> None:
        assert program("func.func private @p() { return }\nfunc.func @q() { return }", function="@p").function == "p"

    def test_an_unknown_name_lists_what_there_is(self) -> None:
        with pytest.raises(SpecError, match=r"no function 'c'.*there are: a, b"):
            program(self.TWO, function="c")

    def test_a_declaration_has_nothing_to_understand(self) -> None:
        text = "func.func private @d(tensor<4xf32>)\nfunc.func @a() { return }"
        with pytest.raises(SpecError, match=r"'d' is declared without a body.*a"):
            program(text, function="d")
        with pytest.raises(SpecError, match="no function with a body; declared without a body: d"):
            program("func.func private @d(tensor<4xf32>)")


class TestStableHlo:
    def test_a_transposed_batched_product(self) -> None:
        node = only(one_op("stablehlo.dot_general <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], "
                           "rhs_batching_dimensions = [0], lhs_contracting_dimensions = [1], "
                           "rhs_contracting_dimensions = [2]>}>",
                           "tensor<8x64x32xbf16>; tensor<8x16x64xbf16>", "tensor<8x32x16xbf16>"), "contraction")  # fmt: skip
        assert node.loops == (8, 32, 16, 64)
        assert node.flops == 2 * 8 * 32 * 16 * 64
        assert node.detail["lhs_transposed"] is True
        assert node.detail["rhs_transposed"] is True
        assert (node.dtype, node.bytes_in, node.bytes_out) == ("bf16", 2 * 8 * (64 * 32 + 16 * 64), 2 * 8 * 32 * 16)

    def test_a_convolution_has_the_sizes_its_kernel_needs(self) -> None:
        node = only(program((HERE / "costed" / "conv.mlir").read_text()), "convolution")
        wanted = {"batch": 4, "in_channels": 3, "out_channels": 32, "height": 64, "width": 64, "kernel_h": 3, "kernel_w": 3,
                  "stride": 2, "groups": 1, "dilation": 1}  # fmt: skip
        assert {name: node.detail[name] for name in wanted} == wanted
        assert node.loops == (1, 4 * 32 * 32, 32, 27)

    def test_depthwise_is_a_batch_of_groups(self) -> None:
        node = only(program((HERE / "costed" / "depthwise.mlir").read_text()), "convolution")
        assert node.detail["groups"] == 32
        assert node.loops == (32, 4 * 32 * 32, 1, 9)

    @pytest.mark.parametrize(
        ("axes", "word", "rows", "gone"), [("1", "inner", 32, 128), ("0", "outer", 128, 32), ("0, 1", "inner", 1, 4096)]
    )
    def test_reductions_say_which_axes_go(self, axes: str, word: str, rows: int, gone: int) -> None:
        result = {"1": "tensor<32xf32>", "0": "tensor<128xf32>", "0, 1": "tensor<f32>"}[axes]
        node = only(program(f"""func.func @f(%x: tensor<32x128xf32>, %z: tensor<f32>) -> {result} {{
          %r = stablehlo.reduce(%x init: %z) applies stablehlo.maximum across dimensions = [{axes}]
            : (tensor<32x128xf32>, tensor<f32>) -> {result}
          return %r : {result} }}"""), "reduction")  # fmt: skip
        assert (node.detail["operator"], node.detail["axis"]) == ("max", word)
        assert node.loops == (1, rows, 1, gone)
        assert node.flops == 4096

    def test_an_operand_named_twice_is_read_once(self) -> None:
        node = only(program("func.func @f(%x: tensor<64xf32>) -> tensor<64xf32> {\n"
                            "  %r = stablehlo.multiply %x, %x : tensor<64xf32>\n"
                            "  return %r : tensor<64xf32> }"), "elementwise")  # fmt: skip
        assert (node.detail["operator"], node.bytes_in, node.bytes_out) == ("mul", 256, 256)

    def test_a_gather_reads_what_it_takes_not_the_whole_table(self) -> None:
        node = only(program((HERE / "exported" / "embedding.jax.mlir").read_text()), "gather")
        assert node.bytes_out == node.loops[1] * 4
        assert node.bytes_in < 2 * node.bytes_out

    def test_a_custom_call_nobody_knows_is_unknown_and_named(self) -> None:
        found = one_op('stablehlo.custom_call {call_target_name = "my_kernel"}', "tensor<8xf32>", "tensor<8xf32>")
        assert [node.note for node in found.not_understood] == ["custom_call to my_kernel"]
        (note,) = (note for note in found.notes if note.startswith("1 operation is not understood;"))
        assert "stablehlo.custom_call" in note


class TestCalls:
    def test_the_same_function_twice_is_two_computations(self) -> None:
        found = program("""func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %a = call @f(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          %b = call @f(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          return %b : tensor<8x8xf32> }
        func.func private @f(%y: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %e = math.exp %y : tensor<8x8xf32>
          return %e : tensor<8x8xf32> }""")
        first, second = (node for node in found.nodes if node.op == "math.exp")
        assert second.operands == first.results
        assert found.outputs == second.results
        assert first.results != second.results

    def test_recursion_ends_as_unknown(self) -> None:
        found = program("""func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
          %a = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
          return %a : tensor<8xf32> }""")
        assert [node.note for node in found.not_understood] == ["func.call of @f, which calls itself"]

    def test_calls_that_multiply_are_refused(self) -> None:
        levels = "\n".join(
            f"func.func private @f{i}() {{ call @f{i + 1}() : () -> ()\n call @f{i + 1}() : () -> ()\n return }}"
            for i in range(30)
        )
        text = (
            f"func.func @main() {{ call @f0() : () -> ()\n return }}\n{levels}\nfunc.func private @f30() {{ return }}"
        )
        with pytest.raises(SpecError, match="comes to more than"):
            program(text)

    def test_what_is_only_declared_is_unknown(self) -> None:
        found = program(
            "func.func private @ext(tensor<4xf32>)\n"
            "func.func @f(%x: tensor<4xf32>) { call @ext(%x) : (tensor<4xf32>) -> ()\n return }"
        )
        assert "has no body" in found.not_understood[0].note


class TestNotUnderstood:
    def test_a_foreign_operation_is_named(self) -> None:
        found = program(
            "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
            '%r = "mine.thing"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n return %r : tensor<4xf32> }'
        )
        assert [(node.op, node.kind) for node in found.not_understood] == [("mine.thing", "unknown")]
        assert any("mine.thing" in note for note in found.notes)

    def test_what_is_inside_a_foreign_operation_is_counted(self) -> None:
        found = program(
            'func.func @f(%x: tensor<4xf32>) { "mine.region"() ({ %e = math.exp %x : tensor<4xf32> }) : () -> ()\n return }'
        )
        assert found.flops == 4
        assert "its body is counted as run once" in found.not_understood[0].note

    def test_a_list_operation_without_its_operands_is_unknown(self) -> None:
        found = understand(read('func.func @f(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {\n'
                                '%r = "stablehlo.dot_general"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>\n'
                                " return %r : tensor<4x4xf32> }", native=no_native_parser))  # fmt: skip
        assert "not as its dialect defines it" in found.not_understood[0].note

    def test_elements_of_unknown_size_are_never_free(self) -> None:
        found = one_op(
            "tensor.pad {static_low = array<i64: 1>, static_high = array<i64: 1>}",
            "tensor<4x!mine.word>",
            "tensor<6x!mine.word>",
        )
        assert (
            not found.not_understood
            or "bytes per element" in found.not_understood[0].note
            or "not known" in found.not_understood[0].note
        )
        assert found.not_understood

    def test_an_lstm_in_one_operation_is_said_to_be_unknown(self) -> None:
        found = program('func.func @f(%x: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {\n'
                        '%r = "torch.aten.gru"(%x) : (!torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32>\n'
                        "return %r : !torch.vtensor<[4,8],f32> }")  # fmt: skip
        assert "recurrent network" in found.not_understood[0].note


@pytest.mark.parametrize(
    ("order", "types", "kind"),
    [
        ("1, 0", ("tensor<1x1003xf32>", "tensor<1003x1xf32>"), "view"),
        ("1, 0, 2", ("tensor<4x1x8xf32>", "tensor<1x4x8xf32>"), "view"),
        ("1, 0, 2", ("tensor<4x2x8xf32>", "tensor<2x4x8xf32>"), "movement"),
        ("1, 0", ("tensor<?x8xf32>", "tensor<8x?xf32>"), "movement"),
    ],
)
def test_a_transpose_that_moves_only_axes_of_one_element_moves_nothing(
    order: str, types: tuple[str, str], kind: str
) -> None:
    source, result = types
    found = program(
        f"func.func @f(%x: {source}) -> {result} {{\n %r = stablehlo.transpose %x, dims = [{order}] : "
        f"({source}) -> {result}\n return %r : {result}\n}}",
        bind={"dim0": 16} if "?" in source else {},
    )
    assert [node.kind for node in found.nodes] == [kind]


def test_what_nothing_reads_is_left_out_and_said() -> None:
    kind = "tensor<64x64xf32>"
    text = (
        f"func.func @f(%x: {kind}, %y: {kind}) -> {kind} {{\n%d = stablehlo.negate %x : {kind}\n"
        f"%p = stablehlo.dot_general %d, %y, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}\n"
        f"%r = stablehlo.exponential %x : {kind}\n RETURN\n}}"
    )
    found = program(text.replace("RETURN", f"return %r : {kind}"))
    assert [node.op for node in found.nodes if node.kind not in FREE] == ["stablehlo.exponential"]
    assert any("nothing reads the results of stablehlo.negate, stablehlo.dot_general" in note for note in found.notes)
    for unfinished in (text.replace("RETURN", "return").replace(f") -> {kind} {{", ") {"), text.replace("RETURN", "")):
        piece = understand(read(unfinished, native=no_native_parser))
        assert len([node for node in piece.nodes if node.kind not in FREE]) == 3
        assert not any("nothing reads" in note for note in piece.notes)


@pytest.mark.parametrize(
    ("line", "is_dropped"),
    [
        ("%r = torch.aten.add.Tensor %x, %y, %one : !T, !T, !torch.int -> !T", True),
        ("%r = torch.aten.add_.Tensor %x, %y, %one : !T, !T, !torch.int -> !T", False),
        ("%r = torch.aten.relu_ %x : !T -> !T", False),
        ('%r = "tosa.custom"(%x) {operator_name = "print"} : (!T) -> !T', False),
        ("%r = func.call @g(%x) : (!T) -> !T", False),
    ],
)
def test_what_may_do_more_than_make_its_result_stays(line: str, is_dropped: bool) -> None:
    text = (
        f"func.func @f(%x: !T, %y: !T) -> !T {{\n%one = torch.constant.int 1\n{line}\n return %x : !T\n}}\n"
        "func.func private @g(%a: !T) -> !T {\n%d = torch.aten.exp %a : !T -> !T\n%s = torch.aten.sin %a : !T -> !T\n"
        " return %s : !T\n}"
    ).replace("!T", "!torch.tensor<[64,64],f32>")
    found = understand(read(text, native=no_native_parser), "f")
    ops = [node.op for node in found.nodes]
    assert not any(op == "torch.aten.exp" for op in ops)
    assert (len([node for node in found.nodes if node.kind not in FREE]) == 0) == is_dropped, ops


class TestHostileText:
    def tolerant(self, text: str) -> Program:
        return understand(read(text, native=no_native_parser))

    def test_deep_nesting_behind_calls_is_refused(self) -> None:
        def function(level: int) -> str:
            opening, closing = "scf.execute_region {\n" * 50, "}\n" * 50
            return f"func.func @f{level}() {{ {opening} call @f{level + 1}() : () -> ()\n {closing} return }}"

        text = "\n".join(function(level) for level in range(10)) + "\nfunc.func @f10() { return }"
        with pytest.raises(SpecError, match="nests more than"):
            understand(read(text, native=no_native_parser), "f0")

    def test_lists_of_lists_are_not_followed(self) -> None:
        pair = "(!torch.list<int>, !torch.list<int>) -> !torch.list<int>"
        lists = "\n".join(f"%l{i + 1} = torch.prim.ListConstruct %l{i}, %l{i} : {pair}" for i in range(60))
        found = self.tolerant(
            "func.func @f(%x: !torch.int) {\n"
            "%l0 = torch.prim.ListConstruct %x, %x : (!torch.int, !torch.int) -> !torch.list<int>\n"
            f"{lists}\n%r = torch.aten.zeros %l60 : !torch.list<int> -> !torch.vtensor<[4],f32>\n return }}"
        )
        assert [node.op for node in found.nodes] == ["torch.aten.zeros"]

    @pytest.mark.parametrize(("steps", "line"), [(80, "arith.muli %v{i}, %v{i}"), (3000, "arith.addi %v{i}, %v0")])
    def test_long_arithmetic_needs_no_stack_and_makes_no_huge_numbers(self, steps: int, line: str) -> None:
        chain = "\n".join(f"%v{i + 1} = {line.format(i=i)} : index" for i in range(steps))
        found = self.tolerant(
            f"func.func @f() {{\n%v0 = arith.constant 3 : index\n{chain}\n"
            f"%e = tensor.empty(%v{steps}) : tensor<?xf32>\n%q = math.exp %e : tensor<?xf32>\nreturn }}"
        )
        assert [node.op for node in found.not_understood] == ["math.exp"]
