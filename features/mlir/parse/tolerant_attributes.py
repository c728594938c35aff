"""Attributes of an operation as people write it, in the names and types of the generic form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ..types.graph import ValueType, value_type
from .tolerant_statement import BLANKS, NO_ATTRIBUTES, Statement

_Types = Sequence[str]


def _element(types: _Types) -> str:
    """The element type of the first type, or what a pointer points at, for as many as there are."""
    text = types[0] if types else ""
    pointer = _POINTER.fullmatch(text)
    if pointer:
        return f"{pointer[1]}{pointer[2]}{pointer[3]}"
    array = _ARRAY.fullmatch(text)
    return array[1] if array else text


_POINTER = re.compile(r"(|tensor<(?:\d+x)*)!tt\.ptr<([^<>]*(?:<[^<>]*>)?)(?:, *\d+)?>(.*)", re.DOTALL)
_ARRAY = re.compile(
    r"(?:tensor|memref|vector)<(?:(?:\d+|\?|\*|\[\d+\])x)*([^,<>]+(?:<[^<>]*>)?)[^<>]*(?:<[^<>]*>[^<>]*)*>", re.DOTALL
)
_NUMBER = re.compile(r"(?:(?<=[x<])|^)(?:[su]?i\d+|index|bf16|t?f\d+\w*)(?=[>,]|$)")


def _truth(types: _Types) -> str:
    """The type of a comparison: i1 in the place of the operands' element type."""
    return _NUMBER.sub("i1", types[0], count=1) if types else "i1"


def _always(text: str) -> Callable[[_Types], str]:
    return lambda types: text


def _first(types: _Types) -> str:
    return types[0] if types else ""


_RESULTS: Mapping[str, Callable[[_Types], str]] = {
    **dict.fromkeys(("memref.load", "affine.load", "tensor.extract", "vector.extractelement", "tt.load",
                     "memref.atomic_rmw"), _element),
    **dict.fromkeys(("arith.cmpi", "arith.cmpf", "llvm.icmp", "llvm.fcmp"), _truth),
    **dict.fromkeys(("tensor.dim", "memref.dim", "tensor.rank", "memref.rank", "affine.apply", "affine.min", "affine.max",
                     "gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim", "gpu.global_id"), _always("index")),
    **dict.fromkeys(("tt.addptr", "vector.extract", "vector.insertelement", "math.fpowi"), _first),
    "torch.constant.int": _always("!torch.int"),
    "torch.constant.float": _always("!torch.float"),
    "torch.constant.bool": _always("!torch.bool"),
    "torch.constant.none": _always("!torch.none"),
    "torch.constant.str": _always("!torch.str"),
}  # fmt: skip
"""Result type by operation from the types written after its colon, where it is not the last of them (the operations' assembly
formats in the dialects' .td files)."""


def result_types(name: str, count: int, arrow: _Types | None, written: _Types) -> list[ValueType]:
    """Types of `count` results: those after an arrow, else by the operation, else the last ones written, else nothing known."""
    if arrow is not None and len(arrow) >= count:
        chosen = list(arrow[:count])
    elif name in _RESULTS:
        chosen = [_RESULTS[name](written)] * count
    elif len(written) >= count:
        chosen = list(written[len(written) - count :])
    elif written:
        chosen = [written[-1]] * count
    elif name.endswith(".constant"):
        chosen = ["i1"] * count  # `arith.constant true` is the one constant that has no type
    else:
        chosen = [""] * count
    return [value_type(text) for text in chosen]


_LIST = r"\[([\d, ]*)\]"
_ANY_LIST = r"\[([\w\-:, ]*)\]"


def _renamed(short: str, generic: str) -> tuple[re.Pattern[str], str]:
    """A list of integers by its generic name and form, `array<i64: 1, 2>`."""
    return re.compile(rf"\b{short} = {_ANY_LIST}"), rf"{generic} = array<i64: \1>"


def _ranges(result: re.Match[str]) -> str:
    """`[0:4, 2:8:2]` as starts, limits and strides."""
    bounds = [part.strip().split(":") for part in result[1].split(",")] if result[1].strip() else []
    columns = [[bound[i] if i < len(bound) else "1" for bound in bounds] for i in range(3)]
    names = ("start_indices", "limit_indices", "strides")
    return ", ".join(f"{name} = array<i64: {', '.join(column)}>" for name, column in zip(names, columns, strict=True))


