"""Measured MLIR modules: their text, and what compiling and running each of them gave.

Two tables. `ModuleText` is a module's text, once. `ModuleRun` is one compiler's build of it, run on one device with so many
threads; rows name their text by `module_id`, a hash of it. A failed run is a row with a status, never a hole.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...features.errors import SpecError
from ..rows.schema import Status, record_columns
from ..store.errors import StoreError
from ..store.location import commit_files
from ..store.parquet_files import (
    block_file,
    latest_rows,
    read_columns,
    read_file,
    read_files,
    sorted_bytes,
    with_own_provenance,
)
from ..store.store import FINAL_STATUSES


@dataclass(frozen=True, slots=True)
class ModuleText:
    """The text of one module and where it comes from. Every argument of its one public function has static sizes.

    Attributes:
        text: The module as MLIR text.
        program: The program it is an instance of, sizes left out (`jax/mlp-gelu/grad`, `generated/fused-000123`). Splits
            are by program, so that no program is trained on in one size and judged in another.
        source: What wrote it: `jax`, `torch`, `generated`.
        dialect: The main dialect of its text.
    """

    text: str
    program: str
    source: str
    dialect: str

    @property
    def module_id(self) -> str:
        """16 hex digits that name this text by content."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class ModuleRun:
    """What compiling and running a module gave. Times in seconds, sizes in bytes; None for what is not known.

    Code of libraries that a compiler calls instead of writing its own (XLA does, for products) is in none of the counts.

    Attributes:
        module_id: The text's digest (`ModuleText.module_id`).
        compiler: `iree` or `xla`, with versions in the block's provenance; or `iree-avx2`, whose rows have
            `executed_instructions` and no latency.
        device: Catalogue name of the device.
        threads: CPU threads, None on a GPU.
        status: `ok`, or why there is no latency.
        block: Block of rows, which names the provenance.
        latency_s: Median of the clean samples of one call with operands in place.
        latency_q1_s: First quartile of the samples.
        latency_q3_s: Third quartile of the samples.
        latency_min_s: Smallest sample.
        n_samples: Clean samples.
        converged: Whether the stopping rule was met.
        noisy: Whether separated samples still disagreed at the end.
        rejected_samples: Samples left out as disturbed.
        compile_s: Processor time of the compiler, which is its wall time on an idle core.
        binary_b: Size of what the compiler wrote.
        code_b: Size of the machine code inside.
        code_instructions: Instructions of the machine code.
        vector_instructions: Vector instructions among them.
        spills: Stores to and loads from slots of the stack among them.
        executed_instructions: Instructions that one call executes.
        dispatches: Kernels the compiler made.
        power_w: Mean power while it ran, in watts.
        energy_j: Energy of one call, in joules.
        energy_source: The sensor, None where there is none.
        message: Why there is no latency.
    """

    module_id: str
    compiler: str
    device: str
    threads: int | None
    status: Status
    block: str
    latency_s: float | None = None
    latency_q1_s: float | None = None
    latency_q3_s: float | None = None
    latency_min_s: float | None = None
    n_samples: int | None = None
    converged: bool | None = None
    noisy: bool | None = None
    rejected_samples: int | None = None
    compile_s: float | None = None
    binary_b: int | None = None
    code_b: int | None = None
    code_instructions: int | None = None
    vector_instructions: int | None = None
    spills: int | None = None
    executed_instructions: float | None = None
    dispatches: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    message: str | None = None
    measured_at: str | None = None
    """UTC, ISO 8601."""


MAIN_DIALECTS = ("torch", "stablehlo", "chlo", "tosa", "linalg")
"""Dialects that programs are written in, in the order in which they are looked for; others only help."""

_OPERATION = re.compile(r"(?:^|=)\s*\"?([a-z_]+)\.[a-z_][\w.]*", re.MULTILINE)


def main_dialect(text: str) -> str:
    """The first of `MAIN_DIALECTS` that has an operation in `text`, else the one with most operations; `builtin` for none."""
    counts = Counter(_OPERATION.findall(text))
    counts.pop("func", None)
    present = [name for name in MAIN_DIALECTS if counts[name]]
    if present:
        return "stablehlo" if present[0] == "chlo" else present[0]
    return counts.most_common(1)[0][0] if counts else "builtin"


PROGRAMS_DIR = Path(__file__).parents[1] / "data" / "programs"
"""The measured modules that come with kernelcast: `texts.parquet` and `runs.parquet`."""

_TEXT_COLUMNS = ("module_id", "program", "source", "dialect", "text")
TEXT_SCHEMA = pa.schema([(name, pa.string()) for name in _TEXT_COLUMNS])
"""Columns and types of the table of texts."""

RUN_SCHEMA = pa.schema(record_columns(ModuleRun))
"""Columns and types of the table of runs."""

_SORTED_BY = ("device", "compiler", "threads", "module_id", "measured_at")


