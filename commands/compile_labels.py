"""`kernelcast compile-labels`: what compilers say of tiled GPU kernels, without a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError, listed
from .console import Json, need_extra, note, print_json, progress_bar
from .out_place import check_folder


def compile_labels(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where rows go; run again to go on there.")],
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Rows over all targets together.")] = 2500,
    targets: Annotated[str, typer.Option(help="GPU architectures with commas between.")] = "sm_80,sm_90",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal kernels, so a stopped run can go on.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Compilers at work at once.")] = 1,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write all rows as one table per family here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile tiled kernels for GPUs that need not be there; store registers, shared memory, occupancy, instructions."""
    wanted = list(dict.fromkeys(word.strip() for word in targets.split(",") if word.strip()))
    check_folder(out)
    if tables is not None:
        check_folder(tables)
    try:
        from ..collectors.gpu.label_plan import label_plan
        from ..collectors.gpu.labels import compile_labels as run
        from ..collectors.pipe import WorkerStartError
        from ..datasets.compiled import compact_compiled
        from ..datasets.files import StoreError
        from ..features.occupancy import LIMITS

        known = [f"sm_{capability}" for capability in LIMITS]
        if not wanted or set(wanted) - set(known):
            raise SpecError(f"--targets is {targets!r}; known targets: {listed(known)}", field="targets")
        specs = label_plan(math.ceil(rows / len(wanted)), seed)
        with progress_bar() as progress:
            done = run(specs, wanted, out, progress, processes)
        written = [] if tables is None else compact_compiled(out, tables)
    except ImportError as error:
        raise need_extra("compile-labels", "gpu", error) from error
    except (StoreError, WorkerStartError) as error:
        raise SpecError(str(error)) from error
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(str(error), field="rows") from error
    if as_json:
        print_json(done)
    note(str(done))
    note(f"rows are in {out}" + "".join(f"\ntable {path}" for path in written))
    if done.interrupted:
        raise KeyboardInterrupt
