"""A progress bar with the time left, for a campaign run by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with cases finished and cases in all."""


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on standard error, redrawn once a second so that drawing does not disturb what is measured."""
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
               TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
