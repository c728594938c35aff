"""Reading MLIR text: what comes out for every dialect, and who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelcast.features.mlir.parse.generic_form import NotGenericForm, read_generic
from kernelcast.features.mlir.parse.native_parsers import NativeReading, Reader, ReaderRefusal, installed, read_native
from kernelcast.features.mlir.types.graph import Module, Op, Region, ValueType
from kernelcast.features.mlir.understanding import TOLERANT, no_native_parser, read

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.mlir"))
INSTALLED = [reader.name for reader in installed()]
needs = {name: pytest.mark.skipif(name not in INSTALLED, reason=f"{name} is not installed")
         for name in ("iree", "torch-mlir", "jaxlib", "triton")}  # fmt: skip


def all_ops(regions: tuple[Region, ...]) -> Iterator[Op]:
    for region in regions:
        for block in region.blocks:
            for op in block.ops:
                yield op
                yield from all_ops(op.regions)


def ops_of(module: Module) -> list[Op]:
    return [op for function in module.functions if function.body for op in all_ops((function.body,))]


def summary(module: Module) -> Counter[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Operations with the types of what they read and give, however the values are numbered."""
    return Counter(
        (op.name, tuple(module.types[v].text for v in op.operands), tuple(module.types[v].text for v in op.results))
        for op in ops_of(module)
    )


def corpus(name: str) -> str:
    return (Path(__file__).parent / "corpus" / f"{name}.mlir").read_text()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_every_text_of_the_corpus_is_read_in_full(path: Path) -> None:
    module = read(path.read_bytes())
    assert module.functions
    assert not module.unread
    assert ops_of(module)
    for op in ops_of(module):
        for value in (*op.operands, *op.results):
            assert module.types[value].text, f"{op.name} has a value without a type"


@needs["iree"]
def test_the_graph_of_a_small_function_is_exact() -> None:
    module = read(
        "func.func @f(%a: tensor<4x?xf32>, %b: tensor<8xbf16>) -> (tensor<4x?xf32>, tensor<8xbf16>) {\n"
        "  %0 = stablehlo.exponential %a : tensor<4x?xf32>\n"
        "\n"
        '  %1:2 = "x.two"(%0, %b) <{p = 1 : i64}> {q} : (tensor<4x?xf32>, tensor<8xbf16>)'
        " -> (tensor<4x?xf32>, tensor<8xbf16>)\n"
        "  return %1#0, %1#1 : tensor<4x?xf32>, tensor<8xbf16>\n"
        "}\n"
    )
    (function,) = module.functions
    dynamic = ValueType("tensor", (4, None), "fp32", "tensor<4x?xf32>")
    fixed = ValueType("tensor", (8,), "bf16", "tensor<8xbf16>")
    assert (module.reader, module.refusals) == ("iree", ())
    assert (function.name, function.is_public, function.arguments) == ("f", True, (0, 1))
    assert function.results == (dynamic, fixed)
    assert module.types == [dynamic, fixed, dynamic, dynamic, fixed]
    assert function.body is not None
    assert function.body.blocks[0].ops == [
        Op("stablehlo.exponential", (0,), (2,), line=2),
        Op("x.two", (2, 1), (3, 4), "p = 1 : i64, q", line=4),
        Op("func.return", (3, 4), (), line=5),
    ]


@needs["iree"]
def test_names_used_again_in_other_regions_are_other_values() -> None:
    # Generic form numbers the values of sibling regions alike.
    module = read(corpus("jax_softmax"))
    reductions = [op for op in ops_of(module) if op.name == "stablehlo.reduce"]
    inner = [op.results[0] for reduction in reductions for op in all_ops(reduction.regions) if op.results]
    assert len(reductions) == 2
    assert len(set(inner)) == len(inner) == 2
    assert module.types[inner[0]].text == "tensor<f32>"


@needs["iree"]
def test_blocks_may_use_what_is_defined_further_down() -> None:
    module = read(
        "func.func @f(%c: i1) -> i32 {\n  cf.br ^last\n^middle:\n  return %x : i32\n^last:\n"
        "  %x = arith.constant 1 : i32\n  cf.br ^middle\n}\n"
    )
    returned = next(op for op in ops_of(module) if op.name == "func.return")
    constant = next(op for op in ops_of(module) if op.name == "arith.constant")
    assert returned.operands == constant.results
    assert module.types[returned.operands[0]].dtype == "int32"


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("cf_llvm", [("add", False), ("count", True)]),
        ("scf_memref", [("callee", False), ("loops", True)]),
        ("gpu_old_nvvm", [("scale", True), ("main", True)]),
        ("triton", [("softmax", True)]),
        ("bare_ops", [("", True)]),
        ("unregistered", [("nothing", True), ("other", True)]),
    ],
)
def test_functions_of_every_dialect_are_found(name: str, functions: list[tuple[str, bool]]) -> None:
    for native in (None, no_native_parser):
        module = read(corpus(name), native=native)
        assert [(function.name, function.is_public) for function in module.functions] == functions


