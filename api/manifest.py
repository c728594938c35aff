"""What the manifest of a served model says of it; an entry that is missing or of another form counts as not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .source import Loaded

FOLDS: Mapping[str, tuple[str, str]] = {
    "held_out": (
        "training: other shapes",
        "Errors found while this model was trained: its rows were dealt into folds by shape, and each fold was predicted by a "
        "model of the other folds, so no row was predicted by a model that had seen its shape. All devices together.",
    ),
    "device_left_out": (
        "training: unseen devices",
        "Errors found while this model was trained: each device's rows were predicted by a model that had seen none of them. "
        "What to expect on a device that was never measured. All devices together.",
    ),
}
"""What a manifest may hold of each family's errors, and under which name and words it is answered."""


def manifest_of(loaded: Loaded) -> Mapping[str, Any] | None:
    """The whole manifest of the model in memory, None for a predictor that has none.

    `Loaded.manifest` is shortened, and the one on disk may be of a newer model by now.
    """
    found = getattr(loaded.predictor, "manifest", None)
    return found if isinstance(found, Mapping) else None


def calibrated_devices(manifest: Mapping[str, Any]) -> list[str]:
    """Devices the model was calibrated on after it had been trained."""
    given = manifest.get("calibrated")
    entries = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list | tuple) else []
    return sorted({str(one["device"]) for one in entries if "device" in one})


def family_metrics(manifest: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Each family's errors under `key`, by target; families whose manifest has none, or something else there, are left out."""
    entries = manifest.get("families")
    for family, entry in entries.items() if isinstance(entries, Mapping) else ():
        metrics = entry.get("metrics") if isinstance(entry, Mapping) else None
        found = metrics.get(key) if isinstance(metrics, Mapping) else None
        if isinstance(found, Mapping):
            yield str(family), found
