"""The one error a user's input can cause, and how it lists what is possible."""

from __future__ import annotations

from collections.abc import Iterable


class SpecError(ValueError):
    """A kernel, device or table that kernelcast does not accept.

    The message says what was given, what is possible and what to do. `field` names the offending input.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def listed(names: Iterable[str]) -> str:
    """Names as a readable list; the empty name shows as quotes."""
    return ", ".join(name or "''" for name in names)
