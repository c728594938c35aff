"""`kernelcast measure cpu`, `measure gpu` and `measure mlir`: measure kernels, or whole MLIR modules, on this machine."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from ...features.kernel import get_family
from ...process import core_count
from .. import console
from .this_machine import device_of_kind, refuse_other_machine, this_device, this_gpu

if TYPE_CHECKING:
    from ...collectors.mlir.compiler import ModuleRunner
    from ...datasets.records.mlir_modules import ModuleText
    from ...features.device import Device
    from ...features.kernel import KernelSpec


_TILED_CONFIGS_PER_SHAPE = 20
_TILED_FAMILIES = ("gemm", "conv2d")
CASES_PER_MINUTE = 130
"""What `--minutes` plans for: two cores measure 2,000 small cases in about 15 minutes."""


def collect(
    families: console.Families = "",
    rows: Annotated[int | None, typer.Option(min=1, help="Cases to measure (default: 2000).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Measure for about this many minutes instead.")] = None,
    threads: Annotated[str, typer.Option(help="Thread counts separated by commas; default: 1 and all cores.")] = "",
    dtypes: Annotated[str, typer.Option(help="Number formats separated by commas.")] = "fp32,bf16",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal plans, so a stopped campaign can be resumed.")] = 0,
    store: console.RowsTo = None,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine; default: by its CPU's name.")
    ] = None,
    tiled: Annotated[
        bool, typer.Option("--tiled", help="Measure IREE's tiled gemm and conv2d with their tuning knobs instead.")
    ] = False,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure kernels on this machine's CPU and store every row; run again to resume."""
    if rows is not None and minutes is not None:
        raise SpecError("give --rows or --minutes, not both")
    if tiled and (other := sorted(set(console.words(families)) - set(_TILED_FAMILIES))):
        raise SpecError(f"--tiled measures {listed(_TILED_FAMILIES)}, not {other[0]}", field="families")
    known = console.read_catalogue(device_file)
    name = this_device(device, known)
    wanted = rows or (math.ceil(minutes * CASES_PER_MINUTE) if minutes else 2000)
    with console.plain_errors("measure cpu", "collect"):
        from ...collectors.kernel_campaign import run_campaign, store_sink
        from ...datasets.rows.checks import catalogue_bounds
        from ...datasets.store.store import Store

        counts = thread_counts(threads)
        if tiled:
            specs = _tiled_plan(families, wanted, seed, counts)
        else:
            specs = cpu_plan(families, wanted, seed, counts, console.words(dtypes))
        measured = Store(store, lower_bounds=partial(catalogue_bounds, known=known))
        refuse_other_machine(measured, known.get(name))
        with measured.lock(name), _phase_bar(f"measuring {name}") as progress:
            done = run_campaign(
                specs, device=name, sink=store_sink(measured), skip=measured.case_ids(name), progress=progress
            )
    tell(done, measured.location.name, as_json)


def cpu_plan(
    families: str, rows: int, seed: int, threads: Sequence[int], dtypes: Sequence[str] = ("fp32", "bf16")
) -> list[KernelSpec]:
    """The cases of a campaign on a CPU.

    Raises:
        SpecError: an unknown family or dtype, or a family has not so many cases.
    """
    from ...collectors.cpu.plans.shapes import plan
    from ...features.kernel import families as all_families

    try:
        return plan(console.words(families) or list(all_families()), rows, seed, dtypes=dtypes, threads=threads)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(str(error), field="rows") from error


def _tiled_plan(families: str, rows: int, seed: int, threads: Sequence[int]) -> list[KernelSpec]:
    from ...collectors.cpu.plans.iree_conv_tiles import tiled_conv_plan
    from ...collectors.cpu.plans.iree_gemm_tiles import tiled_gemm_plan

    plans = {"gemm": tiled_gemm_plan, "conv2d": tiled_conv_plan}
    chosen = [plans[name] for name in console.words(families) or _TILED_FAMILIES]
    each = rows / (len(chosen) * len(threads))
    n_shapes = math.ceil(each / _TILED_CONFIGS_PER_SHAPE)
    return [
        spec for plan in chosen for count in threads for spec in plan(n_shapes, math.ceil(each / n_shapes), seed, count)
    ]


