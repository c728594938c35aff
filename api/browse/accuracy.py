"""GET /v1/accuracy: the errors of the served model on its held-out rows, from its accuracy file and its manifest.

An entry of the manifest that is missing or malformed is treated as absent.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...features.errors import listed
from ..model_source import LoadedModel, PredictorSource, require_model
from ..transport.bodies import parameters
from ..transport.problems import ProblemError

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


def manifest_of(loaded: LoadedModel) -> Mapping[str, Any] | None:
    """The whole manifest of the model in memory, None for a predictor that has none.

    `LoadedModel.manifest` is shortened, and the one on disk may be of a newer model by now.
    """
    manifest = getattr(loaded.predictor, "manifest", None)
    return manifest if isinstance(manifest, Mapping) else None


def calibrated_devices(manifest: Mapping[str, Any]) -> list[str]:
    """Devices the model was calibrated on after it had been trained."""
    calibrated = manifest.get("calibrated")
    entries = (
        [entry for entry in calibrated if isinstance(entry, Mapping)] if isinstance(calibrated, list | tuple) else []
    )
    return sorted({str(entry["device"]) for entry in entries if "device" in entry})


def family_metrics(manifest: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Each family's errors under `key`, by target; families whose manifest has none, or something else there, are left out."""
    entries = manifest.get("families")
    for family, entry in entries.items() if isinstance(entries, Mapping) else ():
        metrics = entry.get("metrics") if isinstance(entry, Mapping) else None
        metric = metrics.get(key) if isinstance(metrics, Mapping) else None
        if isinstance(metric, Mapping):
            yield str(family), metric


_TARGETS = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}
_NONE = (
    "the served model has no accuracy data of its own, and another model's would mislead: judge it on measured rows with "
    "`kernelcast evaluate --model MODEL ROWS`, or train it anew with `kernelcast train`, which keeps its held-out errors"
)


def accuracy_endpoint(source: PredictorSource) -> Callable[[Request], Response]:
    """What answers `/v1/accuracy`. The answer is put together once per model that is loaded."""
    cached: list[tuple[LoadedModel, bytes]] = []

    def accuracy(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        loaded = require_model(source)
        # One reading: another thread may put a newer model's answer in its place meanwhile.
        encoded = next((answer for model, answer in tuple(cached) if model is loaded), None)
        if encoded is None:
            encoded = msgspec.json.encode(accuracy_of(loaded))
            cached[:] = [(loaded, encoded)]
        return Response(encoded, media_type="application/json")

    return accuracy


def accuracy_of(loaded: LoadedModel) -> AccuracyAnswer:
    """Accuracy of the model: the file beside it where that is of this very model, then what its manifest says.

    Raises:
        ProblemError: 404, there is neither.
    """
    manifest = manifest_of(loaded)
    if manifest is None:
        raise ProblemError(404, _NONE)
    model, notes, splits = model_hash(manifest), [], []
    try:
        stored = None if loaded.path is None else read_accuracy(loaded.path)
    except AccuracyFileError as error:
        stored = None
        notes.append(str(error))
    if stored is not None and stored.model == model:
        splits += stored.splits
        notes += stored.notes
    elif stored is not None:
        notes.append(
            f"{ACCURACY_FILE} beside the model is of another one (manifest {stored.model[:12]}…, served is {model[:12]}…) and "
            "is left out; for the shipped model, benchmarks/accuracy.py of the source writes it anew"
        )
    for key, (name, doc) in FOLDS.items():
        if slices := list(_manifest_slices(manifest, key)):
            splits.append(AccuracySplit(name, doc, slices, []))
    if devices := calibrated_devices(manifest):
        notes.append(f"the model was calibrated on {listed(devices)} after that: its errors there differ from these")
    if not splits:
        raise ProblemError(404, "; ".join([_NONE, *notes]))
    return AccuracyAnswer(model, str(manifest.get("regressor", "")), splits, notes)


def _manifest_slices(manifest: Mapping[str, Any], key: str) -> Iterable[AccuracySlice]:
    for family, metrics in family_metrics(manifest, key):
        for target, metric in metrics.items():
            figures = [_number(metric, name) for name in ("n", "mean_ape_pct", "median_ape_pct", "within_10_pct")]
            n, mean, median, within = figures
            # A fold without rows has a count of none and no errors.
            if target in _TARGETS and n and mean is not None and median is not None and within is not None:
                shares = [round(pct / 100, 6) for pct in (mean, median, within)]
                yield AccuracySlice(family, None, _TARGETS[target], int(n), *shares)


def _number(metric: Any, name: str) -> float | None:
    value = metric.get(name) if isinstance(metric, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


ACCURACY_FILE = "accuracy.json.gz"
"""Name of the file in a model's directory."""

PARITY_POINTS = 100
"""Most points of one family and target; a page draws that many well, and more only print over each other."""

_MOST_B = 4 << 20
"""Longest file that is read, unpacked. The shipped one has a tenth of it."""


class AccuracySlice(msgspec.Struct, frozen=True):
    """Errors of held-out predictions. An error is |predicted / measured - 1|; it and all shares are fractions: 0.05 is 5 %.

    Attributes:
        family: Kernel family
        device: Catalogue name of the device; null for all devices together
        target: latency_s, power_w or energy_j
        n: Number of predictions
        mean: Mean error
        median: Median error
        within_10: Share of predictions with an error of at most 10 %
        covered: Share of measured values inside their interval; null where no intervals were judged
        coverage: Share that was requested of the intervals; null where none were judged
        width: Median of (upper - lower) / value; null where no intervals were judged
    """

    family: str
    device: str | None
    target: str
    n: int
    mean: float
    median: float
    within_10: float
    covered: float | None = None
    coverage: float | None = None
    width: float | None = None


class ParityPoints(msgspec.Struct, frozen=True):
    """Measured and predicted values of some held-out rows, in the target's SI unit; lists of equal length.

    Attributes:
        family: Kernel family
        device: Catalogue name of the device
        target: latency_s, power_w or energy_j
        measured: Measured values
        predicted: Predicted values
        lower: Lower ends of the intervals
        upper: Upper ends of the intervals
    """

    family: str
    device: str
    target: str
    measured: list[float]
    predicted: list[float]
    lower: list[float]
    upper: list[float]


class AccuracySplit(msgspec.Struct, frozen=True):
    """One way of holding rows out, with the errors on them.

    Attributes:
        name: Name of the split
        doc: Which rows were held out, and which rows the model was trained on
        slices: Errors by family, device and target
        parity: Points to plot measured against predicted values
    """

    name: str
    doc: str
    slices: list[AccuracySlice]
    parity: list[ParityPoints]


class AccuracyAnswer(msgspec.Struct, frozen=True):
    """Errors of the served model on held-out rows.

    Attributes:
        model: SHA-256 of the manifest of the model these numbers belong to
        regressor: Name of the model's regressor
        splits: Ways of holding rows out
        notes: What limits these numbers, such as a later calibration
    """

    model: str
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


_ANSWERS = msgspec.json.Decoder(AccuracyAnswer)
"""Made before threads ask: two that decode a first answer at once end the process (msgspec 0.22)."""


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
        return _ANSWERS.decode(text)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AccuracyFileError(f"{ACCURACY_FILE} beside the model is damaged: {error}") from error
