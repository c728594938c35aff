"""Compiled Triton programs as the table that models of compiled code are trained on and judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....datasets.records.compiled_code import (
    TRITON_FILE,
    TritonModule,
    modules_of,
    read_modules,
    read_shipped_modules,
)
from ....datasets.store.errors import StoreError
from ....features.batch.cases import Floats
from ....features.errors import SpecError
from ....features.mlir.triton.program_order import TARGETS, Options, triton_function
from ....features.mlir.triton.vectors import extract
from ....features.mlir.types.graph import Module
from ..learned.measured_programs import readable
from .code_model import limit_of

SPILL_B = 32
"""A larger stack counts as spilling. The slow path of a sine or cosine keeps a table of 28 bytes on it, which is no
spill, and eight registers' worth takes no time that can be measured."""

COLLAPSED_SPILL_B = 1024
COLLAPSED_SHARE = 0.8
"""An assembler that finds far too many values at once gives up on registers: the stack then holds more than this,
though less than this share of the registers is used."""


Words = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class CompiledRows:
    """`n` functions compiled for targets with options.

    Attributes:
        x: Their vectors, shape `(n, len(NAMES))`.
        programs: Names without sizes and options.
        families: What they compute.
        targets: What they were compiled for.
        texts: What models of text alone are shown.
        registers: Per thread, shape `(n,)`.
        spill_b: Stack bytes, likewise.
        shared_b: Shared bytes of a block, likewise.
        instructions: Machine instructions, likewise.
        limit: Most registers there may be, likewise.
    """

    x: Floats
    programs: Words
    families: Words
    targets: Words
    texts: Words
    registers: Floats
    spill_b: Floats
    shared_b: Floats
    instructions: Floats
    limit: Floats

    def __len__(self) -> int:
        return len(self.programs)

    @property
    def spilled(self) -> Any:
        """Whether code spills, by `SPILL_B`; shape `(n,)`."""
        return self.spill_b > SPILL_B

    @property
    def collapsed(self) -> Any:
        """Whether the assembler gave up on registers; shape `(n,)`."""
        return (self.spill_b > COLLAPSED_SPILL_B) & (self.registers < COLLAPSED_SHARE * self.limit)

    def take(self, rows: Any) -> CompiledRows:
        """Those of `rows`, a mask or positions."""
        return CompiledRows(*(getattr(self, name)[rows] for name in CompiledRows.__slots__))


def read_labels(paths: Sequence[Path]) -> list[TritonModule]:
    """The rows of packed tables (`.parquet`) and stores (directories) that `kernelcast measure triton` wrote; the
    shipped ones for none.

    Raises:
        SpecError: a path is missing, damaged or holds none.
    """
    modules: dict[tuple[str, str], TritonModule] = {}
    for path in paths or [TRITON_FILE]:
        try:
            table = read_modules(path) if path.is_dir() else read_shipped_modules(path)
        except StoreError as error:
            raise SpecError(f"{path}: {error}", field="data") from error
        modules.update((module.key, module) for module in modules_of(table))
        if not table.num_rows:
            raise SpecError(
                f"{path} holds no compiled programs; make some with `kernelcast measure triton`", field="data"
            )
    return list(modules.values())


def compiled_rows(
    modules: Sequence[TritonModule],
    read: Callable[[str], Module],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[CompiledRows, list[str]]:
    """The rows that compiled for a target that is known, and why others are left out.

    `read` makes an op graph of a text; `progress` is told how many rows of how many are done.

    Raises:
        SpecError: no row can be used.
    """
    usable = sorted(
        (m for m in modules if m.status == "ok" and m.target in TARGETS and m.text), key=lambda m: (m.program, *m.key)
    )
    graph_of = lru_cache(maxsize=None)(read)

    def vector(module: TritonModule) -> Floats:
        graph = graph_of(module.text or "")
        return extract(graph, triton_function(graph, None), Options(module.target, module.num_warps, module.num_stages))

    chosen, vectors, refusals = readable(usable, vector, progress)
    x = np.stack(vectors)

    def column(name: str) -> Floats:
        return np.array([float(getattr(module, name) or 0) for module in chosen])

    def words(name: str) -> Words:
        return np.array([getattr(module, name) for module in chosen], dtype=object)

    return CompiledRows(
        x, words("program"), words("family"), words("target"), words("text"), column("registers"), column("spill_b"),
        column("shared_b"), column("instructions"), limit_of(x),
    ), refusals  # fmt: skip
