"""From cases to vectors: the one `extract` that training and serving share.

Features are scale-free where they can be (ratios to the device's limits, logarithms, remainders), so that a tree learnt
on one device or size says something about another. Names are part of the schema, and the schema's hash is kept in every
artifact: a model never meets columns other than those it was trained on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .cases import Cases, Floats
from .coded import Words
from .counts import Counts, counts
from .device import Catalogue
from .dtypes import itemsize_b
from .kernel import get_family
from .kinds import ByKind, Kind, Kinds
from .machine import Machine, columns, machine_of
from .terms import TERMS, cost_terms
from .tiling import TILING_NAMES, has_tiling, tiling_columns
from .words import group_word, impls_by_shapes, kv_pair, reader_of, setting_word, thread_word
from .work import Work, work_on

EXTRACT_VERSION = 4
"""Raised whenever a feature changes its meaning; part of the schema's hash. History: 1, the first; 2, a GPU's launch floor is
0.7 µs, a convolution's bytes leave out input that a long stride skips; 3, tile knobs say what they make of the sizes; 4, the
device and what runs on it in which dtype are words of their own."""

_TILE_SIDES = (64.0, 128.0, 256.0)
_ALIGNMENT = 256
"""Largest power of two looked for in a size: 256 elements cover every vector width and tile side in use."""

_TAIL_WIDTHS = (16, 64)
"""Vector and tile widths whose remainder is a feature: what is left over runs in slower code or is masked."""

_DEVICE_FACTS = {
    "compute_units": "units", "boost_clock_hz": "clock_hz", "memory_bandwidth_b_per_s": "bandwidth_b_per_s", "l2_b": "l2_b",
    "memory_b": "memory_b", "tdp_w": "tdp_w", "shared_memory_per_unit_b": "shared_per_unit_b", "l1_per_unit_b": "l1_per_unit_b",
}  # fmt: skip
"""Facts of a device that are features, each with the field of `Machine` that holds it."""

_SIDES = np.array(_TILE_SIDES)[:, None]


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
        kinds = cases.kinds()
        return cls(
            family=cases.family.name,
            dtypes=tuple(sorted(cases.coded("dtype").words)),
            variants=tuple(sorted(cases.coded("variant").words)),
            impls=impls_by_shapes(cases),
            devices=tuple(sorted(cases.coded("device").words)),
            groups=tuple(sorted(kinds.words(lambda kind: group_word(kind, kind.impl)).words)),
            knobs=tuple(name for name, column in cases.config.items() if not np.isnan(column).all()),
            kv_pairs=tuple(sorted(kinds.words(kv_pair).words)),
            cache_states=tuple(sorted(cases.coded("cache_state").words)),
            threads=tuple(sorted(kinds.words(thread_word).words)),
            settings=tuple(sorted(kinds.words(lambda kind: setting_word(kind, kind.impl)).words)),
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
class KindFacts:
    """What the features of cases of one kind have in common: `constant` of shape `(n_features,)`, NaN where sizes decide."""

    read_as: str
    runs_as: str
    machine: Machine
    constant: Floats


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


class KindTable:
    """What features take from a case's kind alone, under a schema and a catalogue: worked out once a kind and kept."""

    def __init__(self, schema: FeatureSchema, catalogue: Catalogue) -> None:
        self.schema = schema
        self._catalogue = catalogue
        self._family = get_family(schema.family)
        self._read = reader_of(schema.impls, schema.groups)
        self._known: ByKind[KindFacts] = ByKind()

    def of(self, kinds: Kinds) -> list[KindFacts]:
        """The facts of each kind.

        Raises:
            SpecError: unknown device, or a dtype a device has no peak for.
        """
        return self._known.of(kinds, self._facts)

    def _facts(self, kind: Kind) -> KindFacts:
        machine, runs_as = machine_of(kind, self._family, self._catalogue)
        read_as = self._read(kind)
        found = dict(_kind_columns(kind, machine))
        for what, words, own in (
            ("dtype", self.schema.dtypes, kind.dtype),
            ("variant", self.schema.variants, kind.variant),
            ("impl", self.schema.impls, read_as),
            ("device", self.schema.devices, kind.device),
            ("group", self.schema.groups, group_word(kind, read_as)),
        ):
            if len(words) > 1:
                found.update((f"{what}={word}", float(word == own)) for word in words)
        constant = np.array([found.get(name, np.nan) for name in self.schema.names])
        return KindFacts(read_as, runs_as, machine, constant)


