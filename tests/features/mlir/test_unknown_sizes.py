"""What is too large, of unknown size or not understood: said, counted as far as it is known, never free."""

from __future__ import annotations

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.program import Program
from kernelcast.features.mlir.understanding import read, understand

SQUARE = 16384


def program(body: str, arguments: str, results: str) -> Program:
    return understand(read(f"func.func @main({arguments}) -> {results} {{\n{body}\n}}"))


def test_a_result_of_unknown_size_is_said_and_left_out_of_the_footprint() -> None:
    result = program(
        '  %0 = "my.compress"(%x) : (tensor<16xf32>) -> tensor<?xf32>\n  return %0 : tensor<?xf32>',
        "%x: tensor<16xf32>", "tensor<?xf32>",
    )  # fmt: skip
    assert result.footprint_b == 64.0
    assert any("tensor<?xf32> is not known" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["tensor<*xf32>", "memref<*xf32>"])
def test_an_unranked_argument_is_no_crash(kind: str) -> None:
    result = program(f'  "my.use"(%x) : ({kind}) -> ()\n  return', f"%x: {kind}", "()")
    assert result.footprint_b == 0.0
    assert any(f"{kind} is not known" in note for note in result.notes)


def test_what_is_not_understood_touches_what_it_is_given_and_gives() -> None:
    kind = f"tensor<{SQUARE}x{SQUARE}xf32>"
    result = program(f'  %0 = "foo.bar"(%x) : ({kind}) -> {kind}\n  return %0 : {kind}', f"%x: {kind}", kind)
    (node,) = result.not_understood
    assert node.bytes_in == node.bytes_out == 4.0 * SQUARE**2
    assert result.bytes == 8.0 * SQUARE**2


@pytest.mark.parametrize("size", ["1000000000000x1000000000000", "9" * 30])
def test_more_elements_than_numbers_are_refused(size: str) -> None:
    kind = f"tensor<{size}xf32>"
    with pytest.raises(SpecError, match=r"more than 2\*\*62 elements"):
        program(f"  %0 = math.exp %x : {kind}\n  return %0 : {kind}", f"%x: {kind}", kind)


@pytest.mark.parametrize("mark", ["\ufeff", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_the_text(mark: str | bytes) -> None:
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}"
    result = read(mark + text if isinstance(mark, str) else mark + text.encode())
    assert result.functions[0].name == "main"
