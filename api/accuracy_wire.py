"""What a model is off by, as it is stored beside the model and answered by GET /v1/accuracy.

The file is written by `benchmarks/accuracy.py` and names the model it belongs to by the hash of its manifest: of a model that
was trained again since, or of another one put in its place, it says nothing and is not shown.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

ACCURACY_FILE = "accuracy.json.gz"
"""Name of the file in a model's directory."""

PARITY_POINTS = 150
"""Most points of one family and target; a page draws that many well, and more only print over each other."""

_MOST_B = 4 << 20
"""Longest file that is read, unpacked. The shipped one has a tenth of it."""

_Share = Annotated[float, Meta(description="A share: 0.05 is 5 %")]


class AccuracySlice(msgspec.Struct, frozen=True):
    """Errors of `n` held-out predictions. An error is |predicted / measured - 1|, a share, as everything else here.

    `device` is None for all devices together. `covered` is the share of rows inside their interval, `coverage` what was asked
    for, `width` the median of (upper - lower) / value; None where no intervals were judged.
    """

    family: str
    device: str | None
    target: Annotated[str, Meta(description="latency_s, power_w or energy_j")]
    n: int
    mean: _Share
    median: _Share
    within_10: _Share
    covered: _Share | None = None
    coverage: _Share | None = None
    width: _Share | None = None


class ParityPoints(msgspec.Struct, frozen=True):
    """Measured and predicted values of some held-out rows, in the target's SI unit; lists of one length."""

    family: str
    device: str
    target: Annotated[str, Meta(description="latency_s, power_w or energy_j")]
    measured: list[float]
    predicted: list[float]
    lower: list[float]
    upper: list[float]


class AccuracySplit(msgspec.Struct, frozen=True):
    """One way of holding rows out, and what came of it. `doc` says which rows those were and what was trained on which."""

    name: str
    doc: str
    slices: list[AccuracySlice]
    parity: list[ParityPoints]


class AccuracyAnswer(msgspec.Struct, frozen=True):
    """What the served model is off by, on rows held out; `model` is the hash of its manifest."""

    model: Annotated[str, Meta(description="SHA-256 of the manifest of the model these numbers are of")]
    regressor: str
    splits: list[AccuracySplit]
    notes: list[str] = []


class AccuracyFileError(ValueError):
    """An accuracy file that cannot be used; the message says why."""


def model_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's content, whatever the order of its keys; it names every other file of a model by hash."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_accuracy(answer: AccuracyAnswer, directory: Path) -> None:
    """Write the accuracy file of the model in `directory`, equal bytes for equal content."""
    packed = gzip.compress(msgspec.json.encode(answer), compresslevel=9, mtime=0)
    staging = directory / f".{ACCURACY_FILE}.tmp"
    staging.write_bytes(packed)
    staging.replace(directory / ACCURACY_FILE)


def read_accuracy(directory: Path) -> AccuracyAnswer | None:
    """The accuracy file in `directory`, whichever model it is of; None where there is none.

    Raises:
        AccuracyFileError: it cannot be read, or is not one.
    """
    path = directory / ACCURACY_FILE
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccuracyFileError(f"{ACCURACY_FILE} beside the model cannot be read: {error.strerror}") from error
    try:
        unpacker = zlib.decompressobj(wbits=31)
        text = unpacker.decompress(packed, _MOST_B)
        if not unpacker.eof:
            raise AccuracyFileError(f"{ACCURACY_FILE} beside the model is cut short or longer than {_MOST_B} bytes")
        return msgspec.json.decode(text, type=AccuracyAnswer)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AccuracyFileError(f"{ACCURACY_FILE} beside the model is damaged: {error}") from error
