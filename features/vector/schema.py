"""The schema of a family's features: the names of its columns, and the labels its text columns were trained with.

The schema's hash is kept in every artifact: a model never meets columns other than those it was trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch.cases import Cases
from ..batch.category import group_label, kv_pair, setting_label, thread_label
from ..cost.bounds import TERMS
from ..cost.tile_geometry import TILING_NAMES, has_tiling
from ..kernel import get_family

EXTRACT_VERSION = 5
"""Raised whenever a feature changes its meaning; part of the schema's hash. History: 1, the first; 2, a GPU's launch floor is
0.7 µs, a convolution's bytes leave out input that a long stride skips; 3, tile knobs say what they make of the sizes; 4, the
device and what runs on it in which dtype are words of their own; 5, what was measured is known by impl and cache state too."""

_REVISIONS = {"attention": 2, "causal_conv1d": 1, "conv2d": 1, "embedding": 1, "linear_attention": 1, "moe": 1}
"""The same for features of one family alone. History: attention 1, its products are those of a fused kernel's blocks; 2 and the
others' 1, terms leave out operands that are not read."""

TILE_SIDES = (64.0, 128.0, 256.0)
TAIL_WIDTHS = (16, 64)
"""Vector and tile widths whose remainder is a feature: what is left over runs in slower code or is masked."""

DEVICE_FACTS = {
    "compute_units": "units", "boost_clock_hz": "clock_hz", "memory_bandwidth_b_per_s": "bandwidth_b_per_s", "l2_b": "l2_b",
    "memory_b": "memory_b", "tdp_w": "tdp_w", "shared_memory_per_unit_b": "shared_per_unit_b", "l1_per_unit_b": "l1_per_unit_b",
}  # fmt: skip
"""Facts of a device that are features, each with the field of `DeviceLimits` that holds it."""