def thread_counts(text: str) -> list[int]:
    """The CPU thread counts of `text`, by default one and all cores.

    Raises:
        SpecError: it names none, or more than there are cores.
    """
    cores = core_count()
    counts = console.words(text) or ["1", str(cores)]
    if any(not count.isdecimal() or not 1 <= int(count) <= cores for count in counts):
        raise SpecError(f"--threads is {text!r}; thread counts on this machine: 1 to {cores}", field="threads")
    return list(dict.fromkeys(map(int, counts)))


def tell(done: Any, root: object, as_json: bool) -> None:
    """Print what a campaign says of itself.

    Raises:
        KeyboardInterrupt: it was interrupted, and what it measured is stored.
    """
    if as_json:
        console.print_json(done)
    console.note(str(done))
    console.note(f"rows are in {root}")
    if done.interrupted:
        raise KeyboardInterrupt


def collect_gpu(
    minutes: Annotated[float, typer.Option(min=0.5, max=1440, help="Total minutes.")] = 9.0,
    energy_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Minutes of those for energy (default: a third).")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR|URL", help="Where rows go; default: KERNELCAST_HOME/measurements."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Most cases for latency, and for energy.")] = None,
    families: console.Families = "",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the plan; the same seed and the same stored rows give the same plan.")
    ] = 0,
    index: console.GpuIndex = 0,
    device: console.GpuName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; needs no GPU.")] = False,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure the most useful cases on this machine's GPU. Run again to continue: stored cases are not measured again."""
    energy = minutes / 3 if energy_minutes is None else energy_minutes
    if energy > minutes:
        raise SpecError(f"--energy-minutes is {energy:g}, more than --minutes, {minutes:g}", field="energy_minutes")
    wanted = [get_family(name).name for name in console.words(families)]
    known = console.read_catalogue(device_file)
    if dry_run:
        if device is None:
            raise SpecError("--dry-run plans for a device of the catalogue; name it with --device", field="device")
        _show_plan(device_of_kind(device, "gpu", known), out, minutes, seed, rows, wanted, as_json)
        return
    gpu, reader = this_gpu(device, index, known)
    with console.plain_errors("measure gpu", "gpu"):
        from ...collectors.gpu.campaign import GpuBudget, run_gpu_campaign
        from ...datasets.rows.checks import catalogue_bounds
        from ...datasets.store.store import Store

        measured = Store(out, lower_bounds=partial(catalogue_bounds, known=known))
        refuse_other_machine(measured, gpu, reader)
        with measured.lock(gpu.name):
            done = run_gpu_campaign(
                measured, gpu, reader, GpuBudget(60 * minutes, 60 * energy, rows), seed=seed, index=index, families=wanted,
                progress=lambda phase: _phase_bar(f"{phase} on {gpu.name}"),
            )  # fmt: skip
    tell(done, measured.location.name, as_json)


