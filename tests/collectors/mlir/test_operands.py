"""What a module's function takes, read from its text, and data for it."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.collectors.mlir.measure.bench import relative_error, sample
from kernelcast.collectors.mlir.operands import BELOW, Argument, Signature, operands, signature
from kernelcast.collectors.runner import UnsupportedCaseError
from kernelcast.datasets.records.mlir_modules import main_dialect

JAX = """module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func private @helper(%arg0: tensor<3xf32>) -> tensor<3xf32> { return %arg0 : tensor<3xf32> }
  func.func public @main(%arg0: tensor<64x32xf32> {jax.name = "a, (b"}, %arg1: tensor<ui32>,
      %arg2: tensor<4x?xf32> loc("x")) -> (tensor<64x32xf32> {jax.result_info = "r"}) {
  }
}"""


def test_the_public_function_is_read_with_attributes_and_private_functions_around_it() -> None:
    result = signature(JAX.replace("4x?xf32", "4x5xbf16, #enc<1>"))
    assert result.function == "main"
    assert result.arguments == (Argument((64, 32), "f32"), Argument((), "ui32"), Argument((4, 5), "bf16"))
    assert result.nbytes == 64 * 32 * 4 + 4 + 4 * 5 * 2


@pytest.mark.parametrize(
    ("written", "argument"),
    [("!torch.vtensor<[2,3],f32>", Argument((2, 3), "f32")), ("!torch.vtensor<[],si64>", Argument((), "i64")),
     ("!torch.vtensor<[7],i1>", Argument((7,), "i1")), ("f32", Argument(None, "f32")), ("index", Argument(None, "index")),
     ("tensor<2xi1>", Argument((2,), "i1"))],
)  # fmt: skip
def test_types_of_every_dialect(written: str, argument: Argument) -> None:
    assert signature(f"func.func @f(%a: {written}) {{\n}}").arguments == (argument,)


def test_the_generic_form_is_read() -> None:
    item = '"func.func"() <{arg_attrs = [{}, {a = 1}], function_type = (TYPES) -> tensor<2xf32>, sym_name = "NAME"VISIBLE}> ({'
    private = item.replace("TYPES", "f32").replace("NAME", "helper").replace("VISIBLE", ', sym_visibility = "private"')
    public = item.replace("TYPES", "tensor<2x3xf32>, tensor<i1>").replace("NAME", "main").replace("VISIBLE", "")
    assert signature(private + "\n})\n" + public) == Signature("main", (Argument((2, 3), "f32"), Argument((), "i1")))


def test_a_function_without_arguments_has_none() -> None:
    assert signature("func.func @f() -> f32 {").arguments == ()


@pytest.mark.parametrize(
    "text",
    ["", "not mlir at all", "func.func private @f(%a: f32)", "func.func @f(%a: memref<3xf32>) {", JAX,
     "func.func @f(%a: tensor<3xcomplex<f32>>) {", "func.func @f(%a: !torch.vtensor<[?],f32>) {",
     ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedCaseError):
        signature(text)


def test_operands_are_seeded_and_in_range() -> None:
    wanted = [Argument((50, 3), "f32"), Argument((9,), "bf16"), Argument((400,), "i32"), Argument((400,), "i1"),
              Argument(None, "index"), Argument((2,), "f64"), Argument((3,), "f16")]  # fmt: skip
    first, again, other = (operands(wanted, seed) for seed in (1, 1, 2))
    assert [array.dtype.name for array in first] == [
        "float32",
        "uint16",
        "int32",
        "bool",
        "int64",
        "float64",
        "float16",
    ]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert set(np.unique(first[2])) == set(range(BELOW))
    assert 0.2 < first[3].mean() < 0.8
    assert [array.nbytes for array in first] == [argument.nbytes for argument in wanted]
    # The bits of bfloat16 are the upper half of a float32: read as such, they are standard normal.
    values = (operands([Argument((4000,), "bf16")], 3)[0].astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1.0) < 0.1


def test_a_sample_sees_what_is_not_finite_and_leaves_integers_out() -> None:
    whole = np.arange(1000, dtype=np.float32)
    seen = sample([whole, np.arange(5)])
    assert seen.finite
    assert len(seen.values) == 64
    assert sample([whole]) == seen
    whole[999] = np.inf
    assert not sample([whole]).finite


def test_relative_error() -> None:
    assert relative_error((1.0, 2.0), (1.0, 2.0)) == 0.0
    assert relative_error((-1.0, -2.0), (1.0, 2.0)) == pytest.approx(2.0)
    assert relative_error((1.0, float("nan")), (1.0, 5.0)) == 0.0
    assert relative_error((1.0,), (1.0, 2.0)) == float("inf")
    assert relative_error((1.0,), (0.0,)) == float("inf")
    assert relative_error((), ()) is None


@pytest.mark.parametrize(
    ("text", "dialect"),
    [("%0 = stablehlo.add %a, %b", "stablehlo"), ('%0 = "tosa.const"() <{}> : () -> f32\n%1 = arith.addf', "tosa"),
     ("%0 = torch.aten.mm %a\n%1 = stablehlo.add", "torch"), ("%0 = chlo.erf %a", "stablehlo"),
     ("scf.for %i = %a to %b {\n%1 = memref.load %x\n%2 = memref.load %y", "memref"), ("", "builtin"),
     ("%0 = linalg.matmul ins(%a)\n%1 = tensor.empty()\n%2 = tensor.empty()", "linalg")],
)  # fmt: skip
def test_main_dialect(text: str, dialect: str) -> None:
    assert main_dialect(f"func.func @f() {{\n{text}\n}}") == dialect
