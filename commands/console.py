"""What the command line writes and where: answers on stdout, messages and progress on stderr, JSON when asked."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from ..features.device import Catalogue

PIPE_WIDTH = 140
"""Columns of a table that goes to a pipe or a file, where there is no terminal to ask."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DeviceFiles = Annotated[
    list[Path] | None, typer.Option("--device-file", metavar="YAML", help="Add a device; may be given again.")
]
Model = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model directory; default: the champion, or the shipped model.")
]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


def out() -> Console:
    """The console for answers; rich honours NO_COLOR and leaves colour out where stdout is no terminal.

    Square brackets are text, not markup: `C[b,m,n]` is how families write shapes.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def note(message: str) -> None:
    """A message on stderr."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - this is the one place messages are printed


def failed(message: str) -> None:
    """An error on stderr."""
    note(f"error: {message}")


def print_json(value: Any) -> None:
    """A value as JSON on stdout: indented for a person, on one line for a program.

    Dataclasses and msgspec's structs are objects, paths text, and floats that are no numbers null. The standard library
    does it alone, since a machine that only measures need not have msgspec.

    Raises:
        TypeError: a part of it has no JSON form.
    """
    indent, separators = (2, None) if sys.stdout.isatty() else (None, (",", ":"))
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    print(text, flush=True)  # noqa: T201 - stdout is where answers go


@singledispatch
def _plain(value: Any) -> Any:
    """What `json` can write; a record by its fields, anything else as it is."""
    names = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "__struct_fields__", None)
    return value if names is None else {name: _plain(getattr(value, name)) for name in names}


@_plain.register
def _(value: Mapping) -> dict[str, Any]:  # type: ignore[type-arg]  # dispatch is on the class alone
    return {str(key): _plain(one) for key, one in value.items()}


@_plain.register
def _(value: list | tuple | set | frozenset) -> list[Any]:  # type: ignore[type-arg]
    return [_plain(one) for one in value]


@_plain.register
def _(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


@_plain.register
def _(value: Path) -> str:
    return str(value)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar with time left on stderr; a line for each new step where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _plain_progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def _plain_progress() -> Progress:
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        if what != last:
            note(f"{what} ({done}/{total})" if total else what)
            last = what

    return show


def read_catalogue(files: list[Path] | None) -> Catalogue:
    """The shipped devices and those of the user's files.

    Raises:
        SpecError: a file is no device file.
    """
    from ..features.device import Catalogue, catalogue, load_device_file

    return Catalogue(extra=tuple(load_device_file(path) for path in files)) if files else catalogue()


def model_dir(given: Path | None) -> Path:
    """The model directory asked for, or the default one.

    Raises:
        SpecError: the champion pointer is unreadable.
    """
    if given is not None:
        return given
    from ..models.artifact import default_model_dir

    return default_model_dir()


def need_extra(name: str, extra: str, error: ImportError) -> SpecError:
    """The error for a command whose optional dependencies are not installed.

    Raises:
        ImportError: what is missing is a part of kernelcast itself, which is no fault of the user.
    """
    if (error.name or "kernelcast").startswith("kernelcast"):
        raise error
    return SpecError(
        f"`kernelcast {name}` needs {error.name or 'more packages'}; run: pip install 'kernelcast[{extra}]'"
    )
