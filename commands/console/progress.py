"""How far a long command is, on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from .screen import note

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


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
