"""From cases to vectors: the one `extract` that training and serving share.

Features are scale-free where they can be (ratios to the device's limits, logarithms, remainders), so that a tree learnt
on one device or size says something about another. Names are part of the schema, and the schema's hash is kept in every
artifact: a model never meets columns other than those it was trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .cases import Cases, Floats
from .coded import Words
from .device import Catalogue
from .dtypes import itemsize_b
from .kernel import get_family
from .terms import TERMS, cost_terms
from .tiling import TILING_NAMES, has_tiling, product_shapes, tiling_columns
from .words import group_words, impls_by_shapes, kv_pairs, read_as, setting_words, thread_words
from .work import LAUNCH_FLOOR_S, Work, work

EXTRACT_VERSION = 4
"""Raised whenever a feature changes its meaning; part of the schema's hash. History: 1, the first; 2, a GPU's launch floor is
0.7 µs, a convolution's bytes leave out input that a long stride skips; 3, tile knobs say what they make of the sizes; 4, the
device and what runs on it in which dtype are words of their own."""

_TILE_SIDES = (64.0, 128.0, 256.0)
_ALIGNMENT = 256
"""Largest power of two looked for in a size: 256 elements cover every vector width and tile side in use."""

_TAIL_WIDTHS = (16, 64)
"""Vector and tile widths whose remainder is a feature: what is left over runs in slower code or is masked."""

_DEVICE_FACTS = ("compute_units", "boost_clock_hz", "memory_bandwidth_b_per_s", "l2_b", "memory_b", "tdp_w",
                 "shared_memory_per_unit_b", "l1_per_unit_b")  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """Names of one family's features, and the words its text columns were trained with.

    A text column becomes one column per word seen in training; an `impl` never seen on a device is read as the nearest
    version of the same library there, or else anywhere (`words.nearest_impl`). `devices` are catalogue names; `groups` say
    what ran where in which dtypes (`words.group_words`). `kv_pairs`, `cache_states`, `threads` and `settings` become no
    columns, but say what else the rows were like: a case unlike them is out of domain.
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
        return cls(
            family=cases.family.name,
            dtypes=tuple(sorted(cases.coded("dtype").words)),
            variants=tuple(sorted(cases.coded("variant").words)),
            impls=impls_by_shapes(cases),
            devices=tuple(sorted(cases.coded("device").words)),
            groups=tuple(sorted(group_words(cases, cases.coded("impl")).words)),
            knobs=tuple(name for name, column in cases.config.items() if not np.isnan(column).all()),
            kv_pairs=tuple(sorted(kv_pairs(cases).words)),
            cache_states=tuple(sorted(cases.coded("cache_state").words)),
            threads=tuple(sorted(thread_words(cases).words)),
            settings=tuple(sorted(setting_words(cases, cases.coded("impl")).words)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names in column order."""
        return _names_of(self)

    @property
    def hash(self) -> str:
        """16 hex digits that change whenever a column or its meaning does."""
        content = [EXTRACT_VERSION, self.family, self.names]
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


@dataclass(frozen=True, slots=True)
class Features:
    """`values` of shape `(n, n_features)`, float64, with the schema that names the columns.

    `work` and `terms` (seconds, shape `(n, n_terms)`, see `features.terms`) are what the values were made of; `read_as` is
    what each case's `impl` was read as.
    """

    schema: FeatureSchema
    values: Floats
    work: Work
    terms: Floats
    read_as: Words


def extract(cases: Cases, schema: FeatureSchema, catalogue: Catalogue) -> Features:
    """Features of cases under a schema.

    Raises:
        SpecError: unknown device, or a dtype a device has no peak for.
    """
    paper = work(cases, catalogue)
    terms = cost_terms(cases, paper, catalogue)
    facts = _device_columns(cases, catalogue)
    columns = dict(_numeric(cases, paper, facts))
    columns.update(zip((f"log {term} term" for term in TERMS), np.log2(terms).T, strict=True))
    columns.update(_knob_columns(cases, schema, facts))
    impls = read_as(cases, schema.impls, schema.groups)
    for what, words, given in (
        ("dtype", schema.dtypes, cases.coded("dtype")),
        ("variant", schema.variants, cases.coded("variant")),
        ("impl", schema.impls, impls),
        ("device", schema.devices, cases.coded("device")),
        ("group", schema.groups, group_words(cases, impls)),
    ):
        columns.update({f"{what}={word}": given.is_word(word).astype(np.float64) for word in words if len(words) > 1})
    values = np.stack([columns[name] for name in schema.names], axis=1)
    return Features(schema, values, paper, terms, impls)


def scale_free_columns(schema: FeatureSchema) -> npt.NDArray[np.bool_]:
    """Which features say nothing absolute of a device, shape `(n_features,)`: ratios, shapes and words, but no seconds, no
    datasheet figure, and not which device it is. What trees learn from these alone holds on devices never measured.
    """
    absolute = {f"log {name}" for name in _DEVICE_FACTS} | {"log peak", "log balance"}
    return np.array([
        not (name in absolute or name.endswith((" s", " term")) or name.startswith(("device=", "group=")))
        for name in schema.names
    ])  # fmt: skip


@lru_cache(maxsize=256)
def _names_of(schema: FeatureSchema) -> tuple[str, ...]:
    return tuple(_names(schema))


def _names(schema: FeatureSchema) -> Iterable[str]:
    family = get_family(schema.family)
    for dim in family.dim_names:
        yield f"log {dim}"
    for dim in family.dim_names:
        yield from (f"alignment {dim}", *(f"tail {width} {dim}" for width in _TAIL_WIDTHS))
    yield from _WORK_NAMES
    yield from (f"log {term} term" for term in TERMS)
    if family.tiles is not None:
        for side in _TILE_SIDES:
            yield from (f"log waves {side:g}", f"wave filling {side:g}", f"tile filling {side:g}")
        yield from ("log tile m", "log tile n", "log tile k", "log tile batch", "log m over n")
    yield from (f"log {name}" for name in _DEVICE_FACTS)
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


@lru_cache(maxsize=256)
def _knob_names(schema: FeatureSchema) -> tuple[str, ...]:
    names = [f"knob {name}" for name in schema.knobs]
    for name, size in _sized_knobs(schema):
        names += [f"log {size} over {name}", f"padding {name}"]
    names += [f"log {prefix} volume" for prefix in _knob_groups(schema)]
    return (*names, *(TILING_NAMES if has_tiling(schema.knobs) else ()))


_WORK_NAMES = (
    "log flops", "log bytes", "log footprint", "log intensity", "log compute s", "log dram s", "log cache s",
    "log compute over dram", "log lower bound s", "log footprint over cache", "log footprint over l1", "log balance",
    "log peak", "log launches", "itemsize", "kv itemsize", "cold", "threads",
)  # fmt: skip


def _numeric(cases: Cases, paper: Work, facts: Mapping[str, Floats]) -> Iterable[tuple[str, Floats]]:
    for name, column in cases.sizes.items():
        yield f"log {name}", np.log2(np.maximum(column, 0.5))
        yield f"alignment {name}", alignment(column)
        for width in _TAIL_WIDTHS:
            yield f"tail {width} {name}", np.mod(column, width) / width
    compute = paper.flops / paper.peak_flops_per_s
    work_columns = (
        np.log2(np.maximum(paper.flops, 1.0)),
        np.log2(paper.bytes),
        np.log2(paper.footprint_b),
        np.log2(np.maximum(paper.intensity, 1e-6)),
        np.log2(np.maximum(compute, 1e-12)),
        np.log2(paper.dram_all_s),
        np.log2(paper.bounds_s["cache"]),
        np.log2(np.maximum(compute, 1e-12) / paper.dram_all_s),
        np.log2(paper.lower_bound_s),
        np.log2(paper.footprint_b / facts["last level cache"]),
        np.log2(paper.footprint_b / (facts["l1_per_unit_b"] * facts["compute_units"])),
        np.log2(paper.peak_flops_per_s / paper.bandwidth_b_per_s),
        np.log2(paper.peak_flops_per_s),
        np.log2(np.maximum(compute, paper.dram_all_s) / facts["launch"]),
        _itemsizes(cases.coded("dtype")),
        _itemsizes(cases.coded("kv_dtype")),
        cases.coded("cache_state").is_word("cold").astype(np.float64),
        cases.threads,
    )
    yield from zip(_WORK_NAMES, work_columns, strict=True)
    if cases.family.tiles is not None:
        yield from _tile_columns(cases, facts["compute_units"])
    for name in _DEVICE_FACTS:
        yield f"log {name}", np.log2(facts[name])


def _knob_columns(cases: Cases, schema: FeatureSchema, facts: Mapping[str, Floats]) -> Iterable[tuple[str, Floats]]:
    """Tuning knobs as given, and what a knob named after a size (`tile_m`) does to it; NaN where not set."""
    if all(np.isnan(cases.config[name]).all() for name in schema.knobs):
        # The usual request: nothing to work out.
        unset = np.full(len(cases), np.nan)
        yield from ((name, unset) for name in _knob_names(schema))
        return
    if has_tiling(schema.knobs):
        yield from tiling_columns(cases, facts["compute_units"], facts["shared_memory_per_unit_b"])
    for name in schema.knobs:
        yield f"knob {name}", cases.config[name]
    for name, size in _sized_knobs(schema):
        knob, extent = np.where(cases.config[name] > 0, cases.config[name], np.nan), cases.sizes[size]
        yield f"log {size} over {name}", np.log2(extent / knob)
        yield f"padding {name}", np.ceil(extent / knob) * knob / extent
    for prefix, names in _knob_groups(schema).items():
        yield f"log {prefix} volume", np.sum([np.log2(np.maximum(cases.config[name], 1.0)) for name in names], axis=0)


def _sized_knobs(schema: FeatureSchema) -> list[tuple[str, str]]:
    """The schema's knobs that end in a size's name, each with that size."""
    sizes = get_family(schema.family).dim_names
    return [(name, size) for name in schema.knobs for size in sizes if name.endswith(f"_{size}")]


def _knob_groups(schema: FeatureSchema) -> dict[str, list[str]]:
    """Sized knobs by prefix: `tile` for `tile_m` and `tile_n`."""
    groups: dict[str, list[str]] = {}
    for name, size in _sized_knobs(schema):
        groups.setdefault(name.removesuffix(f"_{size}"), []).append(name)
    return groups


def _tile_columns(cases: Cases, units: Floats) -> Iterable[tuple[str, Floats]]:
    """Wave and tile quantisation: how full the last wave of tiles and the tiles at the edges are, for usual tile sides."""
    batch, m, n, k = product_shapes(cases)
    for side in _TILE_SIDES:
        count = batch * np.ceil(m / side) * np.ceil(n / side)
        waves = count / units
        yield f"log waves {side:g}", np.log2(waves)
        yield f"wave filling {side:g}", waves / np.ceil(waves)
        yield f"tile filling {side:g}", batch * m * n / (count * side * side)
    for name, column in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        yield f"log tile {name}", np.log2(column)
    yield "log m over n", np.log2(m / n)


def alignment(sizes: npt.NDArray[Any]) -> Floats:
    """log2 of the largest power of two that divides each size, at most log2(256); shape `(n,)`."""
    whole = sizes.astype(np.int64)
    return np.log2(np.minimum(np.where(whole == 0, _ALIGNMENT, whole & -whole), _ALIGNMENT).astype(np.float64))


def _itemsizes(dtypes: Words) -> Floats:
    return np.array([itemsize_b(word) for word in dtypes.words])[dtypes.code]


def _device_columns(cases: Cases, catalogue: Catalogue) -> dict[str, Floats]:
    columns = {name: np.full(len(cases), np.nan) for name in (*_DEVICE_FACTS, "last level cache", "launch")}
    for index, (name,) in cases.groups("device"):
        device = catalogue.get(name)
        for fact in _DEVICE_FACTS:
            value = device.fact(fact)
            columns[fact][index] = np.nan if value is None else value
        columns["last level cache"][index] = device.last_level_cache_b
        columns["launch"][index] = LAUNCH_FLOOR_S[device.kind]
    return columns
