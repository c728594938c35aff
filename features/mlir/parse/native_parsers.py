"""Parsers of installed packages: what a plug-in must do, and the chain that tries one after the other.

A native parser knows its dialects exactly. It parses a module and prints it in MLIR's generic form, which `generic_form.py`
turns into a graph, whichever parser printed it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...kernel import discover

_RENEW_AFTER_B = 32 << 20
"""A context keeps every type, attribute and location it ever saw; it is replaced after so much text. Making one takes about
10 ms, so not for every text."""

_LARGEST_CONSTANT = 16
"""Most elements of a constant that are printed: paddings, permutations and shapes are, weights are not."""

_LARGEST_RESOURCE = 4
"""Longest blob of a resource that is printed, characters: none of use."""


_LONGEST_WITH_LINES = 256 << 10
"""Longest text, characters, whose lines are printed: they are a sixth of the time a large module takes to read."""

Load = Callable[[], tuple[Any, Sequence[Callable[[Any], None]]]]
"""Imports MLIR's Python bindings: their `ir` module, and what makes a context ready, in order."""


class Bindings:
    """Parses and prints with the bindings that `load` imports; dialects that are not registered are taken too.

    Nothing is imported before the first text. Safe to use from several threads: one text at a time.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Sequence[Callable[[Any], None]]] | None = None
        self._context: Any = None
        self._seen_b = 0

    def to_generic(self, text: str) -> str:
        """The module in generic form, large constants elided.

        It has the lines of the text as locations, unless that is long or has locations of its own.

        Raises:
            ReaderRefusal: the parser does not take it.
        """
        with self._lock:
            ir, register = self._loaded = self._loaded or self._load()
            self._seen_b += len(text)
            if self._context is None or self._seen_b > _RENEW_AFTER_B:
                self._context, self._seen_b = ir.Context(), len(text)
                for make_ready in register:
                    make_ready(self._context)
                self._context.allow_unregistered_dialects = True
                # Threads gain nothing at these sizes, and cost milliseconds where cores are shared.
                self._context.enable_multithreading(False)
            try:
                module = ir.Module.parse(text, self._context)
            except Exception as error:  # noqa: BLE001  every project's bindings raise a class of their own
                raise ReaderRefusal(first_line(error)) from None
            with_lines = len(text) <= _LONGEST_WITH_LINES and "loc(" not in text
            # Bindings hand each word to a Python object by itself, and all of them to a file that they open: half the time.
            with open(os.memfd_create("generic"), "rb") as file:  # noqa: PTH123  it has no path
                module.operation.print(
                    file=f"/proc/self/fd/{file.fileno()}", binary=True, print_generic_op_form=True, use_local_scope=True,
                    large_elements_limit=_LARGEST_CONSTANT, large_resource_limit=_LARGEST_RESOURCE,
                    enable_debug_info=with_lines,
                )  # fmt: skip
                return file.read().decode("utf-8", "replace")


def is_importable(*names: str) -> bool:
    """Whether packages can be imported, the outer before the inner; imports only the outer ones."""
    return all(find_spec(name) is not None for name in names)


class ReaderRefusal(Exception):  # noqa: N818  a refusal is no error: the next reader is asked
    """A native parser does not take a text; the message is its reason, first line only."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A native parser, a plug-in of `readers/`.

    Attributes:
        name: Its name, as answers give it.
        priority: Its place in the chain, the smallest first.
        is_installed: Whether its package is installed.
        takes: Whether the parser should be tried on a text.
        to_generic: The module of a text in generic form; raises `ReaderRefusal`.
    """

    name: str
    priority: int
    is_installed: Callable[[], bool]
    takes: Callable[[str], bool]
    to_generic: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class NativeReading:
    """What the native parsers made of a text.

    Attributes:
        generic: The module in generic form, None where no parser took the text.
        reader: Name of the parser that printed it.
        refusals: (parser, reason) of those tried before it.
    """

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


def read_native(text: str) -> NativeReading:
    """Ask the installed parsers, one after the other, in this process.

    A text made to break a parser can end the process: serve from a child process.
    """
    refusals: list[tuple[str, str]] = []
    for reader in installed():
        if not reader.takes(text):
            continue
        try:
            return NativeReading(reader.to_generic(text), reader.name, tuple(refusals))
        except ReaderRefusal as refusal:
            refusals.append((reader.name, str(refusal)))
    return NativeReading(None, "", tuple(refusals))


def first_line(error: Exception) -> str:
    """The first line that says something of a parser's complaint."""
    lines = [line.strip() for line in str(error).splitlines()]
    message = [line for line in lines if line and not line.startswith("Unable to parse")] or lines or [""]
    return message[0].removeprefix("error: ")[:300]
