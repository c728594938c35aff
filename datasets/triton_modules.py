"""Triton IR as text and what compiling it says, without running it: the `TritonModule` record, its table, how it is stored.

    root/20250131T101500.123456Z-9f86d081884c.parquet

A file is one block of rows, complete or not there, with the block's provenance in its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pyarrow as pa

from ..features.errors import SpecError, listed
from .compiled import MIX_COLUMNS, CompileStatus
from .files import StoreError, commit_files, file_metadata, parquet_bytes, provenance_of, read_file, read_files

TRITON_FILE = Path(__file__).parent / "programs" / "triton.parquet"
"""The table that comes with kernelcast."""


@dataclass(frozen=True, slots=True)
class TritonModule:
    """One Triton program in one configuration, compiled for one target (`sm_90`). Missing is None.

    `text` is its Triton IR after Triton's own first stage (`make_ttir`), without source locations; None where Triton refused
    the program. `num_warps` and `num_stages` are options of what comes after the text, as `target` is. `program` names it with
    sizes, element types and options left out, `family` with everything left out but what it computes: splits are by either.
    `case_id` names program, configuration and options, `module_id` the text.

    `registers` and `spill_b` (bytes of stack) are per thread, `shared_b` and `threads_per_block` per block. `blocks_per_sm`
    and `warps_per_sm` run on a multiprocessor at once, `occupancy` is the warps' share of what it can hold; all are 0 for a
    kernel that compiles but does not fit the target. `mix` counts machine instructions of `MIX_COLUMNS`, each once however
    often it runs, `instructions` all of them. `compile_s` is from the text to the binary.
    """

    program: str
    case_id: str
    target: str
    num_warps: int
    num_stages: int
    status: CompileStatus
    block: str
    text: str | None = None
    registers: int | None = None
    spill_b: int | None = None
    shared_b: int | None = None
    threads_per_block: int | None = None
    blocks_per_sm: int | None = None
    warps_per_sm: int | None = None
    occupancy: float | None = None
    mix: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    instructions: int | None = None
    compiler: str | None = None
    compile_s: float | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if self.status not in get_args(CompileStatus):
            raise SpecError(
                f"status is {self.status!r}; it is one of {listed(get_args(CompileStatus))}", field="status"
            )
        if (self.status == "ok") != (self.registers is not None):
            raise SpecError(f"status is {self.status!r} and registers {self.registers}; only ok rows have them")
        if self.status == "ok" and self.text is None:
            raise SpecError("status is 'ok' without a text; what was compiled must be known", field="text")
        if unknown := sorted(set(self.mix) - set(MIX_COLUMNS)):
            raise SpecError(f"no instruction group {unknown[0]!r}; groups: {listed(MIX_COLUMNS)}", field=unknown[0])

    @property
    def module_id(self) -> str | None:
        """16 hex digits that name the text by content."""
        return None if self.text is None else hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()

    @property
    def family(self) -> str:
        """What it computes: `softmax` of `softmax/log`."""
        return self.program.partition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        """Case and target: what a resumed run skips."""
        return self.case_id, self.target


_WHOLE = ("num_warps", "num_stages", "registers", "spill_b", "shared_b", "threads_per_block", "blocks_per_sm", "warps_per_sm",
          "instructions")  # fmt: skip
_REAL = ("occupancy", "compile_s")
_FIELDS = tuple(f.name for f in fields(TritonModule) if f.name != "mix")
_COLUMNS = ("module_id", *_FIELDS, *MIX_COLUMNS)
_ORDER = ("program", "text", "case_id", "target")


def triton_schema() -> pa.Schema:
    """Columns and types of the table, in order."""
    return pa.schema([(name, _arrow(name)) for name in _COLUMNS])


def _arrow(name: str) -> pa.DataType:
    if name in _REAL:
        return pa.float64()
    return pa.int64() if name in _WHOLE or name in MIX_COLUMNS else pa.string()


def triton_table(modules: Sequence[TritonModule]) -> pa.Table:
    """Rows as an Arrow table of `triton_schema()`."""
    schema = triton_schema()
    rows = [to_row(module) for module in modules]
    return pa.table({name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names},
                    schema=schema)  # fmt: skip


def to_row(module: TritonModule) -> dict[str, Any]:
    """The module as one flat row of the table."""
    row: dict[str, Any] = {name: getattr(module, name) for name in ("module_id", *_FIELDS)}
    return row | dict(module.mix)


def from_row(row: Mapping[str, Any]) -> TritonModule:
    """The module a stored row describes.

    Raises:
        SpecError: the row cannot be: an unknown status, registers of what did not compile.
    """
    mix = {name: row[name] for name in MIX_COLUMNS if row.get(name) is not None}
    return TritonModule(mix=mix, **{name: row[name] for name in _FIELDS if name in row})


def modules_of(table: pa.Table) -> Iterable[TritonModule]:
    """The rows of a table as records."""
    return map(from_row, table.to_pylist())


def append_modules(root: Path, modules: Sequence[TritonModule], facts: Mapping[str, Any]) -> Path | None:
    """Store a block of rows with its provenance as a new file; returns the file, None for no rows.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    if not modules:
        return None
    blocks = sorted({module.block for module in modules})
    metadata = file_metadata(dict.fromkeys(blocks, facts))
    content = parquet_bytes(triton_table(modules).replace_schema_metadata(metadata))
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = root / f"{stamp}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
    commit_files([(path, content)])
    return path


def read_modules(root: Path) -> pa.Table:
    """The rows under `root`, the latest of every case and target, with provenance in the metadata."""
    table = read_files(sorted(root.glob("*.parquet")), triton_schema())
    keys = zip(table["case_id"].to_pylist(), table["target"].to_pylist(), strict=True)
    latest = dict(zip(keys, range(table.num_rows), strict=True))
    rows = table.take(pa.array(sorted(latest.values()), pa.int64()))
    blocks = set(rows["block"].to_pylist())
    facts = {block: said for block, said in provenance_of(table).items() if block in blocks}
    return rows.replace_schema_metadata(file_metadata(facts))


def pack_modules(root: Path, path: Path = TRITON_FILE) -> pa.Table:
    """Write what is under `root` as one table, sorted by program and text; returns it.

    Raises:
        StoreError: nothing is under `root`, or `path` is not writable.
    """
    table = read_modules(root)
    if not table.num_rows:
        raise StoreError(f"no compiled Triton programs under {root}")
    # Like texts beside each other compress well, and a table is the same whatever order it was compiled in.
    table = table.sort_by([(name, "ascending") for name in _ORDER])
    commit_files([(path, parquet_bytes(table))])
    return table


def read_shipped_modules(path: Path = TRITON_FILE) -> pa.Table:
    """The compiled Triton programs that come with kernelcast, with provenance in the metadata.

    Raises:
        StoreError: the table is missing or damaged.
    """
    return read_file(path, triton_schema())
