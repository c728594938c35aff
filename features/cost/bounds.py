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
from ..device import Catalogue, Device
from ..kernel import KernelFamily, KernelSpec, Size, View, operand_sizes
from .device_limits import DeviceLimits, device_limits, limit_columns

BOUNDS = ("compute", "dram", "cache", "launch")
"""Limits a kernel can hit, in the order of `Work.bounds_s`."""

TERMS = ("launch", "pieces", "compute", "padded 16", "padded 128", "input", "weights", "output", "beyond l1", "beyond l2",
         "beyond last level", "rows", "one row", "row again")  # fmt: skip
"""Unlike bounds, terms are meant to be summed with fitted weights: each grows with one cause. launch: one call; pieces: a
launch for every independent product inside; compute: flops at peak; padded …: the same with every side of the products inside
rounded up to that many elements (of the last dimension for families without products); input, weights (all operands after the
first), output: what is read and written of each, at memory bandwidth; beyond …: the part of that which outgrows a cache
level, at memory bandwidth; rows: one clock per row of the first operand. Of families that work by row, one row: a clock per
element of a row, which takes that long however few rows there are; row again: the first operand at memory bandwidth once
more, as far as its rows outgrow the L1 cache that they share."""

_TINY_S = 1e-15
_SIDES = np.array([[16.0], [128.0]])
"""Register tiles of CPU kernels have sides of about 16 elements, thread-block tiles of GPU kernels of about 128."""
_ROWS_AT_ONCE = 4.0
"""Rows that share a unit's L1. NeuSight's rates of softmax on larger sizes fall where 2 to 5 rows fill it, and are lowest where
rows are twice as long (P4, T4, V100, A100)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Operand counts of `n` cases, whatever the device.

    Attributes:
        flops: Arithmetic, shape `(n,)`.
        least_flops: Arithmetic of the cheapest algorithm, shape `(n,)`.
        bytes: Compulsory traffic, shape `(n,)`.
        footprint_b: Bytes of all operands, shape `(n,)`.
        rows: Rows of the first operand, shape `(n,)`.
        last: Its last dimension, shape `(n,)`.
        row_b: Bytes of one of its rows, 0 for a family that does not work by row, shape `(n,)`.
        operand_b: Bytes of the first operand, of the other inputs and of the outputs, shape `(3, n)`.
        products: batch, m, n and k of the matrix products inside, shape `(4, n)`; of no length for a family without any.
    """

    flops: Floats
    least_flops: Floats
    bytes: Floats
    footprint_b: Floats
    rows: Floats
    last: Floats
    row_b: Floats
    operand_b: Floats
    products: Floats

    @classmethod
    def of_rows(cls, table: Any) -> Counts:
        """The counts in the rows of a table, in the order of the attributes."""
        flops, least, moved, footprint_b, rows, last, row_b = table[:7]
        return cls(flops, least, moved, footprint_b, rows, last, row_b, table[7:10], table[10:])


def counts(cases: Cases) -> Any:
    """The operand counts of cases, as `Counts.of_rows` reads them."""
    views = cases.views()
    if len(views) == 1:
        return counts_of(cases.family, views[0][1])
    table = np.empty((n_counts(cases.family), len(cases.dtype)))
    for index, view in views:
        table[:, index] = counts_of(cases.family, view)
    return table


def n_counts(family: KernelFamily) -> int:
    """Rows of `counts`."""
    return 10 if family.tiles is None else 14


