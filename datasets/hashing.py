"""Hashes of integer columns, vectorised and the same on every platform and numpy version, and of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

# Odd multipliers and shifts of the splitmix64 finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number
# generators", OOPSLA 2014; constants of variant 13 by Stafford).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def mixed(hashes: Hashes) -> Hashes:
    """Each 64-bit value scrambled one to one, shape kept."""
    x = hashes + _GOLDEN
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return x ^ (x >> _SHIFTS[2])


def word_hash(word: str) -> int:
    """64-bit FNV-1a of a word's UTF-8 bytes (Fowler, Noll and Vo's offset basis and prime)."""
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def column_hashes(columns: Iterable[npt.NDArray[np.float64]], n: int, salt: str = "") -> Hashes:
    """One hash per row of whole-number columns of shape `(n,)`; rows equal in all columns, in order, share it."""
    hashes = np.full(n, word_hash(salt), dtype=np.uint64)
    for column in columns:
        hashes = mixed(hashes ^ column.astype(np.int64).astype(np.uint64))
    return hashes


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex: by which a model remembers what it learned from.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
