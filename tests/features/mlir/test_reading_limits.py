"""What is refused, how it is said, and how fast."""

from __future__ import annotations

import time

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.parse.native_parsers import NativeReading
from kernelcast.features.mlir.parse.text_limits import MAX_DEPTH, MAX_OPS, MAX_TEXT_B, checked_text
from kernelcast.features.mlir.understanding import TOLERANT, no_native_parser, read

FAST_S = 0.3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the MLIR text is empty"),
        (" \n\t", "the MLIR text is empty"),
        (b"\xff\xfe", "must be UTF-8; byte 0 is not"),
        ("\ud800", "must be UTF-8; byte 0 is not"),
        (b"ML\xefR\x01", "this is MLIR bytecode, not text"),
        ("ML\xefR", "this is MLIR bytecode, not text"),
        ("module {}", "there is no operation in the MLIR text"),
        ("// nothing", "there is no operation in the MLIR text"),
        ("What does this cost", "there is no operation in the MLIR text"),
        ("a" * 5000, "a word of more than 4,096 characters"),
    ],
)
def test_what_is_no_module_is_refused_with_what_to_do(text: str | bytes, said: str) -> None:
    with pytest.raises(SpecError, match=said) as error:
        read(text)
    assert error.value.field == "mlir"


@pytest.mark.parametrize(
    "text",
    [
        "x" * (10 << 20), b"x" * (10 << 20), "ü" * (MAX_TEXT_B // 2 + 1),
        *(bracket * 100_000 for bracket in "({[<"), "tensor<" * 100_000, "module {\n" * 50_000, ")" * 1000 + "(" * 1000,
        '"a.b"() ({\n' * 10_000, "(" * MAX_TEXT_B,
    ],
)  # fmt: skip
def test_texts_too_large_or_too_deep_are_refused_at_once(text: str | bytes) -> None:
    start_s = time.process_time()
    with pytest.raises(
        SpecError, match=r"bytes, at most 4,194,304 are read; print it with|nests more than 128 brackets"
    ):
        read(text)
    assert time.process_time() - start_s < FAST_S


def test_brackets_in_strings_comments_and_arrows_are_no_nesting() -> None:
    harmless = [
        'a.b {s = "((((((((\\"(((("} : () -> ()',
        "// (((((((({{{{{{",
        "%c = a.c : (i1) -> i1",
        "affine_set<(d0) : (d0 >= 0)>",
    ]
    assert checked_text("\n".join(harmless * MAX_DEPTH))
    for hidden in ('")))))))))))"', "// }}}}}}}}}}}}}\n"):
        with pytest.raises(SpecError, match="brackets"):
            checked_text(f"({hidden}" * (MAX_DEPTH + 1))


def test_the_deepest_text_that_is_allowed_is_read_by_every_reader() -> None:
    depth = MAX_DEPTH // 2
    text = '"a.b"() ({\n' * depth + "}) : () -> ()\n" * depth
    for native in (None, no_native_parser):
        assert len(read(text, native=native).functions) == 1
    with pytest.raises(SpecError, match="brackets"):
        read('"a.b"() ({\n' * (depth + 1))


def test_too_many_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x.y\n" * 51
    for module, reader in (("tolerant_parser", TOLERANT), ("generic_form", "there")):
        monkeypatch.setattr(f"kernelcast.features.mlir.parse.{module}.MAX_OPS", 50)
        with pytest.raises(SpecError, match=f"more than {MAX_OPS:,} operations; give one function"):
            read(
                text,
                native=no_native_parser if reader == TOLERANT else lambda text: NativeReading(GENERIC, "there"),
            )


GENERIC = '"x.y"() : () -> ()\n' * 51


def test_text_that_means_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.features.mlir.parse.tolerant_tokens._MAX_TOKENS", 1000)
    module = read("a.b\n" + "[]" * 5000 + "\nc.d", native=no_native_parser)
    assert list(module.unread) == ["what follows line 2"]
