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
from .manifest import FOLDS, calibrated_devices, family_metrics, manifest_of
from .openapi_parts import Refusal, json_of, responses
from .problems import ProblemError
from .query import parameters
from .source import Loaded, PredictorSource, loaded_of

PATH = "/v1/accuracy"

_TARGETS = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}
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


def _of_manifest(manifest: Mapping[str, Any], key: str) -> Iterable[AccuracySlice]:
    for family, metrics in family_metrics(manifest, key):
        for target, found in metrics.items():
            figures = [_number(found, name) for name in ("n", "mean_ape_pct", "median_ape_pct", "within_10_pct")]
            n, mean, median, within = figures
            # A fold without rows has a count of none and no errors.
            if target in _TARGETS and n and mean is not None and median is not None and within is not None:
                shares = [round(pct / 100, 6) for pct in (mean, median, within)]
                yield AccuracySlice(family, None, _TARGETS[target], int(n), *shares)


def _number(found: Any, name: str) -> float | None:
    value = found.get(name) if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def accuracy_operation(refusal: Refusal) -> dict[str, Any]:
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
    return {
        "summary": "What the served model is off by, on rows held out from training",
        "operationId": "get_accuracy",
        "responses": responses(json_of("AccuracyAnswer", example), refusal, (404, 422, 500, 503)),
    }
