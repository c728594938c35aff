"""Whether a command can do its work: places for its files, and errors of parts below as one sentence."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ...features.errors import SpecError
from .screen import note


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
    from ...datasets.store.errors import StoreError, StoreWarning

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
            from ...collectors.campaign import CampaignError
            from ...process import ChildStartError

            if isinstance(error, ChildStartError) and extra:
                raise SpecError(f"{error}; `kernelcast {command}` needs: pip install 'kernelcast[{extra}]'") from error
            if isinstance(error, CampaignError | ChildStartError):
                raise SpecError(str(error)) from error
            raise
