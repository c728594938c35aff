"""Compile-only labels: compiles kernels and Triton IR for GPUs that need not be present, and stores what came out.

`label_plan` names the kernels: every binary at most once, over the configurations of the GPU campaign. A row that is stored is
skipped by the next run. Rows are stored in blocks, so that a power cut loses one block at most.
"""

from __future__ import annotations

import itertools
import platform
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from ...datasets.records.compiled_code import (
    TRITON_FILE,
    CompiledKernel,
    CompileStatus,
    TritonModule,
    append_compiled,
    append_modules,
    read_compiled,
    read_modules,
    stored_families,
)
from ...datasets.store.parquet_files import read_columns
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_row
from ...process import ChildLostError, ChildPool, JsonChild, python_command
from ...version import __version__
from ..campaign import rows_text
from ..gpu.plan.tiled_kernels import AttentionCode, GemmCode, attention_codes, gemm_codes
from ..gpu.runners.cupy import MAX_TILE
from ..gpu.runners.triton import triton_binaries
from ..host import source_hash, utc_now

ATTENTION_SHARE = 0.3
"""Of the Triton kernels."""

_ALIGNED_SIZE, _UNALIGNED_SIZE = 4096, 4097
"""Only whether a size is a multiple of 16 matters to the compiler."""
_DRAWS_PER_CASE = 50
"""Cases drawn for each that is wanted, since many have the same binary."""


def label_plan(n_cases: int, seed: int) -> list[KernelSpec]:
    """Cases with different binaries: every tile of the textbook product, then Triton attention and products.

    Sizes only stand for their divisibility by 16. Equal arguments give equal plans, in random order.

    Raises:
        SpecError: there are not so many different binaries.
    """
    rng = np.random.default_rng(seed)
    textbook = [_textbook(tile) for tile in range(1, MAX_TILE + 1)][:n_cases]
    attentions = round(ATTENTION_SHARE * (n_cases - len(textbook)))
    products = (_gemm(code) for code in gemm_codes(rng) if code.sensible)
    attending = (_attention(code) for code in attention_codes(rng) if code.sensible)
    specs = [*textbook, *_different(attending, attentions), *_different(products, n_cases - len(textbook) - attentions)]
    return [specs[i] for i in rng.permutation(len(specs))]


def _different(specs: Iterator[KernelSpec], wanted: int) -> list[KernelSpec]:
    """The first `wanted` cases with different binaries."""
    first: dict[Hashable, KernelSpec] = {}
    for spec in itertools.islice(specs, _DRAWS_PER_CASE * wanted):
        if len(first) == wanted:
            break
        first.setdefault(triton_binaries(spec), spec)
    distinct = list(first.values())
    if len(distinct) < wanted:
        raise SpecError(
            f"only {len(distinct)} different binaries of {distinct[0].family} were found, not {wanted}; ask for fewer",
            field="rows",
        )
    return distinct


def _textbook(tile: int) -> KernelSpec:
    config = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
    m = n = k = _ALIGNED_SIZE
    return KernelSpec.of("gemm", "fp32", impl="cupy-tiled", config=config, m=m, n=n, k=k)


def _gemm(code: GemmCode) -> KernelSpec:
    k, n = (_ALIGNED_SIZE if aligned else _UNALIGNED_SIZE for aligned in code.aligned)
    knobs = code.knobs(group_m=8, split_k=4 if code.split else 1)
    return KernelSpec.of("gemm", code.dtype, impl="triton", config=knobs, m=_ALIGNED_SIZE, n=n, k=k)


def _attention(code: AttentionCode) -> KernelSpec:
    return KernelSpec.of("attention", code.dtype, impl="triton", config=code.knobs(), batch=1, heads=32, kv_heads=8,
                         q_len=_ALIGNED_SIZE, kv_len=_ALIGNED_SIZE, head_dim=code.head_dim)  # fmt: skip


DEADLINE_S = 240.0
"""Longest compile. Nine in ten take less than two seconds of a processor, but one may be shared by many."""

BLOCK_ROWS = 50
"""Rows of a file: what is lost at most when the machine goes down."""

FINAL: tuple[CompileStatus, ...] = ("ok", "unsupported", "failed", "timeout")
"""Rows a resumed run skips; a crash may have been an accident and is tried again."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, rows done, and rows in all."""

Row = CompiledKernel | TritonModule
_TO_DO: Mapping[str, Any] = {"status": "failed", "block": ""}
"""What a row says before it is compiled."""


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """What a run did.

    Attributes:
        stored: Rows stored, by status.
        skipped: Rows that were stored before.
        left: Rows still to do.
        interrupted: Whether Ctrl-C ended it.
    """

    stored: Mapping[str, int]
    skipped: int
    left: int
    interrupted: bool

    def __str__(self) -> str:
        text = f"{rows_text(self.stored, 'compiled')}; {self.skipped} skipped as already stored"
        return text + (f"; {self.left} left" if self.left else "") + ("; interrupted" if self.interrupted else "")


TEXT_COLUMNS = ("program", "case_id", "target", "num_warps", "num_stages", "text")
"""Fields of a `TritonModule` that say what to compile."""