def counts_of(family: KernelFamily, view: View) -> Any:
    """The operand counts of cases that share a view."""
    inputs, outputs = family.inputs(view), family.outputs(view)
    elements, sizes_b = operand_sizes((*inputs, *outputs))
    flops, footprint_b, last = family.flops(view), sum(sizes_b), inputs[0].shape[-1]
    rows = [
        flops,
        flops if family.least_flops is None else family.least_flops(view),
        footprint_b if family.traffic_b is None else family.traffic_b(view),
        footprint_b,
        elements[0] / last,
        last,
        sizes_b[0] / (elements[0] / last) if family.by_row else 0.0,
        sizes_b[0],
        sum(sizes_b[1 : len(inputs)]),
        sum(sizes_b[len(inputs) :]),
        *(() if family.tiles is None else family.tiles(view)),
    ]
    size = next(iter(view.values()))
    return np.stack([np.broadcast_to(row, size.shape) for row in rows])


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
    """

    flops: Floats
    bytes: Floats
    footprint_b: Floats
    bounds_s: Mapping[str, Floats]
    lower_bound_s: Floats
    dram_all_s: Floats
    peak_flops_per_s: Floats
    bandwidth_b_per_s: Floats

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
    return bounds(Counts.of_rows(counts(cases)), limit_columns(limits, categories.code))


def bounds(counted: Counts, limits: DeviceLimits) -> Work:
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
    compute, dram = (
        counted.least_flops / limits.peak_flops_per_s,
        np.maximum(moved - cached_b, 0.0) / limits.bandwidth_b_per_s,
    )
    times = np.stack([compute, dram, moved / rate, np.broadcast_to(limits.launch_s, moved.shape)])
    return Work(
        flops=counted.flops,
        bytes=moved,
        footprint_b=counted.footprint_b,
        bounds_s=dict(zip(BOUNDS, times, strict=True)),
        lower_bound_s=times.max(axis=0),
        dram_all_s=moved / limits.bandwidth_b_per_s,
        peak_flops_per_s=limits.peak_flops_per_s,
        bandwidth_b_per_s=limits.bandwidth_b_per_s,
    )


def lower_bound_s(spec: KernelSpec, device: Device) -> float:
    """The time in seconds that no run of `spec` on `device` can beat."""
    return float(work(Cases.from_specs([spec], [device.name]), Catalogue(extra=(device,))).lower_bound_s[0])


def cost_terms(counted: Counts, work: Work, limits: DeviceLimits) -> Any:
    """Seconds of each of `TERMS`, shape `(len(TERMS), n)`, positive; from counts, the work they are, and the limits."""
    compute = work.flops / work.peak_flops_per_s
    has_products = len(counted.products) > 0
    sides = counted.products[1:] if has_products else counted.last[None]
    pieces = counted.products[0] if has_products else 1.0
    padded = compute * (np.ceil(sides[:, None] / _SIDES) * _SIDES / sides[:, None]).prod(axis=0)
    # Keys outside a window, experts without a token, rows without an index and pixels that a stride skips are operands, but
    # nobody reads them. They come off the weights, and off the first operand what is more than these: of a strided
    # convolution, whose pixels are the first operand, only the sum of both terms is right, and its weights are small.
    unread_b = np.maximum(work.footprint_b - work.bytes, 0.0)
    first_b, weights_b, output_b = counted.operand_b
    rest_b = np.maximum(unread_b - weights_b, 0.0)
    read_b = np.stack([first_b - rest_b, np.maximum(weights_b - unread_b, 0.0), output_b])
    moved = read_b / work.bandwidth_b_per_s
    kept_b = np.stack([limits.all_l1_b, limits.l2_b, limits.last_level_b])
    beyond = np.maximum(work.footprint_b - unread_b - kept_b, 0.0) / work.bandwidth_b_per_s
    launch, pieces = (np.broadcast_to(limits.launch_s * count, compute.shape)[None] for count in (1.0, pieces))
    by_row = counted.rows / (limits.clock_hz * limits.units)
    one_row = np.where(counted.row_b > 0, counted.last / limits.clock_hz, 0.0)
    l1_b = limits.all_l1_b / limits.units
    filled = np.where(l1_b > 0, _ROWS_AT_ONCE * counted.row_b / np.maximum(l1_b, 1.0), 0.0)
    row_again = moved[0] * np.minimum(np.maximum(filled - 1.0, 0.0), 1.0)
    terms = np.concatenate(
        [launch, pieces, compute[None], padded, moved, beyond, by_row[None], one_row[None], row_again[None]]
    )
    return np.maximum(terms, _TINY_S)
