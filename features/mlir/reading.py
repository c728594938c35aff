"""From MLIR text to an op graph: native parsers first, a tolerant reader when none of them takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import SpecError, listed
from .parse.generic_form import NotGenericForm, read_generic
from .parse.native_parsers import NativeReading, read_native
from .parse.native_parsers import readers as all_readers
from .parse.text_limits import checked_text, no_collection
from .parse.tolerant_parser import read_tolerant
from .types.graph import Module

NativeParsers = Callable[[str, Sequence[str] | None], NativeReading]
"""Asks the native parsers, those named or all, to read a text."""

TOLERANT = "tolerant"
"""The reader of last resort: kernelcast's own, which takes any text and says what it could not read."""


def read(text: str | bytes, *, readers: Sequence[str] | None = None, native: NativeParsers | None = None) -> Module:
    """The op graph of MLIR text.

    `readers` limits who is asked, in the order of the chain; all that are installed when None. `native` asks the native parsers
    (`api.mlir_reader.NativeReader` does it in a child process, safe from texts that crash them); in this process when None.

    Raises:
        SpecError: the text is empty or no MLIR, too large, nested too deep, or no reader of `readers` takes it.
    """
    checked = checked_text(text)
    names = None if readers is None else _known(readers)
    reading = NativeReading(None, "") if names == (TOLERANT,) else (native or read_native)(checked, names)
    module = _graph(checked, reading, names)
    if not module.functions:
        raise SpecError("there is no operation in the MLIR text; give a module or a function", field="mlir")
    return module


def _graph(text: str, reading: NativeReading, names: Sequence[str] | None) -> Module:
    refusals = reading.refusals
    if reading.generic is not None and (names is None or reading.reader in names):
        try:
            with no_collection():
                return read_generic(reading.generic, reading.reader, refusals)
        except NotGenericForm as error:
            refusals = (*refusals, (reading.reader, f"printed what is no generic form: {error}"))
    if names is not None and TOLERANT not in names:
        message = "; ".join(f"{name}: {why}" for name, why in refusals) or "not installed"
        raise SpecError(
            f"none of the readers asked for ({listed(names)}) takes the MLIR text: {message}", field="readers"
        )
    return read_tolerant(text, TOLERANT, refusals)


def _known(names: Sequence[str]) -> tuple[str, ...]:
    possible = [*(reader.name for reader in all_readers()), TOLERANT]
    for name in names:
        if name not in possible:
            raise SpecError(f"no reader {name!r}; readers: {listed(possible)}", field="readers")
    return tuple(names)
