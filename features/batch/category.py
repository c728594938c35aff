"""The category of a case: all of it but its sizes and the values of its knobs, and the labels that models know it by."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..kernel import TIMINGS
from .categorical import Categorical

MAX_CACHED = 4096
"""Categories of which a cache keeps values: far more than are asked about, few enough that made-up names cannot fill memory."""

NO_THREADS = "nan"
"""Label of a case that has no thread count: one on a GPU."""

_Value = TypeVar("_Value")


class CaseCategory(NamedTuple):
    """Where and how a case runs.

    Attributes:
        device: Name of the device.
        dtype: Dtype of the operands.
        kv_dtype: Dtype of an attention's cache; `dtype` where it is the same.
        variant: Variant of the family.
        impl: What runs it; empty where none was given.
        cache_state: `hot` or `cold`.
        timing: `device` or `call`; empty where it was not given.
        threads: CPU threads; None on a GPU, or for all cores.
        knobs: Names of the tuning knobs that are set, sorted.
    """

    device: str
    dtype: str
    kv_dtype: str
    variant: str
    impl: str
    cache_state: str
    timing: str
    threads: float | None
    knobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaseCategories:
    """The categories of `n` cases.

    Attributes:
        distinct: Each category once.
        code: Which of them each case has, shape `(n,)`.
    """

    distinct: tuple[CaseCategory, ...]
    code: npt.NDArray[np.intp]

    def labels(self, text: Callable[[CaseCategory], str]) -> Categorical:
        """The column of a label that follows from the category."""
        return categorical([text(category) for category in self.distinct], self.code)

    def column(self, values: Sequence[Any]) -> Any:
        """The column of a value per category, or the rows of a vector per category: shape `(n, …)`."""
        return np.array(values)[self.code]


def categorical(labels: Sequence[str], code: npt.NDArray[np.intp]) -> Categorical:
    """The column of a label per category; `code` says which category each row has."""
    if len(labels) == 1:
        return Categorical((labels[0],), code)
    number: dict[str, int] = {}
    same = np.array([number.setdefault(label, len(number)) for label in labels], dtype=np.intp)
    return Categorical(tuple(number), same[code])


class CategoryCache(dict[CaseCategory, _Value]):
    """Bounded cache of values computed from a case category when it is first looked up.

    Safe to share between threads: equal keys get equal values.
    """

    def __init__(self, compute: Callable[[CaseCategory], _Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, category: CaseCategory) -> _Value:
        value = self._compute(category)
        if len(self) > MAX_CACHED:
            self.clear()
        return self.setdefault(category, value)


def kv_pair(category: CaseCategory) -> str:
    """Dtype and cache dtype of a category, `bf16/fp8`."""
    return f"{category.dtype}/{category.kv_dtype}"


def group_label(category: CaseCategory, impl: str) -> str:
    """Device, impl and dtypes of a category whose impl is read as `impl`: `nvidia-t4 torch fp32/fp32`."""
    return f"{category.device} {impl} {kv_pair(category)}"


def thread_label(category: CaseCategory) -> str:
    """Thread count of a category, `NO_THREADS` where there is none."""
    return NO_THREADS if category.threads is None else f"{category.threads:g}"


def setting_label(category: CaseCategory, impl: str) -> str:
    """What runs a category whose impl is read as `impl`, in which dtype, on what, from which caches and with which knobs.

    `torch bf16 gpu`, `torch bf16 gpu cold`, `triton bf16 gpu with stages,tile_m …`: labels that are each known may still never
    have been measured together. A category without a thread count is one on a GPU.
    """
    where = "gpu" if category.threads is None else "cpu"
    cold = "" if category.cache_state == "hot" else f" {category.cache_state}"
    return f"{impl} {category.dtype} {where}{cold}" + (f" with {','.join(category.knobs)}" if category.knobs else "")


def measured_label(category: CaseCategory, impl: str) -> str:
    """All of a category whose impl is read as `impl` but its threads: what was measured on a device, and how.

    `DEVICE KIND VARIANT DTYPES IMPL CACHE KNOBS`, where words that are not given are empty; `CACHE` is `hot@call` or
    `cold@call` where calls were timed.
    """
    kind = "gpu" if category.threads is None else "cpu"
    caches = f"{category.cache_state}@call" if category.timing == "call" else category.cache_state
    return f"{category.device} {kind} {kernel_label(category)} {impl} {caches} {','.join(category.knobs)}"


def category_of(label: str, threads: float) -> CaseCategory:
    """The category of a `measured_label`; `threads` is its thread count on a CPU, which the label does not have."""
    device, _, rest = label.partition(" ")
    kind, variant, pair, impl, caches, knobs = _words(rest)
    dtype, _, kv_dtype = pair.partition("/")
    cache_state, _, timing = caches.partition("@")
    return CaseCategory(
        device, dtype, kv_dtype, variant, impl, cache_state, timing or TIMINGS[0], None if kind == "gpu" else threads,
        tuple(knobs.split(",")) if knobs else (),
    )  # fmt: skip


def kernel_label(category: CaseCategory) -> str:
    """Variant and dtypes of a category: which kernel it is, whatever runs it."""
    return f"{category.variant} {kv_pair(category)}"


def _words(label: str) -> list[str]:
    """The words of a `measured_label` without its device; an impl that nobody measured may hold spaces."""
    *first, rest = label.split(" ", 3)
    return [*first, *rest.rsplit(" ", 2)]


def described(label: str) -> str:
    """A `measured_label` without its device, in words: `torch bf16 gpu`, `triton fp16 gpu cold with stages,tile_m`."""
    kind, variant, pair, impl, caches, knobs = _words(label)
    dtype, _, kv_dtype = pair.partition("/")
    cache_state, _, timing = caches.partition("@")
    words = [
        impl,
        variant,
        dtype if kv_dtype == dtype else pair,
        kind,
        "" if cache_state == "hot" else cache_state,
        timing,
    ]
    return " ".join(filter(None, words)) + (f" with {knobs}" if knobs else "")


class MeasuredLabels:
    """What was measured where, from `measured_label`s, from the whole label to its coarser parts.

    Attributes:
        whole: The labels.
        anywhere: The labels without their device.
        kernels: Device and `kernel_label` of each.
        untuned: Those of them that were measured without knobs: what a tuner chose says little of what a library does.
        devices: The devices.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        """Those of one target."""
        self.whole = frozenset(labels)
        words = [label.split(" ", 4) for label in self.whole]
        self.anywhere = frozenset(" ".join(each[1:]) for each in words)
        kernels = [(f"{each[0]} {each[2]} {each[3]}", label) for each, label in zip(words, self.whole, strict=True)]
        self.kernels = frozenset(kernel for kernel, _ in kernels)
        self.untuned = frozenset(kernel for kernel, label in kernels if label.endswith(" "))
        self.devices = frozenset(each[0] for each in words)

    def is_known(self, label: str) -> bool:
        """Whether the like of a `measured_label` was measured on any device of its kind."""
        return label.partition(" ")[2] in self.anywhere

    def has(self, category: CaseCategory, label: str) -> bool:
        """Whether the like of a category with this label was measured on its device.

        Where all of the label was measured somewhere, it must have been there; what was measured nowhere is covered as far
        as the kernel was measured there at all.
        """
        return label in self.whole if self.is_known(label) else self.has_kernel(category)

    def has_kernel(self, category: CaseCategory) -> bool:
        """Whether the variant and dtypes of a category were measured on its device, whatever ran them."""
        kernels = self.kernels if category.knobs else self.untuned
        return f"{category.device} {kernel_label(category)}" in kernels


