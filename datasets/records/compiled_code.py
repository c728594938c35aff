"""What compiling a kernel or a Triton program says, without running it: records, their tables, and how they are stored.

    root/gemm/20250131T101500.123456Z-9f86d081884c.parquet    tiled kernels, a folder per family
    root/20250131T101500.123456Z-9f86d081884c.parquet         Triton programs

A file is one block of rows, complete or not there, with the block's provenance in its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec, get_family
from ...features.spec_io.rows import spec_row
from ..rows.schema import record_columns
from ..store.errors import StoreError
from ..store.location import commit_files
from ..store.parquet_files import block_file, latest_rows, read_file, read_files, sorted_bytes, with_own_provenance

TRITON_FILE = Path(__file__).parents[1] / "data" / "programs" / "triton.parquet"
"""The table of Triton programs that comes with kernelcast."""

CompileStatus = Literal["ok", "unsupported", "failed", "timeout", "crashed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """What compiling for one target says of the binary. Missing is None.

    Attributes:
        target: What it was compiled for (`sm_90`).
        status: `ok`, or why there is no binary.
        block: Block of rows, which names the provenance.
        registers: Registers per thread.
        spill_b: Bytes of stack per thread.
        shared_b: Bytes of shared memory per block.
        threads_per_block: Threads per block.
        blocks_per_sm: Blocks on a multiprocessor at once; 0 for a kernel that compiles but does not fit the target.
        warps_per_sm: Warps on a multiprocessor at once, likewise.
        occupancy: The warps' share of what a multiprocessor can hold, likewise.
        instructions: All machine instructions, each counted once however often it runs.
        compiler: What compiled it.
        compile_s: How long that took, in seconds; for Triton programs from the text to the binary.
        message: Why there is no binary.
        tensor_ops: Instructions of tensor cores; what belongs to this group and those below is said in
            `collectors.compiled.sass`.
        ffma_ops: Fused multiply-adds.
        mufu_ops: Special functions.
        global_loads: Loads of global memory.
        global_stores: Stores to it.
        shared_loads: Loads of shared memory.
        shared_stores: Stores to it.
        local_ops: Loads and stores of local memory: spills.
        async_copies: Copies from global to shared memory.
        barriers: Barriers of a block.

    Raises:
        SpecError: an unknown status, or registers of what did not compile.
    """

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
    instructions: int | None = None
    compiler: str | None = None
    compile_s: float | None = None
    message: str | None = None
    tensor_ops: int | None = None
    ffma_ops: int | None = None
    mufu_ops: int | None = None
    global_loads: int | None = None
    global_stores: int | None = None
    shared_loads: int | None = None
    shared_stores: int | None = None
    local_ops: int | None = None
    async_copies: int | None = None
    barriers: int | None = None

    def __post_init__(self) -> None:
        statuses = get_args(CompileStatus)
        if self.status not in statuses:
            raise SpecError(f"status is {self.status!r}; it is one of {listed(statuses)}", field="status")
        if (self.status == "ok") != (self.registers is not None):
            raise SpecError(f"status is {self.status!r} and registers {self.registers}; only ok rows have them")


@dataclass(frozen=True, slots=True)
class CompiledKernel(CompiledCode):
    """One case compiled for one target.

    Attributes:
        spec: The case.
    """

    spec: KernelSpec

    @property
    def key(self) -> tuple[str, str]:
        """The case's content hash and the target: what a resumed run skips."""
        return self.spec.case_id, self.target

    def to_row(self) -> dict[str, Any]:
        """The kernel as one flat row of its family's table."""
        results = {name: getattr(self, name) for name in _RESULTS}
        return {**spec_row(self.spec), **results, "case_id": self.spec.case_id}


@dataclass(frozen=True, slots=True)
class TritonModule(CompiledCode):
    """One Triton program in one configuration, compiled for one target.

    Attributes:
        program: Its name with sizes, element types and options left out (`softmax/log`); splits are by program or family.
        case_id: Names program, configuration and options.
        num_warps: An option of what comes after the text, as the target is.
        num_stages: Another such option.
        text: Triton IR after Triton's own first stage (`make_ttir`), without source locations; None where Triton refused
            the program.
    """

    program: str
    case_id: str
    num_warps: int
    num_stages: int
    text: str | None = None

    def __post_init__(self) -> None:
        CompiledCode.__post_init__(self)
        if self.status == "ok" and self.text is None:
            raise SpecError("status is 'ok' without a text; what was compiled must be known", field="text")

    @property
    def module_id(self) -> str | None:
        """16 hex digits that name the text by content."""
        return None if self.text is None else hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()

    @property
    def family(self) -> str:
        """What it computes, everything else left out: `softmax` of `softmax/log`."""
        return self.program.partition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        """Case and target: what a resumed run skips."""
        return self.case_id, self.target

    def to_row(self) -> dict[str, Any]:
        """The module as one flat row of the table."""
        return {"module_id": self.module_id, **asdict(self)}


