"""What kernels cost on paper: operand counts, the times no run can beat, and the terms an analytic model adds up.

One pass over a family's formulas gives the counts of cases, which do not depend on the device; bounds and terms follow from
counts and the limits of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch.cases import Cases, Floats
from ..batch.categorical import Categorical
from ..batch.category import categorical
from ..device import Catalogue, Device
from ..kernel import KernelSpec, Size, View, operand_sizes
from .device_limits import DeviceLimits, device_limits, limit_columns

BOUNDS = ("compute", "dram", "cache", "launch")
"""Limits a kernel can hit, in the order of `Work.bounds_s`."""

TERMS = ("launch", "pieces", "compute", "padded 16", "padded 128", "input", "weights", "output", "beyond l1", "beyond l2",
         "beyond last level", "rows")  # fmt: skip
"""Unlike bounds, terms are meant to be summed with fitted weights: each grows with one cause. launch: one call; pieces: a
launch for every independent product inside; compute: flops at peak; padded …: the same with every side of the products inside
rounded up to that many elements (of the last dimension for families without products); input, weights (all operands after the
first), output: each at memory bandwidth; beyond …: the part of the footprint that outgrows a cache level, at memory
bandwidth; rows: one clock per row of the first operand."""

_TINY_S = 1e-15
_SIDES = np.array([[16.0], [128.0]])
"""Register tiles of CPU kernels have sides of about 16 elements, thread-block tiles of GPU kernels of about 128."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Operand counts of `n` cases, whatever the device.

    Attributes:
        flops: Arithmetic, shape `(n,)`.
        least_flops: Arithmetic of the cheapest algorithm, shape `(n,)`.
        bytes: Compulsory traffic, shape `(n,)`.
        footprint_b: Bytes of all operands, shape `(n,)`.
        operand_b: Bytes of the first operand, of the other inputs and of the outputs, shape `(3, n)`.
        rows: Rows of the first operand, shape `(n,)`.
        last: Its last dimension, shape `(n,)`.
        products: batch, m, n and k of the matrix products inside, shape `(4, n)`; None for a family without any.
    """

    flops: Floats
    least_flops: Floats
    bytes: Floats
    footprint_b: Floats
    operand_b: Floats
    rows: Floats
    last: Floats
    products: Floats | None

    def take(self, rows: Any) -> Counts:
        """The counts of the cases at `rows`."""
        products = None if self.products is None else self.products[:, rows]
        return Counts(self.flops[rows], self.least_flops[rows], self.bytes[rows], self.footprint_b[rows],
                      self.operand_b[:, rows], self.rows[rows], self.last[rows], products)  # fmt: skip


def counts(cases: Cases) -> Counts:
    """The operand counts of cases."""
    family, n = cases.family, len(cases.dtype)
    table = np.empty((6, n))
    flops, least, moved, footprint, rows, last = table
    operand_b = np.empty((3, n))
    products = None if family.tiles is None else np.empty((4, n))
    for index, view in cases.views():
        inputs, outputs = family.inputs(view), family.outputs(view)
        flops[index] = family.flops(view)
        least[index] = flops[index] if family.least_flops is None else family.least_flops(view)
        elements, sizes_b = operand_sizes((*inputs, *outputs))
        operand_b[0, index] = sizes_b[0]
        operand_b[1, index] = sum(sizes_b[1 : len(inputs)])
        operand_b[2, index] = sum(sizes_b[len(inputs) :])
        footprint[index] = sum(sizes_b)
        moved[index] = footprint[index] if family.traffic_b is None else family.traffic_b(view)
        last[index] = inputs[0].shape[-1]
        rows[index] = elements[0] / inputs[0].shape[-1]
        if products is not None and family.tiles is not None:
            for row, column in zip(products, family.tiles(view), strict=True):
                row[index] = column
    return Counts(flops, least, moved, footprint, operand_b, rows, last, products)


def product_shapes(cases: Cases, shape_of: Callable[[View], tuple[Size, Size, Size, Size]]) -> Floats:
    """Rows `batch`, `m`, `n`, `k` of the matrix products inside the cases, shape `(4, n)`; `shape_of` gives them for a view."""
    shape = np.empty((4, len(cases)))
    for index, view in cases.views():
        for row, column in zip(shape, shape_of(view), strict=True):
            row[index] = column
    return shape


@dataclass(frozen=True, slots=True)
class Work:
    """Cost on paper of `n` cases; every column has shape `(n,)`, or `(1,)` where all cases share one value.

    Attributes:
        flops: Arithmetic.
        bytes: Compulsory traffic.
        footprint_b: Bytes of all operands.
        bounds_s: Each of `BOUNDS` in seconds that no run can beat, shape `(n,)`.
        lower_bound_s: The largest of the bounds, shape `(n,)`.
        dram_all_s: Time to move all bytes through memory, which a cache may save a hot run, shape `(n,)`.
        peak_flops_per_s: The compute peak used.
        bandwidth_b_per_s: The memory bandwidth used.
        runs_as: What each case's dtype runs as on its device.
    """

    flops: Floats
    bytes: Floats
    footprint_b: Floats
    bounds_s: Mapping[str, Floats]
    lower_bound_s: Floats
    dram_all_s: Floats
    peak_flops_per_s: Floats
    bandwidth_b_per_s: Floats
    runs_as: Categorical

    @property
    def intensity(self) -> Floats:
        """Arithmetic intensity, flops per byte."""
        return self.flops / self.bytes

    def binding(self) -> list[str]:
        """Name of the bound that binds each case."""
        return [BOUNDS[i] for i in np.argmax([self.bounds_s[name] for name in BOUNDS], axis=0).tolist()]


def work(cases: Cases, catalogue: Catalogue) -> Work:
    """The work of cases on their devices.

    Raises:
        SpecError: unknown device, or a dtype it has no peak for.
    """
    categories = cases.categories
    limits = [
        device_limits(category, catalogue.get(category.device), cases.family.unit) for category in categories.distinct
    ]
    columns = limit_columns([numbers for numbers, _ in limits], categories.code)
    return bounds(counts(cases), columns, categorical([runs_as for _, runs_as in limits], categories.code))


def bounds(counted: Counts, limits: DeviceLimits, runs_as: Categorical) -> Work:
    """The work of counted cases on devices of these limits.

    Bounds: compute is the cheapest algorithm's flops over the dense peak (Williams et al., CACM 2009); dram is the
    traffic that cannot come from a cache, since a hot run may find up to the last-level cache's size there; cache is all
    traffic at the fastest rate the level that holds it delivers.
    """
    moved = counted.bytes
    # Even of a cold run, what it writes last may still be in the cache when it ends.
    cached_b = np.where(limits.hot > 0, limits.last_level_b, np.minimum(limits.last_level_b, counted.operand_b[2]))
    rate = np.where(counted.footprint_b <= limits.l1_holds_b, limits.l1_rate, limits.l2_rate)
    rate = np.where(counted.footprint_b > limits.l3_from_b, limits.l3_rate, rate)
    times = np.empty((4, len(moved)))
    np.divide(counted.least_flops, limits.peak_flops_per_s, out=times[0])
    np.divide(np.maximum(moved - cached_b, 0.0), limits.bandwidth_b_per_s, out=times[1])
    np.divide(moved, rate, out=times[2])
    times[3] = limits.launch_s
    return Work(
        flops=counted.flops,
        bytes=moved,
        footprint_b=counted.footprint_b,
        bounds_s=dict(zip(BOUNDS, times, strict=True)),
        lower_bound_s=times.max(axis=0),
        dram_all_s=moved / limits.bandwidth_b_per_s,
        peak_flops_per_s=limits.peak_flops_per_s,
        bandwidth_b_per_s=limits.bandwidth_b_per_s,
        runs_as=runs_as,
    )


def lower_bound_s(spec: KernelSpec, device: Device) -> float:
    """The time in seconds that no run of `spec` on `device` can beat."""
    return float(work(Cases.from_specs([spec], [device.name]), Catalogue(extra=(device,))).lower_bound_s[0])


def cost_terms(counted: Counts, paper: Work, limits: DeviceLimits) -> Floats:
    """Seconds of each of `TERMS`, shape `(n, len(TERMS))`, positive; from counts, the work they are, and the limits."""
    compute = paper.flops / paper.peak_flops_per_s
    sides = counted.last[None] if counted.products is None else counted.products[1:]
    pieces = 1.0 if counted.products is None else counted.products[0]
    terms = np.empty((len(TERMS), len(paper.flops)))
    terms[0] = limits.launch_s
    terms[1] = pieces * limits.launch_s
    terms[2] = compute
    terms[3:5] = compute * (np.ceil(sides[:, None] / _SIDES) * _SIDES / sides[:, None]).prod(axis=0)
    terms[5:8] = counted.operand_b / paper.bandwidth_b_per_s
    beyond_b = paper.footprint_b - np.array([limits.all_l1_b, limits.l2_b, limits.last_level_b])
    terms[8:11] = np.maximum(beyond_b, 0.0) / paper.bandwidth_b_per_s
    terms[11] = counted.rows / (limits.clock_hz * limits.units)
    return np.maximum(terms, _TINY_S).T
