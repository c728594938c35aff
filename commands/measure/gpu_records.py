"""Commands whose results are no measured rows: compiler labels, launch traces, traffic by hardware counters."""

from __future__ import annotations

import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError, listed
from ...features.kernel import get_family
from .. import console
from .collect import tell
from .this_machine import this_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...datasets.records.launch_traces import CountedCase, LaunchSummary


def compile_labels(
    out: console.RowsFolder,
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Rows over all targets together.")] = 2500,
    targets: Annotated[str, typer.Option(help="GPU architectures separated by commas.")] = "sm_80,sm_90",
    seed: Annotated[
        int, typer.Option(min=0, help="Equal seeds give equal kernels, so a stopped run can be resumed.")
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Compilers at work at once.")] = 1,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write all rows as one table per family here.")
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Compile tiled kernels for GPUs that need not be present; store registers, shared memory, occupancy, instructions."""
    wanted = list(dict.fromkeys(console.words(targets)))
    console.check_folder(out)
    if tables is not None:
        console.check_folder(tables)
    with console.plain_errors("measure labels", "gpu"):
        from ...collectors.compiled.labels import compile_labels as run
        from ...collectors.compiled.labels import label_plan
        from ...datasets.records.compiled_code import compact_compiled
        from ...features.cost.occupancy import LIMITS

        known = [f"sm_{capability}" for capability in LIMITS]
        if not wanted or set(wanted) - set(known):
            raise SpecError(f"--targets is {targets!r}; known targets: {listed(known)}", field="targets")
        specs = label_plan(math.ceil(rows / len(wanted)), seed)
        with console.progress_bar() as progress:
            done = run(specs, wanted, out, progress, processes)
        written = [] if tables is None else compact_compiled(out, tables)
    for path in written:
        console.note(f"table {path}")
    tell(done, out, as_json)


def compile_triton_programs(
    out: console.RowsFolder,
    minutes: Annotated[
        float, typer.Option(min=0, help="Stop after the block in which these are over; 0 only packs.")
    ] = 60,
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Parquet table of Triton IR; default: the shipped programs.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Order of the programs: what is done first is a sample of all.")] = 0,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all rows as one Parquet table here.")
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Compile Triton IR for GPUs that need not be present; store registers, spills, shared memory, instructions."""
    console.check_folder(out)
    if table is not None:
        console.check_file(table)
    with console.plain_errors("measure triton", "gpu"):
        from ...collectors.compiled.labels import compile_texts, read_text_jobs
        from ...datasets.records.compiled_code import TRITON_FILE, pack_modules

        jobs = read_text_jobs(TRITON_FILE if texts is None else texts)
        random.Random(seed).shuffle(jobs)  # noqa: S311  an order, no secret
        with console.progress_bar() as progress:
            done = compile_texts(jobs, out, progress, minutes * 60)
        packed = None if table is None else pack_modules(out, table)
    if packed is not None:
        console.note(f"table {table}, {packed.num_rows} rows")
    tell(done, out, as_json)


def count_traffic(
    out_file: Annotated[Path, typer.Option("--out", metavar="PARQUET", help="Where the rows go.")],
    families: console.Families = "",
    per_family: Annotated[int, typer.Option(min=1, max=3, help="Cases of each family.")] = 3,
    dtype: Annotated[str, typer.Option(help="Dtype of the cases.")] = "bf16",
    index: console.GpuIndex = 0,
    device: console.GpuName = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Count memory traffic and arithmetic of a few cases of every family with Nsight Compute (ncu)."""
    wanted = [get_family(word).name for word in console.words(families)]
    console.check_file(out_file)
    gpu, _ = this_gpu(device, index, console.read_catalogue(device_file))
    with console.plain_errors("measure traffic", "gpu"):
        from ...collectors.gpu.profiling.count import CountersUnavailableError, count_cases, counted_cases
        from ...collectors.gpu.profiling.ncu_output import METRICS, CounterOutputError
        from ...collectors.host import utc_now
        from ...datasets.records.launch_traces import CountedCase, write_records
    try:
        with console.progress_bar() as progress:
            counted = count_cases(counted_cases(wanted, per_family, dtype), gpu.name, index=index, progress=progress)
    except (CountersUnavailableError, CounterOutputError) as error:
        raise SpecError(f"traffic cannot be counted here: {error}") from error
    facts = {"device": gpu.name, "utc": utc_now(), "metrics": list(METRICS), "caches": "flushed before every kernel"}
    write_records(counted, CountedCase, out_file, facts)
    for case in counted:
        if case.status != "ok":
            console.note(f"{case.spec}: {case.status}: {case.message}")
    if as_json:
        console.print_json(list(map(asdict, counted)))
    else:
        _show_traffic(counted)
    console.note(f"written to {out_file}")


def _show_traffic(counted: Sequence[CountedCase]) -> None:
    heads = ("case", "kernels", "time", "memory", "of paper", "L2", "flops of paper", "tensor", "SM")
    rows = (
        (
            case.spec, str(case.kernels), _or_dash(console.seconds, case.time_s), _or_dash(console.num_bytes, case.dram_b),
            _or_dash("{:.2f}".format, case.traffic_ratio), _or_dash(console.num_bytes, case.l2_b),
            _or_dash("{:.2f}".format, case.flops_ratio), _or_dash("{:.0%}".format, case.tensor_utilisation),
            _or_dash("{:.0%}".format, case.sm_utilisation),
        )
        for case in counted if case.status == "ok"
    )  # fmt: skip
    console.show_table(heads, rows)


def _or_dash(show: Callable[[float], str], value: float | None) -> str:
    return "-" if value is None else show(value)


def trace_launches(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the Parquet files go.")],
    index: console.GpuIndex = 0,
    device: console.GpuName = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Trace GPT-2-like blocks over batch sizes 1 to 256: how long kernels take to launch, and how long they queue.

    Writes launches.parquet (a row per kernel) and launch-summaries.parquet (a row per batch).
    """
    console.check_folder(out_dir)
    gpu, _ = this_gpu(device, index, console.read_catalogue(device_file))
    with console.plain_errors("measure launches", "gpu"):
        from ...collectors.gpu.profiling.launch_trace import LaunchTraceError, gpu_bound_from
        from ...collectors.gpu.profiling.launch_trace import trace_launches as run
        from ...datasets.records.launch_traces import KernelLaunch, LaunchSummary, write_records

        try:
            with console.progress_bar() as progress:
                traced = run(gpu.name, index=index, progress=progress)
        except LaunchTraceError as error:
            raise SpecError(f"launches cannot be traced here: {error}") from error
    write_records(traced.launches, KernelLaunch, out_dir / "launches.parquet", traced.facts)
    write_records(traced.summaries, LaunchSummary, out_dir / "launch-summaries.parquet", traced.facts)
    for batch, why in traced.failed.items():
        console.note(f"batch {batch}: {why}")
    turned = gpu_bound_from(traced.summaries)
    if as_json:
        console.print_json({"gpu_bound_from": turned, "batches": list(map(asdict, traced.summaries))})
    else:
        _show_launches(traced.summaries)
    console.note(f"the GPU limits from batch {turned} on" if turned else "the host limits at every batch traced")
    console.note(f"written to {out_dir}")


def _show_launches(summaries: Sequence[LaunchSummary]) -> None:
    heads = ("batch", "kernels", "launch", "queue", "TKLQT", "kernels busy", "from first to last", "bound by")
    rows = []
    for summary in summaries:
        times = (summary.launch_s, summary.queue_s, summary.tklqt_s, summary.busy_s, summary.span_s)
        rows.append((str(summary.batch), str(summary.kernels), *map(console.seconds, times), summary.bound))
    console.show_table(heads, rows)
