"""`kernelcast tune`: choose tile sizes for the kernels of a program, from the model alone or with measurements."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.device import known_machine
from ...features.errors import SpecError
from ...features.tuning.kind import get_kind
from ...process import core_count
from .. import console, names
from .this_machine import this_device

if TYPE_CHECKING:
    from ...datasets.rows.schema import Measurement, Provenance
    from ...datasets.store.store import Store
    from ...features.device import Catalogue, Device
    from ...features.kernel import KernelSpec
    from ...features.tuning.kind import Candidates
    from ...plugins.iree.tuning import Measure, Race, TuningResult


_CHUNK_CASES = 24
"""Cases that take turns: enough for the configurations of a kernel to be measured side by side."""


@contextmanager
def measuring(
    text: str,
    program: str,
    device: str,
    threads: int,
    known: Catalogue,
    progress: console.Progress,
    *,
    keep: bool = True,
) -> Iterator[tuple[Measure, Race]]:
    """What times configurations and whole modules of `text` on this machine, while its lock is held; `keep` stores rows.

    Raises:
        SpecError: another campaign holds the machine, or measuring failed as a whole.
    """
    from ...datasets.rows.checks import catalogue_bounds
    from ...datasets.store.store import Store

    store = Store(lower_bounds=partial(catalogue_bounds, known=known))
    with console.plain_errors(), store.lock(device):
        yield (
            lambda tried: _measured(tried, store if keep else None, device, progress),
            lambda modules: _raced(text, program, device, threads, modules, progress),
        )


def _measured(
    tried: Sequence[Candidates], store: Store | None, device: str, progress: console.Progress
) -> list[list[float]]:
    """Seconds of the candidates of several tasks, NaN where one could not be measured; every row goes to the store given."""
    from ...collectors.collector import Pace
    from ...collectors.kernel_campaign import run_campaign, store_sink

    specs = [[_spec(candidates, i) for i in range(len(candidates))] for candidates in tried]
    wanted = list({spec.case_id: spec for row in specs for spec in row if spec is not None}.values())
    latencies: dict[str, float] = {}
    into_store = None if store is None else store_sink(store)

    def sink(rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement] | None:
        stored = None if into_store is None else into_store(rows, provenance)
        for row in rows if stored is None else stored:
            if row.status == "ok" and row.latency_s is not None:
                latencies[row.spec.case_id] = row.latency_s
        return stored

    done = run_campaign(
        wanted, device=device, sink=sink, pace=Pace(chunk_cases=_CHUNK_CASES), sentinels=(),
        progress=lambda at, total: progress("measuring configurations", at, total),
        note={"source": "kernelcast tune: interleaved, without sentinels"},
    )  # fmt: skip
    if done.interrupted:
        raise KeyboardInterrupt
    return [[math.nan if spec is None else latencies.get(spec.case_id, math.nan) for spec in row] for row in specs]


def _spec(candidates: Candidates, i: int) -> KernelSpec | None:
    return get_kind(candidates.task.kind).spec_of(candidates.task, candidates.config(i))


def _raced(
    text: str, program: str, device: str, threads: int, modules: Mapping[str, Path], progress: console.Progress
) -> dict[str, float]:
    """Seconds of one call of every compiled module that ran, measured side by side."""
    from ...collectors.mlir.compiler import Job
    from ...collectors.mlir.measure.worker import ModuleWorker, ModuleWorkerOptions
    from ...datasets.records.mlir_modules import ModuleText, main_dialect

    dialect = main_dialect(text)
    # Modules are told apart by their text.
    texts = {name: ModuleText(f"{text}\n// {name}\n", program, "file", dialect) for name in modules}
    jobs = [Job(texts[name], "iree", threads, path) for name, path in modules.items()]
    cores = tuple(sorted(os.sched_getaffinity(0))[-threads:])
    progress("timing whole modules", 0, len(jobs))
    with TemporaryDirectory(prefix="kernelcast-tune-") as dump:
        worker = ModuleWorker(ModuleWorkerOptions("iree", "cpu", threads, device, cores, dump))
        try:
            rows = {finished.row.module_id: finished.row for finished in worker.collect(jobs)}
        finally:
            worker.close()
    latencies = {name: rows[module.module_id].latency_s for name, module in texts.items() if module.module_id in rows}
    return {name: latency_s for name, latency_s in latencies.items() if latency_s is not None}


SUMMARY_NAME = "summary.json"
_MOST_MEASURED = 1000


def tune(
    model: Annotated[Path, typer.Argument(metavar="MODEL.mlir", help="linalg, tosa, stablehlo or torch text.")],
    device: Annotated[
        str | None,
        typer.Option(
            help="CPU it will run on, by catalogue name; default: this machine.", autocompletion=names.complete_device
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=4096, help="Threads the code will run on.")] = 1,
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where files go; default: MODEL.tuned.")
    ] = None,
    measure: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MOST_MEASURED,
            metavar="K",
            help="Time the K best configurations of each kernel, and whole modules, on this machine; the fastest win.",
        ),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Measure although --device is not this machine.")] = False,
    target_cpu: Annotated[str, typer.Option(help="CPU to make code for, as iree-compile takes it.")] = "host",
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Choose tile sizes for a module's kernels; write a tuning spec, a hook, and the iree-compile command to use."""
    known = console.read_catalogue(device_file)
    name = names.device(device, known).name if device is not None else this_device(None, known)
    folder = out_folder if out_folder is not None else Path(f"{model.stem}.tuned")
    text = _read(model)
    console.check_folder(folder)
    _check_threads(threads, known.get(name))
    here = bool(measure) and _check_machine(name, threads, known, force=force)
    with console.plain_errors("tune", "programs" if measure else "mlir"):
        from ...plugins.iree.tuning import tune as tuned

        ask = partial(tuned, text, known.get(name), threads, target_cpu=target_cpu)
        if not measure:
            result = ask()
        else:
            with (
                console.progress_bar() as progress,
                measuring(text, model.stem, name, threads, known, progress, keep=here) as (timed, race),
            ):
                progress("reading the module", 0, 0)
                result = ask(top=measure, measure=timed, race=race)
    _write(result, model, folder, as_json=as_json)