def append_texts(root: Path, texts: Sequence[ModuleText], facts: Mapping[str, Any]) -> list[Path]:
    """Store the texts that are not stored yet, with where they come from; the new file, none for nothing new.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    known = set(read_files(_files(root, "texts"), pa.schema([TEXT_SCHEMA.field("module_id")]))["module_id"].to_pylist())
    fresh = {text.module_id: text for text in texts if text.module_id not in known}
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return [_append(root / "texts", texts_table(fresh.values()), {f"texts-{stamp}": facts})] if fresh else []


def append_runs(root: Path, runs: Sequence[ModuleRun], facts: Mapping[str, Any]) -> list[Path]:
    """Store a block of rows with its provenance; the new file, none for no rows.

    Raises:
        StoreError: the disk is full or not writable, `facts` are empty or no plain JSON, or the rows name no or several blocks.
    """
    if not runs:
        return []
    blocks = {run.block for run in runs}
    if len(blocks) != 1 or not min(blocks) or not facts:
        raise StoreError("rows are stored only with their provenance: one block name and at least one fact")
    return [_append(root / "runs", pa.Table.from_pylist(list(map(asdict, runs)), RUN_SCHEMA), {min(blocks): facts})]


def _append(folder: Path, table: pa.Table, facts: Mapping[str, Mapping[str, Any]]) -> Path:
    path, content = block_file(folder, table, facts)
    commit_files([(path, content)])
    return path


def _files(root: Path, kind: str) -> list[Path]:
    return sorted((root / kind).glob("[!.]*.parquet"))


def texts_table(texts: Iterable[ModuleText]) -> pa.Table:
    """Texts as an Arrow table of `TEXT_SCHEMA`."""
    return pa.Table.from_pylist([asdict(text) | {"module_id": text.module_id} for text in texts], TEXT_SCHEMA)


def texts_of(table: pa.Table) -> list[ModuleText]:
    """The rows of a table of texts as records."""
    return [ModuleText(row["text"], row["program"], row["source"], row["dialect"]) for row in table.to_pylist()]


def runs_of(table: pa.Table) -> list[ModuleRun]:
    """The rows of a table of runs as records."""
    return [ModuleRun(**row) for row in table.to_pylist()]


def read_texts_file(path: Path) -> list[ModuleText]:
    """The texts of any Parquet file with the columns of `TEXT_SCHEMA` but `module_id`, which is computed; one of each.

    Raises:
        SpecError: it is no such file.
    """
    wanted = _TEXT_COLUMNS[1:]
    rows = read_columns(path, wanted)
    for number, row in enumerate(rows, 1):
        if empty := sorted(name for name in wanted if not isinstance(row[name], str)):
            raise SpecError(f"row {number} of {path} has no {empty[0]}", field="texts")
    texts = [ModuleText(**row) for row in rows]
    return list({text.module_id: text for text in texts}.values())


def read_texts(root: Path) -> pa.Table:
    """All texts stored under `root`, one row per module, with provenance in the metadata (`parquet_files.provenance_of`)."""
    return latest_rows(read_files(_files(root, "texts"), TEXT_SCHEMA), ["module_id"])


def read_runs(root: Path) -> pa.Table:
    """The rows stored under `root`, with provenance in the metadata: of each build the latest, measured where there is one."""
    table = read_files(_files(root, "runs"), RUN_SCHEMA)
    failed = pc.not_equal(table["status"], "ok")
    # Stable: among equals the order of storing stays, and the last of a key is kept.
    order = pc.sort_indices(failed.cast(pa.int8()), sort_keys=[("", "descending")])
    return latest_rows(table.take(order), ["module_id", "compiler", "device", "threads"])


def measured_keys(root: Path, device: str) -> set[tuple[str, str, int | None]]:
    """(module, compiler, threads) of the builds on `device` that need not be measured again: see `store.FINAL_STATUSES`."""
    table = read_runs(root)
    wanted = pc.and_(pc.is_in(table["status"], pa.array(FINAL_STATUSES)), pc.equal(table["device"], device))
    rows = table.filter(wanted)
    return set(zip(*(rows[name].to_pylist() for name in ("module_id", "compiler", "threads")), strict=True))


def pack_modules(root: Path, out: Path) -> list[Path]:
    """Write what is stored under `root` as `out/texts.parquet` and `out/runs.parquet`, sorted, with their provenance.

    Only texts that have rows are written, and rows whose text is stored.

    Raises:
        StoreError: there are no rows, or the disk is full or not writable.
    """
    texts, runs = read_texts(root), read_runs(root)
    runs = runs.filter(pc.is_in(runs["module_id"], texts["module_id"].combine_chunks()))
    if not runs.num_rows:
        raise StoreError(f"no measured modules in {root}; measure some with `kernelcast measure mlir --out {root}`")
    texts = texts.filter(pc.is_in(texts["module_id"], runs["module_id"].combine_chunks()))
    files = [
        (out / "texts.parquet", sorted_bytes(texts, ("program", "module_id"))),
        (out / "runs.parquet", sorted_bytes(with_own_provenance(runs), _SORTED_BY)),
    ]
    commit_files(files)
    return [path for path, _ in files]


def read_packed(directory: Path = PROGRAMS_DIR) -> tuple[list[ModuleText], list[ModuleRun]]:
    """The texts and the rows that `pack_modules` wrote.

    Raises:
        StoreError: a table is missing or damaged.
    """
    return (texts_of(read_file(directory / "texts.parquet", TEXT_SCHEMA)),
            runs_of(read_file(directory / "runs.parquet", RUN_SCHEMA)))  # fmt: skip
