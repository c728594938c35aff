"""What commands share: output, common options, where results and stores are, and units for people."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ..features.errors import SpecError, printable
from ..workloads.units import bytes_per_s as bytes_per_s
from ..workloads.units import counted as counted
from ..workloads.units import flops as flops
from ..workloads.units import flops_per_s as flops_per_s
from ..workloads.units import joules as joules
from ..workloads.units import money as money
from ..workloads.units import num_bytes as num_bytes
from ..workloads.units import seconds as seconds
from ..workloads.units import watts as watts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..client.answers import Interval as SentInterval
    from ..features.device import Catalogue
    from ..models.predict.prediction import Interval, Prediction
    from ..workloads.mlir.prediction import ModulePrediction
    from ..workloads.whole_model import WholeModelPrediction

    AnyInterval = Interval | SentInterval
    Targets = Prediction | ModulePrediction | WholeModelPrediction

PIPE_WIDTH = 140
"""Columns of a table that goes to a pipe or a file, where there is no terminal to ask."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DeviceFiles = Annotated[
    list[Path] | None, typer.Option("--device-file", metavar="YAML", help="Add a device; may be given again.")
]
Model = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model directory; default: the champion, or the shipped model.")
]

Coverage = Annotated[float, typer.Option(help="Share of cases the intervals are to contain.")]
GpuName = Annotated[
    str | None, typer.Option("--device", help="Catalogue name of the GPU; default: found by the name it reports.")
]
GpuIndex = Annotated[int, typer.Option(min=0, help="Index of the GPU, in CUDA's order.")]
Families = Annotated[str, typer.Option(help="Kernel families separated by commas; default: all.")]
Family = Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave refused rows out instead of stopping at them.")
]
_DATA = typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again.")
Data = Annotated[list[Path], _DATA]
OptionalData = Annotated[list[Path] | None, _DATA]
MoreData = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More files, as after --data.")]
ModelOut = Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Directory to write the model to.")]
Folds = Annotated[int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
# A string: a path would take the second slash out of a URL.
StoreRoot = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR|URL",
        help="Measured rows: a folder, or a URL (s3://bucket/prefix); default: measurements in KERNELCAST_HOME.",
    ),
]
RowsTo = Annotated[
    str | None,
    typer.Option("--store", metavar="DIR|URL", help="Where rows go; default: measurements in KERNELCAST_HOME."),
]
RowsFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where rows go; run again to resume.")]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


def out() -> Console:
    """The console for answers, without control characters but rich's own; it honours NO_COLOR and colours terminals alone.

    Square brackets are text, not markup: `C[b,m,n]` is how families write shapes.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
            for part in super().render(*args, **kwargs):
                yield part if part.control else Segment(printable(part.text), part.style)

    return PlainConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def new_table(*heads: str, numbers: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table for `out()`: long cells are folded, not cut.

    Args:
        heads: Titles of the columns.
        numbers: Titles of the columns that stand at the right.
        title: Title of the table, None for none.
    """
    from rich.table import Table

    table = Table(title=title, box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in numbers else "left", overflow="fold")
    return table


def show_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = (), title: str | None = None
) -> None:
    """Print `new_table` with these rows."""
    table = new_table(*heads, numbers=numbers, title=title)
    for row in rows:
        table.add_row(*row)
    out().print(table)


