"""The words a case is known by: what runs it, where, in which dtypes, with which knobs, as text that models compare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from .cases import Cases
from .kinds import Kind

NO_THREADS = "nan"
"""Word of a case that has no thread count: one on a GPU."""


def kv_pair(kind: Kind) -> str:
    """Dtype and cache dtype of a kind, `bf16/fp8`."""
    return f"{kind.dtype}/{kind.kv_dtype}"


def group_word(kind: Kind, impl: str) -> str:
    """Device, impl and dtypes of a kind whose impl is read as `impl`: `nvidia-t4 torch fp32/fp32`."""
    return f"{kind.device} {impl} {kv_pair(kind)}"


def thread_word(kind: Kind) -> str:
    """Thread count of a kind, `NO_THREADS` where there is none."""
    return NO_THREADS if kind.threads is None else f"{kind.threads:g}"


def setting_word(kind: Kind, impl: str) -> str:
    """What runs a kind whose impl is read as `impl`, in which dtype, on what and with which knobs.

    `torch bf16 gpu`, `triton bf16 gpu with stages,tile_m …`: words that are each known may still never have been together.
    A kind without a thread count is one on a GPU.
    """
    where = "gpu" if kind.threads is None else "cpu"
    return f"{impl} {kind.dtype} {where}" + (f" with {','.join(kind.knobs)}" if kind.knobs else "")


def measured_word(kind: Kind) -> str:
    """Device, variant and dtypes of a kind: what was measured on a device at all."""
    return f"{kind.device} {kind.variant} {kv_pair(kind)}"


def reader_of(impls: Sequence[str], groups: Sequence[str]) -> Callable[[Kind], str]:
    """What a kind's `impl` is read as: the nearest of those known on its device, or on any where its device is not known.

    `impls` are all known ones, the one to take first where none is given; `groups` are `group_word`s.
    """
    own: dict[str, set[str]] = {}
    for word in groups:
        device, impl, _ = word.split(" ")
        own.setdefault(device, set()).add(impl)

    def read(kind: Kind) -> str:
        there = nearest_impl(kind.impl, [word for word in impls if word in own.get(kind.device, ())])
        return there if there in impls else nearest_impl(kind.impl, list(impls))

    return read


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
