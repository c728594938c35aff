"""Labels of Triton IR: compiles many Triton programs for GPUs that need not be there, and stores text and outcome."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from ... import __version__
from ...datasets.compiled import CompileStatus
from ...datasets.triton_modules import TritonModule, append_modules, from_row, read_modules, to_row
from ..compiling import CompilingChild
from ..environment import source_hash, utc_now
from .triton_programs.case import TritonCase
from .triton_programs.plan import targets_of, triton_plan

DEADLINE_S = 240.0
"""Longest compile. Nine in ten take less than two seconds of a processor, but one may be shared by many."""

BLOCK_ROWS = 50
"""Rows of a file: what is lost at most when the machine goes down."""

FINAL: tuple[CompileStatus, ...] = ("ok", "unsupported", "failed", "timeout")
"""Rows a resumed run skips; a crash may have been an accident and is tried again."""

Job = tuple[TritonCase, str]
"""A case and a target."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, rows done, and rows in all."""


@dataclass(frozen=True, slots=True)
class TritonSummary:
    """What a run did: rows stored by status, rows that were there already, and whether it was stopped early."""

    stored: Mapping[str, int]
    skipped: int
    left: int
    interrupted: bool

    def __str__(self) -> str:
        words = ", ".join(f"{count} {status}" for status, count in sorted(self.stored.items())) or "nothing new"
        return (f"{words}; {self.skipped} were there already" + (f"; {self.left} are left" if self.left else "")
                + ("; interrupted" if self.interrupted else ""))  # fmt: skip


class TritonLabeller(CompilingChild):
    """A child process that labels one case at a time; one that hangs or crashes is replaced."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, command: Sequence[str] | None = None) -> None:
        """`command` replaces the child's command line."""
        super().__init__("kernelcast.collectors.mlir.triton_labeller", deadline_s, command)

    def label(self, case: TritonCase, target: str, block: str) -> TritonModule:
        """The row of one case for one target, whatever happens to the compiler.

        Raises:
            WorkerStartError: no child can be started.
        """
        row = to_row(TritonModule(case.program, case.case_id, target, case.num_warps, case.num_stages, "failed", block))
        return from_row({**row, **self.ask({"case": asdict(case), "target": target})})


def triton_jobs(seed: int) -> list[Job]:
    """Every case of the plan with each of its targets, in random order; equal seeds give equal jobs."""
    return [(case, target) for number, case in enumerate(triton_plan(seed)) for target in targets_of(case, number)]


def label_programs(
    jobs: Sequence[Job], out: Path, progress: Progress, budget_s: float = float("inf"), *,
    labeller: Callable[[], TritonLabeller] = TritonLabeller,
) -> TritonSummary:  # fmt: skip
    """Label cases for targets and store the rows under `out`, a block at a time; what is there is skipped.

    Ends with the block in which `budget_s` seconds are over. Ctrl-C stores what is done.

    Raises:
        StoreError: `out` cannot be written; blocks stored before stay.
        WorkerStartError: a compiling process does not start.
    """
    known = stored_keys(out)
    todo = [(case, target) for case, target in jobs if (case.case_id, target) not in known]
    stored: Counter[str] = Counter()
    until, interrupted, one = monotonic() + budget_s, False, labeller()
    try:
        while todo[stored.total() :] and monotonic() < until and not interrupted:
            first = stored.total()
            block, began, rows = uuid4().hex[:16], utc_now(), list[TritonModule]()
            facts = _facts(one.start())
            try:
                for case, target in todo[first : first + BLOCK_ROWS]:
                    rows.append(one.label(case, target, block))
                    progress("compiling", first + len(rows), len(todo))
            except KeyboardInterrupt:
                interrupted = True
            append_modules(out, rows, facts | {"started_at": began, "finished_at": utc_now()})
            stored.update(row.status for row in rows)
    finally:
        one.close()
    return TritonSummary(stored, len(jobs) - len(todo), len(todo) - stored.total(), interrupted)


def stored_keys(out: Path) -> set[tuple[str, str]]:
    """Case and target of every final row under `out`."""
    table = read_modules(out)
    columns = (table[name].to_pylist() for name in ("case_id", "target", "status"))
    return {(case, target) for case, target, status in zip(*columns, strict=True) if status in FINAL}


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    return {**said, "collector_version": __version__, "source_hash": source_hash(), "machine": platform.machine(),
            "python": platform.python_version(), "counted_by": "encodings learned from cuobjdump -sass; cuobjdump -res-usage",
            "text_is": "Triton IR after make_ttir, without locations"}  # fmt: skip
