"""Warnings of the plug-ins, each once: whatever they say, the compiler's own work goes on."""

from __future__ import annotations

import sys
import warnings


class PluginWarning(UserWarning):
    """Something kept a plug-in from its work; the compiler went on as it does without it."""


def warn_once(sentence: str, shown: set[str], about: str = "") -> None:
    """Warn with `sentence` and add it to `shown`, unless it is there; of sentences with the same `about`, the first.

    Where a user has made warnings errors, it goes to the terminal instead: a warning must not end a compilation.
    """
    if (about or sentence) in shown:
        return
    shown.add(about or sentence)
    try:
        warnings.warn(sentence, PluginWarning, stacklevel=3)
    except PluginWarning:
        sys.stderr.write(f"kernelcast: {sentence}\n")
