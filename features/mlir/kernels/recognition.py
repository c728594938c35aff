"""Recognition: which kernel family a fused group is, with which sizes, and how far the family's kernel differs from it.

Every kind of group has one function here. It answers with a spec where a family fits or can stand in, with words for the
difference, and with a short title.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ...dtypes import DTYPES
from ...errors import SpecError
from ...families.elementwise import FLOPS_PER_ELEMENT
from ...kernel import KernelSpec
from .dataflow import CASTS, Flow
from .idioms import Cluster, activation


@dataclass(frozen=True, slots=True)
class Recognised:
    """The kernel that a group of operations amounts to.

    Attributes:
        spec: The kernel, None where no family fits.
        stand_in: How the spec differs from the group, empty where it is the same.
        title: A short title for people.
    """

    spec: KernelSpec | None
    stand_in: str
    title: str


@lru_cache(maxsize=8192)
def _spec(family: str, dtype: str, variant: str, sizes: tuple[tuple[str, float], ...]) -> KernelSpec | None:
    """The spec of a family with these sizes; None where the family does not take them or does not know the dtype."""
    if dtype not in DTYPES or any(size != size or size in (float("inf"), float("-inf")) for _, size in sizes):
        return None
    dims: dict[str, Any] = {name: int(size) for name, size in sizes}
    try:
        return KernelSpec.of(family, dtype, variant=variant, **dims)
    except SpecError:
        return None


def recognise(cluster: Cluster, flow: Flow) -> Recognised:
    """What a cluster of fused nodes is; its `nodes` are in order."""
    return _KINDS.get(cluster.kind, _other)(cluster, flow)


def dtype_of(cluster: Cluster, flow: Flow) -> str:
    """The dtype a group computes in: its main operation's, else the first that kernels know."""
    main = flow.nodes[cluster.root].dtype
    if main in DTYPES and cluster.kind != "elementwise":
        return main
    return next(
        (flow.nodes[index].dtype for index in reversed(cluster.nodes) if flow.nodes[index].dtype in DTYPES), main
    )


def _around(cluster: Cluster, flow: Flow, members: Iterable[int] = ()) -> list[int]:
    """The element operations fused with a group's main operation, changes of number format left out."""
    apart = {cluster.root, *members}
    return [index for index in cluster.nodes if index not in apart and _counts(flow, index)]


def _counts(flow: Flow, index: int) -> bool:
    node = flow.nodes[index]
    return node.kind == "elementwise" and flow.operators[index] not in CASTS


def _names(flow: Flow, indices: Sequence[int]) -> list[str]:
    return [_name(flow, index) for index in indices]


def _name(flow: Flow, index: int) -> str:
    """An operation's name; a maximum with a single number is a relu."""
    operator = flow.operators[index]
    if operator == "maximum" and any(map(flow.is_uniform, flow.nodes[index].operands)):
        return "relu"
    return operator


def _chain(names: Sequence[str]) -> str:
    """A chain of operations in few words."""
    if not names:
        return ""
    if len(names) > 1 and (known := activation(list(names))):
        return known
    return ", ".join(map(_plain, names)) if len(names) <= 2 else f"{len(names)} ops"


def _plain(name: str) -> str:
    """A name as read: the u of an operator on a tensor and a number is the family's."""
    return name[:-1] if name in _WITH_NUMBER else name


def _without(names: Sequence[str], what: str) -> str:
    if not names:
        return ""
    return f"{what} alone, without {_counted(len(names), 'element operation')} fused into it ({_chain(names)})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _contraction(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    batch, m, n, k = node.loops
    lhs = bool(node.detail.get("lhs_transposed")) != cluster.swapped[0]
    rhs = bool(node.detail.get("rhs_transposed")) != cluster.swapped[1]
    if cluster.turned:
        m, n, lhs, rhs = n, m, not rhs, not lhs
    rest = _around(cluster, flow)
    bias = next((index for index in rest if flow.operators[index] == "add" and _adds_row(flow, index, n)), None)
    extra = _names(flow, [index for index in rest if index != bias])
    layout = ("t" if lhs else "n") + ("t" if rhs else "n")
    variant = layout if layout != "nn" else "batched" if batch > 1 else "bias" if bias is not None else ""
    if bias is not None and variant != "bias":
        stand_in = _without(["add", *extra], "the product")
    else:
        stand_in = _without(extra, "the product")
    size = "x".join(f"{int(part)}" for part in ((batch, m, n, k) if batch > 1 else (m, n, k)))
    title = f"{'batched ' if batch > 1 else ''}{'matvec' if n == 1 or m == 1 else 'matmul'} {size}"
    title += (" + bias" if bias is not None else "") + (f" + {_chain(extra)}" if extra else "")
    spec = _spec("gemm", node.dtype, variant, (("batch", batch), ("m", m), ("n", n), ("k", k)))
    return Recognised(spec, stand_in if spec else "", title)