def _read(model: Path) -> str:
    if model.exists() and not model.is_file():
        raise SpecError(f"{model} is no regular file: give a module as MLIR text", field="model")
    try:
        return model.read_text()
    except UnicodeDecodeError as error:
        raise SpecError(f"{model} is no text: give a module as MLIR text", field="model") from error


def _check_threads(threads: int, device: Device) -> None:
    """Refuse more threads than the device has cores: nothing is known of that."""
    cores = device.required("compute_units")
    if threads > cores:
        raise SpecError(f"--threads is {threads}; {device.name} has {cores:.0f} cores", field="threads")


def _check_machine(name: str, threads: int, known: Catalogue, *, force: bool) -> bool:
    """Whether this machine is the device; measurements that would not be of the device asked for are refused unless forced.

    Raises:
        SpecError: this machine is another one, or has fewer cores than threads.
    """
    cores = core_count()
    if threads > cores:
        raise SpecError(f"--measure with --threads {threads}: this machine has {cores} cores to use", field="threads")
    here = known_machine(known)
    if here is not None and here.name == name:
        return True
    if force:
        console.note(f"what is measured here is not of {name}, so its rows are not kept")
        return False
    this_machine = here.name if here is not None else "in no device file"
    raise SpecError(
        f"--measure times kernels on this machine, which is {this_machine}, not {name}; leave --measure out, or add --force",
        field="measure",
    )


def _write(result: TuningResult, model: Path, folder: Path, *, as_json: bool) -> None:
    from ...plugins.iree.tuning import summary

    written = result.instructions.write(folder)
    report = summary(result, model, folder)
    (folder / SUMMARY_NAME).write_text(json.dumps(report, indent=2) + "\n")
    report["files"] = [str(path) for path in (*written, folder / SUMMARY_NAME)]
    for sentence in result.notes:
        console.note(sentence)
    if as_json:
        console.print_json(report)
        return
    _show(result, report)


def _show(result: TuningResult, report: dict[str, Any]) -> None:
    from rich.text import Text

    screen = console.out()
    if result.choices:
        heads = ("kernel", "calls", "default", "data tiling", "chosen", "configuration")
        table = console.new_table(*heads, numbers=heads[1:5])
        for choice in result.choices:
            packed = "" if choice.data_tiling_s is None else console.seconds(choice.data_tiling_s)
            config = ", ".join(f"{name} {value}" for name, value in choice.config.items()) or "the compiler's own"
            table.add_row(
                choice.dispatch.title, str(choice.dispatch.calls), console.seconds(choice.default_s), packed,
                console.seconds(choice.chosen_s), config + (" (measured)" if choice.measured else ""),
            )  # fmt: skip
        screen.print(table)
    for dispatch in result.left:
        screen.print(Text(f"left to the compiler: {dispatch.name}: {dispatch.reason}", "dim"), soft_wrap=True)
    if not result.choices:
        screen.print("nothing to tune: the module is compiled as the compiler does by itself", soft_wrap=True)
    word = "measured" if result.raced_s else "predicted for the kernels above"
    totals = ", ".join(
        f"{name} {console.seconds(value)}" for name, value in (result.raced_s or result.totals_s).items()
    )
    if result.choices:
        screen.print(f"one call, {word}: {totals}; chosen: {result.variant}", soft_wrap=True)
    console.show_fact("files", " ".join(report["files"]), cells=9)
    console.show_fact("compile", report["command"], cells=9, is_command=True)
    if report["hook_command"]:
        console.show_fact("or", report["hook_command"], cells=9, is_command=True)