def place_label(category: CaseCategory) -> str:
    """Device and variant of a category, the label that the largest measured sizes go by."""
    return f"{category.device} {category.variant}"


def category_reader(
    impls: Sequence[str],
    groups: Sequence[str],
    settings: Sequence[str],
    measured: Collection[str] = (),
    plain_impl: str = "",
) -> Callable[[CaseCategory, bool], CaseCategory]:
    """What a category is read as: its impl, dtypes, cache state and timing as they were measured.

    The impl is the nearest one measured on its device as this kernel, or in its dtypes, or on its device, or anywhere; one that
    is not given is the plain one or the first with which all of it was measured, or the first measured on its device or
    anywhere in its dtypes, but none of `_NAMED_ONLY`; without knobs none that was measured with chosen knobs alone, as a
    tuner's winners are.
    Of fp16 and bf16 the other is read where only that was measured and both run at one rate: the second argument. Caches that
    were not measured cold are read as hot. A timing that is not given is the one measured on its device, or a call where calls
    were measured on any; with no impl either it is the kernel's alone, where that was measured of anything.

    Args:
        impls: All measured ones, the one to take first where none is given.
        groups: The measured `group_label`s.
        settings: The measured `setting_label`s.
        measured: The `measured_label`s, where they are known.
        plain_impl: The family's, see `KernelFamily`.
    """
    places: dict[str, set[str]] = {}
    for label in groups:
        device, impl, pair = label.split(" ")
        for place in (f"{device} {pair}", pair, device):
            places.setdefault(place, set()).add(impl)
    for label in measured:
        device, kind, variant, pair, impl, *_ = label.split(" ")
        for place in (f"{device} {variant} {pair}", f"{kind} {pair}"):
            places.setdefault(place, set()).add(impl)
    by_preference = sorted(impls, key=lambda impl: impl != plain_impl)
    untuned = {label.split(" ", 5)[4] for label in measured if label.endswith(" ")}
    whole, together = frozenset(measured), frozenset(settings)
    called = {label for label in whole if "@call " in label}
    called_anywhere = {label.partition(" ")[2] for label in called}
    alone = {" ".join(label.split(" ")[2:4]) for label in whole - called if label.split(" ")[1] == "gpu"}

    @lru_cache(MAX_CACHED)
    def nearest_there(place: str, impl: str, is_plain: bool) -> str | None:
        """The impl that one is read as where a place has it or the like of it; None where it has neither."""
        at_place = places.get(place, ())
        there = [known for known in by_preference if known in at_place and (not is_plain or known in untuned)]
        if not impl:
            pair = place.split(" ")[-1]
            there = [known for known in there if f"{known} {pair}" not in _NAMED_ONLY]
        nearest = nearest_impl(impl, there)
        return nearest if nearest in there else None

    def with_timing(category: CaseCategory) -> CaseCategory:
        if category.timing:
            return category
        of_device, of_call = (category._replace(timing=timing) for timing in TIMINGS)
        is_call = measured_label(of_call, of_call.impl).partition(" ")[2] in called_anywhere
        return of_call if is_call and measured_label(of_device, of_device.impl) not in whole else of_device

    def with_measured_cache(category: CaseCategory) -> CaseCategory:
        """What cold caches cost other implementations, on other devices and in other dtypes, says little of this one."""
        category, hot = (with_timing(each) for each in (category, category._replace(cache_state="hot")))
        is_hot_here = measured_label(hot, hot.impl) in whole and measured_label(category, category.impl) not in whole
        is_hot_only = (
            setting_label(hot, hot.impl) in together and setting_label(category, category.impl) not in together
        )
        return hot if is_hot_here or is_hot_only else category

    def read(category: CaseCategory, has_one_rate: bool) -> CaseCategory:
        # On a CPU there is nothing to wait for, and of no impl in particular the kernel matters, not who calls it.
        if category.threads is not None or (not category.impl + category.timing and kernel_label(category) in alone):
            category = category._replace(timing="device")
        device, other = category.device, _ONE_LAW.get(category.dtype) if has_one_rate else None
        alike = [category] if other is None else [category, _with_dtype(category, other)]
        for each in alike if not category.impl else ():
            for impl in by_preference:
                exact = with_timing(each._replace(impl=impl))
                if measured_label(exact, impl) in whole and f"{impl} {kv_pair(exact)}" not in _NAMED_ONLY:
                    return exact
        here = [(f"{device} {label(each)}", each) for label in (kernel_label, kv_pair) for each in alike]
        # Where neither was measured on the device both are read as one, so that they are answered alike.
        by_dtype = sorted(alike, key=lambda each: each.dtype)
        anywhere = [(kv_pair(each), each) for each in by_dtype]
        if not category.impl:
            # No CPU runs the library of a GPU.
            kind = "gpu" if category.threads is None else "cpu"
            anywhere = [*((f"{kind} {pair}", each) for pair, each in anywhere), *anywhere]
        known = [each for each in by_dtype if kv_pair(each) in places]
        of_device = [(device, known[0] if known else category)]
        for place, each in [*here, *of_device, *anywhere] if category.impl else [*here, *anywhere, *of_device]:
            nearest = nearest_there(place, category.impl, bool(not category.impl and not category.knobs and untuned))
            if nearest is not None:
                return with_measured_cache(each._replace(impl=nearest))
        return with_measured_cache(category._replace(impl=nearest_impl(category.impl, list(impls))))

    return read