_SPEC_COLUMNS = ("family", "dtype", "variant", "impl")
_RESULTS = record_columns(CompiledCode)
_TRITON_COLUMNS = record_columns(TritonModule)
_TRITON_ORDER = ("program", "text", "case_id", "target")


def compiled_schema(family: str) -> pa.Schema:
    """Columns and types of one family's table, in order.

    Raises:
        SpecError: unknown family.
    """
    fam = get_family(family)
    columns = dict.fromkeys(_SPEC_COLUMNS, pa.string()) | dict.fromkeys((*fam.dim_names, *fam.config), pa.int64())
    return pa.schema(columns | _RESULTS | {"case_id": pa.string()})


def triton_schema() -> pa.Schema:
    """Columns and types of the table of Triton programs, in order."""
    return pa.schema({"module_id": pa.string()} | _TRITON_COLUMNS)


def modules_of(table: pa.Table) -> Iterable[TritonModule]:
    """The rows of a table of Triton programs as records."""
    return (TritonModule(**row) for row in table.select(list(_TRITON_COLUMNS)).to_pylist())


def append_compiled(root: Path, kernels: Sequence[CompiledKernel], facts: Mapping[str, Any]) -> None:
    """Store a block of rows with its provenance, one new file per family.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    files = []
    for family in sorted({kernel.spec.family for kernel in kernels}):
        rows = [kernel for kernel in kernels if kernel.spec.family == family]
        files.append(_block_file(root / family, rows, compiled_schema(family), facts))
    commit_files(files)


def append_modules(root: Path, modules: Sequence[TritonModule], facts: Mapping[str, Any]) -> None:
    """Store a block of rows with its provenance as a new file; of no rows, nothing.

    Raises:
        StoreError: the disk is full or not writable, or `facts` are no plain JSON.
    """
    if modules:
        commit_files([_block_file(root, modules, triton_schema(), facts)])


def _block_file(
    folder: Path, records: Sequence[CompiledKernel | TritonModule], schema: pa.Schema, facts: Mapping[str, Any]
) -> tuple[Path, bytes]:
    table = pa.Table.from_pylist([record.to_row() for record in records], schema)
    return block_file(folder, table, dict.fromkeys(sorted({record.block for record in records}), facts))


def _latest(folder: Path, schema: pa.Schema) -> pa.Table:
    """The last row of every case and target in a folder, with the provenance of their blocks in the metadata."""
    return with_own_provenance(latest_rows(read_files(sorted(folder.glob("*.parquet")), schema), ("case_id", "target")))


def stored_families(root: Path) -> list[str]:
    """Families that have rows under `root`, sorted."""
    return sorted(path.name for path in root.glob("*") if any(path.glob("*.parquet")))


def read_compiled(root: Path, family: str) -> pa.Table:
    """The rows of one family under `root`, the latest of every case and target, with provenance in the metadata."""
    return _latest(root / family, compiled_schema(family))


def read_modules(root: Path) -> pa.Table:
    """The Triton programs under `root`, the latest of every case and target, with provenance in the metadata."""
    return _latest(root, triton_schema())


def compact_compiled(root: Path, directory: Path) -> list[Path]:
    """Write what is under `root` as one table per family into `directory`, sorted by target and configuration.

    Raises:
        StoreError: `directory` is not writable.
    """
    files = []
    for family in stored_families(root):
        order = ["target", "impl", "dtype", *get_family(family).config, *get_family(family).dim_names]
        files.append((directory / f"{family}.parquet", sorted_bytes(read_compiled(root, family), order)))
    commit_files(files)
    return [path for path, _ in files]


def pack_modules(root: Path, path: Path = TRITON_FILE) -> pa.Table:
    """Write the Triton programs under `root` as one table, sorted by program and text; returns its rows.

    Raises:
        StoreError: nothing is under `root`, or `path` is not writable.
    """
    table = read_modules(root)
    if not table.num_rows:
        raise StoreError(f"no compiled Triton programs under {root}")
    commit_files([(path, sorted_bytes(table, _TRITON_ORDER))])
    return table


def read_shipped_modules(path: Path = TRITON_FILE) -> pa.Table:
    """The compiled Triton programs that come with kernelcast, with provenance in the metadata.

    Raises:
        StoreError: the table is missing or damaged.
    """
    return read_file(path, triton_schema())
