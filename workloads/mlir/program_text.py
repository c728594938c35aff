"""MLIR text and its settings as a user gives them: a file or the text itself, sizes as `dim0=128`, threads per device."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...features.device import Device
from ...features.errors import SpecError
from ...features.mlir.parse.text_limits import MAX_TEXT_B
from ...features.spec_io.reading import MAX_TEXT, shown_name

SHORTEN = (
    "print weights short (--mlir-elide-elementsattrs-if-larger=4 --mlir-elide-resource-strings-if-larger=4; in Python "
    "large_elements_limit=4 and large_resource_limit=4)"
)
"""What to do about a text that is too long: it is nearly always weights, which torch-mlir prints as resources."""
_LONGEST_PATH = 4096
_PATH_SUFFIXES = (".mlir", ".ttir", ".ttgir", ".stablehlo")
_WHOLE = re.compile("-?[0-9]{1,18}")


def read_bind(texts: Iterable[str]) -> dict[str, int]:
    """Sizes for dynamic dimensions from words such as `dim0:128` or `dim0=128`.

    Raises:
        SpecError: a word is neither, its size is no whole number, or a name is given twice.
    """
    sizes: dict[str, int] = {}
    for word in texts:
        name, mark, size = word.replace("=", ":").rpartition(":")
        if not mark or not name:
            raise SpecError(f"bind takes name=size, such as dim0=128, got {word[:MAX_TEXT]!r}", field="bind")
        if name in sizes:
            raise SpecError(f"bind names {shown_name(name)} twice", field="bind")
        sizes[name] = whole_number("bind", size)
    return sizes


def read_file(path: Path | None) -> bytes:
    """The MLIR text of a file, or of stdin where there is none; a text that is too long is not read to its end.

    Raises:
        SpecError: the file cannot be read, holds too much, or stdin is closed.
    """
    if path is None:
        if sys.stdin is None:
            raise SpecError("cannot read stdin: it is closed; name a file", field="file")
        text = sys.stdin.buffer.read(MAX_TEXT_B + 1)
    else:
        try:
            with path.open("rb") as file:
                text = file.read(MAX_TEXT_B + 1)
        except (OSError, ValueError) as error:
            # A path with a null character is a ValueError.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            named = "".join(character if character.isprintable() else "�" for character in str(path))
            raise SpecError(f"cannot read {named}: {reason}", field="file") from error
    if len(text) > MAX_TEXT_B:
        raise SpecError(f"the MLIR text is longer than {MAX_TEXT_B:,} bytes; {SHORTEN}", field="file")
    return text


def threads_on(devices: Sequence[Device], threads: int | None) -> list[int | None]:
    """The thread count of each device: those asked for are the CPUs', where there is one among the devices."""
    has_cpu = any(device.kind == "cpu" for device in devices)
    return [threads if device.kind == "cpu" or not has_cpu else None for device in devices]


def text_of(text_or_path: str | Path) -> str | bytes:
    """Text as it is; of a path, or text that is the path of a file or ends like one, what is in the file.

    Raises:
        SpecError: the file cannot be read, or it is neither text nor a path.
    """
    if isinstance(text_or_path, Path):
        return read_file(text_or_path)
    if not isinstance(text_or_path, str):
        raise SpecError(f"MLIR is text or the path of a file, got {type(text_or_path).__name__}", field="mlir")
    if len(text_or_path) > _LONGEST_PATH or "\n" in text_or_path:
        return text_or_path
    path = Path(text_or_path)
    try:
        is_path = path.is_file() or path.suffix in _PATH_SUFFIXES
    except OSError:
        # What the system takes for no path is text.
        is_path = False
    return read_file(path) if is_path else text_or_path


def whole_number(name: str, word: str) -> int:
    """The whole number that a word of a query or of the command line is.

    Raises:
        SpecError: it is none; `field` is `name`.
    """
    if not _WHOLE.fullmatch(word):
        raise SpecError(f"{name} must be a whole number, got {word[:40]!r}", field=name)
    return int(word)
