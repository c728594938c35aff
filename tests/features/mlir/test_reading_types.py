"""Types out of text: shapes, element types, and what has no numbers."""

from __future__ import annotations

import pytest
from kernelcast.features.mlir.types.graph import (
    element_dtype,
    first_of_list,
    split_function_type,
    split_types,
    value_type,
)


@pytest.mark.parametrize(
    ("text", "kind", "shape", "dtype"),
    [
        ("tensor<4x?x8xf32>", "tensor", (4, None, 8), "fp32"),
        ("tensor<f64>", "tensor", (), "fp64"),
        ("tensor<*xbf16>", "tensor", None, "bf16"),
        ("tensor<0x3xi8>", "tensor", (0, 3), "int8"),
        ("tensor<2x2xui8>", "tensor", (2, 2), "int8"),
        ("tensor<2xsi64>", "tensor", (2,), "int64"),
        ("tensor<8x4xf8E4M3FN>", "tensor", (8, 4), "fp8"),
        ("tensor<8xf4E2M1FN>", "tensor", (8,), "f4E2M1FN"),
        ("tensor<4xcomplex<f32>>", "tensor", (4,), "complex<f32>"),
        ("tensor<16x!quant.uniform<i8:f32, 0.5:3>>", "tensor", (16,), "int8"),
        ("tensor<4x8xf32, #sparse<{map = (d0, d1) -> (d0 : dense, d1 : compressed)}>>", "tensor", (4, 8), "fp32"),
        ("tensor<64x32x!tt.ptr<f16>, #blocked>", "tensor", (64, 32), "!tt.ptr<f16>"),
        ("tensor < 4 x 8 x f32 >", "tensor", (4, 8), "fp32"),
        ("memref<4x?xf16, strided<[?, 1], offset: ?>, 3>", "memref", (4, None), "fp16"),
        ("memref<1024xf32, affine_map<(d0) -> (d0 * 2)>>", "memref", (1024,), "fp32"),
        ("vector<[4]x8xi1>", "vector", (None, 8), "i1"),
        ("!torch.vtensor<[1,3,?],f32>", "tensor", (1, 3, None), "fp32"),
        ("!torch.vtensor<[],si64>", "tensor", (), "int64"),
        ("!torch.vtensor<*,f16>", "tensor", None, "fp16"),
        ("!torch.vtensor<[2,3],unk>", "tensor", (2, 3), ""),
        ("!torch.vtensor", "tensor", None, ""),
        ("!ttg.memdesc<64x32xf16, #shared, #smem, mutable>", "memref", (64, 32), "fp16"),
        ("f32", "scalar", (), "fp32"),
        ("index", "scalar", (), "index"),
        ("i1", "scalar", (), "i1"),
        ("!torch.int", "scalar", (), "int64"),
        ("!stablehlo.token", "other", None, ""),
        ("!llvm.ptr", "other", None, ""),
        ("tuple<tensor<4xf32>, i32>", "other", None, ""),
        ("none", "other", None, ""),
        ("", "other", None, ""),
        ("tensor<", "other", None, ""),
        ("tensor<4xf32", "other", None, ""),
    ],
)  # fmt: skip
def test_types_are_read(text: str, kind: str, shape: object, dtype: str) -> None:
    read = value_type(text)
    assert (read.kind, read.shape, read.dtype, read.text) == (kind, shape, dtype, text)


@pytest.mark.parametrize(
    "text",
    ["tensor<99999999999999999999xf32>", "tensor<4611686018427387904x2xf32>", f"tensor<{'9' * 5000}xf32>",
     f"memref<{'4096x' * 40}f32>", "!torch.vtensor<[99999999999999999999],f32>"],
)  # fmt: skip
def test_sizes_beyond_all_numbers_are_no_arrays(text: str) -> None:
    assert value_type(text).kind == "other"
    assert value_type(text).nbytes == 0.0


def test_bytes_follow_from_shape_and_dtype() -> None:
    assert value_type("tensor<4x8xbf16>").nbytes == 64.0
    assert value_type("tensor<4x8xi4>").nbytes == 16.0
    assert value_type("tensor<4xi1>").nbytes == 4.0
    assert value_type("tensor<4xi2>").nbytes == 1.0
    assert value_type("tensor<4xi16>").nbytes == 8.0
    assert value_type("tensor<4xi24>").nbytes == 16.0
    assert value_type("tensor<4xi128>").nbytes == 64.0
    assert value_type("tensor<8xf4E2M1FN>").nbytes == 4.0
    assert value_type("tensor<8x!tt.ptr<f32>>").nbytes == 0.0
    assert value_type("tensor<3xcomplex<f64>>").nbytes == 48.0
    with pytest.raises(ValueError, match="dynamic size"):
        _ = value_type("tensor<?xf32>").nbytes


def test_the_same_text_gives_the_same_object() -> None:
    assert value_type("tensor<7x7xf32>") is value_type("tensor<7x7xf32>")


def test_element_types_without_numbers_have_no_dtype() -> None:
    assert [element_dtype(text) for text in ("!tt.ptr<f16>", "none", "i0", "", "f", "i99999999999")] == [None] * 6
    assert element_dtype("i24") == "i24"


def test_lists_are_split_outside_of_brackets_only() -> None:
    assert split_types('tensor<4xf32>, tuple<i1, i2>, (a, b) -> c, #x<"},">') == [
        "tensor<4xf32>", "tuple<i1, i2>", "(a, b) -> c", '#x<"},">',
    ]  # fmt: skip
    assert split_types(" ") == []
    assert split_function_type("(i1, (i2) -> i3) -> (i4, i5)") == (["i1", "(i2) -> i3"], ["i4", "i5"])
    assert split_function_type("() -> ()") == ([], [])
    assert split_function_type("(i1) -> i2") == (["i1"], ["i2"])
    assert first_of_list("(a, b) -> c, next = 1") == "(a, b) -> c"
