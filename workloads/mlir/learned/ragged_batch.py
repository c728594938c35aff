"""Many programs as one set of arrays without padding: what members of a model read, in training and in serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from ....features.mlir.program import KINDS
from ....features.mlir.vectors.program_vector import TOTAL_NUMBERS, Vectors

Codes = npt.NDArray[np.int64]

CONTEXT = (
    "log groups",
    "log ops",
    "log dispatches",
    "log flops",
    "log bytes",
    "log footprint b",
    "log depth",
    "log runs max",
)
"""What the network sees of the program around a group: few numbers of `TOTAL_NUMBERS`, since with many it would know each
program it was trained on by heart."""

_CONTEXT_COLUMNS = [TOTAL_NUMBERS.index(name) for name in CONTEXT]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """`n` programs end to end, without padding.

    Attributes:
        totals: Numbers of whole programs, shape `(n, …)`.
        bigrams: Of neighbouring operations, shape `(n, …)`.
        groups: Numbers of groups, shape `(n_groups, …)`.
        group_codes: Kind of each group, shape `(n_groups,)`.
        group_program: Program of each group, likewise.
        sources: The group each reads from, itself where there is none, likewise.
        terms: Analytic seconds of each group, shape `(n_groups, n_terms)`.
        shapes: What each group is like, shape `(n_groups,)`.
        passed_s: Seconds of copying what only passes through, shape `(n,)`.
        ops: Numbers of distinct operations.
        op_codes: Codes of these.
        op_row: The distinct operation each operation is, shape `(n_ops,)`.
        op_group: The group of each operation, likewise.
    """

    totals: Floats
    bigrams: Floats
    groups: Floats
    group_codes: Codes
    group_program: Codes
    sources: Codes
    terms: Floats
    shapes: Codes
    passed_s: Floats
    ops: Floats
    op_codes: Codes
    op_row: Codes
    op_group: Codes

    def __len__(self) -> int:
        return len(self.totals)

    @property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """Which programs have no group, shape `(n,)`."""
        is_empty: npt.NDArray[np.bool_] = np.bincount(self.group_program, minlength=len(self)) == 0
        return is_empty

    def take(self, rows: Any) -> RaggedBatch:
        """The programs of `rows`, in that order."""
        rows = np.asarray(rows)
        group_rows, group_program = _members(self.group_program, rows, len(self))
        number = np.full(len(self.group_program), -1, dtype=np.int64)
        number[group_rows] = np.arange(len(group_rows))
        op_rows, op_group = _members(self.op_group, group_rows, len(self.group_program))
        distinct, op_row = np.unique(self.op_row[op_rows], return_inverse=True)
        return RaggedBatch(
            self.totals[rows], self.bigrams[rows], self.groups[group_rows], self.group_codes[group_rows], group_program,
            number[self.sources[group_rows]], self.terms[group_rows], self.shapes[group_rows], self.passed_s[rows],
            self.ops[distinct], self.op_codes[distinct], op_row, op_group,
        )  # fmt: skip


def to_ragged_batch(programs: Sequence[Vectors]) -> RaggedBatch:
    """Programs end to end. One without any group has a row in `totals` only."""
    n_groups = np.array([len(program.groups) for program in programs], dtype=np.int64)
    first = np.cumsum(n_groups) - n_groups
    sources = [
        np.where(program.sources >= 0, program.sources, np.arange(len(program.groups))) + start
        for program, start in zip(programs, first, strict=True)
    ]
    ops = np.concatenate([program.ops.numbers for program in programs])
    op_codes = np.concatenate([program.ops.codes for program in programs])
    op_row = np.arange(len(ops))
    if len(programs) > 1 and len(ops):
        # Programs repeat themselves: training is several times as fast where equal operations are looked at once.
        both = np.ascontiguousarray(np.concatenate([op_codes, np.round(ops, 4)], axis=1).astype(np.float32))
        _, first_rows, op_row = np.unique(
            both.view(f"V{both.shape[1] * 4}")[:, 0], return_index=True, return_inverse=True
        )
        ops, op_codes = ops[first_rows], op_codes[first_rows]
    return RaggedBatch(
        totals=np.stack([program.totals for program in programs]),
        bigrams=np.stack([program.bigrams for program in programs]),
        groups=np.concatenate([program.groups for program in programs]),
        group_codes=np.concatenate([program.group_kinds for program in programs]),
        group_program=np.repeat(np.arange(len(programs)), n_groups),
        sources=np.concatenate(sources).astype(np.int64),
        terms=np.concatenate([program.terms for program in programs]),
        shapes=np.concatenate([program.shapes for program in programs]),
        passed_s=np.array([program.passed_s for program in programs]),
        ops=ops,
        op_codes=op_codes,
        op_row=op_row,
        op_group=np.concatenate([program.ops.group + start for program, start in zip(programs, first, strict=True)]),
    )


def arrays_of(names: Sequence[str], programs: RaggedBatch) -> dict[str, Any]:
    """Arrays by the names that the network knows them by, float32 or int64: fields of `RaggedBatch`, and `context`, the columns
    of `CONTEXT`.
    """
    arrays: dict[str, Any] = {}
    for name in names:
        column: Any = programs.totals[:, _CONTEXT_COLUMNS] if name == "context" else getattr(programs, name)
        column = column[:, None] if name == "group_codes" else column
        arrays[name] = np.ascontiguousarray(column, dtype=np.float32 if column.dtype.kind == "f" else np.int64)
    return arrays


def _members(owner: Codes, rows: Codes, n_owners: int) -> tuple[Codes, Codes]:
    """Places of what belongs to `rows`, owner by owner, and for each the position of its owner in `rows`; `owner` is
    sorted.
    """
    counts = np.bincount(owner, minlength=n_owners)
    starts = np.cumsum(counts) - counts
    sizes = counts[rows]
    ends = np.cumsum(sizes)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    return np.repeat(starts[rows], sizes) + within, np.repeat(np.arange(len(rows)), sizes)


N_KINDS = len(KINDS)
