"""What is read of IREE's phase `flow`: products and convolutions with their sizes, and why others are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.plugins.iree.compiler import CompileError, compile_text, target_flags
from kernelcast.plugins.iree.dispatches import CONTRACTION, CONVOLUTION, read_dispatches

from .conftest import LEFT, dispatches, function

pytest.importorskip("iree.compiler")


@pytest.mark.parametrize(("name", "sizes", "roles"), [
    ("plain", {"batch": 1, "m": 30, "n": 36, "k": 20, "a_transposed": 0, "b_transposed": 0}, "mnk"),
    ("turned", {"batch": 1, "m": 32, "n": 36, "k": 20, "a_transposed": 0, "b_transposed": 1}, "mnk"),
    ("batched", {"batch": 3, "m": 30, "n": 36, "k": 20, "a_transposed": 0, "b_transposed": 0}, "bmnk"),
    ("vector", {"batch": 1, "m": 1, "n": 96, "k": 64, "a_transposed": 0, "b_transposed": 0}, "nk"),
    ("biased", {"batch": 1, "m": 40, "n": 48, "k": 24, "a_transposed": 0, "b_transposed": 0}, "mnk"),
])  # fmt: skip
def test_products_are_read_with_sizes_and_loops(
    tunable: dict[str, Any], name: str, sizes: dict[str, int], roles: str
) -> None:
    assert tunable[name].kind == CONTRACTION
    assert dict(tunable[name].sizes) == sizes
    assert "".join(tunable[name].roles) == roles


@pytest.mark.parametrize(("name", "sizes", "roles"), [
    ("nhwc", (1, 8, 10, 16, 3, 3, 8, 1, 0), "nhwcyxk"),
    ("nchw", (2, 5, 5, 16, 3, 3, 8, 2, 1), "nchwkyx"),
])  # fmt: skip
def test_convolutions_are_read_with_their_batch_restored(
    tunable: dict[str, Any], name: str, sizes: tuple[int, ...], roles: str
) -> None:
    names = ("batch", "out_h", "out_w", "out_c", "kernel_h", "kernel_w", "in_c", "stride", "layout")
    assert tunable[name].kind == CONVOLUTION
    assert dict(tunable[name].sizes) == dict(zip(names, sizes, strict=True))
    assert "".join(tunable[name].roles) == roles
    assert all("d6" in item for item in tunable[name].maps[:2])


def test_only_weights_that_are_constants_count_as_such(tunable: dict[str, Any]) -> None:
    assert (tunable["biased"].calls, tunable["biased"].constant_calls) == (1, 1)
    assert (tunable["plain"].calls, tunable["plain"].constant_calls) == (1, 0)


def test_kernels_that_do_more_than_the_product_are_known(tunable: dict[str, Any]) -> None:
    assert [name for name, item in tunable.items() if item.fused] == ["biased"]


def test_what_is_not_tuned_is_left_with_a_reason() -> None:
    result = dispatches(LEFT)
    assert not result.tunable
    reasons = {item.name.partition("_dispatch")[0]: item.reason for item in result.left}
    assert set(reasons) == {"half", "deep", "open"}
    assert "bf16" in reasons["half"]
    assert "depthwise" in reasons["deep"]
    assert "when it runs" in reasons["open"]


def test_equal_operations_are_one_and_calls_add_up() -> None:
    text = function("main", "linalg.matmul", "24x24xf32", "24x24xf32", "24x24xf32").replace(
        "  return %result",
        "  %again = linalg.matmul ins(%result, %b : tensor<24x24xf32>, tensor<24x24xf32>) "
        "outs(%filled : tensor<24x24xf32>) -> tensor<24x24xf32>\n  return %again",
    )
    result = dispatches(text)
    assert [item.calls for item in result.tunable] == [2]


def test_text_that_is_no_module_is_refused_in_one_sentence() -> None:
    with pytest.raises(CompileError, match=r"^iree-compile: \S") as raised:
        compile_text("func.func @main(", *target_flags(""), "--compile-to=flow")
    assert "\n" not in str(raised.value)
    with pytest.raises(SpecError, match="flow"):
        read_dispatches("not mlir")


def test_a_compiler_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(CompileError, match="longer than"):
        compile_text(LEFT, *target_flags(LEFT), limit_s=0.001)


def test_torch_is_named_as_the_input_type() -> None:
    assert "--iree-input-type=torch" in target_flags("%0 = torch.aten.mm %a, %b : !torch.vtensor<[2,2],f32>")
    assert "--iree-input-type=torch" not in target_flags("%0 = stablehlo.add %a, %b : tensor<2xf32>")
