"""The words a case is known by: what runs it, where, in which dtypes, with which knobs, as text that models compare."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .cases import Cases
from .coded import Words

NO_THREADS = "nan"
"""Word of a case that has no thread count: one on a GPU."""


def kv_pairs(cases: Cases) -> Words:
    """Dtype and cache dtype of each case, `bf16/fp8`."""
    return Words.joined([cases.coded("dtype"), cases.coded("kv_dtype")], "{}/{}".format)


def group_words(cases: Cases, impls: Words) -> Words:
    """Device, impl and dtypes of each case, `nvidia-t4 torch fp32/fp32`."""
    return Words.joined([cases.coded("device"), impls, kv_pairs(cases)], "{} {} {}".format)


def thread_words(cases: Cases) -> Words:
    """Thread count of each case, `NO_THREADS` where there is none."""
    counts, code = np.unique(cases.threads, return_inverse=True)
    return Words(tuple(f"{count:g}" for count in counts.tolist()), code)


def setting_words(cases: Cases, impls: Words) -> Words:
    """What runs each case, in which dtype, on what and with which knobs.

    `torch bf16 gpu`, `triton bf16 gpu with stages,tile_m …`: words that are each known may still never have been together.
    A case without a thread count is one on a GPU.
    """
    where = Words(("gpu", "cpu"), np.where(np.isnan(cases.threads), 0, 1))
    names = sorted(cases.config)
    given = np.zeros(len(cases), dtype=np.intp)
    for place, name in enumerate(names):
        given += (~np.isnan(cases.config[name])).astype(np.intp) << place
    masks, code = np.unique(given, return_inverse=True)
    knobs = Words(
        tuple(",".join(name for place, name in enumerate(names) if mask >> place & 1) for mask in masks.tolist()), code
    )
    return Words.joined(
        [impls, cases.coded("dtype"), where, knobs],
        lambda impl, dtype, kind, some: f"{impl} {dtype} {kind}" + (f" with {some}" if some else ""),
    )


def measured_words(cases: Cases) -> Words:
    """Device, variant and dtypes of each case: what was measured on a device at all."""
    return Words.joined([cases.coded("device"), cases.coded("variant"), kv_pairs(cases)], "{} {} {}".format)


def read_as(cases: Cases, impls: Sequence[str], groups: Sequence[str]) -> Words:
    """What each case's `impl` is read as: the nearest of those known on its device, or on any where its device is not known.

    `impls` are all known ones, the one to take first where none is given; `groups` are `group_words`.
    """
    own: dict[str, set[str]] = {}
    for word in groups:
        device, impl, _ = word.split(" ")
        own.setdefault(device, set()).add(impl)

    def read(device: str, impl: str) -> str:
        there = nearest_impl(impl, [word for word in impls if word in own.get(device, ())])
        return there if there in impls else nearest_impl(impl, list(impls))

    return Words.joined([cases.coded("device"), cases.coded("impl")], read)


def nearest_impl(word: str, known: list[str]) -> str:
    """An `impl` as itself where it is known, else the nearest version of the same library, else itself.

    `vllm-0.25.1` is read as `vllm-0.24.0` if that is the closest there is. An empty `impl` is read as the first known.
    """
    if word in known:
        return word
    if not word and known:
        return known[0]
    library, version = _version(word)
    same = [other for other in known if _version(other)[0] == library]
    return min(same, key=lambda other: _distance(version, _version(other)[1]), default=word)


def impls_by_shapes(cases: Cases) -> tuple[str, ...]:
    """The `impl` words of cases, the one measured on most distinct shapes first: it is meant when none is given."""
    shapes = np.stack(list(cases.sizes.values()), axis=1)
    counts = {word: len(np.unique(shapes[cases.impl == word], axis=0)) for word in np.unique(cases.impl).tolist()}
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def _version(impl: str) -> tuple[str, tuple[int, ...]]:
    library, _, rest = impl.partition("-")
    return library, tuple(int(part) for part in re.findall(r"\d+", rest))


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    return tuple(abs(x - y) for x, y in zip(a + (0,) * (width - len(a)), b + (0,) * (width - len(b)), strict=True))
