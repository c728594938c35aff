"""The store a command works on: one option, one place that understands it, and its errors as something the user can correct."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Annotated, TextIO

import typer

from ..features.errors import SpecError
from .console import note

STORE_HELP = "Measured rows: a folder, or a URL (s3://bucket/prefix); default: KERNELCAST_HOME/measurements."

# A string: a path would take the second slash out of a URL.
StoreRoot = Annotated[str | None, typer.Option("--store", metavar="DIR|URL", help=STORE_HELP)]


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn a `StoreError` into what the command line shows as one sentence, and a `StoreWarning` into a note."""
    from ..datasets.committing import StoreError, StoreWarning

    show = warnings.showwarning

    def told(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if issubclass(category, StoreWarning):
            note(f"warning: {message}")
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = told
        try:
            yield
        except StoreError as error:
            raise SpecError(str(error), field="store") from error
