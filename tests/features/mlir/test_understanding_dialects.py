"""Understanding operations of each dialect: kinds, loops, bytes and what recognition needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernelcast.features.mlir.program import Node, Program
from kernelcast.features.mlir.semantics.op_rule import STRUCTURES
from kernelcast.features.mlir.understanding import read, understand
from kernelcast.features.mlir.walk.values import dialect_rules

CORPUS = Path(__file__).parent / "corpus"


def program(text: str, **how: object) -> Program:
    return understand(read(text), **how)  # type: ignore[arg-type]


def costed(found: Program) -> list[Node]:
    return [node for node in found.nodes if node.kind not in ("view", "constant", "control")]


def only(found: Program) -> Node:
    nodes = costed(found)
    assert len(nodes) == 1, [(node.op, node.kind, node.note) for node in nodes]
    return nodes[0]


def torch_op(line: str, arguments: str, result: str) -> Node:
    return only(program(f"func.func @f({arguments}) -> {result} {{\n{line}\n  return %r : {result}\n}}"))


class TestLinalg:
    def generic(self, maps: str, iterators: str, ins: str, out: str, body: str) -> Node:
        kinds = ins.split("; ")
        arguments = ", ".join(f"%a{i}: {kind}" for i, kind in enumerate(kinds))
        names = ", ".join(f"%a{i}" for i in range(len(kinds)))
        scalars = ", ".join(f"%s{i}: f32" for i in range(len(kinds) + 1))
        return only(
            program(f"""func.func @f({arguments}) -> {out} {{
          %cst = arith.constant 0.0 : f32
          %e = tensor.empty() : {out}
          %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
            ins({names} : {", ".join(kinds)}) outs(%e : {out}) {{
          ^bb0({scalars}):
            {body}
          }} -> {out}
          return %r : {out} }}""")
        )

    P, R = '"parallel"', '"reduction"'

    def test_a_product_is_found_by_its_maps(self) -> None:
        node = self.generic(
            "affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>",
            f"{self.P}, {self.P}, {self.R}", "tensor<64x32xf32>; tensor<16x64xf32>", "tensor<32x16xf32>",
            "%p = arith.mulf %s0, %s1 : f32\n%q = arith.addf %s2, %p : f32\nlinalg.yield %q : f32",
        )  # fmt: skip
        assert (node.kind, node.loops, node.flops) == ("contraction", (1, 32, 16, 64), 2 * 32 * 16 * 64)
        assert (node.detail["lhs_transposed"], node.detail["rhs_transposed"]) == (True, True)

    def test_a_convolution_is_found_by_sums_in_its_maps(self) -> None:
        node = self.generic(
            "affine_map<(n, f, y, x, c, i, j) -> (n, c, y * 2 + i, x * 2 + j)>, "
            "affine_map<(n, f, y, x, c, i, j) -> (f, c, i, j)>, "
            "affine_map<(n, f, y, x, c, i, j) -> (n, f, y, x)>",
            ", ".join([self.P] * 4 + [self.R] * 3), "tensor<2x3x33x33xf32>; tensor<8x3x3x3xf32>", "tensor<2x8x16x16xf32>",
            "%p = arith.mulf %s0, %s1 : f32\n%q = arith.addf %s2, %p : f32\nlinalg.yield %q : f32",
        )  # fmt: skip
        assert (node.kind, node.loops) == ("convolution", (1, 2 * 16 * 16, 8, 27))
        assert [node.detail[name] for name in ("batch", "in_channels", "out_channels", "kernel_h", "stride")] == [
            2,
            3,
            8,
            3,
            2,
        ]

    def test_a_body_that_only_hands_on_moves(self) -> None:
        node = self.generic("affine_map<(a, b) -> (b, a)>, affine_map<(a, b) -> (a, b)>", f"{self.P}, {self.P}",
                            "tensor<8x4xf32>", "tensor<4x8xf32>", "linalg.yield %s0 : f32")  # fmt: skip
        assert (node.kind, node.detail["operator"], node.flops) == ("movement", "transpose", 0)

    @pytest.mark.parametrize(
        ("body", "operator", "flops"),
        [
            ("%p = arith.addf %s0, %s1 : f32\nlinalg.yield %p : f32", "add", 1),
            ("%p = arith.addf %s0, %cst : f32\nlinalg.yield %p : f32", "addu", 1),
            ("%p = arith.maximumf %s0, %cst : f32\nlinalg.yield %p : f32", "relu", 1),
            ("%p = arith.cmpf ugt, %s0, %cst : f32\n%q = arith.select %p, %s0, %cst : f32\nlinalg.yield %q : f32", "relu", 2),
            ("%p = arith.negf %s0 : f32\n%q = math.exp %p : f32\n%t = arith.addf %q, %cst : f32\n"
             "%u = arith.divf %cst, %t : f32\n"
             "%v = arith.mulf %u, %s0 : f32\nlinalg.yield %v : f32", "silu", 5),
        ],
    )  # fmt: skip
    def test_elementwise_bodies_are_named_and_counted(self, body: str, operator: str, flops: int) -> None:
        same = "affine_map<(a) -> (a)>"
        node = self.generic(f"{same}, {same}, {same}", self.P, "tensor<64xf32>; tensor<64xf32>", "tensor<64xf32>", body)
        assert (node.kind, node.detail["operator"], node.flops) == ("elementwise", operator, 64 * flops)

    def test_a_destination_is_read_where_it_holds_something(self) -> None:
        filled = only_kind(
            program(self.matmul("%f = linalg.fill ins(%z : f32) outs(%c : tensor<4x8xf32>) -> tensor<4x8xf32>", "%f")),
            "contraction",
        )
        added = only_kind(program(self.matmul("", "%c")), "contraction")
        assert added.bytes_in - filled.bytes_in == 4 * 8 * 4

    def matmul(self, line: str, out: str) -> str:
        return f"""func.func @f(%a: tensor<4x16xf32>, %b: tensor<16x8xf32>, %c: tensor<4x8xf32>, %z: f32) -> tensor<4x8xf32> {{
          {line}
          %r = linalg.matmul ins(%a, %b : tensor<4x16xf32>, tensor<16x8xf32>) outs({out} : tensor<4x8xf32>) -> tensor<4x8xf32>
          return %r : tensor<4x8xf32> }}"""

    def test_padding_before_a_convolution_is_its_padding(self) -> None:
        found = program("""func.func @f(%x: tensor<1x3x32x32xf32>, %w: tensor<8x3x3x3xf32>, %z: f32,
                                          %o: tensor<1x8x32x32xf32>) -> tensor<1x8x32x32xf32> {
          %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
          ^bb0(%i: index, %j: index, %k: index, %l: index):
            tensor.yield %z : f32
          } : tensor<1x3x32x32xf32> to tensor<1x3x34x34xf32>
          %r = linalg.conv_2d_nchw_fchw ins(%p, %w : tensor<1x3x34x34xf32>, tensor<8x3x3x3xf32>)
            outs(%o : tensor<1x8x32x32xf32>) -> tensor<1x8x32x32xf32>
          return %r : tensor<1x8x32x32xf32> }""")
        node = only_kind(found, "convolution")
        assert [node.detail[name] for name in ("height", "width", "padding")] == [32, 32, 1]

    def test_memory_that_is_written_is_what_comes_after(self) -> None:
        found = program("""func.func @f(%a: memref<8x8xf32>, %c: memref<8x8xf32>) {
          linalg.matmul ins(%a, %a : memref<8x8xf32>, memref<8x8xf32>) outs(%c : memref<8x8xf32>)
          linalg.exp ins(%c : memref<8x8xf32>) outs(%a : memref<8x8xf32>)
          return }""")
        first, second = costed(found)
        assert second.operands[0] == first.results[0]
        assert set(found.outputs) == {*first.results, *second.results}

    @pytest.mark.parametrize(("order", "result"), [("1, 0", "tensor<512x1xf32>"), ("0, 1", "tensor<1x512xf32>")])
    def test_a_transpose_of_an_axis_of_one_element_moves_nothing(self, order: str, result: str) -> None:
        found = program(
            f"func.func @f(%x: tensor<1x512xf32>, %o: {result}) -> {result} {{\n"
            f"%r = linalg.transpose ins(%x : tensor<1x512xf32>) outs(%o : {result}) permutation = [{order}]\n"
            f" return %r : {result}\n}}"
        )
        assert [node.kind for node in found.nodes] == ["view"]


def only_kind(found: Program, kind: str) -> Node:
    nodes = [node for node in found.nodes if node.kind == kind]
    assert len(nodes) == 1
    return nodes[0]


class TestTosa:
    def test_products_and_convolutions(self) -> None:
        nodes = {node.kind: node for node in program((CORPUS / "tosa.mlir").read_text()).nodes}
        assert nodes["convolution"].flops > 0
        old = program((CORPUS / "old_tosa.mlir").read_text())
        assert not old.not_understood


V = "!torch.vtensor"


class TestTorch:
    def test_linear_with_bias(self) -> None:
        node = torch_op(f"%r = torch.aten.linear %x, %w, %b : {V}<[2,16,64],f32>, {V}<[32,64],f32>, "
                        f"{V}<[32],f32> -> {V}<[2,16,32],f32>",
                        f"%x: {V}<[2,16,64],f32>, %w: {V}<[32,64],f32>, %b: {V}<[32],f32>", f"{V}<[2,16,32],f32>")  # fmt: skip
        assert (node.kind, node.loops, node.detail["rhs_transposed"]) == ("contraction", (1, 32, 32, 64), True)
        assert node.flops == 2 * 32 * 32 * 64 + 32 * 32

    def test_integers_that_are_operands_are_read(self) -> None:
        lines = f"""%s = torch.constant.int 2
          %p = torch.constant.int 1
          %false = torch.constant.bool false
          %none = torch.constant.none
          %st = torch.prim.ListConstruct %s, %s : (!torch.int, !torch.int) -> !torch.list<int>
          %pa = torch.prim.ListConstruct %p, %p : (!torch.int, !torch.int) -> !torch.list<int>
          %oo = torch.prim.ListConstruct : () -> !torch.list<int>
          %r = torch.aten.convolution %x, %w, %none, %st, %pa, %pa, %false, %oo, %p : {V}<[1,3,32,32],f32>,
            {V}<[8,3,3,3],f32>, !torch.none,
            !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>,
            !torch.int -> {V}<[1,8,16,16],f32>"""
        node = torch_op(lines, f"%x: {V}<[1,3,32,32],f32>, %w: {V}<[8,3,3,3],f32>", f"{V}<[1,8,16,16],f32>")
        assert [node.detail[name] for name in ("stride", "padding", "groups")] == [2, 1, 1]

    def test_causal_attention_counts_what_the_mask_lets_through(self) -> None:
        def attention(causal: str) -> Node:
            q = f"{V}<[2,8,64,32],f32>"
            return torch_op(f"""%none = torch.constant.none
              %zero = torch.constant.float 0.0
              %causal = torch.constant.bool {causal}
              %false = torch.constant.bool false
              %r = torch.aten.scaled_dot_product_attention %q, %q, %q, %none, %zero, %causal, %none, %false :
                {q}, {q}, {q}, !torch.none, !torch.float,
                !torch.bool, !torch.none, !torch.bool -> {q}""", f"%q: {q}", q)  # fmt: skip

        full, half = attention("false"), attention("true")
        assert full.kind == "attention"
        assert [full.detail[name] for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")] == [
            2,
            8,
            8,
            64,
            64,
            32,
        ]
        assert half.flops / full.flops == pytest.approx(65 / 128)

    def test_a_list_of_tensors_is_read_through(self) -> None:
        found = program(f"""func.func @f(%x: {V}<[4,8],f32>, %y: {V}<[2,8],f32>) -> {V}<[6,8],f32> {{
          %int0 = torch.constant.int 0
          %l = torch.prim.ListConstruct %x, %y : ({V}<[4,8],f32>, {V}<[2,8],f32>) -> !torch.list<vtensor>
          %r = torch.aten.cat %l, %int0 : !torch.list<vtensor>, !torch.int -> {V}<[6,8],f32>
          return %r : {V}<[6,8],f32> }}""")
        node = only(found)
        assert (node.kind, node.detail["operator"], node.bytes_in) == ("movement", "concatenate", 6 * 8 * 4)
        assert set(found.arguments) <= set(node.operands)

    @pytest.mark.parametrize(
        ("line", "kinds", "rows", "length", "window"),
        [
            ("%r:2 = torch.aten.topk %x, %k, %zero, %yes, %yes", ("[10,4],f32", "[10,4],si64"), 4, 1000, (10,)),
            ("%r:2 = torch.aten.sort %x, %zero, %yes", ("[1000,4],f32", "[1000,4],si64"), 4, 1000, None),
            ("%r:2 = torch.aten.sort.stable %x, %yes, %zero, %yes", ("[1000,4],f32", "[1000,4],si64"), 4, 1000, None),
            ("%r:2 = torch.aten.kthvalue %x, %k, %zero, %yes", ("[1,4],f32", "[1,4],si64"), 4, 1000, None),
        ],
    )
    def test_sorts_are_along_their_dimension(
        self, line: str, kinds: tuple[str, str], rows: int, length: int, window: tuple[int, ...] | None
    ) -> None:
        results = ", ".join(f"!torch.vtensor<{kind}>" for kind in kinds)
        types = {"%x": "!torch.vtensor<[1000,4],f32>", "%k": "!torch.int", "%zero": "!torch.int", "%yes": "!torch.bool"}
        operands = ", ".join(types[name] for name in re.findall(r"(?<!^)%[a-z]+", line.partition("=")[2]))
        found = program(
            f"func.func @f(%x: {types['%x']}) -> ({results}) {{\n%zero = torch.constant.int 0\n%k = torch.constant.int 10\n"
            f"%yes = torch.constant.bool true\n{line} : {operands} -> {results}\n return %r#0, %r#1 : {results}\n}}"
        )
        node = next(node for node in found.nodes if node.kind == "sort")
        assert node.loops == (1.0, rows, 1.0, length)
        assert node.detail.get("window") == window


class TestTriton:
    def test_only_loads_and_stores_touch_memory(self) -> None:
        found = program((CORPUS / "triton_gpu.mlir").read_text())
        touching = {node.op for node in found.nodes if node.bytes_in + node.bytes_out}
        assert touching == {"tt.load", "tt.store"}
        assert any(node.kind == "contraction" for node in found.nodes)
        assert any("one program of the Triton kernel" in note for note in found.notes)


def test_every_rule_can_be_looked_up_and_every_word_means_something() -> None:
    entries = dialect_rules()
    assert entries["torch.aten.add.Tensor"].rule is entries["torch.aten.add"].rule
    assert entries["nobody.knows"].rule is None
    assert entries["scf.for"].structure in STRUCTURES


class TestDetail:
    @pytest.mark.parametrize("line", [
        "%c = stablehlo.constant dense<1.5> : tensor<4x4xf32>",
        "%c = stablehlo.constant dense<0xFF800000> : tensor<4x4xf32>",
        "%c = arith.constant dense<-1.0> : tensor<4x4xf32>",
        '%c = "tosa.const"() {values = dense<1.0> : tensor<4x4xf32>} : () -> tensor<4x4xf32>',
    ])  # fmt: skip
    def test_a_constant_of_one_number_is_a_splat(self, line: str) -> None:
        found = program(f"func.func @f() -> tensor<4x4xf32> {{\n{line}\n  return %c : tensor<4x4xf32> }}")
        assert [node.detail.get("splat") for node in found.nodes if node.kind == "constant"] == [True]

    @pytest.mark.parametrize("written", ["dense<[1.0, 2.0]>", 'dense<"0x0000803F00000040">', "dense_resource<w>"])
    def test_a_constant_of_several_numbers_is_none(self, written: str) -> None:
        found = program(f"func.func @f() -> tensor<2xf32> {{\n%c = stablehlo.constant {written} : tensor<2xf32>\n"
                        "  return %c : tensor<2xf32> }")  # fmt: skip
        assert [node.detail.get("splat") for node in found.nodes if node.kind == "constant"] == [None]

    def test_what_is_multiplied_by_one_number_does_not_read_an_array_of_it(self) -> None:
        found = program("func.func @f(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {\n"
                        "  %c = stablehlo.constant dense<0.5> : tensor<64x64xf32>\n"
                        "  %r = stablehlo.multiply %x, %c : tensor<64x64xf32>\n"
                        "  return %r : tensor<64x64xf32> }")  # fmt: skip
        assert [(group.bytes_in, group.bytes_out) for group in found.groups] == [(64 * 64 * 4, 64 * 64 * 4)]

    @pytest.mark.parametrize(("line", "permutation"), [
        ("%r = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>", (2, 0, 1)),
        ("%r = tosa.transpose %x {perms = array<i32: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>", (2, 0, 1)),
        ("%e = tensor.empty() : tensor<4x2x3xf32>\n%r = linalg.transpose ins(%x : tensor<2x3x4xf32>) "
         "outs(%e : tensor<4x2x3xf32>) permutation = [2, 0, 1]", (2, 0, 1)),
        ("%e = tensor.empty() : tensor<4x2x3xf32>\n%r = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (b, c, a)>, "
         'affine_map<(a, b, c) -> (a, b, c)>], iterator_types = ["parallel", "parallel", "parallel"]} '
         "ins(%x : tensor<2x3x4xf32>) outs(%e : tensor<4x2x3xf32>) {\n^bb0(%a: f32, %b: f32):\n linalg.yield %a : f32\n"
         "} -> tensor<4x2x3xf32>", (2, 0, 1)),
    ])  # fmt: skip
    def test_a_transpose_tells_the_order_of_axes(self, line: str, permutation: tuple[int, ...]) -> None:
        node = only(program(f"func.func @f(%x: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {{\n{line}\n"
                            "  return %r : tensor<4x2x3xf32> }"))  # fmt: skip
        assert (node.detail["operator"], node.detail["permutation"]) == ("transpose", permutation)

    def test_torch_transposes_by_two_axes_and_by_a_list(self) -> None:
        two = torch_op("%i = torch.constant.int 0\n%j = torch.constant.int 2\n"
                       "%r = torch.aten.transpose.int %x, %i, %j : !torch.vtensor<[2,3,4],f32>, !torch.int, !torch.int "
                       "-> !torch.vtensor<[4,3,2],f32>", "%x: !torch.vtensor<[2,3,4],f32>",
                       "!torch.vtensor<[4,3,2],f32>")  # fmt: skip
        assert two.detail["permutation"] == (2, 1, 0)


class TestLoadsAndStores:
    LOOP = """func.func @f(%a: memref<1024xf32>, %b: memref<1024xf32>) {{
      %c0 = arith.constant 0 : index
      %c8 = arith.constant 8 : index
      %n = arith.constant 1024 : index
      scf.for %i = %c0 to %n step %c8 {{
        %x = vector.load %a[%i] : memref<1024xf32>, vector<8xf32>
        {body}
        vector.store %w, %b[%i] : memref<1024xf32>, vector<8xf32>
      }}
      return }}"""

    def test_a_load_what_is_done_and_a_store_are_one_kernel(self) -> None:
        found = program(self.LOOP.format(body="%y = vector.load %b[%i] : memref<1024xf32>, vector<8xf32>\n"
                                              "%z = arith.addf %x, %y : vector<8xf32>\n"
                                              "%w = math.exp %z : vector<8xf32>"))  # fmt: skip
        (only_one,) = found.groups
        assert (only_one.kind, only_one.bytes_in, only_one.bytes_out) == ("elementwise", 2 * 4096, 4096)

    def test_a_loop_that_reads_what_another_wrote_is_another_kernel(self) -> None:
        item = "%w = arith.negf %x : vector<8xf32>"
        text = self.LOOP.format(body=item)
        second = """  scf.for %j = %c0 to %n step %c8 {
        %x = vector.load %b[%j] : memref<1024xf32>, vector<8xf32>
        %w = math.exp %x : vector<8xf32>
        vector.store %w, %a[%j] : memref<1024xf32>, vector<8xf32>
      }
      return }"""
        found = program(text.replace("  return }", second))
        assert [(group.bytes_in, group.bytes_out, group.needs) for group in found.groups] == [
            (4096, 4096, ()), (4096, 4096, (0,)),
        ]  # fmt: skip

    def test_a_triton_kernel_of_element_operations_is_one_kernel(self) -> None:
        found = program("""tt.func public @k(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>) {
          %i = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
          %p = tt.splat %a : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
          %q = tt.addptr %p, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
          %x = tt.load %q : tensor<1024x!tt.ptr<f32>>
          %y = math.exp %x : tensor<1024xf32>
          %s = tt.splat %b : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
          %t = tt.addptr %s, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
          tt.store %t, %y : tensor<1024x!tt.ptr<f32>>
          tt.return }""")
        (only_one,) = found.groups
        assert (only_one.kind, only_one.bytes_in, only_one.bytes_out) == ("elementwise", 4096, 4096)


IDENTITY = "affine_map<(d0, d1) -> (d0, d1)>"
GENERIC = (
    "%e = tensor.empty() : T %r = linalg.generic {{indexing_maps = [{0}, {1}], "
    'iterator_types = ["parallel", "parallel"]}} ins(%x : T) outs(%e : T) {{ ^bb0(%a: f32, %b: f32): '
    "%c = arith.maximumf %a, %{2} : f32 linalg.yield %c : f32 }} -> T"
)


@pytest.mark.parametrize(
    ("line", "n_kernels"),
    [
        ("%r = stablehlo.reverse %x, dims = [0] : T", 0),
        ("%r = stablehlo.reverse %x, dims = [0, 1] : T", 1),
        ("%r = tosa.reverse %x {axis = 0 : i32} : (T) -> T", 0),
        ("%r = tosa.reverse %x {axis = 1 : i32} : (T) -> T", 1),
        ("%r = stablehlo.maximum %x, %x : T", 0),
        ("%r = stablehlo.add %x, %x : T", 1),
        ("%e = tensor.empty() : T %r = linalg.map { arith.minimumf } ins(%x, %x : T, T) outs(%e : T)", 0),
        (GENERIC.format(IDENTITY, IDENTITY, "a"), 0),
        (GENERIC.format(IDENTITY, IDENTITY, "b"), 1),
        (GENERIC.format("affine_map<(d0, d1) -> (d0, 0)>", IDENTITY, "a"), 1),
    ],
)
def test_what_hands_on_its_operand_is_no_kernel(line: str, n_kernels: int) -> None:
    text = f"func.func @f(%x: T) -> T {{\n{line}\n return %r : T\n}}".replace("T", "tensor<1x4096xf32>")
    assert len(understand(read(text)).groups) == n_kernels


def test_a_buffer_that_another_is_written_to_is_a_kernel() -> None:
    text = """func.func @f(%x: M, %y: M) {
  linalg.map { arith.maximumf } ins(%x, %x : M, M) outs(%y : M)
  return
}""".replace("M", "memref<4x4096xf32>")
    assert len(understand(read(text)).groups) == 1


@pytest.mark.parametrize(
    "line", ['tosa.reverse"(%x) {axis = 5 : i32}', 'stablehlo.reverse"(%x) {dimensions = array<i64: 7>}']
)
def test_an_axis_that_is_not_there_is_told(line: str) -> None:
    text = f'func.func @f(%x: T) -> T {{\n%r = "{line} : (T) -> T\n return %r : T\n}}'.replace("T", "tensor<1x4xf32>")
    assert any("not understood" in note for note in understand(read(text)).notes)
