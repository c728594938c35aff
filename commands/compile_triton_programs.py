"""`kernelcast compile-triton-programs`: many Triton programs as text, with what compiling them says, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from .console import Json, need_extra, note, print_json, progress_bar
from .out_place import check_file, check_folder


def compile_triton_programs(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where rows go; run again to go on there.")],
    minutes: Annotated[
        float, typer.Option(min=0, help="Stop after the block in which these are over; 0 only packs.")
    ] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal programs, so a stopped run can go on.")] = 0,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all rows as one Parquet table here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile Triton programs for sm_90 and sm_80; store their Triton IR, registers, spills, shared memory, instructions."""
    check_folder(out)
    if table is not None:
        check_file(table)
    try:
        from ..collectors.mlir.triton_labels import label_programs, triton_jobs
        from ..collectors.pipe import WorkerStartError
        from ..datasets.files import StoreError
        from ..datasets.triton_modules import pack_modules
    except ImportError as error:
        raise need_extra("compile-triton-programs", "gpu", error) from error
    try:
        with progress_bar() as progress:
            done = label_programs(triton_jobs(seed), out, progress, minutes * 60)
        packed = None if table is None else pack_modules(out, table)
    except StoreError as error:
        raise SpecError(str(error)) from error
    except WorkerStartError as error:
        raise SpecError(
            f"{error}; `kernelcast compile-triton-programs` needs: pip install 'kernelcast[gpu]'"
        ) from error
    if as_json:
        print_json(done)
    note(str(done))
    note(f"rows are in {out}" + ("" if packed is None else f"\ntable {table}, {packed.num_rows} rows"))
    if done.interrupted:
        raise KeyboardInterrupt
