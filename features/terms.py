"""The parts a kernel's time is made of on paper, in seconds: what an analytic model weighs and adds up.

Unlike the bounds of `features.work`, terms are meant to be summed with fitted weights: each grows with one cause.
"""

from __future__ import annotations

import numpy as np

from .cases import Floats
from .counts import Counts
from .machine import Machine
from .work import Work

TERMS = ("launch", "pieces", "compute", "padded 16", "padded 128", "input", "weights", "output", "beyond l1", "beyond l2",
         "beyond last level", "rows")  # fmt: skip
"""launch: one call; pieces: a launch for every independent product inside; compute: flops at peak; padded …: the same with
every side of the products inside rounded up to that many elements (of the last dimension for families without products);
input, weights (all operands after the first), output: each at memory bandwidth; beyond …: the part of the footprint that
outgrows a cache level, at memory bandwidth; rows: one clock per row of the first operand."""

_TINY_S = 1e-15
_SIDES = (16.0, 128.0)
"""Register tiles of CPU kernels have sides of about 16 elements, thread-block tiles of GPU kernels of about 128."""


def cost_terms(counted: Counts, paper: Work, machine: Machine) -> Floats:
    """Seconds of each of `TERMS`, shape `(n, len(TERMS))`, positive; from counts, the work they are, and the machines."""
    compute = paper.flops / paper.peak_flops_per_s
    sides = counted.last[None] if counted.products is None else counted.products[1:]
    pieces = 1.0 if counted.products is None else counted.products[0]
    terms = np.empty((len(TERMS), len(paper.flops)))
    terms[0] = machine.launch_s
    terms[1] = pieces * machine.launch_s
    terms[2] = compute
    for row, side in zip(terms[3:5], _SIDES, strict=True):
        row[:] = compute * (np.ceil(sides / side) * side / sides).prod(axis=0)
    terms[5:8] = counted.operand_b / paper.bandwidth_b_per_s
    levels_b = np.stack([np.nan_to_num(machine.l1_per_unit_b) * machine.units, machine.l2_b, machine.last_level_b])
    terms[8:11] = np.maximum(paper.footprint_b - levels_b, 0.0) / paper.bandwidth_b_per_s
    terms[11] = counted.rows / (machine.clock_hz * machine.units)
    return np.maximum(terms, _TINY_S).T