def test_a_declaration_has_arguments_and_no_body() -> None:
    for native in (None, no_native_parser):
        declared = read(corpus("scf_memref"), native=native)
        function = declared.functions[0]
        assert function.body is None
        assert [declared.types[v].text for v in function.arguments] == ["memref<?xf32>", "index"]
        assert [kind.text for kind in function.results] == ["f32"]


def test_nested_modules_and_functions_of_any_dialect() -> None:
    text = "module @a { module @b { util.func private @f(%x: f32) -> f32 { util.return %x : f32 } } func.func @g() { return } }"
    for native in (None, no_native_parser):
        assert [(f.name, f.is_public) for f in read(text, native=native).functions] == [("f", False), ("g", True)]


@pytest.mark.parametrize(
    ("name", "reader", "refused"),
    [
        pytest.param("jax_conv", "iree", [], marks=needs["iree"]),
        pytest.param("triton_gpu", "triton", [], marks=needs["triton"]),
        pytest.param("gpu_old_nvvm", TOLERANT, ["iree"], marks=needs["iree"]),
        pytest.param("old_tosa", TOLERANT, ["iree"], marks=needs["iree"]),
        pytest.param("tosa", "torch-mlir", ["iree"], marks=[needs["iree"], needs["torch-mlir"]]),
    ],
)
def test_the_answer_says_who_read_it_and_why_others_did_not(name: str, reader: str, refused: list[str]) -> None:
    module = read(corpus(name))
    assert module.reader == reader
    assert [who for who, _ in module.refusals][: len(refused)] == refused
    for _, why in module.refusals:
        assert 0 < len(why) <= 300
        assert "\n" not in why


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "triton"])
def test_every_native_parser_gives_the_same_graph(name: str) -> None:
    text = corpus("jax_softmax")
    reader = next(reader for reader in installed() if reader.name == name)
    module = read(text, native=lambda text: NativeReading(reader.to_generic(text), name))
    assert module.reader == name
    assert summary(module) == summary(read(text, native=no_native_parser))


def test_weights_left_out_of_the_text_are_read() -> None:
    for native in (None, no_native_parser):
        module = read(corpus("elided_weights"), native=native)
        constants = [op for op in ops_of(module) if op.name.endswith(".constant")]
        assert [module.types[op.results[0]].shape for op in constants] == [(64, 32), (32,)]
        assert all("dense_resource<" in op.attributes and len(op.attributes) < 100 for op in constants)


@needs["iree"]
def test_large_constants_do_not_make_large_attributes() -> None:
    numbers = ", ".join(map(str, range(5000)))
    large, small = f"dense<[{numbers}]> : tensor<5000xi32>", "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>"
    module = read(f"%0 = arith.constant {large}\n%1 = arith.constant {small}")
    first, second = ops_of(module)
    assert len(first.attributes) < 100
    assert "[[1, 2], [3, 4]]" in second.attributes


@needs["iree"]
def test_texts_with_locations_of_their_own_are_read_without_lines() -> None:
    module = read('func.func @f(%a: f32) -> f32 {\n  return %a : f32 loc("model.py":7:1)\n} loc(callsite("f" at "g"))')
    assert [op.line for op in ops_of(module)] == [None]


def test_without_native_parsers_the_tolerant_reader_is_asked() -> None:
    module = read(corpus("jax_conv"), native=no_native_parser)
    assert (module.reader, module.refusals) == (TOLERANT, ())


def test_native_parsers_elsewhere_are_asked_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    query: list[str] = []

    def native(text: str) -> NativeReading:
        query.append(text)
        return NativeReading('"x.y"() : () -> ()', "there", (("here", "closed"),))

    module = read("x.y", native=native)
    assert (query, module.reader, module.refusals) == (["x.y"], "there", (("here", "closed"),))
    module = read("%0 = x.y : f32", native=lambda text: NativeReading("not generic", "there"))
    assert module.reader == TOLERANT
    assert module.refusals == (("there", "printed what is no generic form: not generic"),)


def test_the_chain_asks_by_priority_and_only_who_takes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> str:
        raise ReaderRefusal("no")

    chain = (Reader("a", 1, lambda: True, lambda text: False, str), Reader("b", 2, lambda: True, lambda text: True, refuse),
             Reader("c", 3, lambda: True, lambda text: True, str.upper))  # fmt: skip
    monkeypatch.setattr("kernelcast.features.mlir.parse.native_parsers.installed", lambda: chain)
    assert read_native("x") == NativeReading("X", "c", (("b", "no"),))


@pytest.mark.parametrize(
    "text",
    [
        "hello", '"a.b"() ({', "})", '"a.b"(%0) : () -> ()', '%0 = "a.b"() : () -> ()',
        '"a.b"() : () -> f32',
    ],
)  # fmt: skip
def test_what_is_no_generic_form_is_refused(text: str) -> None:
    with pytest.raises(NotGenericForm):
        read_generic(text, "x")
