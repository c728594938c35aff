"""`kernelcast tune model.mlir`: how IREE should compile the products and convolutions of a module for a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue
from .out_place import check_folder
from .this_machine import known_machine, this_device
from .units import seconds

if TYPE_CHECKING:
    from ..features.device import Catalogue, Device
    from ..plugins.iree.tuning import TuningResult

SUMMARY_NAME = "summary.json"
_MOST_MEASURED = 1000


def tune(
    model: Annotated[Path, typer.Argument(metavar="MODEL.mlir", help="linalg, tosa, stablehlo or torch text.")],
    device: Annotated[
        str | None, typer.Option(help="CPU it will run on, by catalogue name; default: this machine.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=4096, help="Threads it will run on.")] = 1,
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
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Choose tile sizes for a module's kernels; write a tuning spec, a hook, and the iree-compile command to use."""
    known = read_catalogue(device_file)
    name = known.get(device).name if device is not None else this_device(None, known)
    folder = out_folder if out_folder is not None else Path(f"{model.stem}.tuned")
    text = _read(model)
    check_folder(folder)
    _check_threads(threads, known.get(name))
    here = bool(measure) and _check_machine(name, threads, known, force=force)
    try:
        result = _tuned(text, model.stem, name, threads, measure, target_cpu, known, keep=here)
    except ImportError as error:
        raise need_extra("tune", "programs" if measure else "mlir", error) from error
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
    import os

    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise SpecError(f"--measure with --threads {threads}: this machine has {cores} cores to use", field="threads")
    here = known_machine(known)
    if here is not None and here.name == name:
        return True
    if force:
        note(f"what is measured here is not of {name}, so its rows are not kept")
        return False
    found = here.name if here is not None else "in no device file"
    raise SpecError(
        f"--measure times kernels on this machine, which is {found}, not {name}; leave --measure out, or add --force",
        field="measure",
    )


def _tuned(
    text: str,
    program: str,
    device: str,
    threads: int,
    measure: int,
    target_cpu: str,
    known: Catalogue,
    *,
    keep: bool,
) -> TuningResult:
    from ..plugins.iree.tuning import tune as tuned

    if not measure:
        return tuned(text, known.get(device), threads, target_cpu=target_cpu)
    from .tune_measuring import measuring

    with (
        progress_bar() as progress,
        measuring(text, program, device, threads, known, progress, keep=keep) as (timed, race),
    ):
        progress("reading the module", 0, 0)
        return tuned(
            text, known.get(device), threads, target_cpu=target_cpu, top=measure, measure=timed, race=race
        )  # fmt: skip


def _write(result: TuningResult, model: Path, folder: Path, *, as_json: bool) -> None:
    from ..plugins.iree.report import summary

    written = result.instructions.write(folder)
    told = summary(result, model, folder)
    (folder / SUMMARY_NAME).write_text(json.dumps(told, indent=2) + "\n")
    told["files"] = [str(path) for path in (*written, folder / SUMMARY_NAME)]
    for sentence in result.notes:
        note(sentence)
    if as_json:
        print_json(told)
        return
    _show(result, told)


def _show(result: TuningResult, told: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = out()
    if result.choices:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for head in ("kernel", "calls", "default", "data tiling", "chosen", "configuration"):
            table.add_column(head, justify="right" if head in _NUMBERS else "left", overflow="fold")
        for choice in result.choices:
            packed = "" if choice.data_tiling_s is None else seconds(choice.data_tiling_s)
            config = ", ".join(f"{name} {value}" for name, value in choice.config.items()) or "the compiler's own"
            table.add_row(
                choice.dispatch.title, str(choice.dispatch.calls), seconds(choice.default_s), packed,
                seconds(choice.chosen_s), config + (" (measured)" if choice.measured else ""),
            )  # fmt: skip
        screen.print(table)
    for one in result.left:
        screen.print(Text(f"left to the compiler: {one.name}: {one.reason}", "dim"), soft_wrap=True)
    if not result.choices:
        screen.print("nothing to tune: the module is compiled as the compiler does by itself", soft_wrap=True)
    word = "measured" if result.raced_s else "predicted for the kernels above"
    totals = ", ".join(f"{name} {seconds(value)}" for name, value in (result.raced_s or result.totals_s).items())
    if result.choices:
        screen.print(f"one call, {word}: {totals}; chosen: {result.variant}", soft_wrap=True)
    screen.print(f"files    {' '.join(told['files'])}", soft_wrap=True)
    screen.print(f"compile  {told['command']}", soft_wrap=True)
    if told["hook_command"]:
        screen.print(f"or       {told['hook_command']}", soft_wrap=True)


_NUMBERS = ("calls", "default", "data tiling", "chosen")
