"""Compile-only labels: what compilers say of tiled kernels for GPUs that need not be there."""

from __future__ import annotations

import platform
import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ... import __version__
from ...datasets.compiled import (
    CompiledKernel,
    CompileStatus,
    append_compiled,
    from_row,
    read_compiled,
    stored_families,
    to_row,
)
from ...features.kernel import KernelSpec
from ..compiling import CompilingChild
from ..environment import source_hash, utc_now

DEADLINE_S = 180.0
"""Longest compile; the slowest ordinary one took some 20 s."""

BLOCK_ROWS = 100
"""Rows of a file: what is lost at most when the machine goes down."""

FINAL: tuple[CompileStatus, ...] = ("ok", "unsupported", "failed", "timeout")
"""Rows a resumed run skips; a crash may have been an accident and is tried again."""

Job = tuple[KernelSpec, str]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, rows done, and rows in all."""


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """What a run did: rows stored by status, rows that were there already, and whether it was interrupted."""

    stored: Mapping[str, int]
    skipped: int
    interrupted: bool

    def __str__(self) -> str:
        words = ", ".join(f"{count} {status}" for status, count in sorted(self.stored.items())) or "nothing new"
        return f"{words}; {self.skipped} were there already" + ("; interrupted" if self.interrupted else "")


class Labeller(CompilingChild):
    """A child process that labels one case at a time; one that hangs or crashes is replaced."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, command: Sequence[str] | None = None) -> None:
        """`command` replaces the child's command line."""
        super().__init__("kernelcast.collectors.gpu.labeller", deadline_s, command)

    def label(self, spec: KernelSpec, target: str, block: str) -> CompiledKernel:
        """The row of one case for one target, whatever happens to the compiler.

        Raises:
            WorkerStartError: no child can be started.
        """
        row = to_row(CompiledKernel(spec, target, "failed", block))
        return from_row({**row, **self.ask({"spec": row, "target": target})})


def compile_labels(
    specs: Sequence[KernelSpec], targets: Sequence[str], out: Path, progress: Progress, processes: int = 1, *,
    labeller: Callable[[], Labeller] = Labeller,
) -> LabelSummary:  # fmt: skip
    """Label every case for every target and store the rows under `out`, a block at a time; what is there is skipped.

    Ctrl-C stores what is done. `labeller` makes the processes that compile, `processes` of them.

    Raises:
        StoreError: `out` cannot be written; blocks stored before stay.
        WorkerStartError: a compiling process does not start.
    """
    known = stored_keys(out)
    jobs = [(spec, target) for spec in specs for target in targets]
    todo = [(spec, target) for spec, target in jobs if (spec.case_id, target) not in known]
    stored: Counter[str] = Counter()
    with _Crew(labeller, processes if todo else 0) as crew:
        for first in range(0, len(todo), BLOCK_ROWS):
            block, began, rows, interrupted = uuid4().hex[:16], utc_now(), [], False
            try:
                for row in crew.label(todo[first : first + BLOCK_ROWS], block):
                    rows.append(row)
                    progress(f"compiling block {first // BLOCK_ROWS + 1}", first + len(rows), len(todo))
            except KeyboardInterrupt:
                interrupted = True
            append_compiled(out, rows, crew.facts | {"started_at": began, "finished_at": utc_now()})
            stored.update(row.status for row in rows)
            if interrupted:
                return LabelSummary(stored, len(jobs) - len(todo), interrupted=True)
    return LabelSummary(stored, len(jobs) - len(todo), interrupted=False)


def stored_keys(out: Path) -> set[tuple[str, str]]:
    """Case and target of every final row under `out`."""
    keys = set()
    for family in stored_families(out):
        table = read_compiled(out, family)
        columns = (table[name].to_pylist() for name in ("case_id", "target", "status"))
        keys |= {(case, target) for case, target, status in zip(*columns, strict=True) if status in FINAL}
    return keys


class _Crew:
    """Some labellers, each with a thread that waits for it."""

    def __init__(self, labeller: Callable[[], Labeller], count: int) -> None:
        self._labellers = [labeller() for _ in range(count)]
        self._free: queue.SimpleQueue[Labeller] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(max(1, count))
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> _Crew:
        for labeller in self._labellers:
            self.facts = _facts(labeller.start())
            self._free.put(labeller)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Threads that wait for a child see it end, and end too.
        for labeller in self._labellers:
            labeller.close()

    def label(self, jobs: Sequence[Job], block: str) -> Iterator[CompiledKernel]:
        """The rows of `jobs`, in order, as they get ready."""
        return self._threads.map(lambda job: self._one(job, block), jobs)

    def _one(self, job: Job, block: str) -> CompiledKernel:
        labeller = self._free.get()
        try:
            return labeller.label(*job, block)
        finally:
            self._free.put(labeller)


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    return {**said, "collector_version": __version__, "source_hash": source_hash(), "machine": platform.machine(),
            "python": platform.python_version(), "counted_by": "cuobjdump -sass -res-usage"}  # fmt: skip
