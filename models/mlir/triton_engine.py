"""Answers of a model of compiled code: from vectors of Triton functions to registers, spilling, shared memory and
instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...features.cases import Floats
from ...features.mlir.triton_shared import CANDIDATES
from ...features.mlir.triton_vectors import NAMES
from ..engine import Runtime
from ..regressor import Matrix

REGISTERS, ROOT_REGISTERS, COLLAPSE, SPILL, SPILL_SIZE, INSTRUCTIONS, SHARED = (
    "registers", "root-registers", "collapse", "spill", "spill-size", "instructions", "shared",
)  # fmt: skip
MEMBERS = (REGISTERS, ROOT_REGISTERS, COLLAPSE, SPILL, SPILL_SIZE, INSTRUCTIONS, SHARED)
"""Graphs of a model, in order."""

LEAST_REGISTERS = 8.0
"""No kernel of the training rows takes fewer, and the machine hands them out in eights."""

_COLUMN = {name: i for i, name in enumerate(NAMES)}
_LIMIT, _PAPER = _COLUMN["limit"], _COLUMN["instructions"]
_CANDIDATES = [_COLUMN[f"{name} b"] for name in CANDIDATES]
_USUAL = _COLUMN["operands b"]


@dataclass(frozen=True, slots=True)
class CodeAnswers:
    """Columns of shape `(n,)`: registers, instructions and shared bytes, the margin of spilling, and stack bytes if
    it spills.
    """

    registers: Floats
    instructions: Floats
    shared_b: Floats
    spill_margin: Floats
    spill_b: Floats


def number(x: Floats, column: int) -> Floats:
    """A column of vectors, its logarithm undone."""
    found: Floats = np.exp2(x[:, column]) - 1.0
    return found


def limit_of(x: Floats) -> Floats:
    """The most registers per thread, shape `(n,)`."""
    return np.round(number(x, _LIMIT))


def paper_instructions(x: Floats) -> Floats:
    """The rule of thumb's instructions, which the model's are a ratio to; logarithms, shape `(n,)`."""
    found: Floats = x[:, _PAPER] * np.log(2.0)
    return found


def candidates_b(x: Floats) -> Floats:
    """Bytes of shared memory by each way they may come about, shape `(n, len(CANDIDATES))`."""
    return np.round(np.exp2(x[:, _CANDIDATES]) - 1.0)


def pair_inputs(x: Floats) -> Matrix:
    """A row per function and candidate: the function's numbers, which candidate, how large beside the usual one and
    the others.

    Shape `(n * len(CANDIDATES), len(NAMES) + len(CANDIDATES) + 2)`.
    """
    n, m = len(x), len(CANDIDATES)
    own = x[:, _CANDIDATES]
    beside = own - x[:, [_USUAL]]
    same = (own[:, :, None] == own[:, None, :]).sum(axis=2).astype(np.float64)
    rows = [np.repeat(x, m, axis=0), np.tile(np.eye(m), (n, 1)), beside.reshape(-1, 1), same.reshape(-1, 1)]
    return np.concatenate(rows, axis=1).astype(np.float32)


def probability(margin: Floats) -> Floats:
    """The probability a margin stands for (the logistic function)."""
    found: Floats = 1.0 / (1.0 + np.exp(-np.clip(margin, -40.0, 40.0)))
    return found


class CodeEngine:
    """Runs the graphs of a model. Safe to share between threads.

    `fallback` are the registers an assembler ends with that has given up on keeping values in them.
    """

    def __init__(self, graphs: Mapping[str, bytes], fallback: float) -> None:
        self._runtime = Runtime([graphs[name] for name in MEMBERS])
        self._fallback = fallback

    def answer(self, x: Floats) -> CodeAnswers:
        """Answers for vectors of shape `(n, len(NAMES))`."""
        inputs = x.astype(np.float32)
        own = [i for i, name in enumerate(MEMBERS) if name != SHARED]
        found = {MEMBERS[i]: column[:, 0] for i, column in self._runtime.run(inputs, own).items()}
        limit = limit_of(x)
        kept = np.clip((found[REGISTERS] + found[ROOT_REGISTERS] ** 2) / 2.0, LEAST_REGISTERS, limit)
        # The mean of two worlds: one in which the assembler keeps what it can, one in which it gives up.
        given_up = probability(found[COLLAPSE])
        registers = (1.0 - given_up) * kept + given_up * np.minimum(kept, self._fallback)
        return CodeAnswers(
            registers=registers,
            instructions=np.exp(paper_instructions(x) + found[INSTRUCTIONS]),
            shared_b=self._shared(x),
            spill_margin=found[SPILL],
            spill_b=np.expm1(np.maximum(found[SPILL_SIZE], 0.0)),
        )

    def _shared(self, x: Floats) -> Floats:
        place = MEMBERS.index(SHARED)
        likely = self._runtime.run(pair_inputs(x), [place])[place][:, 0].reshape(len(x), len(CANDIDATES))
        found: Floats = candidates_b(x)[np.arange(len(x)), likely.argmax(axis=1)]
        return found
