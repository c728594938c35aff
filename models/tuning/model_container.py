"""The outer form of a model file: sections under a checksum, and reading them without trusting anything they say.

docs/flat-model.md has the format byte by byte. Everything is little-endian.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...features.errors import SpecError

FORMAT = 1
"""The format written, and the only one read."""

MAGIC = b"\x89KCM\r\n\x1a\n"
"""First bytes of a model file; like PNG's, they show when a transfer changed line ends or dropped the eighth bit."""

MOST_BYTES = 2**28
"""Largest model file read, 256 MiB; shipped ones have some hundred KiB."""

MOST_SECTIONS = 64
_HEADER = struct.Struct("<8sIIQII")
_ENTRY = struct.Struct("<4sIQQ")
_CRC_AT = 24
_ALIGN = 8


class ModelFileError(SpecError):
    """A model file that cannot be used: missing, damaged, of another format or kind, or without the device asked for."""


def damaged(origin: str, what: str) -> ModelFileError:
    """The error for a file whose content is not what its checksum was made for, or was never right."""
    return ModelFileError(f"{origin} is damaged: {what}; copy it again or train it again", field="model")


def pack(sections: Mapping[str, bytes]) -> bytes:
    """A model file of these sections, by their tags of four letters."""
    at = _HEADER.size + _ENTRY.size * len(sections)
    directory, body = b"", b""
    for tag, content in sections.items():
        body += bytes(-(at + len(body)) % _ALIGN)
        directory += _ENTRY.pack(tag.encode("ascii"), 0, at + len(body), len(content))
        body += content
    total = at + len(body)
    header = _HEADER.pack(MAGIC, FORMAT, len(sections), total, 0, 0)
    rest = header[_CRC_AT + 4 :] + directory + body
    checksum = zlib.crc32(rest, zlib.crc32(header[:_CRC_AT]))
    return header[:_CRC_AT] + struct.pack("<I", checksum) + rest


def read_bytes(path: Path) -> bytes:
    """The bytes of a model file.

    Raises:
        ModelFileError: there is no such file, it cannot be read, or it is larger than any model.
    """
    try:
        with path.open("rb") as file:
            # What says it is too large need not be read to be refused; what does not say is read no further than that.
            too_large = os.fstat(file.fileno()).st_size > MOST_BYTES
            content = b"" if too_large else file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no model file {path}; train one with `kernelcast train-tuning` (kinds named op-…: "
            "`kernelcast export-ops`), or give the path of one",
            field="model",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read the model file {path}: {error}", field="model") from error
    if too_large or len(content) > MOST_BYTES:
        raise ModelFileError(f"{path} is larger than {MOST_BYTES} bytes, which no model file is", field="model")
    return content


def unpack(content: bytes, origin: str) -> dict[str, memoryview]:
    """The sections of a model file by tag; `origin` names it in errors.

    Raises:
        ModelFileError: no model file, another format, cut short, or damaged; each in one sentence.
    """
    if content[: len(MAGIC)] != MAGIC[: len(content)] or not content:
        raise ModelFileError(
            f"{origin} is not a kernelcast model file: its first bytes are not those of one", field="model"
        )
    if len(content) < _HEADER.size:
        raise _cut_short(origin, len(content), _HEADER.size)
    _, version, count, total, checksum, _ = _HEADER.unpack_from(content)
    if version != FORMAT:
        age, remedy = ("older", "train it again") if version < FORMAT else ("newer", "update kernelcast")
        raise ModelFileError(
            f"{origin} has format {version}, {age} than format {FORMAT} that this version reads; {remedy}",
            field="model",
        )
    if len(content) < total:
        raise _cut_short(origin, len(content), total)
    if zlib.crc32(content[_CRC_AT + 4 :], zlib.crc32(content[:_CRC_AT])) != checksum:
        raise damaged(origin, "its checksum does not match its content")
    if len(content) > total or count > MOST_SECTIONS or _HEADER.size + _ENTRY.size * count > total:
        raise damaged(origin, f"it says it has {total} bytes and {count} sections, which cannot be")
    view = memoryview(content)
    sections: dict[str, memoryview] = {}
    for i in range(count):
        tag, _, offset, length = _ENTRY.unpack_from(content, _HEADER.size + _ENTRY.size * i)
        if offset % _ALIGN or offset > total or length > total - offset:
            raise damaged(origin, f"section {i + 1} lies outside the file")
        # Every byte is a letter of Latin-1, so tags that differ, of whatever writer, stay different.
        name = tag.decode("latin-1")
        if name in sections:
            raise damaged(origin, f"it has the section {name!r} twice")
        sections[name] = view[offset : offset + length]
    return sections


class Cursor:
    """Reads one section from its start to its end, checking before every step that enough is left."""

    def __init__(self, sections: Mapping[str, memoryview], tag: str, origin: str) -> None:
        if tag not in sections:
            raise damaged(origin, f"it lacks the section {tag}")
        self._view = sections[tag]
        self._at = 0
        self._tag = tag
        self._origin = origin

    def array(self, kind: Any, *shape: int) -> Any:
        """The next numbers as an array of its own; `kind` is a numpy dtype, little-endian.

        Raises:
            ModelFileError: the section ends before, or a number is not finite.
        """
        dtype = np.dtype(kind).newbyteorder("<")
        n_bytes = dtype.itemsize
        for size in shape:
            n_bytes *= size
        if n_bytes > len(self._view) - self._at:
            self.fail("it ends too early")
        count = n_bytes // dtype.itemsize
        values = np.frombuffer(self._view, dtype, count, self._at).astype(np.dtype(kind)).reshape(shape)
        self._at += n_bytes
        if dtype.kind == "f" and not np.isfinite(values).all():
            self.fail("it has a number that is not finite")
        return values

    def counts(self, **most: int) -> list[int]:
        """The next 32-bit counts, each at most what is given for it by name."""
        counts: list[int] = self.array(np.uint32, len(most)).tolist()
        for value, (name, limit) in zip(counts, most.items(), strict=True):
            if value > limit:
                self.fail(f"it says {value} {name}, where at most {limit} can be")
        return counts

    def below(self, limit: int, what: str, *shape: int) -> Any:
        """The next 32-bit numbers, each less than `limit`."""
        indices = self.array(np.uint32, *shape)
        if indices.size and int(indices.max()) >= limit:
            self.fail(f"{what} {int(indices.max())} does not exist, there are {limit}")
        return indices

    def text(self, n_bytes: int) -> bytes:
        """The next bytes."""
        return bytes(self.array(np.uint8, n_bytes))

    def end(self) -> None:
        """Refuse a section that goes on after what it should hold."""
        if self._at != len(self._view):
            self.fail(f"it has {len(self._view) - self._at} bytes too many")

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._view) - self._at

    def fail(self, what: str) -> NoReturn:
        """Raise the error for this section."""
        raise damaged(self._origin, f"in section {self._tag} {what}")


def _cut_short(origin: str, have: int, want: int) -> ModelFileError:
    return ModelFileError(f"{origin} is cut short: it has {have} of {want} bytes; copy it again", field="model")
