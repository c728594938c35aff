"""Texts of equal layers: a few are read, and the program is the one that reading all of them gives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.mlir import understanding
from kernelcast.features.mlir.parse.repeated_layers import repeated_layers
from kernelcast.features.mlir.program import Program
from kernelcast.features.mlir.understanding import no_native_parser, read, understand
from kernelcast.features.mlir.vectors.program_vector import extract

T, R = "tensor<16x16xf32>", "tensor<16xf32>"
RELU = f"""func.func private @relu(%a: {T}) -> {T} {{
  %z = stablehlo.constant dense<0.0> : {T}
  %r = stablehlo.maximum %a, %z : {T}
  return %r : {T}
}}
"""

Layer = Callable[[int, str], list[str]]


def product(i: int, x: str) -> list[str]:
    """A layer: a product with weights of its own, a bias for all, an exponential, what came in."""
    return [
        f"%a{i} = stablehlo.dot_general {x}, %w{i}, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}",
        f"%b{i} = stablehlo.broadcast_in_dim %bias, dims = [1] : ({R}) -> {T}",
        f"%c{i} = stablehlo.add %a{i}, %b{i} : {T}",
        f"%d{i} = stablehlo.exponential %c{i} : {T}",
        f"%x{i + 1} = stablehlo.add {x}, %d{i} : {T}",
    ]


def stack(n: int = 12, layer: Layer = product, *, before: str = "", returned: str = "", after: str = "") -> str:
    """A module of `n` layers."""
    lines = [line for i in range(n) for line in layer(i, f"%x{i}")]
    weights = "".join(f", %w{i}: {T}" for i in range(n) if f"%w{i} =" not in before)
    outputs = [f"%x{n}", *returned.split()]
    kinds = ", ".join([T] * len(outputs))
    body = "\n  ".join([*before.splitlines(), *lines, f"return {', '.join(outputs)} : {kinds}"])
    return f"func.func @main(%x0: {T}, %bias: {R}{weights}) -> ({kinds}) {{\n  {body}\n}}\n{after}"


def readings(text: str, monkeypatch: pytest.MonkeyPatch, **native: Any) -> tuple[Program, Program, bool]:
    """The program by a few layers, by all, and whether all were needed after all."""
    module = read(text, **native)
    assert module.shortened is not None
    whole: list[int] = []
    read_whole = module.shortened.read_whole
    module.shortened = module.shortened._replace(read_whole=lambda: whole.append(1) or read_whole())  # type: ignore[func-returns-value]
    shorter = understand(module)
    return shorter, by_every_line(text, monkeypatch, **native), bool(whole)


def by_every_line(
    text: str, monkeypatch: pytest.MonkeyPatch, bind: Mapping[str, int] | None = None, **native: Any
) -> Program:
    """The program of a text of which every line is read."""
    with monkeypatch.context() as patch:
        patch.setattr(understanding, "repeated_layers", lambda text: None)
        return understand(read(text, **native), bind=bind)


def said(program: Program) -> Any:
    """All that a program says, values by what makes them."""
    names: dict[int, object] = {value: ("argument", i) for i, value in enumerate(program.arguments)}
    for i, node in enumerate(program.nodes):
        names |= {value: (i, j) for j, value in enumerate(node.results)}

    def named(values: tuple[int, ...]) -> list[object]:
        return [names.get(value, program.types[value].text) for value in values]

    nodes = [
        (
            named(node.operands),
            named(node.results),
            [program.types[value].text for value in node.results],
            *(getattr(node, name) for name in node.__slots__ if name not in ("operands", "results")),
        )
        for node in program.nodes
    ]
    return nodes, list(program.groups), named(program.outputs), program.notes, program.unread_share


def assert_same(shorter: Program, whole: Program) -> None:
    """Both say the same, to the model as well."""
    assert said(shorter) == said(whole)
    device = catalogue().get("amd-epyc-9005-vm-2c")
    assert_equal_arrays(extract(shorter, device), extract(whole, device))


def assert_equal_arrays(one: Any, other: Any) -> None:
    """Two objects have the same arrays, those of objects in them among them."""
    if not hasattr(one, "__slots__"):
        np.testing.assert_array_equal(one, other)
        return
    for name in one.__slots__:
        assert_equal_arrays(getattr(one, name), getattr(other, name))


CONSTANTS = "\n".join(f"%w{i} = stablehlo.constant dense_resource<layer_{i}> : {T}" for i in range(12))
RETURNED = " ".join(f"%c{i}" for i in range(12))


def called(i: int, x: str) -> list[str]:
    """A layer that calls a function."""
    return [
        *product(i, x)[:-1],
        f"%e{i} = func.call @relu(%d{i}) : ({T}) -> {T}",
        f"%x{i + 1} = stablehlo.add {x}, %e{i} : {T}",
    ]


def looped(i: int, x: str) -> list[str]:
    """A layer with a loop in several lines."""
    return [
        *product(i, x)[:-1],
        f"%z{i} = arith.constant 0 : index",
        f"%n{i} = arith.constant 4 : index",
        f"%s{i} = arith.constant 1 : index",
        f"%x{i + 1} = scf.for %i = %z{i} to %n{i} step %s{i} iter_args(%v = %d{i}) -> ({T}) {{",
        f"  %t = stablehlo.tanh %v : {T}",
        f"  scf.yield %t : {T}",
        "}",
    ]


@pytest.mark.parametrize("native", [{}, {"native": no_native_parser}], ids=["native", "tolerant"])
@pytest.mark.parametrize(
    "text",
    [
        stack(),
        stack(before=CONSTANTS),
        stack(returned=RETURNED),
        stack(layer=called, after=RELU),
        stack(layer=looped),
        stack().replace("tensor<16x16xf32>", "tensor<64x64xbf16>").replace("tensor<16xf32>", "tensor<64xbf16>"),
    ],
    ids=["arguments", "constants", "returned", "called", "looped", "other types"],
)
def test_a_few_layers_say_what_all_say(text: str, native: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    shorter, whole, was_needed = readings(text, monkeypatch, **native)
    assert not was_needed
    assert_same(shorter, whole)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("%d7 = stablehlo.exponential", "%d7 = stablehlo.tanh"), "an operation is another"),
        (("%x8 = stablehlo.add %x7, %d7", "%x8 = stablehlo.add %c7, %d7"), "it is wired otherwise"),
        (("%x8 = stablehlo.add %x7, %d7", "%x8 = stablehlo.add %x3, %d7"), "it reads another layer"),
        (("stablehlo.dot_general %x7, %w7", "stablehlo.dot_general %x7, %w6"), "its weights are the layer's before"),
        (("return %x12 :", "return %x8 :"), "another layer's value is returned"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layers_that_differ_are_all_read(change: tuple[str, str], why: str) -> None:
    text = stack()
    assert repeated_layers(text) is not None
    assert change[0] in text
    assert repeated_layers(text.replace(*change)) is None, why


def test_numbers_outside_that_differ_are_no_equal_layers() -> None:
    numbers = "\n".join(f"%w{i} = stablehlo.constant dense<{float(i)}> : {T}" for i in range(12))
    assert repeated_layers(stack(before=numbers)) is None
    assert repeated_layers(stack(before=CONSTANTS)) is not None


def test_layers_in_a_loop_or_with_memory_are_all_read() -> None:
    inside = stack().replace("  %a0 =", f"  %q:1 = scf.execute_region -> {T} {{\n  %a0 =")
    assert repeated_layers(inside.replace("  return", f"  scf.yield %x12 : {T}\n  }}\n  return")) is None
    assert repeated_layers(stack().replace("tensor<16x16xf32>", "memref<16x16xf32>")) is None


def test_equal_functions_are_no_layers() -> None:
    functions = "".join(
        f"func.func @f{i}(%a: {T}) -> {T} {{\n  %b = stablehlo.tanh %a : {T}\n  return %b : {T}\n}}\n"
        for i in range(60)
    )
    assert repeated_layers(functions) is None
    assert repeated_layers("".join(f"func.func @f() {{\n  %b{i} = a.b : {T}\n}}\n" for i in range(200))) is None


def test_any_beginning_of_a_text_is_read() -> None:
    text = stack(14, looped)
    for end in range(0, len(text), 7):
        repeated_layers(text[:end])


def test_layers_of_other_sizes_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def dynamic(i: int, x: str) -> list[str]:
        kinds = "tensor<16x?xf32>", "tensor<?x16xf32>"
        return [
            f"%a{i} = stablehlo.dot_general {x}, %u{i}, contracting_dims = [1] x [0] : ({T}, {kinds[0]}) -> {kinds[0]}",
            f"%b{i} = stablehlo.tanh %a{i} : {kinds[0]}",
            f"%x{i + 1} = stablehlo.dot_general %b{i}, %d{i}, contracting_dims = [1] x [0] : ({kinds[0]}, {kinds[1]}) -> {T}",
        ]

    weights = ", ".join(f"%u{i}: tensor<16x?xf32>, %d{i}: tensor<?x16xf32>" for i in range(24))
    text = stack(24, dynamic).replace(f", %w0: {T}", f", {weights}", 1)
    module = read(text)
    assert module.shortened is not None
    alike = {f"arg{2 + i}.{1 - i % 2}": 64 for i in range(48)}
    for sizes in (alike, alike | {"arg26.1": 4096, "arg27.0": 4096}):
        assert_same(understand(module, bind=sizes), by_every_line(text, monkeypatch, sizes))


def test_numbers_in_the_text_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "!torch.vtensor<[16,16],f32>"
    lines = [f"func.func @main(%x0: {kind}) -> {kind} {{"]
    for i in range(20):
        lines += [
            f"  %n{i} = torch.constant.int 1",
            f"  %y{i} = torch.aten.mm %x{i}, %x{i} : {kind}, {kind} -> {kind}",
            f"  %x{i + 1} = torch.aten.add.Tensor %x{i}, %y{i}, %n{i} : {kind}, {kind}, !torch.int -> {kind}",
        ]
    text = "\n".join([*lines, f"  return %x20 : {kind}", "}", ""])
    shorter, whole, was_needed = readings(text, monkeypatch)
    assert not was_needed
    assert_same(shorter, whole)


def test_names_of_later_functions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    after = f"""func.func private @f(%a: {T}) -> {T} {{
  %x11 = stablehlo.tanh %a : {T}
  %x5 = stablehlo.exponential %x11 : {T}
  %b = stablehlo.add %x11, %x5 : {T}
  return %b : {T}
}}
"""
    text = stack(11, after=after).replace("  return", f"  %e = func.call @f(%x11) : ({T}) -> {T}\n  return", 1)
    text = text.replace("return %x11", "return %e", 1)
    for native in ({}, {"native": no_native_parser}):
        shorter, whole, was_needed = readings(text, monkeypatch, **native)
        assert not was_needed
        assert_same(shorter, whole)


def tower(x: str, name: str, depth: int, kind: str) -> str:
    """Products and an element operation, one after the other."""
    lines = []
    for i in range(depth):
        lines += [
            f"%{name}p{i} = stablehlo.dot_general {x}, {x}, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}",
            f"%{name}{i} = stablehlo.{kind} %{name}p{i} : {T}",
        ]
        x = f"%{name}{i}"
    return "\n".join(lines)


def counted(i: int, x: str) -> list[str]:
    """A layer that counts itself, and loops as often."""
    lines = [f"%i{i} = arith.constant 0 : index"] if i == 0 else []
    return [
        *lines,
        f"%i{i + 1} = arith.addi %i{i}, %one : index",
        *product(i, x)[:-1],
        f"%x{i + 1} = scf.for %k = %zero to %i{i + 1} step %one iter_args(%v = %d{i}) -> ({T}) {{",
        f"  %t = stablehlo.tanh %v : {T}",
        f"  scf.yield %t : {T}",
        "}",
    ]


TURNED = "\n".join(f"%w{i} = stablehlo.transpose %r, dims = [1, 0] : ({T}) -> {T}" for i in range(12))
INDICES = "%zero = arith.constant 0 : index\n%one = arith.constant 1 : index"


@pytest.mark.parametrize(
    "text",
    [
        stack().replace("  return %x12", f"  %y = stablehlo.add %x12, %w11 : {T}\n  return %y"),
        stack(before=tower("%x0", "s", 8, "sine")).replace(
            "  return %x12", f"  %y = stablehlo.add %x12, %s7 : {T}\n  return %y"
        ),
        stack().replace(
            "  return %x12",
            "  " + tower("%x0", "s", 8, "sine") + f"\n  %y = stablehlo.add %x12, %s7 : {T}\n  return %y",
        ),
        stack(before=TURNED.replace("%r", "%x0")),
        stack(layer=counted, before=INDICES),
        stack(returned=" ".join(f"%c{i}" for i in reversed(range(12)))),
        stack(returned="%w11"),
        stack().replace("@main(", '@main(%unused: tensor<f32> {k.a = "100 %w5"}, '),
        stack(before=f"%s = stablehlo.transpose %x0, dims = [1, 0] : ({T}) -> {T}")
        .replace("%bias, dims = [1] : (tensor<16xf32>)", f"%s, dims = [0, 1] : ({T})")
        .replace("  return %x12", f"  %y = stablehlo.add %s, %x12 : {T}\n  return %y"),
    ],
    ids=["last weights", "tower before", "tower after", "weights turned", "counted", "reversed", "weights returned", "string",
         "shared"],
)  # fmt: skip
def test_what_is_around_layers_changes_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(understand(read(text)), by_every_line(text, monkeypatch))


def test_layers_of_a_called_function_have_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ", ".join(f"%w{i}" for i in (1, 0, *range(2, 11), 10))
    inner = stack().replace("func.func @main", "func.func private @f")
    arguments = ", ".join(f"%w{i}: {T}" for i in range(12))
    text = f"""func.func @main(%x0: {T}, %bias: {R}, {arguments}) -> {T} {{
  %y = func.call @f(%x0, %bias, {order}) : ({", ".join([T, R, *[T] * 12])}) -> {T}
  return %y : {T}
}}
{inner}"""
    assert_same(understand(read(text)), by_every_line(text, monkeypatch))


def test_long_words_take_no_longer() -> None:
    words = "dense_resource<" * 100_000
    text, start = stack().replace("{", f'attributes {{k.a = "{words}"}} {{', 1), time.process_time()
    assert repeated_layers(text) is not None
    assert time.process_time() - start < 5.0


def test_a_function_without_the_layers_is_understood() -> None:
    other = stack(1).replace("@main", "@other")
    assert len(understand(read(stack(after=other)), "other").nodes) == 5


def test_layers_with_operations_that_nothing_reads_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = stack(layer=lambda i, x: [*product(i, x), f"%u{i} = stablehlo.negate %d{i} : {T}"])
    shorter, whole, was_needed = readings(text, monkeypatch)
    assert was_needed
    assert "stablehlo.negate ×12" in " ".join(whole.notes)
    assert_same(shorter, whole)


def test_lines_are_those_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = stack(40)
    shorter, _, _ = readings(text, monkeypatch)
    lines = text.splitlines()
    assert {line for node in shorter.nodes if (line := node.line) is not None} == {
        i for i, line in enumerate(lines, 1) if "stablehlo." in line
    }
    assert all(node.line is None or node.op in lines[node.line - 1] for node in shorter.nodes)


def test_a_text_that_native_parsers_refuse_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = stack(40).replace("  return", f"  %y = stablehlo.no_such_operation %x40 : {T}\n  return")
    module = read(text)
    monkeypatch.setattr(understanding, "repeated_layers", lambda text: None)
    assert (module.shortened, bool(module.refusals), module.refusals) == (None, True, read(text).refusals)


def drawn(seed: int) -> str:
    """Layers drawn at random: what they do, and what each operation reads."""
    rng = random.Random(seed)
    kinds = [
        rng.choice(("add", "tanh", "dot", "own", "sum", "number", "transpose", "reshape", "call", "back"))
        for _ in range(rng.randint(4, 12))
    ]
    picks = [(rng.random(), rng.random()) for _ in kinds]

    def layer(i: int, x: str) -> list[str]:
        values, lines = [x], []
        for j, (kind, (one, other)) in enumerate(zip(kinds, picks, strict=True)):
            a, b, v = values[int(one * len(values))], values[int(other * len(values))], f"%v{i}_{j}"
            own, short = f"{i}_{j}", "tensor<256xf32>"
            lines += {
                "add": f"{v} = stablehlo.add {a}, {b} : {T}",
                "back": f"{v} = stablehlo.add {a}, %x{max(i - 1, 0)} : {T}",
                "tanh": f"{v} = stablehlo.tanh {a} : {T}",
                "dot": f"{v} = stablehlo.dot_general {a}, {b}, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}",
                "own": f"{v} = stablehlo.dot_general {a}, %w{i}, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}",
                "sum": f"""%z{own} = stablehlo.constant dense<0.0> : tensor<f32>
  %s{own} = stablehlo.reduce({a} init: %z{own}) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> {R}
  {v} = stablehlo.broadcast_in_dim %s{own}, dims = [0] : ({R}) -> {T}""",
                "number": f"%n{own} = stablehlo.constant dense<2.0> : {T}\n  {v} = stablehlo.multiply {a}, %n{own} : {T}",
                "transpose": f"{v} = stablehlo.transpose {a}, dims = [1, 0] : ({T}) -> {T}",
                "reshape": f"""%f{own} = stablehlo.reshape {a} : ({T}) -> {short}
  {v} = stablehlo.reshape %f{own} : ({short}) -> {T}""",
                "call": f"{v} = func.call @relu({a}) : ({T}) -> {T}",
            }[kind].split("\n  ")
            values.append(v)
        for j, value in enumerate(values[1:-1]):
            lines.append(f"%t{i}_{j} = stablehlo.add {values[-1]}, {value} : {T}")
            values[-1] = f"%t{i}_{j}"
        return [*lines, f"%x{i + 1} = stablehlo.negate {values[-1]} : {T}"]

    return stack(rng.randint(9, 20), layer, after=RELU)


def test_drawn_layers_say_what_all_say(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened = 0
    for seed in range(60):
        text = drawn(seed)
        if read(text).shortened is not None:
            shorter, whole, was_needed = readings(text, monkeypatch)
            assert said(shorter) == said(whole), seed
            shortened += not was_needed
    assert shortened > 25