def extract(cases: Cases, schema: FeatureSchema, catalogue: Catalogue, table: KindTable | None = None) -> Features:
    """Features of cases under a schema; `table` keeps what kinds have in common between calls.

    Raises:
        SpecError: unknown device, or a dtype a device has no peak for.
    """
    kinds = cases.kinds()
    facts = (table or KindTable(schema, catalogue)).of(kinds)
    machine = columns([one.machine for one in facts], kinds)
    counted = counts(cases)
    paper = work_on(counted, machine, kinds.word_list([one.runs_as for one in facts]))
    terms = cost_terms(counted, paper, machine)
    values = np.take(np.stack([one.constant for one in facts]), kinds.code, axis=0)
    varying = np.concatenate(list(_varying(cases, counted, paper, terms, machine)))
    values[:, _positions_of(schema)] = varying.T
    if any(kind.knobs for kind in kinds.kinds):
        names = schema.names
        for name, column in _knob_columns(cases, schema, machine):
            values[:, names.index(name)] = column
    return Features(schema, values, paper, terms, kinds.word_list([one.read_as for one in facts]))


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


def _varying_names(schema: FeatureSchema) -> Iterable[str]:
    """Names of the features that follow from the sizes, in the order of the rows of `_varying`."""
    family = get_family(schema.family)
    tiled = family.tiles is not None
    yield from (f"log {dim}" for dim in family.dim_names)
    yield from _LOG_WORK_NAMES
    yield from (f"log {term} term" for term in TERMS)
    if tiled:
        yield from ("log tile batch", "log tile m", "log tile n", "log tile k", "log m over n")
        yield from (f"log waves {side:g}" for side in _TILE_SIDES)
    yield from (f"alignment {dim}" for dim in family.dim_names)
    for width in _TAIL_WIDTHS:
        yield from (f"tail {width} {dim}" for dim in family.dim_names)
    if tiled:
        for what in ("wave", "tile"):
            yield from (f"{what} filling {side:g}" for side in _TILE_SIDES)


@lru_cache(maxsize=256)
def _positions_of(schema: FeatureSchema) -> list[int]:
    """Where in the schema the rows of `_varying` stand."""
    place = {name: i for i, name in enumerate(schema.names)}
    return [place[name] for name in _varying_names(schema)]


_LOG_WORK_NAMES = (
    "log flops", "log bytes", "log footprint", "log intensity", "log compute s", "log dram s", "log cache s",
    "log compute over dram", "log lower bound s", "log footprint over cache", "log footprint over l1", "log launches",
)  # fmt: skip


def _varying(cases: Cases, counted: Counts, paper: Work, terms: Floats, machine: Machine) -> Iterable[Floats]:
    """Blocks of rows of shape `(k, n)`: the features that follow from the sizes, named by `_varying_names`."""
    sizes = np.array(list(cases.sizes.values()))
    compute = np.maximum(paper.flops / paper.peak_flops_per_s, 1e-12)
    logs = [
        np.maximum(sizes, 0.5),
        np.array([
            np.maximum(paper.flops, 1.0),
            paper.bytes,
            paper.footprint_b,
            np.maximum(paper.intensity, 1e-6),
            compute,
            paper.dram_all_s,
            paper.bounds_s["cache"],
            compute / paper.dram_all_s,
            paper.lower_bound_s,
            paper.footprint_b / machine.last_level_b,
            paper.footprint_b / (machine.l1_per_unit_b * machine.units),
            np.maximum(compute, paper.dram_all_s) / machine.launch_s,
        ]),
        terms.T,
    ]  # fmt: skip
    fillings: list[Floats] = []
    if counted.products is not None:
        batch, m, n, _ = counted.products
        tiles = batch * np.ceil(m / _SIDES) * np.ceil(n / _SIDES)
        waves = tiles / machine.units
        logs += [counted.products, (m / n)[None], waves]
        fillings = [waves / np.ceil(waves), batch * m * n / (tiles * _SIDES * _SIDES)]
    yield np.log2(np.concatenate(logs))
    yield alignment(sizes)
    yield from (np.mod(sizes, width) / width for width in _TAIL_WIDTHS)
    yield from fillings


def _kind_columns(kind: Kind, machine: Machine) -> Iterable[tuple[str, float]]:
    """The numeric features that follow from the kind alone."""
    yield "log balance", math.log2(machine.peak_flops_per_s / machine.bandwidth_b_per_s)
    yield "log peak", math.log2(machine.peak_flops_per_s)
    yield "itemsize", itemsize_b(kind.dtype)
    yield "kv itemsize", itemsize_b(kind.kv_dtype)
    yield "cold", float(kind.cache_state == "cold")
    yield "threads", math.nan if kind.threads is None else kind.threads
    for name, attribute in _DEVICE_FACTS.items():
        yield f"log {name}", math.log2(getattr(machine, attribute))


def _knob_columns(cases: Cases, schema: FeatureSchema, machine: Machine) -> Iterable[tuple[str, Floats]]:
    """Tuning knobs as given, and what a knob named after a size (`tile_m`) does to it; NaN where not set."""
    if has_tiling(schema.knobs):
        yield from tiling_columns(cases, machine.units, machine.shared_per_unit_b)
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


def alignment(sizes: npt.NDArray[Any]) -> Floats:
    """log2 of the largest power of two that divides each size, at most log2(256); shape `(n,)`."""
    whole = sizes.astype(np.int64)
    return np.log2(np.minimum(np.where(whole == 0, _ALIGNMENT, whole & -whole), _ALIGNMENT).astype(np.float64))
