"""Whether what a command will write has a place: asked before minutes of measuring, not after."""

from __future__ import annotations

import os
from pathlib import Path

from ..features.errors import SpecError


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
