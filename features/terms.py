"""The parts a kernel's time is made of on paper, in seconds: what an analytic model weighs and adds up.

Unlike the bounds of `features.work`, terms are meant to be summed with fitted weights: each grows with one cause.
"""

from __future__ import annotations

import numpy as np

from .cases import Cases, Floats
from .device import Catalogue
from .work import LAUNCH_FLOOR_S, Work

TERMS = ("launch", "pieces", "compute", "padded 16", "padded 128", "input", "weights", "output", "beyond l1", "beyond l2",
         "beyond last level", "rows")  # fmt: skip
"""launch: one call; pieces: a launch for every independent product inside; compute: flops at peak; padded …: the same with
every side of the products inside rounded up to that many elements (of the last dimension for families without products);
input, weights (all operands after the first), output: each at memory bandwidth; beyond …: the part of the footprint that
outgrows a cache level, at memory bandwidth; rows: one clock per row of the first operand."""

_TINY_S = 1e-15
_SIDES = (16.0, 128.0)
"""Register tiles of CPU kernels have sides of about 16 elements, thread-block tiles of GPU kernels of about 128."""


def cost_terms(cases: Cases, paper: Work, catalogue: Catalogue) -> Floats:
    """Seconds of each of `TERMS`, shape `(n, len(TERMS))`, positive.

    Raises:
        SpecError: unknown device.
    """
    n = len(cases)
    operand_b = np.zeros((3, n))
    rows, pieces, padding = np.ones(n), np.ones(n), np.ones((len(_SIDES), n))
    for index, view in cases.views():
        inputs, outputs = cases.family.inputs(view), cases.family.outputs(view)
        operand_b[0, index] = inputs[0].nbytes
        operand_b[1, index] = sum(operand.nbytes for operand in inputs[1:])
        operand_b[2, index] = sum(operand.nbytes for operand in outputs)
        rows[index] = inputs[0].elements / inputs[0].shape[-1]
        sides = [inputs[0].shape[-1]]
        if cases.family.tiles is not None:
            batch, *sides = cases.family.tiles(view)
            pieces[index] = batch
        for row, side in zip(padding, _SIDES, strict=True):
            for size in sides:
                row[index] *= np.ceil(size / side) * side / size
    levels_b, clock, launch = np.zeros((3, n)), np.empty(n), np.empty(n)
    for index, (name,) in cases.groups("device"):
        device = catalogue.get(name)
        units = device.required("compute_units")
        levels_b[0, index] = (device.fact("l1_per_unit_b") or 0.0) * units
        levels_b[1, index] = device.required("l2_b")
        levels_b[2, index] = device.last_level_cache_b
        clock[index] = device.required("boost_clock_hz") * units
        launch[index] = LAUNCH_FLOOR_S[device.kind]
    compute = paper.flops / paper.peak_flops_per_s
    beyond = np.maximum(paper.footprint_b - levels_b, 0.0) / paper.bandwidth_b_per_s
    columns = [launch, pieces * launch, compute, *(compute * padding), *(operand_b / paper.bandwidth_b_per_s), *beyond,
               rows / clock]  # fmt: skip
    terms: Floats = np.maximum(np.stack(columns, axis=1), _TINY_S)
    return terms
