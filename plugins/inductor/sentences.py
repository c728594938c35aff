"""What the plug-in says to a user: every sentence once in a process, and never as an error in their compilation."""

from __future__ import annotations

import sys
import warnings


class PluginWarning(UserWarning):
    """Something kept the plug-in from its work; Inductor went on as it does without it."""


_said: set[str] = set()


def say_once(sentence: str, *, about: str | None = None) -> None:
    """Warn with `sentence`, once in this process; of sentences with the same `about`, the first.

    Where a user has made warnings errors, it goes to the terminal instead: a warning must not end a compilation.
    """
    if (about or sentence) in _said:
        return
    _said.add(about or sentence)
    try:
        warnings.warn(sentence, PluginWarning, stacklevel=3)
    except Warning:
        sys.stderr.write(f"kernelcast: {sentence}\n")


def forget_said() -> None:
    """Say everything anew, as a new installation does."""
    _said.clear()
