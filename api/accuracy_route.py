"""GET /v1/accuracy: what the served model is off by, from its own held-out rows and from nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..features.errors import listed
from .accuracy_wire import (
    ACCURACY_FILE,
    AccuracyAnswer,
    AccuracyFileError,
    AccuracySlice,
    AccuracySplit,
    model_hash,
    read_accuracy,
)
from .measured_request import parameters
from .problems import ProblemError
from .source import Loaded, PredictorSource

PATH = "/v1/accuracy"

_REF = "#/components/schemas/{name}"
_TARGETS = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}
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

_NONE = (
    "the served model has no accuracy data of its own, and another model's would mislead: judge it on measured rows with "
    "`kernelcast evaluate --model MODEL ROWS`, or train it anew with `kernelcast train`, which keeps its held-out errors"
)


def accuracy_endpoint(source: PredictorSource) -> Callable[[Request], Response]:
    """What answers `/v1/accuracy`. The answer is put together once per model that is loaded."""
    made: list[tuple[Loaded, bytes]] = []

    def accuracy(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        loaded = loaded_of(source)
        # One reading: another thread may put a newer model's answer in its place meanwhile.
        found = next((answer for model, answer in tuple(made) if model is loaded), None)
        if found is None:
            found = msgspec.json.encode(accuracy_of(loaded))
            made[:] = [(loaded, found)]
        return Response(found, media_type="application/json")

    return accuracy


def loaded_of(source: PredictorSource) -> Loaded:
    """The model that answers now.

    Raises:
        ProblemError: 503, there is none.
    """
    loaded = source.current()
    if loaded is None:
        raise ProblemError(503, f"no model is loaded: {source.problem}", headers={"retry-after": "2"})
    return loaded


def manifest_of(loaded: Loaded) -> Mapping[str, Any] | None:
    """The whole manifest of the model in memory, None for a predictor that has none.

    `Loaded.manifest` is shortened, and the one on disk may be of a newer model by now.
    """
    found = getattr(loaded.predictor, "manifest", None)
    return found if isinstance(found, Mapping) else None


def accuracy_of(loaded: Loaded) -> AccuracyAnswer:
    """Accuracy of the model: the file beside it where that is of this very model, then what its manifest says.

    Raises:
        ProblemError: 404, there is neither.
    """
    manifest = manifest_of(loaded)
    if manifest is None:
        raise ProblemError(404, _NONE)
    own, notes, splits = model_hash(manifest), [], []
    try:
        stored = None if loaded.path is None else read_accuracy(loaded.path)
    except AccuracyFileError as error:
        stored = None
        notes.append(str(error))
    if stored is not None and stored.model == own:
        splits += stored.splits
        notes += stored.notes
    elif stored is not None:
        notes.append(
            f"{ACCURACY_FILE} beside the model is of another one (manifest {stored.model[:12]}…, served is {own[:12]}…) and is "
            "left out; for the shipped model, benchmarks/accuracy.py of the source writes it anew"
        )
    for key, (name, doc) in FOLDS.items():
        if slices := list(_of_manifest(manifest, key)):
            splits.append(AccuracySplit(name, doc, slices, []))
    if devices := calibrated_devices(manifest):
        notes.append(f"the model was calibrated on {listed(devices)} since: its errors there are not those told here")
    if not splits:
        raise ProblemError(404, "; ".join([_NONE, *notes]))
    return AccuracyAnswer(own, str(manifest.get("regressor", "")), splits, notes)


def calibrated_devices(manifest: Mapping[str, Any]) -> list[str]:
    """Devices the model was calibrated on after it had been trained."""
    given = manifest.get("calibrated")
    entries = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list | tuple) else []
    return sorted({str(one["device"]) for one in entries if "device" in one})


def _of_manifest(manifest: Mapping[str, Any], key: str) -> Iterable[AccuracySlice]:
    for family, metrics in family_metrics(manifest, key):
        for target, found in metrics.items():
            figures = [_number(found, name) for name in ("n", "mean_ape_pct", "median_ape_pct", "within_10_pct")]
            n, mean, median, within = figures
            # A fold without rows has a count of none and no errors.
            if target in _TARGETS and n and mean is not None and median is not None and within is not None:
                shares = [round(pct / 100, 6) for pct in (mean, median, within)]
                yield AccuracySlice(family, None, _TARGETS[target], int(n), *shares)


def family_metrics(manifest: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Each family's errors under `key`, by target; families whose manifest has none, or something else there, are left out."""
    entries = manifest.get("families")
    for family, entry in entries.items() if isinstance(entries, Mapping) else ():
        metrics = entry.get("metrics") if isinstance(entry, Mapping) else None
        found = metrics.get(key) if isinstance(metrics, Mapping) else None
        if isinstance(found, Mapping):
            yield str(family), found


def _number(found: Any, name: str) -> float | None:
    value = found.get(name) if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def accuracy_operation(refusal: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    device = "amd-epyc-9005-vm-2c"
    one = {
        "family": "copy", "device": device, "target": "latency_s", "n": 149, "mean": 0.108, "median": 0.067, "within_10": 0.624,
        "covered": 0.906, "coverage": 0.9, "width": 0.467,
    }  # fmt: skip
    points = {
        "family": "copy", "device": device, "target": "latency_s", "measured": [2.4e-6], "predicted": [2.5e-6],
        "lower": [2.1e-6], "upper": [3.0e-6],
    }  # fmt: skip
    split = {"name": "hash", "doc": "Shapes held out by hash", "slices": [one], "parity": [points]}
    example = {"model": "9f86d081" * 8, "regressor": "blend", "splits": [split], "notes": []}
    content = {"application/json": {"schema": {"$ref": _REF.format(name="AccuracyAnswer")}, "example": example}}
    return {
        "summary": "What the served model is off by, on rows held out from training",
        "operationId": "get_accuracy",
        "responses": {
            "200": {"description": "OK", "content": content},
            **{str(status): refusal(status) for status in (404, 422, 500, 503)},
        },
    }
