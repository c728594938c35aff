"""The command line's entry point: runs a command and turns what went wrong into one sentence and an exit code.

Exit codes: 0 done, 1 an error in kernelcast itself, 2 something the user can correct, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from .commands import app
from .commands.console import failed
from .features.errors import SpecError

USER_ERROR = 2
INTERRUPTED = 130

# typer brings its own copy of click from 0.20 on; either way its errors share this base.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_PLAIN = {"µ": "u", "…": "..", "×": "x", "±": "+-", "—": "-", "█": "#", "▏": "|", "●": "*", "○": "o"}
"""What stands for a character of answers where the encoding of a stream lacks it; others are escaped."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_streams()
    try:
        code = app(args=None if args is None else list(args), prog_name="kernelcast", standalone_mode=False)
        sys.stdout.flush()
    except SpecError as error:
        failed(str(error))
        return USER_ERROR
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); nothing more can be said to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USER_ERROR
    except OSError as error:
        failed(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return USER_ERROR
    except _UsageError as error:
        # A group without a word has shown its help, and has no message.
        if message := _usage(error):
            failed(message)
        return USER_ERROR
    if code == INTERRUPTED:
        failed("stopped")
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """That both streams are there, and take every character: one that a shell closed is nowhere, not an error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it is open until the end
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):
            codecs.register_error("kernelcast", _plainer)
            stream.reconfigure(errors="kernelcast")


def _plainer(error: UnicodeError) -> tuple[str | bytes, int]:
    """How a character that an encoding lacks is written."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    char = error.object[error.start]
    return _PLAIN.get(char, char.encode("unicode_escape").decode("ascii")), error.start + 1


def _usage(error: BaseException) -> str:
    """What was wrong with the words of a command, and where to look; empty where nothing was."""
    message = getattr(error, "format_message", error.__str__)()
    if not message:
        return ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kernelcast"
    return f"{message.rstrip('.')}; see `{path} --help`"