@dataclass(frozen=True)
class FeatureSchema:
    """Names of one family's features, and the labels its text columns were trained with.

    A text column becomes one column per label seen in training; an `impl` never seen on a device is read as the nearest
    version of the same library there, or else anywhere (`category.nearest_impl`). The last four fields become no columns, but
    say what else the rows were like: a case unlike them is out of domain.

    Attributes:
        family: The kernel family.
        dtypes: Dtypes seen.
        variants: Variants seen.
        impls: Implementations seen, the one measured on most shapes first.
        devices: Devices seen, catalogue names.
        groups: What ran where in which dtypes (`category.group_label`).
        knobs: Tuning knobs that were set.
        kv_pairs: Pairs of dtype and cache dtype.
        cache_states: Cache states seen.
        threads: Thread counts seen.
        settings: What ran in which dtype, on what, from which caches, with which knobs (`category.setting_label`).
    """

    family: str
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    impls: tuple[str, ...]
    devices: tuple[str, ...]
    groups: tuple[str, ...]
    knobs: tuple[str, ...]
    kv_pairs: tuple[str, ...]
    cache_states: tuple[str, ...]
    threads: tuple[str, ...]
    settings: tuple[str, ...]

    @classmethod
    def fit(cls, cases: Cases) -> FeatureSchema:
        """The schema for training on `cases`: the words and the knobs that occur there."""
        categories = cases.categories
        return cls(
            family=cases.family.name,
            dtypes=tuple(sorted(cases.coded("dtype").words)),
            variants=tuple(sorted(cases.coded("variant").words)),
            impls=_impls_by_shapes(cases),
            devices=tuple(sorted(cases.coded("device").words)),
            groups=tuple(sorted(categories.labels(lambda category: group_label(category, category.impl)).words)),
            knobs=tuple(name for name, column in cases.config.items() if not np.isnan(column).all()),
            kv_pairs=tuple(sorted(categories.labels(kv_pair).words)),
            cache_states=tuple(sorted(cases.coded("cache_state").words)),
            threads=tuple(sorted(categories.labels(thread_label).words)),
            settings=tuple(sorted(categories.labels(lambda category: setting_label(category, category.impl)).words)),
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Feature names in column order."""
        return tuple(_names(self))

    @cached_property
    def size_columns(self) -> list[int]:
        """Columns of the features that follow from the sizes, in the order in which `extract` computes them."""
        place = {name: i for i, name in enumerate(self.names)}
        return [place[name] for name in self.sized_names]

    @cached_property
    def sized_names(self) -> tuple[str, ...]:
        """Names of the features in `size_columns`."""
        return tuple(_varying_names(self))

    @cached_property
    def place_columns(self) -> list[int]:
        """Columns that say where a case ran."""
        return [i for i, name in enumerate(self.names) if name.startswith(("device=", "group="))]

    @property
    def hash(self) -> str:
        """16 hex digits that change whenever a column or its meaning does."""
        revision = [_REVISIONS[self.family]] if self.family in _REVISIONS else []
        content = [EXTRACT_VERSION, *revision, self.family, self.names]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain data for an artifact's manifest."""
        return {name: getattr(self, name) for name in ("family", *_WORD_LISTS)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeatureSchema:
        """The schema `to_json` described."""
        words = {name: tuple(data[name]) for name in _WORD_LISTS}
        return cls(family=str(data["family"]), **words)


_WORD_LISTS = (
    "dtypes",
    "variants",
    "impls",
    "devices",
    "groups",
    "knobs",
    "kv_pairs",
    "cache_states",
    "threads",
    "settings",
)


def _names(schema: FeatureSchema) -> Iterable[str]:
    family = get_family(schema.family)
    for dim in family.dim_names:
        yield f"log {dim}"
    for dim in family.dim_names:
        yield from (f"alignment {dim}", *(f"tail {width} {dim}" for width in TAIL_WIDTHS))
    yield from _WORK_NAMES
    yield from (f"log {term} term" for term in TERMS)
    if family.tiles is not None:
        for side in TILE_SIDES:
            yield from (f"log waves {side:g}", f"wave filling {side:g}", f"tile filling {side:g}")
        yield from ("log tile m", "log tile n", "log tile k", "log tile batch", "log m over n")
    yield from (f"log {name}" for name in DEVICE_FACTS)
    yield from _knob_names(schema)
    for what, words in (
        ("dtype", schema.dtypes),
        ("variant", schema.variants),
        ("impl", schema.impls),
        ("device", schema.devices),
        ("group", schema.groups),
    ):
        if len(words) > 1:
            yield from (f"{what}={word}" for word in words)


def _knob_names(schema: FeatureSchema) -> tuple[str, ...]:
    names = [f"knob {name}" for name in schema.knobs]
    for name, size in sized_knobs(schema):
        names += [f"log {size} over {name}", f"padding {name}"]
    names += [f"log {prefix} volume" for prefix in knob_groups(schema)]
    return (*names, *(TILING_NAMES if has_tiling(schema.knobs) else ()))


_WORK_NAMES = (
    "log flops", "log bytes", "log footprint", "log intensity", "log compute s", "log dram s", "log cache s",
    "log compute over dram", "log lower bound s", "log footprint over cache", "log footprint over l1", "log balance",
    "log peak", "log launches", "itemsize", "kv itemsize", "cold", "threads",
)  # fmt: skip


def _varying_names(schema: FeatureSchema) -> Iterable[str]:
    """Names of the features that follow from the sizes, in the order of the rows of `_varying`."""
    family = get_family(schema.family)
    tiled = family.tiles is not None
    yield from (f"log {dim}" for dim in family.dim_names)
    yield from _LOG_WORK_NAMES
    yield from (f"log {term} term" for term in TERMS)
    if tiled:
        yield from ("log tile batch", "log tile m", "log tile n", "log tile k", "log m over n")
        yield from (f"log waves {side:g}" for side in TILE_SIDES)
    yield from (f"alignment {dim}" for dim in family.dim_names)
    for width in TAIL_WIDTHS:
        yield from (f"tail {width} {dim}" for dim in family.dim_names)
    if tiled:
        for what in ("wave", "tile"):
            yield from (f"{what} filling {side:g}" for side in TILE_SIDES)


_LOG_WORK_NAMES = (
    "log flops", "log bytes", "log footprint", "log intensity", "log compute s", "log dram s", "log cache s",
    "log compute over dram", "log lower bound s", "log footprint over cache", "log footprint over l1", "log launches",
)  # fmt: skip


def sized_knobs(schema: FeatureSchema) -> list[tuple[str, str]]:
    """The schema's knobs that end in a size's name, each with that size."""
    sizes = get_family(schema.family).dim_names
    return [(name, size) for name in schema.knobs for size in sizes if name.endswith(f"_{size}")]


def knob_groups(schema: FeatureSchema) -> dict[str, list[str]]:
    """Sized knobs by prefix: `tile` for `tile_m` and `tile_n`."""
    groups: dict[str, list[str]] = {}
    for name, size in sized_knobs(schema):
        groups.setdefault(name.removesuffix(f"_{size}"), []).append(name)
    return groups


def scale_free_columns(schema: FeatureSchema) -> npt.NDArray[np.bool_]:
    """Which features say nothing absolute of a device, shape `(n_features,)`: ratios, shapes and words, but no seconds, no
    datasheet figure, and not which device it is. What trees learn from these alone holds on devices never measured.
    """
    absolute = {f"log {name}" for name in DEVICE_FACTS} | {"log peak", "log balance"}
    return np.array([
        not (name in absolute or name.endswith((" s", " term")) or name.startswith(("device=", "group=")))
        for name in schema.names
    ])  # fmt: skip


def _impls_by_shapes(cases: Cases) -> tuple[str, ...]:
    """The `impl` names of cases, the one measured on most distinct shapes first: it is meant when none is given."""
    shapes = np.stack(list(cases.sizes.values()), axis=1)
    counts = {impl: len(np.unique(shapes[cases.impl == impl], axis=0)) for impl in np.unique(cases.impl).tolist()}
    return tuple(sorted(counts, key=lambda impl: (-counts[impl], impl)))
