"""The words a case is known by: what runs it, where, in which dtypes, with which knobs, as text that models compare."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from .cases import Cases, Strings

NO_THREADS = "nan"
"""Word of a case that has no thread count: one on a GPU."""


def kv_pairs(cases: Cases) -> Strings:
    """Dtype and cache dtype of each case as one word, `bf16/fp8`, shape `(n,)`."""
    return np.char.add(np.char.add(cases.dtype, "/"), cases.kv_dtype)


def group_words(cases: Cases, impls: Strings) -> Strings:
    """Device, impl and dtypes of each case as one word, `nvidia-t4 torch fp32/fp32`, shape `(n,)`."""
    return np.char.add(np.char.add(np.char.add(np.char.add(cases.device, " "), impls), " "), kv_pairs(cases))


def thread_words(cases: Cases) -> Strings:
    """Thread count of each case as a word, `NO_THREADS` where there is none, shape `(n,)`."""
    return np.char.mod("%g", cases.threads)


def setting_words(cases: Cases, impls: Strings) -> Strings:
    """What runs each case, in which dtype, on what and with which knobs, as one word, shape `(n,)`.

    `torch bf16 gpu`, `triton bf16 gpu with stages,tile_m …`: words that are each known may still never have been together.
    A case without a thread count is one on a GPU.
    """
    where = np.where(np.isnan(cases.threads), " gpu", " cpu")
    words = np.char.add(np.char.add(np.char.add(impls, " "), cases.dtype), where).astype(np.dtypes.StringDType())
    knobs: Any = np.full(len(cases), "", dtype=np.dtypes.StringDType())
    for name in sorted(cases.config):
        knobs = np.where(np.isnan(cases.config[name]), knobs, knobs + f",{name}")
    pairs = zip(words.tolist(), knobs.tolist(), strict=True)
    found: Strings = np.array([f"{word} with {some[1:]}" if some else word for word, some in pairs], dtype=np.str_)
    return found


def measured_words(cases: Cases) -> Strings:
    """Device, variant and dtypes of each case as one word, shape `(n,)`: what was measured on a device at all."""
    return np.char.add(np.char.add(np.char.add(np.char.add(cases.device, " "), cases.variant), " "), kv_pairs(cases))


def nearest_impls(given: Strings, known: Iterable[str]) -> Strings:
    """Each `impl` as itself where it is known, else the nearest version of the same library, else itself.

    `vllm-0.25.1` is read as `vllm-0.24.0` if that is the closest there is. An empty `impl` is read as the first known.
    """
    known = list(known)
    words, inverse = np.unique(given, return_inverse=True)
    return np.array([nearest_impl(word, known) for word in words.tolist()], dtype=np.str_)[inverse]


def nearest_impl(word: str, known: list[str]) -> str:
    """One `impl`, see `nearest_impls`."""
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
