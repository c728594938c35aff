"""The form of a model file: sections under a checksum, each written from a value and read without trusting anything it says.

docs/flat-model.md has the format byte by byte; everything is little-endian. `Cursor` refuses a section that ends early or holds
numbers that are not finite, and what is read here is made of references that exist and only point backwards.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...features.errors import SpecError
from ...features.kernel import MAX_DIM
from ...features.tuning.formula import Formula
from ...features.tuning.kind import BOUND
from ...features.tuning.operations import BY_CODE
from .forest import MOST_DEPTH, MOST_LEAVES, Forest

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
        dtype, count = np.dtype(kind).newbyteorder("<"), math.prod(shape)
        if count * dtype.itemsize > self.left:
            self.fail("it ends too early")
        values = np.frombuffer(self._view, dtype, count, self._at).astype(np.dtype(kind)).reshape(shape)
        self._at += count * dtype.itemsize
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
        if self.left:
            self.fail(f"it has {self.left} bytes too many")

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._view) - self._at

    def fail(self, what: str) -> NoReturn:
        """Raise the error for this section."""
        raise damaged(self._origin, f"in section {self._tag} {what}")


def _cut_short(origin: str, have: int, want: int) -> ModelFileError:
    return ModelFileError(f"{origin} is cut short: it has {have} of {want} bytes; copy it again", field="model")


MOST_NAMES = 2**12
MOST_STEPS = 2**16
MOST_STRINGS = 2**16
MOST_ROWS = 2**20
MOST_COMPARISONS = 2**24
LONGEST_NAME_B = 200

Table = Mapping[tuple[str, str], tuple[float, ...]]


class Strings:
    """The table of names of a file that is being written; every name once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: Iterable[str]) -> bytes:
        """References to names."""
        return _u32(*(self._numbers.setdefault(name, len(self._numbers)) for name in names))

    def content(self) -> bytes:
        """The section STRS."""
        texts = [name.encode() for name in self._numbers]
        ends = np.cumsum([0, *map(len, texts)])
        return _u32(len(texts), *ends.tolist()) + b"".join(texts)


Names = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""The section KIND: the kind's name, and those of its sizes, knobs and facts."""


def names_bytes(strings: Strings, kind: str, sizes: Sequence[str], knobs: Sequence[str], facts: Sequence[str]) -> bytes:
    """The section KIND."""
    return _u32(len(sizes), len(knobs), len(facts)) + strings.numbers((kind, *sizes, *knobs, *facts))


def table_bytes(strings: Strings, table: Table, n_facts: int) -> bytes:
    """The section FACT."""
    keys = strings.numbers(word for key in table for word in key)
    return _u32(len(table), n_facts) + keys + np.array(list(table.values()), dtype="<f8").tobytes()


def formula_bytes(strings: Strings, formula: Formula) -> bytes:
    """The section FORM."""
    head = _u32(len(formula.constants), len(formula.steps), len(formula.outputs), formula.names.index(BOUND))
    steps = np.array(formula.steps, dtype="<u4").tobytes()
    slots = _u32(*(slot for _, slot in formula.outputs))
    return head + np.array(formula.constants, dtype="<f8").tobytes() + steps + strings.numbers(formula.names) + slots


def forest_bytes(forest: Forest) -> bytes:
    """The section TREE or TRE2."""
    head = np.array([forest.bias], dtype="<f8").tobytes()
    columns = [(forest.features, "<u4"), (forest.thresholds, "<f4"), (forest.splits, "<u4"), (forest.leaves, "<f4")]
    sizes = _u32(len(forest.features), forest.n_trees, forest.depth, 0)
    return head + sizes + b"".join(column.astype(kind).tobytes() for column, kind in columns)


def measured_bytes(strings: Strings, measured: Measured) -> bytes:
    """The section SEEN."""
    keys = strings.numbers(word for key in zip(measured.devices, measured.dtypes, strict=True) for word in key)
    numbers = np.hstack([measured.sizes, measured.knobs]).astype("<i8").tobytes()
    return _u32(len(measured), 0) + keys + measured.seconds.astype("<f8").tobytes() + numbers


