"""Inductor's choices read as kernels: which matrix product a list computes, and what each choice of it was made with.

Reads by name what torch 2.13 puts on its objects (torch/_inductor/select_algorithm.py, ir.py, codegen/cpp_gemm_template.py)
and imports no torch, so that whatever looks alike is read alike. What cannot be read is None, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...features.dtypes import parse_dtype
from ...features.errors import SpecError
from ...features.families.gemm import output_dtype
from ...features.kernel import KernelSpec, View

FAMILY = "gemm"

_MAKERS = {
    "TritonTemplateCaller": "triton",
    "CppTemplateCaller": "cpp",
    "ExternKernelCaller": "extern",
    "SubgraphChoiceCaller": "subgraph",
}
"""Classes of choices by name; a subclass is what its nearest base here is, anything else is `other`."""

_PRODUCTS = frozenset({"mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "contiguous_mm",
                       "contiguous_addmm", "decompose_k_mm", "mm_persistent", "mm_persistent_tma",
                       "blackwell_ws_persistent_device_tma", "scaled_mm_device_tma_epilogue_scaling",
                       "scaled_mm_device_tma_main_loop_scaling"})  # fmt: skip
"""Library calls and templates that compute one matrix product (torch/_inductor/kernel/mm.py, bmm.py)."""

_LINEAR = frozenset({"_mkl_linear", "_linear_pointwise"})
"""Library calls whose weight is packed; only their input and result have sizes to be read (mkldnn_lowerings.py)."""

_PLAIN_CALLS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm"})
_PLAIN_TEMPLATES = frozenset({"mm", "bmm"})
_LONGEST_NOTE = 300

Hints = Callable[[Sequence[Any], Any], tuple[int, ...]]
"""`(sizes, hint_override) -> sizes as ints`: symbolic sizes become the ones Inductor times with."""


def plain_sizes(sizes: Sequence[Any], hint: Any) -> tuple[int, ...]:  # noqa: ARG001 - one signature for all `Hints`
    """Sizes that are numbers already.

    Raises:
        TypeError, ValueError: one is symbolic.
    """
    return tuple(int(size) for size in sizes)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the time of a choice depends on beside itself.

    Attributes:
        threads: CPU threads.
        library_tf32: Whether libraries may round fp32 to tf32.
        hints: Gives a number for a symbolic size.
    """

    threads: int = 1
    library_tf32: bool = False
    hints: Hints = plain_sizes


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix product a list of choices computes.

    Attributes:
        batch: Products.
        m: Rows of the result.
        n: Columns of the result.
        k: Depth.
        dtype: Number format of the operands.
        variant: Variant of the gemm family; None where no variant fits (a full matrix added): choices are then ranked by
            their sizes and not stored as rows.
        device_type: The word torch has for it (`cuda`, `cpu`).
        device_index: Index of the device, None where torch gives none.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    variant: str | None
    device_type: str
    device_index: int | None

    @property
    def sizes(self) -> dict[str, int]:
        """`batch`, `m`, `n`, `k`."""
        return {"batch": self.batch, "m": self.m, "n": self.n, "k": self.k}


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """One choice as it was understood.

    Attributes:
        maker: `triton`, `cpp`, `extern`, `subgraph` or `other`.
        spec: The spec of its row, None where no row can stand for it.
        knobs: Knobs of the gemm family, empty where there are none.
        dtype: What it computes in.
        note: What Inductor calls it.
        hint: Inductor object that compiles it, where there is one.
    """

    maker: str
    spec: KernelSpec | None
    knobs: Mapping[str, int]
    dtype: str
    note: str
    hint: Any = None

    @property
    def stays(self) -> bool:
        """Whether it is a library call: such choices cost no compilation and are the yardstick of the rest."""
        return self.maker in ("extern", "subgraph")


def unwrapped(choice: Any) -> Any:
    """The choice itself, where Inductor wrapped it to change its operands (`DataProcessorChoiceCallerWrapper`)."""
    seen = 0
    while "_wrapped" in getattr(choice, "__dict__", {}) and seen < 8:
        choice, seen = choice._wrapped, seen + 1
    return choice


def maker_of(choice: Any) -> str:
    """Who made an unwrapped choice: a value of the table above, or `other`."""
    return next((_MAKERS[base.__name__] for base in type(choice).__mro__ if base.__name__ in _MAKERS), "other")


def product_of(choices: Sequence[Any], around: Surroundings) -> Product | None:
    """The product these choices of one list compute, None where they compute something else or their sizes are unknown."""
    # Library calls first: their operands are as the user wrote them, a C++ template's are packed already.
    for choice in sorted(map(unwrapped, choices), key=lambda choice: maker_of(choice) == "cpp"):
        product = _product(choice, around)
        if product is not None:
            return product
    return None


