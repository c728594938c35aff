"""What is refused before any parser sees it: text too large, nested too deep, or no text at all."""

from __future__ import annotations

import codecs
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...errors import SpecError

MAX_TEXT_B = 4 << 20
"""Largest text, bytes of UTF-8. A 100,000-op module without its weights is smaller."""

MAX_DEPTH = 128
"""Deepest nesting of brackets; real programs nest some 20. Parsers use stack for each, and crash when none is left."""

MAX_OPS = 100_000
"""Most operations in a module."""

MAX_WORD = 4096
"""Longest identifier, type name or number, characters. Strings are not words."""

_BYTECODE = (b"ML\xefR", *(text.encode(errors="surrogatepass") for text in ("ML\xefR", "ML\udcefR", "ML\ufffdR")))
"""Magic number of MLIR bytecode (MLIR Bytecode Format, mlir.llvm.org/docs/BytecodeFormat); and the same as text, decoded as
Latin-1, with surrogates, or with what cannot be decoded replaced."""

# The closing quote may be missing: to look for it again from every later quote would take quadratic time.
_QUOTED = re.compile(rb'"(?:[^"\\\n]|\\.)*+"?+')
_QUOTED_OR_COMMENT = re.compile(_QUOTED.pattern + rb"|//[^\n]*+")
_ARROWS = (b"->", b">=", b"<=")
_OPENING, _CLOSING = b"({[<", b")}]>"
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))
_SIGNS = bytes.maketrans(_OPENING + _CLOSING, b"\x01" * 4 + b"\xff" * 4)
_PIECE = 1 << 16
_WORD = re.compile(rb"[\w$.]")
_WORDS = bytes(ord("a") if _WORD.match(bytes([code])) else ord(" ") for code in range(256))


def checked_text(text: str | bytes) -> str:
    """`text` as a string that parsers may see.

    Raises:
        SpecError: it is bytecode, not UTF-8, empty, over `MAX_TEXT_B`, nested deeper than `MAX_DEPTH` or has a word of more
            than `MAX_WORD` characters.
    """
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if len(raw) > MAX_TEXT_B:
        raise SpecError(
            f"the MLIR text has {len(raw):,} bytes, at most {MAX_TEXT_B:,} are read; print it with its constants elided "
            "(`--mlir-elide-elementsattrs-if-larger=16 --mlir-elide-resource-strings-if-larger=16`)",
            field="mlir",
        )
    # Editors put a byte order mark before UTF-8; no parser of MLIR takes one.
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.startswith(_BYTECODE):
        raise SpecError("this is MLIR bytecode, not text; print it as text with `mlir-opt` or `iree-opt`", field="mlir")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"MLIR text must be UTF-8; byte {error.start} is not", field="mlir") from None
    if not raw.strip():
        raise SpecError("the MLIR text is empty; give a module or a function", field="mlir")
    quoted = _QUOTED_OR_COMMENT if b"//" in raw else _QUOTED  # the search for one beginning is twice as fast
    _check_shape(quoted.sub(b" ", raw))
    return text


def too_many_ops() -> SpecError:
    """The error for a module of more than `MAX_OPS` operations."""
    return SpecError(
        f"the module has more than {MAX_OPS:,} operations; give one function, or a part of it", field="mlir"
    )


def too_deep() -> SpecError:
    """The error for brackets nested deeper than `MAX_DEPTH`."""
    return SpecError(f"the MLIR text nests more than {MAX_DEPTH} brackets; real programs nest some 20", field="mlir")


def _check_shape(raw: bytes) -> None:
    """Brackets and words of text whose strings and comments are gone."""
    if b"a" * (MAX_WORD + 1) in raw.translate(_WORDS):
        raise SpecError(f"the MLIR text has a word of more than {MAX_WORD:,} characters", field="mlir")
    for arrow in _ARROWS:
        raw = raw.replace(arrow, b"")
    signs = np.frombuffer(raw.translate(_SIGNS, _NOT_BRACKETS), dtype=np.int8)
    level = lowest = 0
    for start in range(0, signs.size, _PIECE):
        levels = np.cumsum(signs[start : start + _PIECE], dtype=np.int32) + level
        # Closing brackets too many must not hide what opens after them: depth counts from the lowest level so far.
        lowest_so_far = np.minimum(np.minimum.accumulate(levels), lowest)
        if int((levels - lowest_so_far).max()) > MAX_DEPTH:
            raise too_deep()
        level, lowest = int(levels[-1]), int(lowest_so_far[-1])


@contextmanager
def no_collection() -> Iterator[None]:
    """Puts the cyclic garbage collector off until the end of the block.

    Reading makes tens of thousands of objects that stay, which is what sets the collector off; it would look for cycles
    among all objects of the process and find none, a tenth of the time in a small process and more in one with models
    loaded. With several threads the one that put it off turns it on again, at worst before another has ended.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
