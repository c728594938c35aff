"""The one error a user's input can cause, how it lists what is possible, and the one rule for text that strangers wrote.

A text from a file or a request is kept only where it is plain (`check_text`): every character can be printed, so none of them
moves a terminal's cursor, hides, or turns the direction of writing. Whatever is printed passes `printable` besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MAX_REMARK = 400
"""Longest text that is no name, such as a title, a source or a licence."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
"""A name that may stand in paths, addresses and shells."""


class SpecError(ValueError):
    """A kernel, device or table that kernelcast does not accept.

    The message says what was given, what is possible and what to do. `field` names the offending input. `reason` is the
    message without `advice`, which errors about several values of one input have in common.
    """

    def __init__(self, message: str, *, field: str | None = None, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.field, self.reason, self.advice = field, message, advice


def listed(names: Iterable[str]) -> str:
    """Names as a readable list; the empty name shows as quotes."""
    return ", ".join(name or "''" for name in names)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def printable(text: str, escaped: Callable[[str], str] = _escaped) -> str:
    """The text with every character `escaped` that cannot be printed; ends of lines stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else escaped(char) for char in text)


def is_plain(text: str, most: int = MAX_REMARK) -> bool:
    """Whether a text can be kept: every character of it can be printed, and it has at most so many."""
    return len(text) <= most and text.isprintable()


def check_text(text: object, field: str, most: int = MAX_REMARK) -> str:
    """The text, if it is plain.

    Raises:
        SpecError: it is no text, too long, or has characters that cannot be printed.
    """
    if not isinstance(text, str):
        raise SpecError(f"{field} must be text, got {type(text).__name__}", field=field)
    if not is_plain(text, most):
        wrong = f"is {len(text)} characters long" if len(text) > most else f"is {text!r}"
        raise SpecError(f"{field} {wrong}; it has at most {most} characters, all of which can be printed", field=field)
    return text
