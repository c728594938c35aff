"""Recognition: what exported programs are taken for, idiom by idiom and dialect by dialect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kernelcast.features.kernel import View as SpecView
from kernelcast.features.kernel import get_family
from kernelcast.features.mlir.kernels.grouping import group
from kernelcast.features.mlir.program import FREE, KINDS, Group, Node, Program
from kernelcast.features.mlir.types.graph import ValueType
from kernelcast.features.mlir.understanding import read, understand

EXPORTED = Path(__file__).parent / "exported"
"""Programs as jax 0.10.2 (`.jax`) and torch-mlir (`.linalg`, `.stablehlo`, `.torch`, `.tosa`) exported them."""

CONV = "conv2d[batch=1,in_channels=3,out_channels=16,height=32,width=32,kernel=3,stride=1,padding=1]:fp32"
SCORES, WEIGHTS = "gemm[batch=8,m=64,n=64,k=32]:fp32 nt", "softmax[rows=512,cols=64]:fp32"
TURNED = "gemm[batch=8,m=32,n=64,k=64]:fp32 tt"
MLP = ["gemm[batch=1,m=32,n=256,k=128]:fp32 bias", "gemm[batch=1,m=32,n=128,k=256]:fp32 bias"]
EXPECTED = {
    "softmax.jax": ["softmax[rows=64,cols=512]:fp32"],
    "log_softmax.jax": ["softmax[rows=64,cols=512]:fp32"],
    "layernorm.jax": ["layernorm[rows=64,cols=512]:fp32 layernorm"],
    "flax_layernorm.jax": ["layernorm[rows=128,cols=512]:fp32 layernorm"],
    "rmsnorm.jax": ["layernorm[rows=128,cols=512]:bf16 rmsnorm"],
    "attention.jax": [SCORES, WEIGHTS, TURNED, "copy[rows=256,cols=64]:fp32 transpose"],
    "dot_product_attention.jax": [SCORES, WEIGHTS, TURNED, "copy[rows=256,cols=64]:fp32 transpose"],
    "block.jax": [
        "layernorm[rows=128,cols=128]:fp32 layernorm", "gemm[batch=1,m=128,n=384,k=128]:fp32", SCORES, WEIGHTS, TURNED,
        "copy[rows=256,cols=64]:fp32 transpose", "gemm[batch=1,m=128,n=128,k=128]:fp32",
        "layernorm[rows=128,cols=128]:fp32 layernorm", "gemm[batch=1,m=128,n=512,k=128]:fp32",
        "gemm[batch=1,m=128,n=128,k=512]:fp32",
    ],
    "rnn.jax": ["gemm[batch=1,m=8,n=64,k=32]:fp32", "gemm[batch=1,m=8,n=64,k=64]:fp32", "copy[rows=1,cols=512]:fp32"],
    "grad.jax": [
        "gemm[batch=1,m=32,n=128,k=64]:fp32 bias", "gemm[batch=1,m=32,n=10,k=128]:fp32 bias",
        "reduction[rows=1,cols=320]:fp32 mean", "reduction[rows=32,cols=10]:fp32 sum_rows",
        "gemm[batch=1,m=128,n=10,k=32]:fp32 tn", "gemm[batch=1,m=32,n=128,k=10]:fp32 nt",
        "reduction[rows=32,cols=128]:fp32 sum_rows", "gemm[batch=1,m=64,n=128,k=32]:fp32 tn",
    ],
    "swiglu.jax": ["gemm[batch=1,m=32,n=256,k=128]:fp32"] * 2 + ["gemm[batch=1,m=32,n=128,k=256]:fp32"],
    "embedding.jax": ["copy[rows=16,cols=64]:fp32"],
    "conv.tosa": ["copy[rows=96,cols=32]:fp32 transpose", CONV, "elementwise[rows=512,cols=32]:fp32 relu"],
    **{f"conv.{dialect}": [CONV] for dialect in ("jax", "linalg", "stablehlo", "torch")},
    **{f"mlp.{dialect}": MLP for dialect in ("jax", "linalg", "stablehlo", "torch", "tosa")},
}  # fmt: skip
for dialect in ("linalg", "stablehlo", "torch", "tosa"):
    EXPECTED[f"softmax.{dialect}"] = ["softmax[rows=64,cols=512]:fp32"]
    EXPECTED[f"layernorm.{dialect}"] = ["layernorm[rows=128,cols=128]:fp32 layernorm"]
    EXPECTED[f"rmsnorm.{dialect}"] = ["layernorm[rows=128,cols=128]:fp32 rmsnorm"]
    EXPECTED[f"attention.{dialect}"] = [SCORES, WEIGHTS, "gemm[batch=8,m=64,n=32,k=64]:fp32 batched"]


def program(name: str) -> Program:
    return understand(read((EXPORTED / f"{name}.mlir").read_text()))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_exported_programs_are_the_kernels_they_were_written_as(name: str) -> None:
    assert [str(item.spec) for item in program(name).groups] == EXPECTED[name]


@pytest.mark.parametrize(
    "name", [name for name in sorted(EXPECTED) if name.startswith(("softmax", "layernorm", "rmsnorm"))]
)
def test_norms_and_softmaxes_move_what_their_family_says_and_differ_in_nothing(name: str) -> None:
    (item,) = program(name).groups
    assert item.spec is not None
    assert item.bytes_in + item.bytes_out == get_family(item.spec.family).bytes_moved(SpecView.of(item.spec))
    assert item.stand_in == ""


def test_what_a_spec_leaves_out_is_said() -> None:
    groups = program("mlp.jax").groups
    assert groups[0].title == "matmul 32x256x128 + bias + gelu"
    assert groups[0].stand_in == "the product alone, without 9 element operations fused into it (gelu)"
    assert groups[1].stand_in == ""
    assert program("log_softmax.jax").groups[0].stand_in == "is the logarithm of a softmax"


def test_steps_of_a_recurrence_run_as_often_as_the_sequence_is_long() -> None:
    assert {item.runs for item in program("rnn.jax").groups} == {20.0}


def single(
    kind: str, operands: list[tuple[int, ...]], result: tuple[int, ...], dtype: str = "fp32", **fields: object
) -> Group:
    """The group of one node alone."""
    types = [ValueType("tensor", shape, dtype, "tensor") for shape in (*operands, result)]
    elements = types[-1].elements
    costs: dict[str, object] = {
        "flops": elements, "bytes_in": sum(item.nbytes for item in types[:-1]), "bytes_out": types[-1].nbytes,
        "loops": (1.0, elements, 1.0, 1.0),
    }  # fmt: skip
    values = tuple(range(len(operands)))
    node = Node(f"test.{kind}", kind, values, (len(operands),), dtype, **{**costs, **fields})  # type: ignore[arg-type]
    (item,) = group([node], types, [len(operands)])
    return item


@pytest.mark.parametrize(
    ("operator", "operands", "variant", "exact"),
    [
        ("tanh", 1, "tanh", True), ("gelu", 1, "gelu", True), ("add", 2, "add", True), ("mulu", 1, "mulu", True),
        ("mul", 1, "mulu", True), ("rsqrt", 1, "sqrt", False), ("floor", 1, "abs", False), ("select", 3, "maximum", False),
        ("convert", 1, "abs", False), ("xor", 2, "add", False), ("no such operator", 1, "abs", False),
    ],
)  # fmt: skip
def test_an_element_operation_is_its_familys_or_the_nearest(
    operator: str, operands: int, variant: str, exact: bool
) -> None:
    item = single("elementwise", [(64, 32)] * operands, (64, 32), detail={"operator": operator})
    assert str(item.spec) == f"elementwise[rows=64,cols=32]:fp32 {variant}"
    assert (item.stand_in == "") == exact


@pytest.mark.parametrize("dtype", ["i1", "index", "complex<f32>", ""])
def test_a_dtype_that_no_kernel_was_measured_in_gives_no_spec(dtype: str) -> None:
    item = single("elementwise", [(64, 32)], (64, 32), dtype, detail={"operator": "not"})
    assert item.spec is None
    assert item.stand_in == ""
    assert "2048 elements" in item.title


CONV_SIZES = {
    "batch": 2, "in_channels": 8, "out_channels": 16, "height": 20, "width": 20, "kernel_h": 3, "kernel_w": 3, "stride": 1,
    "padding": 1, "groups": 1, "dilation": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "family", "said"),
    [
        ({}, "conv2d", ""),
        ({"groups": 8}, "gemm", "grouped"),
        ({"dilation": 2}, "gemm", "dilated"),
        ({"kernel_w": 5}, "gemm", "of this shape"),
        ({"stride": (2, 2)}, "conv2d", ""),
        ({"height": 0}, "gemm", "of this shape"),
    ],
)
def test_convolutions_the_family_lacks_are_the_product_they_amount_to(
    change: dict[str, object], family: str, said: str
) -> None:
    item = single(
        "convolution",
        [(2, 8, 20, 20), (16, 8, 3, 3)],
        (2, 16, 20, 20),
        loops=(1.0, 800.0, 16.0, 72.0),
        detail={**CONV_SIZES, **change},
    )
    assert item.spec is not None
    assert item.spec.family == family
    assert said in item.stand_in


@pytest.mark.parametrize(
    ("operator", "axis", "spec"),
    [
        ("sum", "inner", "reduction[rows=64,cols=32]:fp32 sum"),
        ("max", "outer", "reduction[rows=32,cols=64]:fp32 max_rows"),
        ("min", "inner", "reduction[rows=64,cols=32]:fp32 max"),
        ("prod", "middle", "reduction[rows=32,cols=64]:fp32 sum_rows"),
    ],
)
def test_reductions_are_along_rows_or_down_columns(operator: str, axis: str, spec: str) -> None:
    item = single(
        "reduction", [(64, 32)], (64,), loops=(1.0, 64.0, 1.0, 32.0), detail={"operator": operator, "axis": axis}
    )
    assert str(item.spec) == spec
    assert (item.stand_in == "") == (operator in ("sum", "max"))


def test_a_reduction_without_sizes_is_still_a_kernel_and_one_of_single_elements_is_a_view() -> None:
    assert single("reduction", [(64, 32)], (64,), loops=(1.0, 1.0, 1.0, 1.0)).kind == "reduction"
    types = [ValueType("tensor", shape, "fp32", "tensor") for shape in ((64, 1), (64,))]
    node = Node("test.reduce", "reduction", (0,), (1,), "fp32", flops=64.0, loops=(1.0, 64.0, 1.0, 1.0))
    assert group([node], types, []) == ()
    assert [item.kind for item in group([node], types, [1])] == ["reduction"]
    assert group([replace(node, op="tosa.reduce_max")], types, [1]) == ()
    assert group([replace(node, detail={"operator": "argmax"})], types, []) != ()


def test_single_operations_of_whole_kernels_are_those_kernels() -> None:
    softmax = single("softmax", [(4, 8, 64)], (4, 8, 64), loops=(1.0, 32.0, 1.0, 64.0), detail={"rows": 32, "cols": 64})
    assert str(softmax.spec) == "softmax[rows=32,cols=64]:fp32"
    norm = single("normalization", [(32, 64), (64,)], (32, 64), detail={"operator": "rms_norm", "rows": 32, "cols": 64})
    assert str(norm.spec) == "layernorm[rows=32,cols=64]:fp32 rmsnorm"
    sizes = {"batch": 1, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 128, "head_dim": 64}
    item = single("attention", [(1, 8, 1, 64), (1, 2, 128, 64), (1, 2, 128, 64)], (1, 8, 1, 64), "bf16", detail=sizes)
    assert str(item.spec) == "attention[batch=1,heads=8,kv_heads=2,q_len=1,kv_len=128,head_dim=64,window=0]:bf16 decode"
    assert item.stand_in == ""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FREE])
@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (2**50, 2)])
def test_nodes_without_details_and_with_odd_sizes_are_no_error(kind: str, shape: tuple[int, ...]) -> None:
    elements = ValueType("tensor", shape, "fp32", "tensor").elements
    item = single(kind, [shape], shape, loops=(1.0, elements, 1.0, 2.0))
    assert item.kind == kind
    assert item.title