def _adds_row(flow: Flow, index: int, n: float) -> bool:
    return n > 1 and any(flow.elements(flow.strip(value)) == n for value in flow.nodes[index].operands)


def _int(detail: Mapping[str, object], name: str, default: int) -> int:
    value = detail.get(name, default)
    if isinstance(value, (list, tuple)):
        value = value[0] if value else default
    return int(value) if isinstance(value, (int, float)) else default


def _convolution(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    detail = node.detail
    sides = (_int(detail, "kernel_h", 0), _int(detail, "kernel_w", 0))
    groups, dilation = _int(detail, "groups", 1), _int(detail, "dilation", 1)
    extra = _names(flow, _around(cluster, flow))
    shape = f"{_int(detail, 'in_channels', 0)}->{_int(detail, 'out_channels', 0)}"
    title = f"conv2d {sides[0]}x{sides[1]} {shape} {_int(detail, 'height', 0)}x{_int(detail, 'width', 0)}"
    title += f" + {_chain(extra)}" if extra else ""
    plain = sides[0] == sides[1] and groups == 1 and dilation == 1 and "depth" not in detail
    spec = None
    if plain:
        names = ("batch", "in_channels", "out_channels", "height", "width")
        sizes = (*((name, float(_int(detail, name, 0))) for name in names), ("kernel", float(sides[0])),
                 ("stride", float(_int(detail, "stride", 1))), ("padding", float(_int(detail, "padding", 0))))  # fmt: skip
        spec = _spec("conv2d", node.dtype, "", sizes)
    if spec is not None:
        return Recognised(spec, _without(extra, "the convolution"), title)
    batch, m, n, k = node.loops
    spec = _spec("gemm", node.dtype, "batched" if batch > 1 else "", (("batch", batch), ("m", m), ("n", n), ("k", k)))
    why = "grouped" if groups > 1 else "dilated" if dilation > 1 else "of this shape"
    stand_in = f"no family has convolutions that are {why}; the matrix product it amounts to stands in"
    return Recognised(
        spec,
        (stand_in + (f", without {_counted(len(extra), 'element operation')}" if extra else "")) if spec else "",
        title,
    )


def _attention(cluster: Cluster, flow: Flow) -> Recognised:
    detail = flow.nodes[cluster.root].detail
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    sizes = {name: float(_int(detail, name, 0)) for name in names}
    extra = _names(flow, _around(cluster, flow))
    variant = "" if detail.get("causal") or sizes["q_len"] <= 1 else "full"
    spec = _spec("attention", flow.nodes[cluster.root].dtype, variant, (*sizes.items(), ("window", 0.0)))
    note = _without(extra, "the attention") if extra else ""
    shown = "attention {batch:.0f}x{heads:.0f} heads, {q_len:.0f} queries, {kv_len:.0f} keys, {head_dim:.0f} wide"
    return Recognised(spec, note if spec else "", shown.format(**sizes))


def _rowwise(cluster: Cluster, flow: Flow) -> Recognised:
    node, idiom = flow.nodes[cluster.root], cluster.idiom
    if idiom is not None:
        rows, cols, notes = idiom.rows, idiom.cols, [idiom.stand_in] if idiom.stand_in else []
        variant, members = idiom.variant, idiom.members
    else:
        rows, cols, notes = float(_int(node.detail, "rows", 0)), float(_int(node.detail, "cols", 0)), []
        variant = (
            ("rmsnorm" if "rms" in flow.operators[cluster.root] else "layernorm")
            if node.kind == "normalization"
            else ""
        )
        members = ()
        if "batch_norm" in flow.operators[cluster.root] or node.detail.get("axis", "inner") != "inner":
            notes.append("not along the last axis")
    extra = _names(flow, _around(cluster, flow, members))
    notes += [_without(extra, f"the {variant or cluster.kind}")] if extra else []
    family = "softmax" if cluster.kind == "softmax" else "layernorm"
    spec = _spec(family, dtype_of(cluster, flow), variant, (("rows", rows), ("cols", cols)))
    title = f"{variant or cluster.kind} {rows:.0f}x{cols:.0f}" + (f" + {_chain(extra)}" if extra else "")
    return Recognised(spec, "; ".join(notes) if spec else "", title)


_WITH_NUMBER = frozenset({"addu", "subu", "mulu", "divu", "powu"})
_REDUCERS = MappingProxyType({"sum": "sum", "mean": "mean", "max": "max", "min": "max", "argmax": "max", "argmin": "max",
                              "any": "max"})  # fmt: skip


def _reduction(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    _, remaining, _, reduced = node.loops
    operator, axis = flow.operators[cluster.root], node.detail.get("axis", "inner")
    rest = _around(cluster, flow)
    if operator == "sum":
        # A mean is a sum divided by a constant, one number for each result.
        mean = next((index for index in rest if index > cluster.root and _scales(flow, index)), None)
        if mean is not None:
            operator, rest = "mean", [index for index in rest if index != mean]
    extra = _names(flow, rest)
    family = _REDUCERS.get(operator, "sum")
    notes = [] if family == operator else [f"{family} for {operator}"]
    if "window" in node.detail:
        notes.append("a sliding window, its places taken as rows of their own")
        axis = "inner"
    elif axis == "middle":
        notes.append("reduces an axis in the middle, taken as the first")
    notes += [_without(extra, "the reduction")] if extra else []
    inner = axis == "inner"
    sizes = (("rows", remaining if inner else reduced), ("cols", reduced if inner else remaining))
    spec = _spec("reduction", node.dtype, family if inner else f"{family}_rows", sizes)
    title = f"{operator} {sizes[0][1]:.0f}x{sizes[1][1]:.0f}" + ("" if inner else " down columns")
    return Recognised(spec, "; ".join(notes) if spec else "", title + (f" + {_chain(extra)}" if extra else ""))


def _scales(flow: Flow, index: int) -> bool:
    node = flow.nodes[index]
    return flow.operators[index] in ("div", "mul", "divu", "mulu") and (
        len(node.operands) < 2 or any(map(flow.is_uniform, node.operands))
    )


_UNARY = MappingProxyType({
    "exp2": "exp", "expm1": "exp", "log1p": "log", "log2": "log", "rsqrt": "sqrt", "cbrt": "sqrt", "erf": "gelu",
    "sin": "tanh", "cos": "tanh", "tan": "tanh", "atan2": "tanh", "reciprocal": "divu", "remainder": "divu", "add": "addu",
    "sub": "addu", "mul": "mulu", "div": "divu", "pow": "powu", "square": "mulu", "maximum": "relu", "minimum": "relu",
    "clamp": "relu", "softplus": "gelu",
})  # fmt: skip
"""The family's operator on one tensor that costs nearest to another one."""
_BINARY = MappingProxyType({"minimum": "maximum", "select": "maximum", "compare": "maximum", "relu": "maximum", "atan2": "div",
                            "remainder": "div", "divu": "div", "mulu": "mul", "addu": "add", "powu": "pow"})  # fmt: skip
_TWO = frozenset({"add", "sub", "mul", "div", "pow", "maximum"})
_DEAREST = ("gelu", "silu", "sigmoid", "tanh", "powu", "log", "exp", "sqrt", "divu", "relu", "mulu", "addu", "neg",
            "abs")  # fmt: skip
_DEAREST_OF_TWO = ("pow", "div", "maximum", "mul", "sub", "add")


def _elementwise(cluster: Cluster, flow: Flow) -> Recognised:
    counted = [index for index in (*sorted(cluster.lights), *cluster.nodes) if _counts(flow, index)]
    names = _names(flow, counted)
    half = cluster.space / 2
    large = sum(1 for value in cluster.reads if flow.elements(value) > half)
    variant = _nearest(_names(flow, [index for index in counted if flow.sizes[index] > half]), large)
    rows, cols = _rows_cols(flow, cluster)
    spec = _spec("elementwise", dtype_of(cluster, flow), variant, (("rows", rows), ("cols", cols)))
    exact = len(names) == 1 and _plain(names[0]) == _plain(variant) and large == (2 if variant in _TWO else 1)
    transposed = any(flow.operators[index] == "transpose" for index in cluster.nodes)
    operations, arrays = _counted(len(names), "element operation"), _counted(large, "array")
    stand_in = "" if exact else f"{operations} on {arrays}; one {variant} stands in"
    if transposed:
        stand_in += ("; " if stand_in else "") + "the transpose fused into it is left out"
    shown = (
        _chain(names)
        if len(names) > 1 and activation(names)
        else ", ".join(dict.fromkeys(map(_plain, names[-3:]))) or "convert"
    )
    title = f"{shown}{f' ({len(names)} ops)' if len(names) > 1 else ''} {cluster.space:.0f} elements"
    return Recognised(spec, stand_in if spec else "", title)


def _nearest(names: Sequence[str], large: int) -> str:
    """The family's operator nearest to a chain on so many large arrays: its activation, else its dearest operator."""
    known = activation(list(names))
    if large < 2:
        if known in FLOPS_PER_ELEMENT and known not in _TWO:
            return known
        present = {_UNARY.get(name, name) for name in names}
        return next((name for name in _DEAREST if name in present), "abs")
    present = {_BINARY.get(name, name) for name in names}
    return next((name for name in _DEAREST_OF_TWO if name in present), "add")


def _rows_cols(flow: Flow, cluster: Cluster) -> tuple[float, float]:
    """A group's loop space as rows and columns, the last axis of its result the columns."""
    node = flow.nodes[cluster.nodes[-1]]
    shape = flow.types[node.results[0]].shape if node.results else None
    cols = float((shape[-1] if shape else 1) or 1)
    return max(max(cluster.space, 1.0) // cols, 1.0), cols


def _movement(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    operator = flow.operators[cluster.root]
    rows, cols = _rows_cols(flow, cluster)
    if cluster.closed and node.results and 0 < node.bytes_out < flow.nbytes(node.results[0]):
        rows, cols = 1.0, node.bytes_out // max(flow.types[node.results[0]].itemsize_b, 1.0)
    before = flow.types[node.operands[0]].shape if node.operands else None
    after = flow.types[node.results[0]].shape if node.results else None
    turned = operator == "transpose" and before and after and before[-1] != after[-1]
    note = "" if operator == "copy" else f"a plain copy stands in for {operator}"
    if turned and before and before[-1]:
        cols = float(before[-1])
        rows = max(node.loops[1] // cols, 1.0)
        note = "" if len(before) == 2 else "taken as a transpose of two axes"
    spec = _spec("copy", node.dtype, "transpose" if turned else "", (("rows", rows), ("cols", cols)))
    return Recognised(spec, note if spec else "", f"{operator} {rows:.0f}x{cols:.0f}")


def _gather(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    operator = flow.operators[cluster.root]
    rows, cols = _rows_cols(flow, cluster)
    if cols > node.loops[1]:
        rows, cols = 1.0, node.loops[1]
    else:
        rows = max(node.loops[1] // cols, 1.0)
    spec = _spec("copy", node.dtype, "", (("rows", rows), ("cols", cols)))
    extra = _names(flow, _around(cluster, flow))
    note = f"a plain copy of as many elements stands in for {operator}"
    note += f", without {_counted(len(extra), 'element operation')}" if extra else ""
    return Recognised(spec, note if spec else "", f"{operator} {node.loops[1]:.0f} elements")


def _other(cluster: Cluster, flow: Flow) -> Recognised:
    node = flow.nodes[cluster.root]
    names = Counter(flow.nodes[index].op for index in cluster.nodes)
    shown = next(iter(names))
    elements = node.parallelism * (node.loops[3] if node.kind == "sort" else 1.0)
    return Recognised(None, "", f"{shown} {elements:.0f} elements" if cluster.kind != "unknown" else shown)


_KINDS: Mapping[str, Callable[[Cluster, Flow], Recognised]] = MappingProxyType({
    "contraction": _contraction, "convolution": _convolution, "attention": _attention, "softmax": _rowwise,
    "normalization": _rowwise, "reduction": _reduction, "elementwise": _elementwise, "movement": _movement, "gather": _gather,
})  # fmt: skip