def _request(job: Row) -> dict[str, Any]:
    """What the child needs to compile a row."""
    if isinstance(job, CompiledKernel):
        return {"spec": spec_row(job.spec), "target": job.target}
    return {name: getattr(job, name) for name in ("text", "target", "num_warps", "num_stages")}


def compiling_child(what: str = "kernels", command: Sequence[str] | None = None) -> JsonChild:
    """A child process that compiles one job at a time; `what` is `kernels` or `texts`, `command` replaces its command line."""
    # It needs no GPU, and must not wake one.
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return JsonChild("compiling", command or python_command("kernelcast.collectors.compiled.worker", what), environment)


def compile_labels(
    specs: Sequence[KernelSpec], targets: Sequence[str], out: Path, progress: Progress, processes: int = 1, *,
    child: Callable[[], JsonChild] = compiling_child,
) -> LabelSummary:  # fmt: skip
    """Compile every case for every target in `processes` processes; store the rows under `out` and skip those stored before.

    Ctrl-C stores what is done.

    Raises:
        StoreError: `out` cannot be written; blocks stored before stay.
        ChildStartError: a compiling process does not start.
    """
    jobs = [CompiledKernel(spec, target=target, **_TO_DO) for spec in specs for target in targets]
    tables = (read_compiled(out, family) for family in stored_families(out))
    todo = _without_final(jobs, tables)
    children = [child() for _ in range(processes if todo else 0)]
    return _run(jobs, todo, children, float("inf"), progress, {}, partial(append_compiled, out))


def compile_texts(
    jobs: Sequence[TritonModule], out: Path, progress: Progress, budget_s: float = float("inf"), *,
    child: Callable[[], JsonChild] = lambda: compiling_child("texts"),
) -> LabelSummary:  # fmt: skip
    """Compile Triton IR and store the rows under `out`; skip those stored before.

    Ends with the block in which `budget_s` seconds are over. Ctrl-C stores what is done.

    Raises:
        StoreError: `out` cannot be written; blocks stored before stay.
        ChildStartError: a compiling process does not start.
    """
    todo = _without_final(jobs, [read_modules(out)])
    children = [child()] if todo and budget_s > 0 else []
    facts = {"text_is": "Triton IR after make_ttir, without locations"}
    return _run(jobs, todo, children, budget_s, progress, facts, partial(append_modules, out))


def read_text_jobs(path: Path = TRITON_FILE) -> list[TritonModule]:
    """The programs of a Parquet table with `TEXT_COLUMNS` (default: the shipped one), without rows that have no text.

    Raises:
        SpecError: it is no such table, or has no texts.
    """
    rows = read_columns(path, TEXT_COLUMNS)
    jobs = [TritonModule(**row, **_TO_DO) for row in rows if row["text"] is not None]
    if not jobs:
        raise SpecError(f"{path} has no texts of Triton programs", field="texts")
    return jobs


def _without_final(jobs: Sequence[Row], tables: Iterable[pa.Table]) -> list[Row]:
    """The jobs that have no final row in the tables."""
    final: set[tuple[str, str]] = set()
    for table in tables:
        columns = (table[name].to_pylist() for name in ("case_id", "target", "status"))
        final |= {(case, target) for case, target, status in zip(*columns, strict=True) if status in FINAL}
    return [job for job in jobs if job.key not in final]


def _run(
    jobs: Sequence[Row], todo: Sequence[Row], children: Sequence[JsonChild], budget_s: float, progress: Progress,
    facts: Mapping[str, Any], append: Callable[[list[Any], Mapping[str, Any]], object],
) -> LabelSummary:  # fmt: skip
    """Compile `todo`, those of `jobs` without a row, block by block; `append` stores the rows of a block with facts."""
    stored: Counter[str] = Counter()
    until, interrupted = monotonic() + budget_s, False
    with ChildPool(children) as pool:
        for child in children[:1]:
            child.start()
            facts = {**child.ready, **facts}
        while stored.total() < len(todo) and monotonic() < until and not interrupted:
            first = stored.total()
            block, began, rows = uuid4().hex[:16], utc_now(), list[Row]()
            try:
                for row in pool.map(partial(_label, block), todo[first : first + BLOCK_ROWS]):
                    rows.append(row)
                    progress("compiling", first + len(rows), len(todo))
            except KeyboardInterrupt:
                interrupted = True
            append(rows, {
                **facts, "counted_by": "cuobjdump -sass -res-usage", "collector_version": __version__,
                "source_hash": source_hash(), "machine": platform.machine(), "python": platform.python_version(),
                "started_at": began, "finished_at": utc_now(),
            })  # fmt: skip
            stored.update(row.status for row in rows)
    return LabelSummary(stored, len(jobs) - len(todo), len(todo) - stored.total(), interrupted)


def _label(block: str, child: JsonChild, job: Row) -> Row:
    """The row of a job; a status and a message where the compiler hung or crashed.

    Raises:
        ChildStartError: the child cannot be started.
    """
    child.start()
    try:
        child.write(_request(job))
        label = child.read(DEADLINE_S)["label"]
    except ChildLostError as lost:
        label = {"status": lost.kind, "message": f"the compiling process {lost}"}
    return replace(job, block=block, **label)
