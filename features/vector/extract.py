"""From cases to vectors: the one `extract` that training and serving share.

Features are scale-free where they can be (ratios to the device's limits, logarithms, remainders), so that a tree learnt
on one device or size says something about another. Names are part of the schema, and the schema's hash is kept in every
artifact: a model never meets columns other than those it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..batch.cases import Cases, Floats, Indices
from ..batch.categorical import Categorical
from ..batch.category import CaseCategory, CategoryCache, categorical, category_reader, group_label
from ..cost.bounds import Counts, Work, bounds, cost_terms, counts
from ..cost.device_limits import DeviceLimits, device_limits, limit_columns, limit_numbers
from ..cost.tile_geometry import has_tiling, tiling_columns
from ..device import Catalogue, Device
from ..dtypes import itemsize_b
from ..kernel import get_family
from .schema import DEVICE_FACTS, TAIL_WIDTHS, TILE_SIDES, FeatureSchema, knob_groups, sized_knobs

_POWERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Powers of two looked for in a size: 256 elements cover every vector width and tile side in use."""

_SIDES = np.array(TILE_SIDES)[:, None]


@dataclass(frozen=True, slots=True)
class CategoryFeatures:
    """What the features of the cases of one category have in common.

    Attributes:
        category: The category, its device under its catalogue name, a CPU's threads as a number.
        read: What it is read as: with the impl, dtypes and cache state that were measured, see `category_reader`.
        device: The device.
        limits: What it meets on the device.
        constant: Features that do not depend on sizes, NaN elsewhere, shape `(n_features,)`.
    """

    category: CaseCategory
    read: CaseCategory
    device: Device
    limits: DeviceLimits
    constant: Floats

    @property
    def read_as(self) -> str:
        """What its `impl` is read as."""
        return self.read.impl


@dataclass(frozen=True)
class Features:
    """Features of `n` cases.

    Attributes:
        schema: Names the columns.
        sized: Those that follow from the sizes, in the order of `schema.size_columns`, shape `(n_sized, n)`.
        constants: Those that follow from the category, NaN elsewhere, a row for each category.
        code: Which category each case has, shape `(n,)`.
        knobs: Those of tuning knobs, by name; empty where no case has any.
        work: The work they were made of.
        terms: Its terms in seconds, shape `(n_terms, n)`, see `cost.bounds.TERMS`.
        labels: What the `impl` of each category was read as.
    """

    schema: FeatureSchema
    sized: Floats
    constants: Floats
    code: Indices
    knobs: Mapping[str, Floats]
    work: Work
    terms: Floats
    labels: Sequence[str]

    @cached_property
    def read_as(self) -> Categorical:
        """What each case's `impl` was read as."""
        return categorical(self.labels, self.code)

    @cached_property
    def values(self) -> Floats:
        """All features, shape `(n, n_features)`."""
        # A row per feature while they are filled in, so that each is contiguous.
        values = np.ascontiguousarray(self.constants.T)[:, self.code]
        values[self.schema.size_columns] = self.sized
        for name, column in self.knobs.items():
            values[self.schema.names.index(name)] = column
        return values.T


class CategoryEncoder:
    """What features take from a case's category alone, under a schema and a catalogue; cached."""

    def __init__(self, schema: FeatureSchema, catalogue: Catalogue, measured: Collection[str] = ()) -> None:
        """The encoder; `measured` are the `measured_label`s of latency, where they are known."""
        self._schema = schema
        self._catalogue = catalogue
        self._family = get_family(schema.family)
        self._read = category_reader(schema.impls, schema.groups, schema.settings, measured, self._family.plain_impl)
        self._cache = CategoryCache(self._encode)

    def encode(self, categories: Sequence[CaseCategory]) -> list[CategoryFeatures]:
        """The features of each category.

        Raises:
            SpecError: unknown device, or a dtype a device has no peak for.
        """
        return [self._cache[category] for category in categories]

    def read(self, category: CaseCategory) -> CaseCategory:
        """What a category is read as, see `category_reader`; its device under its catalogue name, a CPU's threads a number."""
        return self._read(category, _has_one_rate(self._catalogue.get(category.device), self._family.unit))

    def _encode(self, category: CaseCategory) -> CategoryFeatures:
        device = self._catalogue.get(category.device)
        threads = category.threads
        if threads is None and device.kind == "cpu":
            threads = device.required("compute_units")
        category = category._replace(device=device.name, threads=threads)
        limits = device_limits(category, device, self._family.unit)
        read = self.read(category)
        columns = dict(_category_columns(read, limits))
        for what, labels, label in (
            ("dtype", self._schema.dtypes, read.dtype),
            ("variant", self._schema.variants, category.variant),
            ("impl", self._schema.impls, read.impl),
            ("device", self._schema.devices, category.device),
            ("group", self._schema.groups, group_label(read, read.impl)),
        ):
            if len(labels) > 1:
                columns.update((f"{what}={other}", float(other == label)) for other in labels)
        constant = np.array([columns.get(name, np.nan) for name in self._schema.names])
        return CategoryFeatures(category, read, device, limits, constant)


def _has_one_rate(device: Device, unit: str) -> bool:
    """Whether a GPU's matrix or vector units run fp16 and bf16 at one rate."""
    peaks = device.matrix_flops_per_s if unit == "matrix" else device.vector_flops_per_s
    rates = [peaks.get(dtype) for dtype in ("fp16", "bf16")]
    return device.kind == "gpu" and None not in rates and len({rate.value for rate in rates if rate}) == 1


