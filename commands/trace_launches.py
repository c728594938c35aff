"""`kernelcast trace-launches`: launch and queue times of a small transformer's kernels on this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue
from .out_place import check_folder
from .this_gpu import this_gpu
from .units import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..datasets.traces import LaunchSummary


def trace_launches(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the Parquet files go.")],
    index: Annotated[int, typer.Option(min=0, help="Which GPU, as CUDA counts.")] = 0,
    device: Annotated[str | None, typer.Option(help="Catalogue name of the GPU; default: by its own name.")] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Trace GPT-2-like blocks over batch sizes 1 to 256: how long kernels take to launch, and how long they queue.

    Writes launches.parquet (a row per kernel) and launch-summaries.parquet (a row per batch).
    """
    check_folder(out_dir)
    found, _ = this_gpu(device, index, read_catalogue(device_file))
    try:
        from ..collectors.gpu.launch_trace import trace_launches as run
        from ..collectors.gpu.launches import LaunchTraceError, gpu_bound_from
        from ..collectors.pipe import WorkerStartError
        from ..datasets.traces import KernelLaunch, LaunchSummary, as_dicts, write_records
    except ImportError as error:
        raise need_extra("trace-launches", "gpu", error) from error
    try:
        with progress_bar() as progress:
            traced = run(found.name, index=index, progress=progress)
    except LaunchTraceError as error:
        raise SpecError(f"launches cannot be traced here: {error}") from error
    except WorkerStartError as error:
        raise SpecError(f"{error}; `kernelcast trace-launches` needs: pip install 'kernelcast[gpu]'") from error
    write_records(traced.launches, KernelLaunch, out_dir / "launches.parquet", traced.facts)
    write_records(traced.summaries, LaunchSummary, out_dir / "launch-summaries.parquet", traced.facts)
    for batch, why in traced.failed.items():
        note(f"batch {batch}: {why}")
    turned = gpu_bound_from(traced.summaries)
    if as_json:
        print_json({"gpu_bound_from": turned, "batches": as_dicts(traced.summaries)})
    else:
        _show(traced.summaries)
    note(f"the GPU limits from batch {turned} on" if turned else "the host limits at every batch traced")
    note(f"written to {out_dir}")


def _show(summaries: Sequence[LaunchSummary]) -> None:
    from rich.table import Table

    table = Table("batch", "kernels", "launch", "queue", "TKLQT", "kernels busy", "from first to last", "bound by")
    for one in summaries:
        times = (one.launch_s, one.queue_s, one.tklqt_s, one.busy_s, one.span_s)
        table.add_row(str(one.batch), str(one.kernels), *map(seconds, times), one.bound)
    out().print(table)
