"""What compiling a kernel says, without running it: the `CompiledKernel` record, its table, and how it is stored.

    root/gemm/20250131T101500.123456Z-9f86d081884c.parquet

A file is one block of rows of one family, complete or not there, with the block's provenance in its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import pyarrow as pa

from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec, get_family
from .files import commit_files, file_metadata, parquet_bytes, provenance_of, read_file, read_files
from .schema import spec_of

COMPILED_DIR = Path(__file__).parent / "compiled"
"""The tables that come with kernelcast: `{family}.parquet`."""

CompileStatus = Literal["ok", "unsupported", "failed", "timeout", "crashed"]

MIX_COLUMNS = ("tensor_ops", "ffma_ops", "mufu_ops", "global_loads", "global_stores", "shared_loads", "shared_stores",
               "local_ops", "async_copies", "barriers")  # fmt: skip
"""Groups of machine instructions that are counted; what belongs to which is said where they are counted."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One case compiled for one target (`sm_90`), and what its binary is like. Missing is None.

    `registers`, `spill_b` (bytes of stack) are per thread, `shared_b` and `threads_per_block` per block. `blocks_per_sm`
    and `warps_per_sm` run on a multiprocessor at once, `occupancy` is the warps' share of what it can hold; all are 0 for
    a kernel that compiles but does not fit the target. `mix` counts instructions of `MIX_COLUMNS`, each once however often
    it runs, `instructions` all of them. `compiler` names what compiled it, `compile_s` is how long that took.
    """

    spec: KernelSpec
    target: str
    status: CompileStatus
    block: str
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
        if unknown := sorted(set(self.mix) - set(MIX_COLUMNS)):
            raise SpecError(f"no instruction group {unknown[0]!r}; groups: {listed(MIX_COLUMNS)}", field=unknown[0])

    @property
    def key(self) -> tuple[str, str]:
        """The case's content hash and the target: what a resumed run skips."""
        return self.spec.case_id, self.target


_SPEC_COLUMNS = ("family", "dtype", "variant", "impl")
_TEXT = ("target", "status", "compiler", "message", "block")
_REAL = ("occupancy", "compile_s")
_RESULTS = tuple(f.name for f in fields(CompiledKernel) if f.name not in ("spec", "mix"))


def compiled_schema(family: str) -> pa.Schema:
    """Columns and types of one family's table, in order.

    Raises:
        SpecError: unknown family.
    """
    fam = get_family(family)
    columns = [(name, pa.string()) for name in _SPEC_COLUMNS]
    columns += [(name, pa.int64()) for name in (*fam.dim_names, *fam.config)]
    columns += [(name, _arrow(name)) for name in _RESULTS]
    columns += [(name, pa.int64()) for name in MIX_COLUMNS]
    return pa.schema([*columns, ("case_id", pa.string())])


def _arrow(name: str) -> pa.DataType:
    if name in _TEXT:
        return pa.string()
    return pa.float64() if name in _REAL else pa.int64()


def compiled_table(kernels: Sequence[CompiledKernel], family: str) -> pa.Table:
    """Rows of one family as an Arrow table of `compiled_schema(family)`."""
    schema = compiled_schema(family)
    rows = [to_row(kernel) for kernel in kernels]
    return pa.table({name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names},
                    schema=schema)  # fmt: skip


def to_row(kernel: CompiledKernel) -> dict[str, Any]:
    """The kernel as one flat row of its family's table."""
    row: dict[str, Any] = {name: getattr(kernel.spec, name) for name in _SPEC_COLUMNS}
    row |= dict(kernel.spec.dims) | dict(kernel.spec.config)
    row |= {name: getattr(kernel, name) for name in _RESULTS} | dict(kernel.mix)
    return row | {"case_id": kernel.spec.case_id}


def from_row(row: Mapping[str, Any]) -> CompiledKernel:
    """The kernel a stored row describes.

    Raises:
        SpecError: the row names something kernelcast does not know.
    """
    mix = {name: row[name] for name in MIX_COLUMNS if row.get(name) is not None}
    return CompiledKernel(spec=spec_of(row), mix=mix, **{name: row[name] for name in _RESULTS if name in row})


def append_compiled(root: Path, kernels: Sequence[CompiledKernel], facts: Mapping[str, Any]) -> list[Path]:
    """Store a block of rows with its provenance, one new file per family; returns the files.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    files = []
    blocks = {kernel.block for kernel in kernels}
    metadata = file_metadata(dict.fromkeys(sorted(blocks), facts))
    for family in sorted({kernel.spec.family for kernel in kernels}):
        rows = [kernel for kernel in kernels if kernel.spec.family == family]
        content = parquet_bytes(compiled_table(rows, family).replace_schema_metadata(metadata))
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        files.append((root / family / f"{stamp}-{hashlib.sha256(content).hexdigest()[:12]}.parquet", content))
    commit_files(files)
    return [path for path, _ in files]


def stored_families(root: Path) -> list[str]:
    """Families that have rows under `root`, sorted."""
    return sorted(path.name for path in root.glob("*") if any(path.glob("*.parquet")))


def read_compiled(root: Path, family: str) -> pa.Table:
    """The rows of one family under `root`, the latest of every case and target, with provenance in the metadata."""
    table = read_files(sorted((root / family).glob("*.parquet")), compiled_schema(family))
    latest = dict(zip(zip(table["case_id"].to_pylist(), table["target"].to_pylist(), strict=True),
                      range(table.num_rows), strict=True))  # fmt: skip
    rows = table.take(pa.array(sorted(latest.values()), pa.int64()))
    blocks = set(rows["block"].to_pylist())
    facts = {block: said for block, said in provenance_of(table).items() if block in blocks}
    return rows.replace_schema_metadata(file_metadata(facts))


def compact_compiled(root: Path, directory: Path) -> list[Path]:
    """Write what is under `root` as one table per family into `directory`, sorted by target and configuration.

    Raises:
        StoreError: `directory` is not writable.
    """
    files = []
    for family in stored_families(root):
        table = read_compiled(root, family)
        order = ["target", "impl", "dtype", *get_family(family).config, *get_family(family).dim_names]
        # Sorted rows compress well, and a table is the same whatever order it was compiled in.
        files.append(
            (directory / f"{family}.parquet", parquet_bytes(table.sort_by([(name, "ascending") for name in order])))
        )
    commit_files(files)
    return [path for path, _ in files]


def read_shipped_compiled(family: str, *, directory: Path = COMPILED_DIR) -> pa.Table:
    """The compiled kernels of one family that come with kernelcast, with provenance in the metadata.

    Raises:
        SpecError: there is no such table; the message lists those there are.
        StoreError: the table is damaged.
    """
    known = sorted(path.stem for path in directory.glob("*.parquet"))
    if family not in known:
        raise SpecError(
            f"no compiled kernels of {family!r}; there are those of: {listed(known) or 'none'}", field="family"
        )
    return read_file(directory / f"{family}.parquet", compiled_schema(family))


def kernels_of(table: pa.Table) -> Iterable[CompiledKernel]:
    """The rows of a table as records."""
    return map(from_row, table.to_pylist())