def read_strings(cursor: Cursor) -> list[str]:
    """The names of a file."""
    (count,) = cursor.counts(strings=MOST_STRINGS)
    ends = cursor.array(np.uint32, count + 1).astype(np.int64)
    lengths = np.diff(ends)
    if ends[0] != 0 or (count and not (lengths.min() > 0 and lengths.max() <= LONGEST_NAME_B)):
        cursor.fail(f"a name is not of 1 to {LONGEST_NAME_B} bytes")
    text = cursor.text(int(ends[-1]))
    cursor.end()
    try:
        return [text[low:high].decode() for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    except UnicodeDecodeError:
        cursor.fail("a name is not UTF-8")


def read_names(cursor: Cursor, strings: Sequence[str]) -> Names:
    """The section KIND."""
    n_sizes, n_knobs, n_facts = cursor.counts(sizes=MOST_NAMES, knobs=MOST_NAMES, facts=MOST_NAMES)
    kind, *names = _named(cursor, strings, 1 + n_sizes + n_knobs + n_facts)
    cursor.end()
    if len(set(names)) != len(names):
        cursor.fail("two sizes, knobs or facts have one name")
    knobs_at, facts_at = n_sizes, n_sizes + n_knobs
    return kind, tuple(names[:knobs_at]), tuple(names[knobs_at:facts_at]), tuple(names[facts_at:])


def read_table(cursor: Cursor, n_facts: int, strings: Sequence[str]) -> Table:
    """The section FACT."""
    rows, width = cursor.counts(rows=MOST_ROWS, facts=MOST_NAMES)
    if width != n_facts:
        cursor.fail(f"a row has {width} facts, and the kind {n_facts}")
    words = _named(cursor, strings, 2 * rows)
    values = cursor.array(np.float64, rows, width).tolist()
    cursor.end()
    keys = list(zip(words[::2], words[1::2], strict=True))
    if len(set(keys)) != len(keys):
        cursor.fail("a device has a dtype twice")
    return {key: tuple(row) for key, row in zip(keys, values, strict=True)}


def read_formula(cursor: Cursor, inputs: tuple[str, ...], strings: Sequence[str]) -> Formula:
    """The section FORM: steps only look back, operations exist, and one output is the lower bound."""
    n_constants, n_steps, n_outputs, bound = cursor.counts(
        constants=MOST_STEPS, steps=MOST_STEPS, features=MOST_NAMES, bound=MOST_NAMES
    )
    constants = cursor.array(np.float64, n_constants).tolist()
    steps = [tuple(step) for step in cursor.array(np.uint32, n_steps, 4).tolist()]
    names = _named(cursor, strings, n_outputs)
    first = len(inputs) + n_constants
    slots = cursor.below(first + n_steps, "slot", n_outputs).tolist()
    cursor.end()
    for i, (code, *operands) in enumerate(steps):
        if code >= len(BY_CODE):
            cursor.fail(f"step {i} has the operation {code}, which does not exist")
        arity = BY_CODE[code].arity
        if any(slot >= first + i for slot in operands[:arity]) or any(operands[arity:]):
            cursor.fail(f"step {i} reads what comes after it")
    if len(set(names)) != len(names) or bound >= n_outputs or names[bound] != BOUND:
        cursor.fail(f"the features' names are not each there once, {BOUND} where it is said to be")
    return Formula(inputs, tuple(constants), tuple(steps), tuple(zip(names, slots, strict=True)))


def read_forest(cursor: Cursor, n_features: int) -> Forest:
    """The section TREE or TRE2: comparisons in order, on features that exist; every node has one."""
    bias = float(cursor.array(np.float64, 1)[0])
    n_comparisons, n_trees, depth, _ = cursor.counts(
        comparisons=MOST_COMPARISONS, trees=MOST_LEAVES, levels=MOST_DEPTH, zero=0
    )
    if n_trees << depth > MOST_LEAVES:
        cursor.fail(f"it says {n_trees} trees of {depth} levels, more than {MOST_LEAVES} leaves")
    features = cursor.below(n_features, "feature", n_comparisons)
    thresholds = cursor.array(np.float32, n_comparisons)
    splits = cursor.below(n_comparisons, "comparison", (1 << depth) - 1, n_trees)
    leaves = cursor.array(np.float32, n_trees, 1 << depth)
    cursor.end()
    ahead = np.diff(features.astype(np.int64))
    if not ((ahead > 0) | ((ahead == 0) & (np.diff(thresholds) > 0.0))).all():
        cursor.fail("comparisons are not in order")
    return Forest(bias, depth, features, thresholds, splits, leaves)


def read_metadata(cursor: Cursor) -> Mapping[str, Any]:
    """The section META."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        content = json.loads(cursor.text(cursor.left).decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        cursor.fail("there is no valid JSON")
    if not isinstance(content, dict):
        cursor.fail("there is no JSON object")
    return content


def read_measured(cursor: Cursor, n_sizes: int, n_knobs: int, strings: Sequence[str]) -> Measured:
    """The section SEEN."""
    rows, _ = cursor.counts(rows=MOST_ROWS, zero=0)
    words = _named(cursor, strings, 2 * rows)
    seconds = cursor.array(np.float64, rows)
    numbers = cursor.array(np.int64, rows, n_sizes + n_knobs)
    cursor.end()
    if rows and seconds.min() <= 0.0:
        cursor.fail("a measured time is not greater than 0")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() <= MAX_DIM):
        cursor.fail(f"a size or knob is not from 0 to {MAX_DIM}")
    sizes, knobs = np.ascontiguousarray(numbers[:, :n_sizes]), np.ascontiguousarray(numbers[:, n_sizes:])
    return Measured(tuple(words[::2]), tuple(words[1::2]), sizes, knobs, seconds)


def _named(cursor: Cursor, strings: Sequence[str], count: int) -> list[str]:
    return [strings[i] for i in cursor.below(len(strings), "name", count)]


def _u32(*values: int) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements, oldest first, one row each. A configuration measured several times has several rows.

    Attributes:
        devices: Names, one per row.
        dtypes: Names, one per row.
        sizes: int64 of shape `(r, n_sizes)`, in the model's order.
        knobs: int64 of shape `(r, n_knobs)`, in the model's order.
        seconds: float64 of shape `(r,)`.
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: NDArray[np.int64]
    knobs: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @classmethod
    def none(cls, n_sizes: int, n_knobs: int) -> Measured:
        """No measurements, of a model with so many sizes and knobs."""
        return cls((), (), np.empty((0, n_sizes), np.int64), np.empty((0, n_knobs), np.int64), np.empty(0))

    def __len__(self) -> int:
        return len(self.seconds)

    def and_then(self, later: Measured) -> Measured:
        """These rows, and later ones after them."""
        return Measured(
            self.devices + later.devices,
            self.dtypes + later.dtypes,
            np.concatenate([self.sizes, later.sizes]),
            np.concatenate([self.knobs, later.knobs]),
            np.concatenate([self.seconds, later.seconds]),
        )

    def last(self, rows: int) -> Measured:
        """The newest rows, at most so many."""
        low = max(len(self) - rows, 0)
        return Measured(self.devices[low:], self.dtypes[low:], self.sizes[low:], self.knobs[low:], self.seconds[low:])
