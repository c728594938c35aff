"""`kernelcast collect-mlir`: compile and measure whole MLIR modules on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError, listed
from .collected import tell
from .console import DeviceFiles, Json, need_extra, note, read_catalogue
from .out_place import check_folder
from .this_gpu import this_gpu
from .this_machine import this_device

if TYPE_CHECKING:
    from ..collectors.mlir.runner import ModuleRunner
    from ..datasets.modules import ModuleText

_TARGETS = ("cpu", "cuda")


def collect_mlir(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where rows go; run again to go on there.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="When to stop; what is left is for the next run.")] = 60.0,
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="Modules, where none are given.")] = 2000,
    compiler: Annotated[str, typer.Option(help="Compilers with commas between: iree, xla.")] = "iree,xla",
    threads: Annotated[str, typer.Option(help="CPU thread counts with commas between; default: 1 and all cores.")] = "",
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE|DIR", help="A Parquet file of modules, or a folder of .mlir files.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal modules, so a stopped run can go on.")] = 0,
    target: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    count_instructions: Annotated[
        int,
        typer.Option(
            "--count-instructions", min=0, metavar="N", help="At the end, count what N small modules execute."
        ),
    ] = 0,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of what measures; default: by its own name.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Compile MLIR modules with IREE and XLA, measure them, and store every row; run again to go on where it stopped."""
    until = time.monotonic() + 60.0 * minutes
    if target not in _TARGETS:
        raise SpecError(f"--target is {target!r}; targets: {listed(_TARGETS)}", field="target")
    check_folder(out)
    known = read_catalogue(device_file)
    try:
        from ..collectors.campaign import CampaignError
        from ..collectors.mlir.campaign import Plan, run_modules
        from ..collectors.mlir.code_counts import objdump
        from ..collectors.mlir.instructions import count_modules, valgrind
        from ..collectors.mlir.runner import module_runners
        from ..collectors.progress import progress_bar
        from ..datasets.store import Store, StoreError

        if target == "cpu":
            name, counts = this_device(device, known), tuple[int | None, ...](thread_counts(threads))
        else:
            name, counts = this_gpu(device, 0, known)[0].name, (None,)
        runners = _chosen(compiler, list(module_runners().values()))
        modules = read_modules(texts) if texts is not None else _generated(count, seed)
        if count_instructions and (target != "cpu" or valgrind() is None):
            raise SpecError("--count-instructions needs --target cpu and valgrind; install the package valgrind")
        if objdump() is None:
            note("no objdump (package binutils): machine code is not counted")
        source = texts.name if texts is not None else f"module_texts, count {count}, seed {seed}"
        plan = Plan(modules, runners, name, target, counts, until, source)
        with Store(out).lock(name), progress_bar(f"measuring {name}") as progress:
            done = run_modules(plan, out, progress=progress)
            if count_instructions and not done.interrupted:
                counted = count_modules(
                    out, name, count_instructions, until=until, now=time.monotonic, progress=progress
                )
                note(f"{counted} modules of which executed instructions were counted")
    except ImportError as error:
        raise need_extra("collect-mlir", "programs", error) from error
    except (CampaignError, StoreError) as error:
        raise SpecError(str(error)) from error
    tell(done, out, as_json)


def _generated(count: int, seed: int) -> list[ModuleText]:
    from ..collectors.mlir.programs import module_texts

    return list(module_texts(count, seed=seed))


def _chosen(wanted: str, known: Sequence[ModuleRunner]) -> list[ModuleRunner]:
    """The compilers asked for, each of them installed.

    Raises:
        SpecError: one is unknown.
        ImportError: one is not installed.
    """
    from importlib.metadata import PackageNotFoundError

    by_name = {runner.name: runner for runner in known}
    names = list(dict.fromkeys(word.strip() for word in wanted.split(",") if word.strip()))
    if not names or set(names) - set(by_name):
        raise SpecError(f"--compiler is {wanted!r}; compilers: {listed(by_name)}", field="compiler")
    for name in names:
        try:
            by_name[name].versions()
        except PackageNotFoundError as error:
            raise ImportError(name=str(error.name)) from error
    return [by_name[name] for name in names]


def thread_counts(text: str) -> list[int]:
    """The CPU thread counts of `text`, by default one and all cores.

    Raises:
        SpecError: it names none, or more than there are cores.
    """
    import os

    cores = len(os.sched_getaffinity(0))
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        return sorted({1, cores})
    if any(not word.isdecimal() or not 1 <= int(word) <= cores for word in words):
        raise SpecError(f"--threads is {text!r}; thread counts on this machine: 1 to {cores}", field="threads")
    return list(dict.fromkeys(map(int, words)))


def read_modules(path: Path) -> list[ModuleText]:
    """The modules of a Parquet file, or of a folder with its folders; a program of a folder is called by its path there.

    Raises:
        SpecError: there are none, or one cannot be read.
    """
    from ..collectors.mlir.dialect import main_dialect
    from ..datasets.module_store import read_texts_file
    from ..datasets.modules import ModuleText

    if not path.exists():
        raise SpecError(f"--texts {path} does not exist", field="texts")
    if path.is_file():
        found = read_texts_file(path)
    else:
        try:
            files = sorted(path.rglob("*.mlir"))
            texts = {file.relative_to(path).with_suffix("").as_posix(): file.read_text() for file in files}
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"cannot read the modules in {path}: {error}", field="texts") from error
        found = [ModuleText(text, program, "file", main_dialect(text)) for program, text in texts.items()]
    if not found:
        raise SpecError(
            f"--texts {path} has no modules: give a Parquet file, or a folder of .mlir files", field="texts"
        )
    return list({module.module_id: module for module in found}.values())
