"""Parsers made by others: what a plug-in must do, and the chain that asks one after the other.

A native parser knows its dialects exactly. It parses a module and prints it in MLIR's generic form, which one reader of ours
turns into a graph, whatever parser printed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ..kernel import discover


class ReaderRefusal(Exception):  # noqa: N818  a refusal is no error: the next reader is asked
    """A native parser does not take a text; the message is its reason, first line only."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A native parser.

    `priority` orders the chain, the smallest first. `takes` says whether it is worth asking for a text. `to_generic` gives the
    module in generic form and raises `ReaderRefusal`.
    """

    name: str
    priority: int
    is_installed: Callable[[], bool]
    takes: Callable[[str], bool]
    to_generic: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class NativeReading:
    """What the native parsers made of a text: its generic form and who printed it, or None where none took it."""

    generic: str | None
    reader: str
    refusals: tuple[tuple[str, str], ...] = ()


@cache
def readers() -> tuple[Reader, ...]:
    """Every native parser kernelcast knows, in the order they are asked, installed or not."""
    from . import readers as package

    return tuple(sorted(discover(package, "READER").values(), key=lambda reader: reader.priority))


@cache
def installed() -> tuple[Reader, ...]:
    """Those that can be used here."""
    return tuple(reader for reader in readers() if reader.is_installed())


def read_native(text: str, names: Sequence[str] | None = None) -> NativeReading:
    """Ask the installed parsers, or those of `names`, one after the other, in this process.

    A text made to break a parser can end the process: serve from a child process.
    """
    refusals: list[tuple[str, str]] = []
    for reader in installed():
        if (names is not None and reader.name not in names) or not reader.takes(text):
            continue
        try:
            return NativeReading(reader.to_generic(text), reader.name, tuple(refusals))
        except ReaderRefusal as refusal:
            refusals.append((reader.name, str(refusal)))
    return NativeReading(None, "", tuple(refusals))


def first_line(error: Exception) -> str:
    """The first line that says something of a parser's complaint."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("Unable to parse")] or lines or [""]
    return said[0].removeprefix("error: ")[:300]
