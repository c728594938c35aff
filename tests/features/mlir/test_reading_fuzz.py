"""Broken texts of every kind: never anything but an answer or `SpecError`, never a hang."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.types.graph import split_function_type, value_type
from kernelcast.features.mlir.understanding import no_native_parser, read

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "fuzz_mlir.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_mlir", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mutated_texts_of_the_corpus() -> None:
    came_of = script().fuzz(count=200, seed=2, native=None)["came_of"]
    assert sum(came_of.values()) == 200
    assert came_of["tolerant: tolerant"] > 120


_WORDS = st.sampled_from([
    "%0", "%a:2", "=", "a.b", '"a.b"', "(", ")", "{", "}", "<", ">", "[", "]", ":", "->", "tensor<4xf32>", "f32",
    "func.func", "@f", "^bb0", ",", "\n", "scf.for", "to", "iter_args", "ins", "outs", "#m", "!t", "loc", "attributes",
    "//", "\0", "é", "99999",
])  # fmt: skip


@given(st.lists(_WORDS, max_size=60))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_any_sequence_of_words(words: list[str]) -> None:
    try:
        module = read(" ".join(words), native=no_native_parser)
    except SpecError:
        return
    for function in module.functions:
        assert all(0 <= value < len(module.types) for value in function.arguments)


@given(st.text(alphabet='tensormf<>x?*[]()0123456789,->i! #"{}', max_size=60))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_any_text_as_a_type(text: str) -> None:
    value_type(text)
    split_function_type(text)
