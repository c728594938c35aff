"""What to say of each case of a request: what of it lies outside what a model was trained on, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.vector.extract import Features
from ..family_model.artifact import FamilyModel
from ..family_model.products import SIDES, alignment
from .in_domain import CategoryRecord


@dataclass(frozen=True, slots=True)
class Novelty:
    """How unlike the training rows each case is, shape `(n,)`.

    Attributes:
        excess: Steps outside the domain, by anything.
        tiles: Steps outside by its tuning knobs alone.
        too_large: Whether its operands do not fit into the device's memory.
    """

    excess: Floats
    tiles: Floats
    too_large: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def notes(
    model: FamilyModel,
    cases: Cases,
    features: Features,
    novelty: Novelty,
    records: Sequence[CategoryRecord],
) -> list[tuple[str, ...]]:
    """What is unusual about each case, in words; nothing for a case like those measured. `records` has each case's."""
    # Most cases have nothing of their own to say: those of a category share one tuple.
    every = [record.notes for record in records]
    for i in np.flatnonzero(novelty.too_large | (novelty.excess > 0)).tolist():
        record = records[i]
        lines = list(record.support.warnings)
        if novelty.too_large[i]:
            needed, there = features.work.footprint_b[i] / 1e9, record.columns.memory_b[0] / 1e9
            device = record.inputs.features.device.name
            lines.insert(0, f"operands of {needed:.3g} GB do not fit into {device}'s {there:.3g} GB of memory")
        if not lines and record.support.fallback_warning is not None:
            lines.append(record.support.fallback_warning)
        if novelty.excess[i] > 0:
            lines.append(
                _vector(cases, record, i)
                or _too_large(cases, record, i)
                or _unaligned(cases, record, i)
                or model.domain.farthest(features, i, novelty.tiles[i])
            )
        every[i] = tuple(lines)
    return every


def _vector(cases: Cases, record: CategoryRecord, i: int) -> str | None:
    """That a case is a product with a vector as none was measured, in words."""
    for side, is_unknown in zip(SIDES, record.support.unknown_vectors, strict=True):
        if is_unknown and side in cases.sizes and cases.sizes[side][i] == 1:
            read = record.inputs.features.read
            return (
                f"products with {side} 1 were not measured in {read.dtype} by {read.impl or 'any impl'} on {read.device}; "
                "memory bounds the answer"
            )
    return None


def _too_large(cases: Cases, record: CategoryRecord, i: int) -> str | None:
    """What of a case is larger than anything measured where it runs, in words."""
    category = record.inputs.features.category
    for (name, column), limit in zip(cases.sizes.items(), record.support.largest_sizes.tolist(), strict=True):
        if column[i] > limit:
            of = f"of {category.variant} " if category.variant else ""
            return f"{name} {column[i]:.6g} is beyond the largest measured {of}on {category.device}, {limit:.6g}"
    return None


def _unaligned(cases: Cases, record: CategoryRecord, i: int) -> str | None:
    """How the sizes of a case divide by powers of two, where that is unlike anything measured where it runs, in words."""
    levels, (least, most) = (
        alignment({name: column[i : i + 1] for name, column in cases.sizes.items()}),
        record.support.alignments,
    )
    if levels is None or least <= levels[0] <= most:
        return None
    there = f"{2**least:.0f}" if least == most else f"{2**least:.0f} to {2 ** min(most, 6.0):.0f}"
    device = record.inputs.features.category.device
    return f"n and k are multiples of {2 ** levels[0]:.0f}; most measured on {device} are of {there}"
