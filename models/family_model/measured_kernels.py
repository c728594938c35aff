"""What a model was measured on, from its manifest alone: rows by family, device, dtype and implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...features.batch.category import category_of
from .artifact import read_manifest


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Rows of one kind of kernel on one device.

    Attributes:
        family: Kernel family.
        device: Catalogue name of the device.
        dtype: The dtype.
        impl: The implementation; empty where the rows name none.
        rows: Rows with a latency that the model was trained on.
    """

    family: str
    device: str
    dtype: str
    impl: str
    rows: int


def measured_kernels(directory: Path) -> list[MeasuredKernel]:
    """What the model of a directory was measured on, sorted by family, device, dtype and implementation.

    Raises:
        ArtifactError: the directory has no readable manifest.
    """
    rows: Counter[tuple[str, str, str, str]] = Counter()
    for family, label, count in _labels(read_manifest(directory)):
        category = category_of(label, 1.0)
        rows[family, str(category.device), category.dtype, category.impl] += count
    return [MeasuredKernel(*key, count) for key, count in sorted(rows.items())]


def _labels(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Family, label (see `measured_label`) and rows of everything that has a latency."""
    for name, family in manifest.get("families", {}).items():
        for label, count in family.get("measured", {}).get("latency", {}).items():
            yield name, label, int(count)