_Rewrites = Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
_REWRITES: Mapping[str, _Rewrites] = {
    "stablehlo.dot_general": (
        (re.compile(rf"batching_dims = {_LIST} x {_LIST}"), r"lhs_batching_dimensions = [\1], rhs_batching_dimensions = [\2]"),
        (re.compile(rf"contracting_dims = {_LIST} x {_LIST}"),
         r"lhs_contracting_dimensions = [\1], rhs_contracting_dimensions = [\2]"),
        (re.compile(r"^(lhs_.*rhs_contracting_dimensions = \[[^\]]*\])"), r"dot_dimension_numbers = #stablehlo.dot<\1>"),
    ),
    "stablehlo.convolution": (
        (re.compile(r"dim_numbers = (\[.*?->\[[^\]]*\])"), r"dimension_numbers = #stablehlo.conv<\1>"),
        (re.compile(r"\bwindow =,? *"), ""),
        _renamed("stride", "window_strides"), _renamed("lhs_dilate", "lhs_dilation"), _renamed("rhs_dilate", "rhs_dilation"),
        (re.compile(r"\bpad = (\[\[.*?\]\])"), r"padding = dense<\1>"),
    ),
    "stablehlo.broadcast_in_dim": (_renamed("dims", "broadcast_dimensions"),),
    "stablehlo.dynamic_broadcast_in_dim": (_renamed("dims", "broadcast_dimensions"),),
    "stablehlo.transpose": (_renamed("dims", "permutation"),),
    "stablehlo.reverse": (_renamed("dims", "dimensions"),),
    "stablehlo.reduce": (_renamed("dimensions", "dimensions"), (re.compile(r"\bacross "), ", ")),
    "stablehlo.concatenate": ((re.compile(r"\bdim = (\d+)"), r"dimension = \1 : i64"),),
    "stablehlo.get_dimension_size": ((re.compile(r"\bdim = (\d+)"), r"dimension = \1 : i64"),),
    "stablehlo.iota": ((re.compile(r"\bdim = (\d+)"), r"iota_dimension = \1 : i64"),),
    "stablehlo.slice": ((re.compile(rf"^{_ANY_LIST}"), _ranges),),
    "stablehlo.dynamic_slice": (_renamed("sizes", "slice_sizes"),),
    "stablehlo.pad": (
        _renamed("low", "edge_padding_low"), _renamed("high", "edge_padding_high"), _renamed("interior", "interior_padding"),
    ),
    "stablehlo.fft": (
        (re.compile(r"\btype = (\w+)"), r"fft_type = #stablehlo<fft_type \1>"), _renamed("length", "fft_length"),
    ),
    "stablehlo.compare": (
        (re.compile(r"^(EQ|NE|GE|GT|LE|LT)\b"), r"comparison_direction = #stablehlo<comparison_direction \1>"),
    ),
    "stablehlo.custom_call": ((re.compile(r"^@([\w$.\-]+)"), r'call_target_name = "\1"'),),
    "linalg.softmax": ((re.compile(r"^dimension\((\d+)\)"), r"dimension = \1 : i64"),),
    "func.call": ((re.compile(r"^(@[\w$.\-]+)"), r"callee = \1"),),
    "affine.for": (
        (re.compile(r"= (-?\d+) to"), r"lowerBoundMap = affine_map<() -> (\1)>, to"),
        (re.compile(r"\bto (-?\d+)"), r"upperBoundMap = affine_map<() -> (\1)>"),
        (re.compile(r"\bstep (\d+)"), r", step = \1 : index"),
    ),
}  # fmt: skip
"""What generic form calls what the short form writes otherwise, by operation (StableHLO's and MLIR's .td files)."""


def generic_attributes(name: str, text: str) -> str:
    """Attribute text of a short form, names of generic form where the two differ and the difference is known."""
    for pattern, replacement in _REWRITES.get(name, ()):
        text = pattern.sub(replacement, text, count=1)
    return text.strip(" ,").replace("array<i64: >", "array<i64>")


_APPLIED = {
    **dict.fromkeys(("stablehlo.reduce", "stablehlo.reduce_window"), re.compile(r"^applies ([\w.]+)")),
    **dict.fromkeys(("linalg.map", "linalg.reduce"), re.compile(r"^((?:arith|math)\.\w+)")),
}


def applied(name: str, attributes: str) -> str:
    """The one operation of the region that `stablehlo.reduce(…) applies OP`, `linalg.map { OP }` and `linalg.reduce { OP }`
    stand for; empty where nothing is applied.
    """
    result = _APPLIED[name].match(attributes) if name in _APPLIED else None
    return result[1] if result else ""


