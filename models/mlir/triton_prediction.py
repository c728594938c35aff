"""What a prediction of compiled code says: registers, spilling, shared memory, instructions and occupancy of a Triton
function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..prediction import Interval


@dataclass(frozen=True, slots=True)
class CodePrediction:
    """The machine code one Triton function becomes.

    `registers` are per thread, `shared_b` is bytes per block, `instructions` are machine instructions, each once
    however often it runs. `spill_probability` is that of a stack of more than `triton_labels.SPILL_B` bytes per
    thread, `spill_b` the stack expected if so, else 0. `occupancy` is the warps' share of what a multiprocessor
    holds, from 0 to 1; its interval holds wherever those of registers and shared memory do. `limits` are registers
    per thread and shared bytes per block that the target has. `coverage` is the share of functions the intervals are
    built to contain. `notes` say what to know of the answer.
    """

    function: str
    reader: str
    target: str
    num_warps: int
    num_stages: int
    registers: Interval
    instructions: Interval
    shared_b: Interval
    spill_probability: float
    spill_b: float
    occupancy: Interval
    blocks_per_sm: int
    limits: Mapping[str, int]
    coverage: float
    in_domain: bool
    notes: tuple[str, ...]
