"""The store a command works on: one option, one place that understands it, and its errors as something the user can correct."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from ..features.errors import SpecError

STORE_HELP = "Measured rows: a folder, or a URL (s3://bucket/prefix); default: KERNELCAST_HOME/measurements."

# A string: a path would take the second slash out of a URL.
StoreRoot = Annotated[str | None, typer.Option("--store", metavar="DIR|URL", help=STORE_HELP)]


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn a `StoreError` into what the command line shows as one sentence."""
    from ..datasets.committing import StoreError

    try:
        yield
    except StoreError as error:
        raise SpecError(str(error), field="store") from error
