"""What the MLIR Python bindings of every project have in common: parse text in a kept context, print it in generic form."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from .native import ReaderRefusal, first_line

_RENEW_AFTER_B = 32 << 20
"""A context keeps every type, attribute and location it ever saw; it is replaced after so much text. Making one takes about
10 ms, so not for every text."""

_LARGEST_CONSTANT = 16
"""Most elements of a constant that are printed: paddings, permutations and shapes are, weights are not."""

_LARGEST_RESOURCE = 4
"""Longest blob of a resource that is printed, characters: none of use."""


_LONGEST_WITH_LINES = 256 << 10
"""Longest text, characters, whose lines are printed: they are a sixth of the time a large module takes to read."""

_Made = tuple[Callable[[], Any], Callable[[str, Any], Any]]


class Bindings:
    """Parses and prints with what `load` imports: a maker of contexts, and a parser of text in a context.

    Nothing is imported before the first text. Safe to use from several threads: one text at a time.
    """

    def __init__(self, load: Callable[[], _Made]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._made: _Made | None = None
        self._context: Any = None
        self._seen_b = 0

    def to_generic(self, text: str) -> str:
        """The module in generic form, large constants elided.

        It has the lines of the text as locations, unless that is long or has locations of its own.

        Raises:
            ReaderRefusal: the parser does not take it.
        """
        with self._lock:
            make_context, parse = self._made = self._made or self._load()
            self._seen_b += len(text)
            if self._context is None or self._seen_b > _RENEW_AFTER_B:
                self._context, self._seen_b = make_context(), len(text)
                # Threads gain nothing at these sizes, and cost milliseconds where cores are shared.
                self._context.enable_multithreading(False)
            try:
                module = parse(text, self._context)
            except Exception as error:  # noqa: BLE001  every project's bindings raise a class of their own
                raise ReaderRefusal(first_line(error)) from None
            with_lines = len(text) <= _LONGEST_WITH_LINES and "loc(" not in text
            printed: bytes = module.operation.get_asm(
                binary=True, print_generic_op_form=True, use_local_scope=True, large_elements_limit=_LARGEST_CONSTANT,
                large_resource_limit=_LARGEST_RESOURCE, enable_debug_info=with_lines,
            )  # fmt: skip
            return printed.decode("utf-8", "replace")


def is_importable(*names: str) -> bool:
    """Whether packages can be imported, the outer before the inner; imports only the outer ones."""
    return all(find_spec(name) is not None for name in names)
