"""What a kernel is: the spec a user names, the family that knows its operands and work, and the plug-in lookup.

Everything that needs a kernel's cost on paper reads a family's `inputs`, `outputs` and `flops`. These work on plain
integers (one spec) and on numpy columns (many specs at once) alike, so a single prediction and a batch share one path.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any, Literal

import numpy as np

from .dtypes import DTYPES, parse_dtype
from .errors import SpecError, listed

MAX_DIM = 2**40
"""Largest size of one dimension accepted; products of dimensions then stay finite in float64."""

MAX_THREADS = 4096
"""Most CPU threads accepted: above any machine's, so that a size in the wrong place is noticed."""

CACHE_STATES = ("hot", "cold")
"""hot: operands may be in cache from the call before; cold: caches flushed before every call."""

TIMINGS = ("device", "call")
"""device: the kernel alone, as a GPU runs it; call: a call of the library, with launch and the host's work. On a CPU one."""

Size = Any
"""An int, or a numpy column of them, shape `(n,)`; families only do arithmetic with it."""


@dataclass(frozen=True, slots=True)
class Array:
    """One operand.

    Attributes:
        shape: Sizes, or columns of sizes.
        dtype: Element type.
        fill: What fills it: `normal` (seeded standard normal), `positive` (its absolute value plus 0.5, for logarithms,
            roots and divisors) or `zeros` (outputs).
    """

    shape: tuple[Size, ...]
    dtype: str
    fill: Literal["normal", "positive", "zeros"] = "normal"

    @property
    def elements(self) -> Size:
        """Number of elements, a float or a column of floats."""
        return operand_sizes([self])[0][0]

    @property
    def nbytes(self) -> Size:
        """Size in bytes, derived from shape and dtype; scale factors of block formats included."""
        return operand_sizes([self])[1][0]


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size of a family.

    Attributes:
        name: The name in specs.
        doc: What it means.
        default: Value used when left out; None: required.
        minimum: Smallest value.
    """

    name: str
    doc: str
    default: int | None = None
    minimum: int = 1


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One concrete kernel and how it is run. Build it with `KernelSpec.of`, which checks everything.

    Attributes:
        family: Name of the kernel family.
        dtype: Element type.
        dims: Sizes as name/value pairs, in family order.
        variant: The family's variant, empty for the plain one.
        impl: What runs it (`torch`, `iree`, `vllm-0.24.0` …); empty: whatever the model knows best.
        kv_dtype: Attention's cache dtype, None when it is the same as `dtype`.
        config: Tile settings as name/value pairs, in name order.
        threads: CPU thread count, None on a GPU or for all cores.
        cache_state: `hot` or `cold` caches.
        timing: What the time contains, one of `TIMINGS`; empty: what was measured with this impl, or the kernel alone where no
            impl is given.
    """

    family: str
    dtype: str
    dims: tuple[tuple[str, int], ...]
    variant: str = ""
    impl: str = ""
    kv_dtype: str | None = None
    config: tuple[tuple[str, int], ...] = ()
    threads: int | None = None
    cache_state: str = "hot"
    timing: str = ""

    @classmethod
    def of(
        cls,
        family: str,
        dtype: str,
        *,
        variant: str = "",
        impl: str = "",
        kv_dtype: str | None = None,
        config: Mapping[str, int] | None = None,
        threads: int | None = None,
        cache_state: str = "hot",
        timing: str = "",
        **dims: int,
    ) -> KernelSpec:
        """A checked spec.

        Args:
            family: Name of the kernel family.
            dtype: Number format of the operands, or an alias of one.
            variant: Variant of the family; empty is its usual one.
            impl: What runs it, such as `torch`; empty where that is not known.
            kv_dtype: Number format of the key and value cache; None is `dtype`.
            config: Tuning knobs by name.
            threads: CPU threads; None is all cores, or a GPU.
            cache_state: `hot` or `cold`.
            timing: One of `TIMINGS`; empty is what was measured, see the attribute.
            dims: Sizes by name.

        Raises:
            SpecError: unknown family, dtype, variant, size or config name; a size missing, too small or too large.
        """
        fam = get_family(family)
        if not isinstance(dtype, str) or dtype not in DTYPES:
            dtype = parse_dtype(dtype)
        if kv_dtype is not None:
            kv_dtype = parse_dtype(kv_dtype, field="kv_dtype")
        if not variant and "" not in fam.variants:
            variant = (
                fam.variant_of(dims) if fam.variant_of and set(dims) <= set(fam.dim_names) else fam.default_variant
            )
        if variant not in fam.variants:
            raise SpecError(f"{family} has no variant {variant!r}; variants: {listed(fam.variants)}", field="variant")
        if cache_state not in CACHE_STATES:
            raise SpecError(f"cache_state is {cache_state!r}; it is one of {listed(CACHE_STATES)}", field="cache_state")
        if timing not in ("", *TIMINGS):
            raise SpecError(f"timing is {timing!r}; it is one of {listed(TIMINGS)}", field="timing")
        if threads is not None:
            _check_size("threads", threads, 1, MAX_THREADS)
        return cls(
            family=family,
            dtype=dtype,
            dims=_checked_dims(fam, dims, variant),
            variant=variant,
            impl=impl,
            kv_dtype=None if kv_dtype == dtype else kv_dtype,
            config=_checked_config(fam, config) if config else (),
            threads=threads,
            cache_state=cache_state,
            timing=timing,
        )

    def resized(self, dims: Mapping[str, int]) -> KernelSpec:
        """The spec with other sizes, by name.

        Raises:
            SpecError: a size is unknown, missing, too small or too large.
        """
        checked = _checked_dims(get_family(self.family), dims, self.variant)
        return KernelSpec(self.family, self.dtype, checked, self.variant, self.impl, self.kv_dtype, self.config,
                          self.threads, self.cache_state, self.timing)  # fmt: skip

    def __getitem__(self, dim: str) -> int:
        return dict(self.dims)[dim]

    @property
    def case_id(self) -> str:
        """16 hex digits that name this case by content: equal specs, and only they, share it."""
        content = [self.family, self.dtype, self.dims, self.variant, self.impl, self.kv_dtype, self.config,
                   self.threads, self.cache_state]  # fmt: skip
        # What is stored was measured before there was a choice, and keeps its name.
        content += [self.timing] if self.timing else []
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    @property
    def shape_id(self) -> str:
        """16 hex digits shared by all specs of one family with equal sizes, whatever their dtype or configuration."""
        return hashlib.blake2b(json.dumps([self.family, self.dims]).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={size}" for name, size in self.dims)
        extra = "".join(f" {word}" for word in (self.variant, self.impl, self.timing) if word)
        knobs = "".join(f" {name}={value}" for name, value in self.config)
        return f"{self.family}[{sizes}]:{self.dtype}{extra}{knobs}"


class View(dict[str, Size]):
    """What a family's formulas see: named sizes (ints or columns) of specs that share dtype, kv_dtype and variant.

    Attributes:
        dtype: Dtype of the operands.
        kv_dtype: Dtype of an attention's cache.
        variant: Variant of the family.
    """

    __slots__ = ("dtype", "kv_dtype", "variant")

    def __init__(self, dtype: str, kv_dtype: str, variant: str, sizes: Mapping[str, Size]) -> None:
        super().__init__(sizes)
        self.dtype, self.kv_dtype, self.variant = dtype, kv_dtype, variant

    @classmethod
    def of(cls, spec: KernelSpec) -> View:
        """The view of one spec, sizes as ints."""
        return cls(spec.dtype, spec.kv_dtype or spec.dtype, spec.variant, dict(spec.dims))


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Everything the product knows about one kind of kernel; one file in `families/` each.

    `flops` and the operands' shapes are functions of a `View`.

    Attributes:
        name: Name in specs.
        doc: What it computes; the first line is its title.
        dims: Its sizes.
        inputs: Operands read.
        outputs: Operands written.
        flops: Floating-point operations.
        run: `fn(library, spec, *operands)` by name of the array library.
        ranges: Inclusive bounds of each size in the space-filling sweep.
        model_shapes: Sizes met in real models.
        variants: Variants it has.
        config: Tile settings it takes.
        like_variants: By variant a like one, which answers where that was measured nearer by.
        plain_impl: Whose call is meant where no impl is given and it was measured: a library's that adds nothing of its own.
        unit: Which arithmetic units the peak is taken from.
        mlir_ops: MLIR operations that are this kernel.
        traffic_b: Compulsory traffic in bytes where not every operand byte is touched; None: each operand once.
        least_flops: Arithmetic of the cheapest known algorithm, for the compute bound; None where `flops` is already that.
        tiles: `(batch, m, n, k)` of the matrix product(s) inside, for tile and wave counts; None for families without one.
        blocked: The same as kernels with tile settings cut it into blocks, where that differs from `tiles`.
        default_variant: The variant meant when none is named.
        variant_of: The variant a set of sizes implies where none is named (decode against prefill); None: none is implied.
        implied: The variants that `variant_of` tells apart; any other goes with any sizes.
        by_row: Whether one unit works on a whole row of the first operand, and reads it again unless it stays on chip.
        looks_at_sizes: Whether formulas depend on the values of sizes other than by arithmetic, so that they are no program.
        finish: Makes one sampled set of sizes consistent (heads a multiple of kv_heads …).
        check: `check(sizes, variant)`: why a set of sizes is impossible for a variant, or None.
        launches: Kernels a call runs in turn, for answers without any row (`models.predict.law`); None: there are none.
        dim_names: Names of the sizes, in the family's order.
    """

    name: str
    doc: str
    dims: tuple[Dim, ...]
    inputs: Callable[[View], tuple[Array, ...]]
    outputs: Callable[[View], tuple[Array, ...]]
    flops: Callable[[View], Size]
    run: Mapping[str, Callable[..., Any]]
    ranges: Mapping[str, tuple[int, int]]
    model_shapes: Sequence[Mapping[str, int]]
    variants: tuple[str, ...] = ("",)
    config: tuple[str, ...] = ()
    like_variants: Mapping[str, str] = field(default_factory=dict)
    plain_impl: str = ""
    unit: Literal["matrix", "vector"] = "vector"
    mlir_ops: tuple[str, ...] = ()
    traffic_b: Callable[[View], Size] | None = None
    least_flops: Callable[[View], Size] | None = None
    tiles: Callable[[View], tuple[Size, Size, Size, Size]] | None = None
    blocked: Callable[[View], tuple[Size, Size, Size, Size]] | None = None
    default_variant: str = ""
    variant_of: Callable[[Mapping[str, int]], str] | None = None
    implied: tuple[str, ...] = ()
    launches: Callable[[View], int] | None = None
    by_row: bool = False
    looks_at_sizes: bool = False
    finish: Callable[[dict[str, int]], dict[str, int]] = field(default=lambda sizes: sizes)
    check: Callable[[Mapping[str, int], str], str | None] = field(default=lambda sizes, variant: None)
    dim_names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim_names", tuple(dim.name for dim in self.dims))

    def impossible(self, sizes: Mapping[str, int]) -> bool:
        """Whether the variant that is meant where none is named refuses a set of sizes."""
        return self.check(sizes, self.variant_of(sizes) if self.variant_of else self.default_variant) is not None

    def suits(self, variant: str, sizes: Mapping[str, int]) -> bool:
        """Whether a variant goes with a set of sizes: it is the implied one, or sizes say nothing of it."""
        return self.variant_of is None or variant not in self.implied or self.variant_of(sizes) == variant

    def bytes_moved(self, view: View) -> Size:
        """Compulsory traffic in bytes: every operand once, unless the family says that some are not touched."""
        return self.footprint_b(view) if self.traffic_b is None else self.traffic_b(view)

    def footprint_b(self, view: View) -> Size:
        """Bytes of all operands together."""
        return sum((a.nbytes for a in (*self.inputs(view), *self.outputs(view))), 0.0)


def operand_sizes(operands: Sequence[Array]) -> tuple[list[Size], list[Size]]:
    """Elements and bytes of each operand, as `Array.elements` and `Array.nbytes` give them."""
    elements: list[Size] = []
    for operand in operands:
        total: Size = 1.0
        for size in operand.shape:
            total = total * size
        elements.append(total)
    sizes_b = [total * DTYPES[operand.dtype].itemsize_b for total, operand in zip(elements, operands, strict=True)]
    return elements, sizes_b


def discover(package: ModuleType, attr: str) -> dict[str, Any]:
    """Import every module of `package` and return `{object.name: object}` for its `attr`, one or a tuple, sorted by name.

    The one plug-in mechanism of the product: families, regressors, importers and runners are all found this way.
    """
    members: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        value = getattr(importlib.import_module(f"{package.__name__}.{info.name}"), attr)
        for thing in value if isinstance(value, tuple) else (value,):
            if thing.name in members:
                raise ValueError(f"two modules in {package.__name__} define {attr} {thing.name!r}")
            members[thing.name] = thing
    return dict(sorted(members.items()))


@cache
def families() -> Mapping[str, KernelFamily]:
    """Every kernel family by name."""
    from . import families as package

    return MappingProxyType(discover(package, "FAMILY"))


def get_family(name: str) -> KernelFamily:
    """The family called `name`.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    known = families()
    if not isinstance(name, str) or name not in known:
        raise SpecError(f"no kernel family {name!r}; families: {listed(known)}", field="family")
    return known[name]


def _check_size(name: str, value: object, minimum: int, maximum: int = MAX_DIM) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise SpecError(f"{name} must be a whole number, got {value!r}", field=name)
    if not minimum <= value <= maximum:
        raise SpecError(f"{name} must be between {minimum} and {maximum}, got {value}", field=name)
    return int(value)


def _checked_dims(family: KernelFamily, dims: Mapping[str, int], variant: str) -> tuple[tuple[str, int], ...]:
    names = family.dim_names
    if any(name not in names for name in dims):
        unknown = sorted(set(dims) - set(names))
        raise SpecError(
            f"{family.name} has no size {unknown[0]!r}; sizes: {listed(family.dim_names)}", field=unknown[0]
        )
    sizes: dict[str, int] = {}
    for dim in family.dims:
        value = dims.get(dim.name, dim.default)
        # Most sizes of a batch are sound: the whole check is for those that may not be.
        if type(value) is int and dim.minimum <= value <= MAX_DIM:
            sizes[dim.name] = value
            continue
        if value is None:
            raise SpecError(
                f"{family.name} needs {dim.name} ({dim.doc}); sizes: {listed(family.dim_names)}", field=dim.name
            )
        sizes[dim.name] = _check_size(dim.name, value, dim.minimum)
    if (reason := family.check(sizes, variant)) is not None:
        raise SpecError(f"{family.name}: {reason}", field=reason.split()[0])
    return tuple(sizes.items())


def _checked_config(family: KernelFamily, config: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if unknown := sorted(set(config) - set(family.config)):
        raise SpecError(
            f"{family.name} has no configuration {unknown[0]!r}; it takes: {listed(family.config) or 'none'}",
            field=unknown[0],
        )
    return tuple(sorted((name, _check_size(name, value, 0)) for name, value in config.items()))