def read(choice: Any, product: Product, around: Surroundings) -> ChoiceSpec:
    """What `choice`, one of the choices of `product`, was made with."""
    choice = unwrapped(choice)
    maker, name = maker_of(choice), _operation(choice)
    impl, knobs, dtype = _READERS.get(maker, _read_other)(choice, name, product, around)
    described = str(getattr(choice, "description", "") or "")
    note = f"{name}: {described}" if described else name
    spec = None
    if product.variant is not None:
        spec = _spec(product, dtype, impl, knobs, around)
    return ChoiceSpec(maker, spec, knobs, dtype, note[:_LONGEST_NOTE], getattr(choice, "hint_override", None))


def _spec(product: Product, dtype: str, impl: str, knobs: Mapping[str, int], around: Surroundings) -> KernelSpec | None:
    on_cpu, sizes = product.device_type == "cpu", dict[str, Any](product.sizes)
    try:
        return KernelSpec.of(
            FAMILY, dtype, variant=product.variant or "", impl=impl, config=knobs,
            threads=around.threads if on_cpu else None,
            # Inductor empties a GPU's L2 before every call (runtime/benchmarking.py, benchmark_gpu) and no cache of a CPU.
            cache_state="hot" if on_cpu else "cold", **sizes,
        )  # fmt: skip
    except SpecError:
        return None


def _operation(choice: Any) -> str:
    """The library call's or template's name, without what Inductor adds to tell choices apart."""
    name = str(getattr(choice, "name", ""))
    maker = maker_of(choice)
    if maker == "triton":
        return name.removeprefix("triton_").rsplit("_", 1)[0]
    if maker == "subgraph":
        # decompose_k_mm_8_split_3, contiguous_mm_0
        return "decompose_k_mm" if name.startswith("decompose_k_mm") else name.rsplit("_", 1)[0]
    return name


def _product(choice: Any, around: Surroundings) -> Product | None:
    try:
        if maker_of(choice) == "cpp":
            return _product_of_template(choice, around)
        name = _operation(choice)
        if name in _LINEAR:
            return _product_of_linear(choice, around)
        return _product_of_operands(choice, around) if name in _PRODUCTS else None
    except (AttributeError, IndexError, TypeError, ValueError):
        # SpecError, of a dtype without a name here, is a ValueError.
        return None


def _product_of_operands(choice: Any, around: Surroundings) -> Product | None:
    hint = getattr(choice, "hint_override", None)
    out = around.hints(choice.layout.size, hint)
    nodes = [(node, around.hints(node.get_size(), hint)) for node in choice.input_nodes]
    # What is added comes before the operands (addmm), scales of fp8 come after them: of squares, any neighbours would fit.
    first = len(nodes) - 2 if len(nodes) == 3 else 0
    for at in range(first, len(nodes) - 1) if len(out) in (2, 3) else ():
        (a, a_size), (b, b_size) = nodes[at], nodes[at + 1]
        batch, (m, n), k = out[:-2], out[-2:], a_size[-1]
        if a_size == (*batch, m, k) and b_size == (*batch, k, n):
            dtype = parse_dtype(str(a.get_dtype()))
            added = [item for i, item in enumerate(nodes) if i not in (at, at + 1)]
            if dtype == "fp8":
                # Scales of both operands follow them (torch._scaled_mm); what is left is the bias.
                added = added[2:]
            layout = _layout(a, a_size, hint, around) + _layout(b, b_size, hint, around)
            variant = _variant(layout, added, batched=len(out) == 3, around=around, hint=hint)
            return _product_of(choice, (batch[0] if batch else 1, m, n, k), dtype, variant)
    return None


def _product_of_linear(choice: Any, around: Surroundings) -> Product | None:
    if str(choice.kwargs.get("attr", "none")) != "none":
        # Fused with what follows: no plain product.
        return None
    (m, n), hint = around.hints(choice.layout.size, None), None
    a = choice.input_nodes[0]
    a_size = around.hints(a.get_size(), hint)
    rest = [(node, around.hints(node.get_size(), hint)) for node in choice.input_nodes[1:]]
    biased = any(size == (n,) for _, size in rest)
    weights = [(node, size) for node, size in rest if size == (n, a_size[-1])]
    if a_size[0] != m or not weights:
        return None
    # The weight is kept as (n, k): read along its rows it is the transposed operand, unless its rows are strided.
    strides = around.hints(weights[-1][0].get_stride(), hint)
    variant = "bias" if biased else "" if strides == (1, n) and n > 1 else "nt"
    return _product_of(choice, (1, m, n, a_size[-1]), parse_dtype(str(a.get_dtype())), variant)


def _product_of_template(choice: Any, around: Surroundings) -> Product | None:
    template = choice.template
    out = around.hints(choice.layout.size, None)
    m, n, k = around.hints((template.m, template.n, template.k), None)
    if out[-2:] != (m, n) or len(out) not in (2, 3):
        return None
    # A bias seen by the template may be a row or a full matrix; its weight is packed either way.
    variant = None if template.has_bias else "batched" if len(out) == 3 else ""
    dtype = parse_dtype(str(choice.input_nodes[0].get_dtype()))
    return _product_of(choice, (out[0] if len(out) == 3 else 1, m, n, k), dtype, variant)


