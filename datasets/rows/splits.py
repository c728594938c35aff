"""Hashes of integer columns, vectorised and the same on every platform and numpy version, and of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Cases, Floats, Strings
from ...features.errors import SpecError, listed
from ...features.kernel import View

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


Mask = npt.NDArray[np.bool_]

_WORK_DTYPE = "fp32"
"""Shapes are ranked by their work in one dtype, so that a shape's rank does not depend on what it was run in."""


def shape_hashes(cases: Cases) -> Hashes:
    """A 64-bit hash of each case's family and sizes."""
    return column_hashes((cases.sizes[name] for name in cases.family.dim_names), len(cases), salt=cases.family.name)


def held_out_shapes(cases: Cases, share: float = 0.1, seed: int = 0) -> Mask:
    """True for about `share` of the shapes, chosen at random by hash; `seed` chooses others.

    Raises:
        SpecError: the share is not between 0 and 1.
    """
    _check_share(share)
    drawn = mixed(shape_hashes(cases) ^ np.uint64(word_hash(f"held-out-{seed}")))
    # The top 53 bits as a uniform number in [0, 1): exact in float64.
    return (drawn >> np.uint64(11)).astype(np.float64) / 2.0**53 < share


def shape_folds(cases: Cases, k: int = 5, seed: int = 0) -> npt.NDArray[np.int64]:
    """The fold of each case, 0 to k - 1; all cases of one shape share it, but those of an implementation of which one shape
    alone was measured, with many settings of its knobs: there settings are what can be held out.

    Raises:
        SpecError: fewer than two folds.
    """
    if k < 2:
        raise SpecError(f"folds must be at least 2, got {k}", field="folds")
    hashes = shape_hashes(cases)
    knobs = [column for _, column in sorted(cases.config.items())]
    if any(not np.isnan(column).all() for column in knobs):
        for rows, _ in cases.groups("impl"):
            settings = column_hashes((np.nan_to_num(column[rows], nan=-1.0) for column in knobs), len(hashes[rows]))
            if len(np.unique(hashes[rows])) == 1 and len(np.unique(settings)) >= _SETTINGS_OF_SWEEP:
                hashes[rows] ^= mixed(settings)
    return (mixed(hashes ^ np.uint64(word_hash(f"fold-{seed}"))) % np.uint64(k)).astype(np.int64)


_SETTINGS_OF_SWEEP = 20
"""From so many settings of its knobs on, a shape that stands alone is a tuner's sweep."""


def held_out_region(cases: Cases, share: float = 0.05) -> Mask:
    """True for the `share` of shapes with the most work: what a model must extrapolate to.

    Work is flops, or bytes for families without arithmetic; the largest of a shape's variants counts. At least one
    shape is held out where there are two or more.

    Raises:
        SpecError: the share is not between 0 and 1.
    """
    _check_share(share)
    shapes, which = np.unique(shape_hashes(cases), return_inverse=True)
    most = np.zeros(len(shapes))
    np.maximum.at(most, which, _paper_work(cases))
    count = min(max(1, int(share * len(shapes))), len(shapes) - 1)
    # Equal work is ordered by hash, so that the choice is one and the same everywhere.
    chosen = np.zeros(len(shapes), dtype=np.bool_)
    chosen[np.lexsort((shapes, most))[len(shapes) - count :]] = True
    return chosen[which]


def held_out_device(cases: Cases, device: str) -> Mask:
    """True for the rows of one device.

    Raises:
        SpecError: there are none, or no others.
    """
    mask = cases.device == device
    if not mask.any() or mask.all():
        raise SpecError(
            f"cannot hold out {device!r}: the rows are of {listed(sorted(set(cases.device.tolist())))}", field="device"
        )
    return np.asarray(mask)


def devices_left_out(cases: Cases) -> Iterator[tuple[str, Mask]]:
    """Every device's name with the mask of its rows, sorted; none for the rows of a single device."""
    names: Strings = np.unique(cases.device)
    if len(names) > 1:
        for name in names.tolist():
            yield name, held_out_device(cases, name)


def _paper_work(cases: Cases) -> Floats:
    flops, moved = np.zeros(len(cases)), np.zeros(len(cases))
    for rows, (variant,) in cases.groups("variant"):
        view = View(_WORK_DTYPE, _WORK_DTYPE, variant, {name: column[rows] for name, column in cases.sizes.items()})
        flops[rows] = cases.family.flops(view)
        moved[rows] = cases.family.footprint_b(view)
    return flops if flops.any() else moved


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise SpecError(f"the share held out must be between 0 and 1, got {share}", field="share")
