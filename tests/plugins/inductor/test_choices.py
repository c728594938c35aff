"""Inductor's choices read as kernels of the gemm family."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.plugins.inductor.choices import Surroundings, product_of, read

AROUND = Surroundings(threads=2)


def spec(choices: list[Any], at: int, around: Surroundings = AROUND) -> Any:
    product = product_of(choices, around)
    assert product is not None
    return read(choices[at], product, around).spec


def test_a_triton_template_is_a_gemm_with_its_knobs(make: Any) -> None:
    result = spec(make.mm_list(512, 768, 1024, [(128, 64, 32)]), 1)
    assert str(result) == (
        "gemm[batch=1,m=512,n=768,k=1024]:bf16 triton group_m=8 split_k=1 stages=3 tile_k=32 tile_m=128 tile_n=64 warps=4"
    )
    # Inductor empties the L2 of a GPU before every call, and a GPU has no thread count.
    assert (result.cache_state, result.threads) == ("cold", None)


def test_the_library_call_beside_it_is_torch(make: Any) -> None:
    result = spec(make.mm_list(512, 768, 1024, [(128, 64, 32)]), 0)
    assert (result.impl, result.config, result.dtype) == ("torch", (), "bf16")


@pytest.mark.parametrize(
    ("a_stride", "b_stride", "variant"),
    [((32, 1), (24, 1), ""), ((32, 1), (1, 32), "nt"), ((1, 16), (24, 1), "tn"), ((1, 16), (1, 32), "tt")],
)
def test_strides_say_which_operand_is_transposed(make: Any, a_stride: Any, b_stride: Any, variant: str) -> None:
    nodes = [make.Node((16, 32), a_stride), make.Node((32, 24), b_stride)]
    assert spec([make.extern("mm", nodes, (16, 24))], 0).variant == variant


def test_an_operand_with_gaps_in_both_directions_is_no_row_but_is_ranked(make: Any) -> None:
    nodes = [make.Node((16, 32), (128, 2)), make.Node((32, 24))]
    product = product_of([make.extern("mm", nodes, (16, 24))], AROUND)
    assert product is not None
    assert product.variant is None
    assert product.sizes == {"batch": 1, "m": 16, "n": 24, "k": 32}


def test_a_bias_row_is_the_bias_variant_and_a_full_matrix_is_none(make: Any) -> None:
    a, b = make.operands(16, 24, 32)
    row = make.extern("addmm", [make.Node((16, 24), (0, 1)), a, b], (16, 24))
    assert spec([row], 0).variant == "bias"
    full = product_of([make.extern("addmm", [make.Node((16, 24)), a, b], (16, 24))], AROUND)
    assert full is not None
    assert full.variant is None


def test_of_a_square_addmm_the_operands_are_told_from_what_is_added(make: Any) -> None:
    a, b = make.operands(32, 32, 32)
    choice = make.extern("addmm", [make.Node((32, 32), (0, 1)), a, b], (32, 32))
    assert spec([choice], 0).variant == "bias"


def test_a_batch_is_read(make: Any) -> None:
    nodes = [make.Node((4, 16, 32)), make.Node((4, 32, 24))]
    choices = [make.extern("bmm", nodes, (4, 16, 24)), make.triton((16, 16, 16), nodes, (4, 16, 24), template="bmm")]
    assert [spec(choices, at).impl for at in (0, 1)] == ["torch", "triton"]
    assert (spec(choices, 1)["batch"], spec(choices, 1).variant) == (4, "batched")


def test_scales_of_an_fp8_product_are_no_bias(make: Any) -> None:
    nodes = [*make.operands(16, 24, 32, "float8_e4m3fn"), make.Node((16, 1), dtype="float32"),
             make.Node((1, 24), dtype="float32")]  # fmt: skip
    nodes[1] = make.Node((32, 24), (1, 32), "float8_e4m3fn")
    plain = spec([make.extern("_scaled_mm", nodes, (16, 24))], 0)
    assert (plain.dtype, plain.variant, plain["k"]) == ("fp8", "nt", 32)
    biased = spec([make.extern("_scaled_mm", [*nodes, make.Node((24,))], (16, 24))], 0)
    assert biased.variant == "bias"


def test_an_int8_product_has_an_int32_result(make: Any) -> None:
    choice = make.extern("_int_mm", make.operands(32, 32, 32, "int8"), (32, 32), dtype="int32")
    assert spec([choice], 0).dtype == "int8"


def test_a_result_in_another_format_than_the_family_s_is_no_row(make: Any) -> None:
    product = product_of([make.extern("mm", make.operands(16, 24, 32), (16, 24), dtype="float32")], AROUND)
    assert product is not None
    assert product.variant is None


def test_rounding_to_tf32_is_a_dtype_of_its_own(make: Any) -> None:
    nodes = make.operands(16, 24, 32, "float32")
    choices = [make.extern("mm", nodes, (16, 24), dtype="float32"),
               make.triton((16, 16, 16), nodes, (16, 24), tf32=True, dtype="float32"),
               make.triton((16, 16, 16), nodes, (16, 24), tf32=False, dtype="float32")]  # fmt: skip
    assert [spec(choices, at).dtype for at in range(3)] == ["fp32", "tf32", "fp32"]
    assert spec(choices, 0, Surroundings(library_tf32=True)).dtype == "tf32"


def test_other_templates_and_calls_of_the_same_product_are_told_apart(make: Any) -> None:
    nodes = make.operands(16, 24, 32)
    choices = [make.extern("mm", nodes, (16, 24)),
               make.triton((16, 16, 16), nodes, (16, 24), template="mm_persistent_tma"),
               make.extern("bias_addmm", nodes, (16, 24)), make.other(nodes, (16, 24))]  # fmt: skip
    impls = [spec(choices, at).impl for at in range(4)]
    assert impls == ["torch", "triton-mm-persistent-tma", "torch-bias-addmm", "inductor-convolutioncaller"]


def test_a_linear_layer_on_a_cpu(make: Any) -> None:
    choices = make.cpu_list(48, 80, 96)
    cpp, mkl = spec(choices, 0), spec(choices, 1)
    # The C++ template sees packed weights only; the library call beside it says how they lay.
    assert (cpp.impl, cpp.variant, cpp.threads, cpp.cache_state) == ("cpp", "nt", 2, "hot")
    assert dict(cpp.config) == {"inner_m": 16, "inner_n": 16, "inner_k": 1, "tile_m": 48, "tile_n": 16, "tile_k": 96}
    assert (mkl.impl, mkl.variant, mkl["k"]) == ("torch-mkl-linear", "nt", 96)


def test_a_linear_layer_fused_with_what_follows_is_no_product(make: Any) -> None:
    nodes = [make.Node((48, 96)), make.Node((80, 96), (1, 0))]
    assert product_of([make.extern("_linear_pointwise", nodes, (48, 80), attr="relu")], AROUND) is None
    assert spec([make.extern("_linear_pointwise", nodes, (48, 80), attr="none")], 0).variant == "nt"


def test_a_template_alone_says_its_sizes(make: Any) -> None:
    assert spec([make.cpp(48, 80, 96, batch=4)], 0)["batch"] == 4
    biased = product_of([make.cpp(48, 80, 96, bias=True)], AROUND)
    assert biased is not None
    assert biased.variant is None


@pytest.mark.parametrize("name", ["mm_plus_mm", "convolution", "flex_attention", ""])
def test_what_is_no_single_product_is_not_read(make: Any, name: str) -> None:
    assert product_of([make.extern(name, make.operands(16, 16, 16), (16, 16))], AROUND) is None


@pytest.mark.parametrize("tile", ["(s0, 32, 64)", "(-1, -1, -1)", "(16, 16)", "", "(" * 500, "__import__('os')"])
def test_a_tile_that_cannot_be_read_gives_no_knobs(make: Any, tile: str) -> None:
    choices = make.mm_list(512, 768, 1024, [(128, 64, 32)])
    choices[1].log_info["tile_shape"] = tile
    product = product_of(choices, AROUND)
    assert product is not None
    assert read(choices[1], product, AROUND).knobs == {}


def test_symbolic_sizes_are_what_inductor_times_with(make: Any) -> None:
    nodes = [make.Node(("s0", 32), (32, 1)), make.Node((32, 24))]
    choices = [make.extern("mm", nodes, ("s0", 24))]
    assert product_of(choices, AROUND) is None
    hinted = Surroundings(hints=lambda sizes, hint: tuple(77 if size == "s0" else int(size) for size in sizes))
    product = product_of(choices, hinted)
    assert product is not None
    assert product.m == 77


@pytest.mark.parametrize("out", [(0, 24), (16,), (2, 3, 16, 24), ("x", "y")])
def test_odd_results_are_not_read_as_rows(make: Any, out: Any) -> None:
    choices = [make.extern("mm", make.operands(16, 24, 32), out)]
    product = product_of(choices, AROUND)
    assert product is None or read(choices[0], product, AROUND).spec is None


def test_objects_without_any_field_are_not_read() -> None:
    assert product_of([object(), None, 3], AROUND) is None
    assert product_of([], AROUND) is None