@contextmanager
def _phase_bar(phase: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is seldom drawn, since what is drawn disturbs what is measured; one line where stderr is no terminal."""
    with console.progress_bar() as show:
        yield partial(show, phase)


def _show_plan(
    device: Device, out: str | None, minutes: float, seed: int, rows: int | None, families: list[str], as_json: bool
) -> None:
    from ...collectors.gpu.campaign import latency_plan, measured_specs
    from ...datasets.store.store import Store

    with console.plain_errors():
        known = measured_specs(Store(out), device.name)
    planned = latency_plan(60 * minutes, seed, known.all, device, families)[:rows]
    counts = Counter((spec.family, spec.impl, spec.dtype) for spec in planned)
    if as_json:
        console.print_json(
            [{"family": f, "impl": i, "dtype": d, "cases": n} for (f, i, d), n in sorted(counts.items())]
        )
        return
    for (family, impl, dtype), count in sorted(counts.items()):
        print(f"{family:12} {impl:16} {dtype:6} {count:6}")  # noqa: T201 - the answer
    console.note(f"{len(planned)} cases planned, {len(known.all)} of {device.name} are measured already")


_TARGETS = ("cpu", "cuda")


def collect_mlir(
    out: console.RowsFolder,
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes to measure; run again to continue.")] = 60.0,
    count: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Most modules; default: all.")] = None,
    compiler: Annotated[str, typer.Option(help="Compilers separated by commas: iree, xla.")] = "iree,xla",
    threads: Annotated[str, typer.Option(help="CPU thread counts separated by commas; default: 1 and all cores.")] = "",
    texts: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="A Parquet file or a folder of .mlir files; default: those shipped."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which modules --count takes; the same seed resumes a run.")] = 0,
    target: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of the device; default: found by the name it reports.")
    ] = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Compile MLIR modules with IREE and XLA, measure them, and store every row; run again to resume."""
    until = time.monotonic() + 60.0 * minutes
    if target not in _TARGETS:
        raise SpecError(f"--target is {target!r}; targets: {listed(_TARGETS)}", field="target")
    console.check_folder(out)
    known = console.read_catalogue(device_file)
    with console.plain_errors("measure mlir", "programs"):
        from ...collectors.mlir.campaign import Plan, run_modules
        from ...collectors.mlir.compiler import module_runners
        from ...collectors.mlir.machine_code import objdump
        from ...collectors.runner import WITHOUT_CUDA
        from ...datasets.records.mlir_modules import PROGRAMS_DIR
        from ...datasets.store.store import Store

        if target == "cpu":
            name, counts = this_device(device, known), tuple[int | None, ...](thread_counts(threads))
        else:
            gpu = this_gpu(device, 0, known)[0]
            if gpu.vendor in WITHOUT_CUDA:
                raise SpecError(f"--target is cuda, which {gpu.name} does not run; give --target cpu", field="target")
            name, counts = gpu.name, (None,)
        runners = _chosen(compiler, list(module_runners().values()))
        modules = drawn(read_modules(PROGRAMS_DIR / "texts.parquet" if texts is None else texts), count, seed)
        if objdump() is None:
            console.note("no objdump (package binutils): machine code is not counted")
        source = "the shipped modules" if texts is None else texts.name
        plan = Plan(modules, runners, name, target, counts, until, source)
        with Store(out).lock(name), _phase_bar(f"measuring {name}") as progress:
            done = run_modules(plan, out, progress=progress)
    tell(done, out, as_json)


def drawn(modules: Sequence[ModuleText], count: int | None, seed: int) -> list[ModuleText]:
    """`count` of the modules, drawn from the seed; a larger count has those of a smaller one. All of them in order for None."""
    if count is None or count >= len(modules):
        return list(modules)
    return random.Random(seed).sample(list(modules), len(modules))[:count]  # noqa: S311  a draw, no secret


def _chosen(wanted: str, known: Sequence[ModuleRunner]) -> list[ModuleRunner]:
    """The compilers asked for, each of them installed.

    Raises:
        SpecError: one is unknown.
        ImportError: one is not installed.
    """
    from importlib.metadata import PackageNotFoundError

    by_name = {runner.name: runner for runner in known}
    names = list(dict.fromkeys(console.words(wanted)))
    if not names or set(names) - set(by_name):
        raise SpecError(f"--compiler is {wanted!r}; compilers: {listed(by_name)}", field="compiler")
    for name in names:
        try:
            by_name[name].versions()
        except PackageNotFoundError as error:
            raise ImportError(name=str(error.name)) from error
    return [by_name[name] for name in names]


def read_modules(path: Path) -> list[ModuleText]:
    """The modules of a Parquet file, or of a folder with its folders; a program of a folder is called by its path there.

    Raises:
        SpecError: there are none, or one cannot be read.
    """
    from ...datasets.records.mlir_modules import ModuleText, main_dialect, read_texts_file

    if not path.exists():
        raise SpecError(f"--texts {path} does not exist", field="texts")
    if path.is_file():
        modules = read_texts_file(path)
    else:
        try:
            files = sorted(path.rglob("*.mlir"))
            texts = {file.relative_to(path).with_suffix("").as_posix(): file.read_text() for file in files}
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"cannot read the modules in {path}: {error}", field="texts") from error
        modules = [ModuleText(text, program, "file", main_dialect(text)) for program, text in texts.items()]
    if not modules:
        raise SpecError(
            f"--texts {path} has no modules: give a Parquet file, or a folder of .mlir files", field="texts"
        )
    return list({module.module_id: module for module in modules}.values())