def totals_table(name_cells: int = 9) -> Table:
    """An empty table of values without heads: name, value, interval, remark; names take `name_cells` columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", width=name_cells)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column()
    return table


def targets_table(prediction: Targets, rate: str, unknown: str) -> Table:
    """`totals_table` with latency, power and energy; `rate` is the remark of the latency, `unknown` says why one is None."""
    from rich.text import Text

    table = totals_table()
    for name, target, show, remark in (
        ("latency", prediction.latency_s, seconds, rate), ("power", prediction.power_w, watts, ""),
        ("energy", prediction.energy_j, joules, ""),
    ):  # fmt: skip
        if target is None:
            table.add_row(name, "unknown", "", unknown)
        else:
            table.add_row(name, Text(show(target.value), "bold"), between(target, show), remark)
    return table


def between(target: Interval, show: Callable[[float], str]) -> str:
    """The interval of a target as text."""
    return f"[{show(target.lower)} … {show(target.upper)}]"


def span(target: AnyInterval, show: Callable[[float], str]) -> str:
    """The interval of a target as short text: `160 … 194 µs`."""
    (low, unit), (high, other) = (show(end).split(" ", 1) for end in (target.lower, target.upper))
    return f"{low} … {high} {unit}" if unit == other else f"{low} {unit} … {high} {other}"


def heading(title: str, rest: str) -> Text:
    """The first line of an answer: what it is about, and more."""
    from rich.text import Text

    return Text.assemble((title, "bold"), rest)


def domain_text(text: str, in_domain: bool) -> Text:
    """Text in the colour of a value inside or outside what was measured."""
    from rich.text import Text

    return Text(text, "green" if in_domain else "yellow")


def domain_mark(in_domain: bool) -> Text:
    """A full green mark for an answer inside what was measured, a hollow yellow one for others."""
    return domain_text("●" if in_domain else "○", in_domain)


def show_fact(name: str, fact: str, *, cells: int = 10, style: str = "dim") -> None:
    """Print a line with a name of `cells` columns before it."""
    from rich.text import Text

    out().print(Text.assemble((name.ljust(cells), style), fact), soft_wrap=True)


def bar(share: float) -> str:
    """A share of the longest bar, drawn."""
    return "█" * round(24 * share) or "▏"


def note(message: str) -> None:
    """A message on stderr."""
    print(printable(message), file=sys.stderr, flush=True)  # noqa: T201 - this is the one place messages are printed


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
    # JSON leaves DEL, the C1 controls and marks of direction as they are.
    text = printable(text, lambda char: json.dumps(char)[1:-1].replace("\x7f", "\\u007f"))
    print(text, flush=True)  # noqa: T201 - stdout is where answers go


@singledispatch
def _plain(value: Any) -> Any:
    """What `json` can write; a record by its fields, anything else as it is."""
    names = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "__struct_fields__", None)
    return value if names is None else {name: _plain(getattr(value, name)) for name in names}


@_plain.register
def _(value: Mapping) -> dict[str, Any]:  # type: ignore[type-arg]  # dispatch is on the class alone
    return {str(key): _plain(item) for key, item in value.items()}


@_plain.register
def _(value: list | tuple | set | frozenset) -> list[Any]:  # type: ignore[type-arg]
    return [_plain(item) for item in value]


@_plain.register
def _(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


@_plain.register
def _(value: PurePath) -> str:
    return str(value)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr, seldom drawn as that disturbs measuring; a line for each new step where it is no terminal."""
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
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=1) as bar:
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
    from ..features.device import catalogue_with

    return catalogue_with(files or ())


def model_dir(path: Path | None) -> Path:
    """The model directory asked for, or the default one.

    Raises:
        SpecError: the champion pointer is unreadable.
    """
    if path is not None:
        return path
    from ..models.family_model.artifact import default_model_dir

    return default_model_dir()


def words(text: str) -> list[str]:
    """The words of a list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def check_file(out: Path) -> None:
    """That the file `out` can be written.

    Raises:
        SpecError: why it cannot.
    """
    if out.is_dir():
        raise SpecError(f"--out {out} is a folder; give a file", field="out")
    if not out.parent.is_dir():
        raise SpecError(f"the folder of --out {out} does not exist; make it first", field="out")
    _check_writable(out.parent, f"the folder of --out {out}")


def check_folder(out: Path) -> None:
    """That files can be written into the folder `out`, or that it can be made.

    Raises:
        SpecError: why not.
    """
    if not out.exists():
        check_file(out)
    elif not out.is_dir():
        raise SpecError(f"--out {out} is a file; give a folder", field="out")
    else:
        _check_writable(out, f"--out {out}")


def _check_writable(folder: Path, what: str) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError(f"cannot write to {what}; choose another, or change its permissions", field="out")


@contextlib.contextmanager
def plain_errors(command: str = "", extra: str = "") -> Iterator[None]:
    """Turn what a user can put right into what the command line shows as one sentence, and a `StoreWarning` into a note.

    Args:
        command: The command, in the advice for a package that is missing.
        extra: The extra of kernelcast that has its packages; empty where it needs none.

    Raises:
        SpecError: a package is missing, or a store, a campaign or a child process cannot do what was asked.
    """
    from ..datasets.store.errors import StoreError, StoreWarning

    show = warnings.showwarning

    def show_or_note(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if issubclass(category, StoreWarning):
            note(f"warning: {message}")
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = show_or_note
        try:
            yield
        except StoreError as error:
            raise SpecError(str(error), field="store") from error
        except ImportError as error:
            # A missing part of kernelcast itself is no fault of the user.
            if not extra or (error.name or "kernelcast").startswith("kernelcast"):
                raise
            raise SpecError(
                f"`kernelcast {command}` needs {error.name}; run: pip install 'kernelcast[{extra}]'"
            ) from error
        except Exception as error:
            from ..collectors.campaign import CampaignError
            from ..process import ChildStartError

            if isinstance(error, ChildStartError) and extra:
                raise SpecError(f"{error}; `kernelcast {command}` needs: pip install 'kernelcast[{extra}]'") from error
            if isinstance(error, CampaignError | ChildStartError):
                raise SpecError(str(error)) from error
            raise
