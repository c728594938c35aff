"""The parts a kernel's time is made of on paper, in seconds: what an analytic model weighs and adds up.

Unlike the bounds of `features.work`, terms are meant to be summed with fitted weights: each grows with one cause.
"""

from __future__ import annotations

import numpy as np

from .cases import Cases, Floats
from .device import Catalogue
from .work import LAUNCH_FLOOR_S, Work

TERMS = ("launch", "compute", "input", "weights", "output", "beyond l1", "beyond l2", "beyond last level", "rows",
         "small inner")  # fmt: skip
"""launch: one call; compute: flops at peak; input, weights (all operands after the first), output: each at memory
bandwidth; beyond …: the part of the footprint that outgrows a cache level, at memory bandwidth; rows: one clock per row
of the first operand; small inner: flops at peak times how little of a vector its last dimension fills."""

_TINY_S = 1e-15
_VECTOR_B = 64.0
"""Bytes of a cache line and of the widest CPU vector; GPUs load in sectors of half that."""


def cost_terms(cases: Cases, paper: Work, catalogue: Catalogue) -> Floats:
    """Seconds of each of `TERMS`, shape `(n, len(TERMS))`, positive.

    Raises:
        SpecError: unknown device.
    """
    n = len(cases)
    operand_b = np.zeros((3, n))
    rows, inner_b = np.ones(n), np.ones(n)
    for index, view in cases.views():
        inputs, outputs = cases.family.inputs(view), cases.family.outputs(view)
        operand_b[0, index] = inputs[0].nbytes
        operand_b[1, index] = sum(operand.nbytes for operand in inputs[1:])
        operand_b[2, index] = sum(operand.nbytes for operand in outputs)
        inner = inputs[0].shape[-1]
        rows[index] = inputs[0].elements / inner
        inner_b[index] = inputs[0].nbytes / rows[index]
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
    filling = inner_b / (np.ceil(inner_b / _VECTOR_B) * _VECTOR_B)
    columns = [
        launch,
        compute,
        *(operand_b / paper.bandwidth_b_per_s),
        *beyond,
        rows / clock,
        compute * (1.0 - filling),
    ]
    return np.maximum(np.stack(columns, axis=1), _TINY_S)
