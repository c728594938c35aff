"""Triton's own parser: the only one that reads Triton IR (tt, ttg and what its backends add)."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from ..native_parsers import Reader, ReaderRefusal, first_line, is_importable

# From the dot backwards, since text is full of the letters that the names begin with.
_ITS_OPERATIONS = re.compile(
    r"\.(?:(?<=\btt\.)|(?<=\bttg\.)|(?<=\b(?:ttng|amdg)\.)|(?<=\bgluon\.)|(?<=\bamdgpu\.))[a-z]"
)
_DIALECTS = ("nvidia", "amd")
_ONE_AT_A_TIME = threading.Lock()


def _to_generic(text: str) -> str:
    """The module in generic form.

    Raises:
        ReaderRefusal: it is no Triton IR of this version.
    """
    from triton._C import libtriton

    with _ONE_AT_A_TIME, tempfile.NamedTemporaryFile("w", suffix=".ttir", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        context = libtriton.ir.context()
        libtriton.ir.load_dialects(context)
        for backend in _DIALECTS:
            getattr(libtriton, backend).load_dialects(context)
        with tempfile.TemporaryFile() as words:
            try:
                with _standard_error_into(words):
                    module = libtriton.ir.parse_mlir_module(file.name, context)
            except RuntimeError as error:
                words.seek(0)
                strip = words.read(1 << 16).decode("utf-8", "replace").strip()
                raise ReaderRefusal(first_line(RuntimeError(strip.replace(file.name, "-") or str(error)))) from None
            return _generic(libtriton, module, context)


def _generic(libtriton: Any, module: Any, context: Any) -> str:
    # The bindings have no way to ask for generic form, but MLIR prints in it whatever does not verify
    # (mlir/lib/IR/AsmPrinter.cpp, verifyOpAndAdjustFlags), as a module with an attribute outside all dialects does not.
    module.set_attr("unverified", libtriton.ir.builder(context).get_unit_attr())
    text: str = module.str_nodebug()
    return text


@contextmanager
def _standard_error_into(file: IO[bytes]) -> Iterator[None]:
    """Triton's parser says on standard error why it refuses; here is no other way to learn it."""
    dup = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(dup, 2)
        os.close(dup)


READER = Reader(
    "triton", 10, lambda: is_importable("triton"), lambda text: _ITS_OPERATIONS.search(text) is not None, _to_generic
)