_NAMED_ONLY = frozenset({"xla fp8/fp8"})
"""Implementations and their dtypes that answer only where they are named. XLA's fp8 is not that of an MI300X, whose products it
runs at 100 TFLOP/s (4096 a side), a tenth of a library's; of 2 rows, fewer than were measured, they would take a hundred times
as long as reading the weights."""

_ONE_LAW = {"fp16": "bf16", "bf16": "fp16"}
"""Where units run both at one rate, a kernel in one takes as long as in the other: public LLM products on an A100, vidur's in
fp16 and aiconfigurator's in bf16, agree within 2 % (median)."""


def _with_dtype(category: CaseCategory, dtype: str) -> CaseCategory:
    kv_dtype = dtype if category.kv_dtype == category.dtype else category.kv_dtype
    return category._replace(dtype=dtype, kv_dtype=kv_dtype)


def nearest_impl(impl: str, known: list[str]) -> str:
    """An `impl` as itself where it is known, else the nearest version of the same library, else itself.

    `vllm-0.25.1` is read as `vllm-0.24.0` if that is the closest there is. An empty `impl` is read as the first known.
    """
    if impl in known:
        return impl
    if not impl and known:
        return known[0]
    library, version = impl_version(impl)
    same = [other for other in known if impl_version(other)[0] == library]
    return min(same, key=lambda other: _distance(version, impl_version(other)[1]), default=impl)


@lru_cache(MAX_CACHED)
def impl_version(impl: str) -> tuple[str, tuple[int, ...]]:
    """The library of an implementation and the numbers of its version."""
    library, _, rest = impl.partition("-")
    return library, tuple(int(part) for part in re.findall(r"\d+", rest))


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    return tuple(abs(x - y) for x, y in zip(a + (0,) * (width - len(a)), b + (0,) * (width - len(b)), strict=True))
