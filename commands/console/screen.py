"""What people read: tables, headings, facts and marks on stdout, notes and errors on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

from ...features.errors import printable
from ...workloads.units import joules, seconds, watts

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    from ...client.answers import Interval as SentInterval
    from ...models.predict.prediction import Interval, Prediction
    from ...workloads.mlir.prediction import ModulePrediction
    from ...workloads.whole_model import WholeModelPrediction

    AnyInterval = Interval | SentInterval
    Targets = Prediction | ModulePrediction | WholeModelPrediction

PIPE_WIDTH = 140
"""Columns of a table that goes to a pipe or a file, where there is no terminal to ask."""
_REFUSED = 5
"""Most rows whose refusal is told."""
_FOLDED = 20
"""Columns that words are folded to where there is no room for all."""


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

        def print(self, *args: Any, soft_wrap: bool | None = None, **kwargs: Any) -> None:
            """Lines as long as they are for a pipe, and for a terminal ones that break between words."""
            super().print(*args, soft_wrap=soft_wrap and not sys.stdout.isatty(), **kwargs)

    return PlainConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def new_table(
    *heads: str, numbers: Collection[str] = (), title: str | None = None, head_style: str = "table.header"
) -> Table:
    """An empty table for `out()`: long words are folded, numbers are not; what finds no room beside follows below.

    Args:
        heads: Titles of the columns.
        numbers: Titles of the columns that stand at the right.
        title: Title of the table, None for none.
        head_style: Style of the titles.
    """
    table = _table_class()(title=title, box=None, pad_edge=False, header_style=head_style)
    for head in heads:
        is_number = head in numbers
        table.add_column(head, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return table


@cache
def _table_class() -> type[Table]:
    from rich.cells import cell_len
    from rich.table import Column, Table

    def needed(column: Column, folded: int = _FOLDED) -> int:
        """Columns of the screen that a column takes at least."""
        cells = [str(cell) for cell in (column.header, *column.cells)]
        whole = max(map(cell_len, cells))
        return whole if column.no_wrap else min(whole, folded)

    class FittedTable(Table):
        """A table in the room there is: columns without any follow in tables below, each time beside the first."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            names, *others = self.columns
            names = replace(names, min_width=needed(names, 3 * _FOLDED // 2))
            room = options.max_width - (names.min_width or 0) - 2
            groups: list[list[Column]] = [[]]
            left = room
            for column in others:
                if groups[-1] and needed(column) > left:
                    groups.append([])
                    left = room
                # A number that has no room even alone is folded, and not cut.
                fits = not column.no_wrap or needed(column) <= room
                groups[-1].append(column if fits else replace(column, no_wrap=False, width=max(1, room)))
                left -= needed(column) + 2
            if groups == [others]:
                yield from super().__rich_console__(console, options)
                return
            for i, group in enumerate(groups):
                part = Table(title=None if i else self.title, box=None, pad_edge=False, header_style=self.header_style)
                part.columns = [replace(column, _index=place) for place, column in enumerate([names, *group])]
                part.rows = self.rows
                yield part

    return FittedTable


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


def show_fact(name: str, fact: str, *, cells: int = 10, style: str = "dim", is_command: bool = False) -> None:
    """Print a line with a name of `cells` columns before it; on a terminal, longer ones but commands go on below the fact."""
    from rich.text import Text

    console = out()
    lines = [fact] if is_command or not sys.stdout.isatty() else wrap(fact, max(_FOLDED, console.width - cells)) or [""]
    text = Text.assemble((name.ljust(cells), style), ("\n" + " " * cells).join(lines))
    console.print(text, no_wrap=True, overflow="ignore", crop=False)


def bar(share: float) -> str:
    """A share of the longest bar, drawn."""
    return "█" * round(24 * share) or "▏"


def note(message: str) -> None:
    """A message on stderr, whose words a terminal does not cut."""
    if sys.stderr.isatty():
        message = fill(message, get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    print(printable(message), file=sys.stderr, flush=True)  # noqa: T201 - this is the one place messages are printed


def note_refused(reasons: Sequence[str | None]) -> None:
    """Messages on stderr: why rows of a table have no answer, the first ones; None of a row that has one."""
    refused = [(row, reason) for row, reason in enumerate(reasons, 1) if reason]
    for row, reason in refused[:_REFUSED]:
        note(f"row {row} refused: {reason}")
    if len(refused) > _REFUSED:
        note(f"and {len(refused) - _REFUSED} more; the column refused has the reasons")


def failed(message: str) -> None:
    """An error on stderr."""
    note(f"error: {message}")