def _product_of(choice: Any, sizes: tuple[int, int, int, int], dtype: str, variant: str | None) -> Product:
    batch, m, n, k = sizes
    if variant is not None and parse_dtype(str(choice.layout.dtype)) != output_dtype(View(dtype, dtype, variant, {})):
        # The family's rows say nothing of a result kept in another format.
        variant = None
    device = choice.layout.device
    return Product(batch, m, n, k, dtype, variant, str(device.type), device.index)


def _layout(node: Any, size: tuple[int, ...], hint: Any, around: Surroundings) -> str:
    """`n` for rows in memory order, `t` for columns, `x` for neither."""
    strides = around.hints(node.get_stride(), hint)
    if strides[-1] == 1 or size[-1] == 1:
        return "n"
    return "t" if strides[-2] == 1 or size[-2] == 1 else "x"


def _variant(layout: str, added: Sequence[Any], *, batched: bool, around: Surroundings, hint: Any) -> str | None:
    if added:
        node, size = added[0]
        row = len(size) == 1 or size[-2] == 1 or around.hints(node.get_stride(), hint)[-2] == 0
        return "bias" if row and len(added) == 1 and not (batched and len(size) == 3 and size[0] > 1) else None
    if "x" in layout:
        return None
    if layout == "nn":
        return "batched" if batched else ""
    return layout


def _read_triton(choice: Any, name: str, product: Product, around: Surroundings) -> tuple[str, dict[str, int], str]:  # noqa: ARG001
    """Knobs out of `TritonTemplateCaller.log_info`: `tile_shape` is the text `(BLOCK_M, BLOCK_K, BLOCK_N)`, -1 for none."""
    info = choice.log_info
    knobs: dict[str, int] = {}
    try:
        tile = ast.literal_eval(str(info["tile_shape"]))
        result = dict(zip(("tile_m", "tile_k", "tile_n"), map(int, tile), strict=True))
        result |= {"group_m": int(info.get("GROUP_M", -1)), "warps": int(info["num_warps"]),
                  "stages": int(info["num_stages"]), "split_k": 1}  # fmt: skip
        if min(result["tile_m"], result["tile_n"], result["tile_k"]) > 0:
            knobs = {knob: value for knob, value in result.items() if value >= 0}
    except (KeyError, SyntaxError, TypeError, ValueError):
        knobs = {}
    rounds = product.dtype == "fp32" and str(info.get("allow_tf32")) == "True"
    impl = "triton" if name in _PLAIN_TEMPLATES else f"triton-{_words(name)}"
    return impl, knobs, "tf32" if rounds else product.dtype


def _read_cpp(choice: Any, name: str, product: Product, around: Surroundings) -> tuple[str, dict[str, int], str]:  # noqa: ARG001
    """Knobs out of a `CppGemmTemplate`: the micro-kernel's block, and the block of it that is kept in cache."""
    template = choice.template
    try:
        inner = template.register_blocking
        outer = template.cache_blocking(template.num_threads)
        pairs = {size: (int(getattr(inner, f"block_{size}")), int(getattr(outer, f"block_{size}"))) for size in "mnk"}
    except (AttributeError, TypeError, ValueError, AssertionError):
        return "cpp", {}, product.dtype
    knobs = {f"inner_{size}": block for size, (block, _) in pairs.items()}
    return "cpp", knobs | {f"tile_{size}": block * times for size, (block, times) in pairs.items()}, product.dtype


def _read_extern(choice: Any, name: str, product: Product, around: Surroundings) -> tuple[str, dict[str, int], str]:  # noqa: ARG001
    rounds = product.dtype == "fp32" and around.library_tf32 and product.device_type != "cpu"
    impl = "torch" if name in _PLAIN_CALLS else f"torch-{_words(name)}"
    return impl, {}, "tf32" if rounds else product.dtype


def _read_other(choice: Any, name: str, product: Product, around: Surroundings) -> tuple[str, dict[str, int], str]:  # noqa: ARG001
    try:
        backend = str(choice.info_dict().get("backend", ""))
    except (AttributeError, KeyError, TypeError, NotImplementedError):
        backend = ""
    return f"inductor-{_words(backend or type(choice).__name__)}", {}, product.dtype


def _words(name: str) -> str:
    return name.strip("_").replace("_", "-").lower()


_READERS: Mapping[str, Callable[[Any, str, Product, Surroundings], tuple[str, dict[str, int], str]]] = {
    "triton": _read_triton,
    "cpp": _read_cpp,
    "extern": _read_extern,
    "subgraph": _read_extern,
}