_VISIBILITIES = {"private": "private", "nested": "nested", "internal": "private"}
_NAMED = re.compile(r"(?:^|\.)(?:func|module|global|executable|variant|export|named_sequence)$")
_AFTER_TYPE = frozenset((",", "{", ")", "loc"))
_LEFT_OVER_COMMAS = re.compile(r"(?:\s*,){2,}")
_PROPERTIES = re.compile(r"^<\s*(.*?)\s*>(?=$|[\s,])")


def attributes_of(statement: Statement, written: Sequence[str]) -> str:
    """The text of its attributes: what is neither value nor type, braces left off."""
    if statement.is_function and _symbol(statement):
        return _function_attributes(statement)
    text = _attribute_text(statement)
    if statement.name.endswith(".constant") or statement.name == "llvm.mlir.constant":
        of_type = f" : {written[-1]}" if written else ""
        return f"value = {text}{of_type}" if not text.startswith("value =") else text
    symbol = _symbol(statement) if _NAMED.search(statement.name) else ""
    text = generic_attributes(statement.name, text)
    return ", ".join(filter(None, (f'sym_name = "{symbol}"' if symbol else "", text)))


def _function_attributes(statement: Statement) -> str:
    arrow = statement.last("->")
    inputs = [kind for _, kind in statement.typed_definitions()] or _declared(statement)
    outs = statement.types_from(arrow + 1) if arrow is not None else []
    about = _argument_attributes(statement)
    words = [token.text for token in statement.tokens[:4]]
    visibility = next((_VISIBILITIES[word] for word in words if word in _VISIBILITIES), "")
    return ", ".join(filter(None, (
        f'sym_name = "{_symbol(statement)}"',
        f'sym_visibility = "{visibility}"' if visibility else "",
        f"arg_attrs = [{', '.join(about)}]" if any(item != "{}" for item in about) else "",
        f"function_type = ({', '.join(inputs)}) -> ({', '.join(outs)})",
    )))  # fmt: skip


def _argument_attributes(statement: Statement) -> list[str]:
    """The braces after each argument's type, `{}` where there are none."""
    results = []
    for position, token in enumerate(statement.tokens[:-1]):
        if token.kind != "value" or statement.tokens[position + 1].text != ":":
            continue
        end, depth = position + 2, statement.depths[position]
        while end < len(statement.tokens) and (
            statement.depths[end] > depth or statement.tokens[end].text not in _AFTER_TYPE
        ):
            end += 1
        has = end < len(statement.tokens) and statement.tokens[end].text == "{"
        group = statement.tokens[end : statement.end_of_group(end)] if has else []
        results.append(statement.expand(BLANKS.sub(" ", statement.slice(group))) if has else "{}")
    return results


def _declared(statement: Statement) -> list[str]:
    """Argument types of a declaration, which names no arguments."""
    for position, token in enumerate(statement.tokens):
        if token.text == ")" and statement.depths[position] == 0:
            group = statement.group_before(position)
            return statement.unfolded(f"({statement.source[group[0].start : group[-1].end]})") if group else []
    return []


def _attribute_text(statement: Statement) -> str:
    """Its text without values, groups with values in them, types, braces and locations."""
    items: list[str] = []
    position = 0
    stop = _types_start(statement)
    while position < len(statement.tokens):
        token = statement.tokens[position]
        end = statement.end_of_group(position)
        group = statement.tokens[position:end]
        if token.text == "(" and end == position + 2:
            position = end
            continue
        if token.text == "loc":
            position = statement.end_of_group(position + 1)
            continue
        if token.text == "{" or (token.text == "<" and len(group) > 1 and group[1].text == "{"):
            inner = group[2:-2] if token.text == "<" else group[1:-1]
            items.append(f", {statement.slice(inner)}, ")
        elif position < stop and not any(inner.kind in NO_ATTRIBUTES for inner in group) and token.text != "attributes":
            gap = "" if position == 0 or statement.tokens[position - 1].end == token.start else " "
            items.append(gap + statement.slice(group))
        position = end
    text = _LEFT_OVER_COMMAS.sub(",", BLANKS.sub(" ", "".join(items))).strip(" ,")
    return statement.expand(_PROPERTIES.sub(r"\1", text).replace(" ,", ","))


def _types_start(statement: Statement) -> int:
    """Where types begin, after which nothing but braces is an attribute."""
    arrow, colon = statement.last("->"), statement.last(":")
    starts = [position for position in (arrow, colon) if position is not None]
    return min(starts, default=len(statement.tokens))


def _symbol(statement: Statement) -> str:
    """The name after the first `@` outside of brackets; empty without one, as in generic form."""
    for token, depth in zip(statement.tokens, statement.depths, strict=True):
        if token.kind == "symbol" and depth == 0:
            return token.text[1:].strip('"')
    return ""