def extract(cases: Cases, schema: FeatureSchema, catalogue: Catalogue) -> Features:
    """Features of cases under a schema.

    Raises:
        SpecError: unknown device, or a dtype a device has no peak for.
    """
    categories = cases.categories
    encoded = CategoryEncoder(schema, catalogue).encode(categories.distinct)
    limits = np.array([limit_numbers(entry.limits) for entry in encoded])[categories.code].T
    sized, work, terms = derive(counts(cases), np.array(list(cases.sizes.values())), limits)
    knobs = knob_features(cases, schema, encoded, categories.code)
    constants = np.array([entry.constant for entry in encoded])
    return Features(schema, sized, constants, categories.code, knobs, work, terms, [entry.read_as for entry in encoded])


def derive(counted: Any, sizes: Any, limits: Any) -> tuple[Any, Work, Any]:
    """What follows from sizes, column by column: features, shape `(n_sized, n)`, the work, and its terms, `(n_terms, n)`.

    Args:
        counted: The rows of `cost.bounds.counts`.
        sizes: The sizes, shape `(n_dims, n)`.
        limits: The device limits, a row for each field of `DeviceLimits`.
    """
    counts_of, limits_of = Counts.of_rows(counted), DeviceLimits(*limits)
    work = bounds(counts_of, limits_of)
    terms = cost_terms(counts_of, work, limits_of)
    return np.concatenate(_varying(sizes, counts_of, work, terms, limits_of)), work, terms


def _varying(sizes: Any, counted: Counts, work: Work, terms: Any, limits: DeviceLimits) -> list[Any]:
    """Blocks of rows of shape `(k, n)`: the features that follow from the sizes `(n_dims, n)`, named by `_varying_names`."""
    compute = np.maximum(work.flops / work.peak_flops_per_s, 1e-12)
    logs = [
        np.maximum(sizes, 0.5),
        np.stack([
            np.maximum(work.flops, 1.0),
            work.bytes,
            work.footprint_b,
            np.maximum(work.flops / work.bytes, 1e-6),
            compute,
            work.dram_all_s,
            work.bounds_s["cache"],
            compute / work.dram_all_s,
            work.lower_bound_s,
            work.footprint_b / limits.last_level_b,
            work.footprint_b / (limits.l1_per_unit_b * limits.units),
            np.maximum(compute, work.dram_all_s) / limits.launch_s,
        ]),
        terms,
    ]  # fmt: skip
    fillings: list[Any] = []
    if len(counted.products):
        batch, m, n, _ = counted.products
        tiles = batch * np.ceil(m / _SIDES) * np.ceil(n / _SIDES)
        waves = tiles / limits.units
        logs += [counted.products, (m / n)[None], waves]
        fillings = [waves / np.ceil(waves), batch * m * n / (tiles * _SIDES * _SIDES)]
    # Of sizes that are not negative, the remainder's share of the width.
    remainders = [sizes / width - np.floor(sizes / width) for width in TAIL_WIDTHS]
    return [np.log2(np.concatenate(logs)), alignment(sizes), *remainders, *fillings]


def _category_columns(category: CaseCategory, limits: DeviceLimits) -> Iterable[tuple[str, float]]:
    """The numeric features that follow from the category alone."""
    yield "log balance", math.log2(limits.peak_flops_per_s / limits.bandwidth_b_per_s)
    yield "log peak", math.log2(limits.peak_flops_per_s)
    yield "itemsize", itemsize_b(category.dtype)
    yield "kv itemsize", itemsize_b(category.kv_dtype)
    yield "cold", float(category.cache_state == "cold")
    yield "threads", math.nan if category.threads is None else category.threads
    for name, attribute in DEVICE_FACTS.items():
        yield f"log {name}", math.log2(getattr(limits, attribute))


def knob_features(
    cases: Cases, schema: FeatureSchema, encoded: Sequence[CategoryFeatures], code: Indices, rows: Indices | None = None
) -> Mapping[str, Floats]:
    """Features of tuning knobs by name, each of shape `(n,)`; none where no category has any.

    Args:
        cases: The cases.
        schema: Names the columns.
        encoded: The features of the categories.
        code: Which category each row has, shape `(n,)`.
        rows: Which case each row is, shape `(n,)`; None: every case once. A case may stand on several devices.
    """
    if not any(entry.category.knobs for entry in encoded):
        return {}
    limits = limit_columns([entry.limits for entry in encoded], code)
    return dict(_knob_columns(cases if rows is None else cases.take(rows), schema, limits))


def _knob_columns(cases: Cases, schema: FeatureSchema, limits: DeviceLimits) -> Iterable[tuple[str, Floats]]:
    """Tuning knobs as given, and what a knob named after a size (`tile_m`) does to it; NaN where not set."""
    if has_tiling(schema.knobs):
        yield from tiling_columns(cases, limits.units, limits.shared_per_unit_b)
    for name in schema.knobs:
        yield f"knob {name}", cases.config[name]
    for name, size in sized_knobs(schema):
        knob, extent = np.where(cases.config[name] > 0, cases.config[name], np.nan), cases.sizes[size]
        yield f"log {size} over {name}", np.log2(extent / knob)
        yield f"padding {name}", np.ceil(extent / knob) * knob / extent
    for prefix, names in knob_groups(schema).items():
        yield f"log {prefix} volume", np.sum([np.log2(np.maximum(cases.config[name], 1.0)) for name in names], axis=0)


def alignment(sizes: Any) -> Any:
    """log2 of the largest power of two that divides each size, at most log2(256); of the shape of `sizes`."""
    return np.stack([sizes / power == np.floor(sizes / power) for power in _POWERS]).sum(axis=0)
