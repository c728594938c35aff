"""Adapting a model to a device by a handful of its rows: what `kernelcast train calibrate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.rows.splits import file_sha256
from ...features.batch.cases import Floats
from ...features.batch.categorical import Categorical
from ...features.cost.bounds import TERMS
from ...features.device import Catalogue, Device, catalogue
from ...features.errors import SpecError, listed
from ..family_model.artifact import FamilyModel, save_adaptations
from ..family_model.artifact_files import ArtifactError
from ..family_model.device_correction import Adaptation, SharedWeights, fit_shared
from ..family_model.nearby_rows import Method
from ..family_model.utilisation import power_limits_w
from ..metrics import error_summary
from ..predict.predictor import ArtifactPredictor, FamilyPredictor, RawEstimates, load_predictor
from .labelled_cases import LabelledCases, joined_by_family
from .store_rows import group_medians

MOST_ROWS = 1024
"""Rows of a device and family that an adaptation keeps; answering takes time in proportion."""

_SIZE_OF_MEASURED = 0.25
"""What is left over on a device that was in training, relative to one that was not: errors of 3–10 % against 20–40 % on public
tables."""

_MOST_OF_LIMIT = 1.2
"""Boards overshoot their limit by some percent for milliseconds; a fifth is another unit or another device."""


@dataclass(frozen=True, slots=True)
class CalibratedDevice:
    """What calibrating one family to one device did.

    Attributes:
        family: The family.
        device: The device.
        rows: Cases used.
        n_given: Rows they were made from.
        before: Errors in percent by target, before.
        after: The same afterwards, each case answered by a process without it; the scales were still chosen with it, so
            a row never seen is somewhat further off.
    """

    family: str
    device: str
    rows: int
    n_given: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def calibrate_to_devices(
    model: Path,
    tables: LabelledCases | Sequence[LabelledCases],
    out: Path,
    *,
    devices: Catalogue | None = None,
    seed: int = 0,
    files: Sequence[Path] = (),
    method: Method = "process",
) -> list[CalibratedDevice]:
    """Write to `out` the model of `model`, adapted to every device of the rows given; other devices answer as before.

    `files` are where the rows come from, for the model to remember. A family that the rows do not mention stays as it is. An
    earlier adaptation of a family to the same device is replaced. `method` is for comparing: `process` has the least error.

    Raises:
        SpecError: no rows, or of a family the model was not trained on, or a device the catalogue does not know.
        ArtifactError: the model cannot be read or written.
    """
    known = devices or catalogue()
    if out.exists() and model.exists() and out.samefile(model):
        raise ArtifactError(f"--out {out} is the model that is adapted; give another folder")
    before = load_predictor(model, known)
    adapted, reports = calibrated(
        before, [tables] if isinstance(tables, LabelledCases) else tables, seed=seed, method=method
    )
    save_calibrated(adapted, reports, out, files=files)
    return reports


def save_calibrated(
    adapted: ArtifactPredictor, reports: Sequence[CalibratedDevice], out: Path, *, files: Sequence[Path] = (),
    facts: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write what `calibrated` gave to `out`; `files` are where rows come from, `facts` further entries of the manifest.

    Raises:
        ArtifactError: the model cannot be read or written.
    """
    data = [{"name": path.name, "sha256": file_sha256(path)} for path in files]
    done = [{"family": report.family, "device": report.device, "rows": report.rows, "data": data} for report in reports]
    every = {"calibrated": [*adapted.manifest.get("calibrated", []), *done], **(facts or {})}
    models = {report.family: adapted.family(report.family).model for report in reports}
    save_adaptations(adapted.directory, adapted.manifest, models, every, out)


def calibrated(
    predictor: ArtifactPredictor, tables: Sequence[LabelledCases], *, seed: int = 0, method: Method = "process"
) -> tuple[ArtifactPredictor, list[CalibratedDevice]]:
    """The predictor adapted to every device of the rows given, in memory, and what that did; see `calibrate_to_devices`.

    Raises:
        SpecError: as there.
        ArtifactError: a family of the model cannot be read.
    """
    if not any(len(rows) for rows in tables):
        raise SpecError("no measured rows to calibrate with; give a file with some, 8 to 1,000", field="data")
    if strange := sorted({rows.cases.family.name for rows in tables} - set(predictor.families)):
        raise SpecError(
            f"the model was not trained on {listed(strange)}; it knows {listed(predictor.families)}. "
            "Calibrate with rows of those, or train a model",
            field="family",
        )
    known = predictor.devices
    by_device: dict[str, dict[str, LabelledCases]] = {}
    for rows in joined_by_family(replace(rows, source=None) for rows in tables if len(rows)):
        _check(rows, known)
        rows = replace(rows, cases=rows.cases.with_catalogue_names(known).with_core_counts(known))
        for device in np.unique(rows.cases.device).tolist():
            check_kind(predictor.family(rows.cases.family.name).model, known.get(device))
            here = _merged(rows.take(np.flatnonzero(rows.cases.device == device)))
            by_device.setdefault(device, {})[rows.cases.family.name] = here
    reports: list[CalibratedDevice] = []
    for device, tables_of_device in by_device.items():
        adapted = _adapt(predictor, tables_of_device, device, seed, method)
        predictor = predictor.with_families({name: family for name, (family, _) in adapted.items()})
        reports += [report for _, report in adapted.values()]
    return predictor, reports


def _adapt(
    predictor: ArtifactPredictor, tables: Mapping[str, LabelledCases], device: str, seed: int, method: Method
) -> dict[str, tuple[FamilyPredictor, CalibratedDevice]]:
    """The families' predictors with their adaptations to one device, made of the rows of `tables` alone."""
    from threadpoolctl import threadpool_limits

    residuals: dict[str, dict[str, Floats]] = {}
    raw: dict[str, RawEstimates] = {}
    others: dict[str, dict[str, Mapping[str, Adaptation]]] = {}
    for name, rows in tables.items():
        chosen = np.sort(np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS])
        family = predictor.family(name)
        others[name] = {other: each for other, each in family.model.adaptations.items() if other != device}
        raw[name] = family.with_adaptations(others[name]).estimate(rows.cases.take(chosen))
        # Seconds, and the share of the power limit.
        labels = {"latency": np.log(rows.latency_s[chosen]), "power": np.log(rows.power_w[chosen] / raw[name].limit_w)}
        residuals[name] = {target: labels[target] - raw[name].logs[target] for target in raw[name].points}
    adapted: dict[str, tuple[FamilyPredictor, CalibratedDevice]] = {}
    # Matrices this small only lose by being split among threads, and a machine that is busy waits for all of them.
    with threadpool_limits(1):
        shared = _shared(predictor, raw, residuals) if method == "process" else {}
        for name, rows in tables.items():
            by_target: dict[str, Adaptation] = {}
            before: dict[str, Any] = {}
            after: dict[str, Any] = {}
            for target, errors in residuals[name].items():
                good = np.flatnonzero(~np.isnan(errors))
                if not len(good):
                    continue
                measured = np.mean(raw[name].regimes[target][good] == "seen") > 0.5
                by_target[target] = Adaptation.fit(
                    raw[name].points[target].take(good), errors[good], _SIZE_OF_MEASURED if measured else 1.0,
                    shared.get(name) if target == "latency" else None, method,
                )  # fmt: skip
                before[target] = error_summary(errors[good])
                after[target] = error_summary(by_target[target].left_out_errors())
            family = predictor.family(name).with_adaptations({**others[name], device: by_target})
            adapted[name] = family, CalibratedDevice(name, device, min(len(rows), MOST_ROWS), len(rows), before, after)
    return adapted


def _shared(
    predictor: ArtifactPredictor, raw: Mapping[str, RawEstimates], residuals: Mapping[str, Mapping[str, Floats]]
) -> dict[str, tuple[SharedWeights, Floats]]:
    """What latencies of all families say of the device together; nothing of families without an analytic model."""
    able = [name for name in raw if predictor.family(name).model.analytic is not None]
    points = {name: raw[name].points["latency"] for name in able}
    return fit_shared(points, {name: residuals[name]["latency"] for name in able}, len(TERMS)) if able else {}


def _check(rows: LabelledCases, devices: Catalogue) -> None:
    limit_w, _ = power_limits_w(rows.cases, devices)
    above = np.flatnonzero(rows.power_w > _MOST_OF_LIMIT * limit_w)
    if len(above):
        i = int(above[0])
        raise SpecError(
            f"{len(above)} rows have more power than their device's limit allows, such as {rows.power_w[i]:.6g} W on "
            f"{rows.cases.device[i]} ({limit_w[i]:.6g} W); give watts, or the device it was measured on",
            field="power_w",
        )


def is_calibrated_by(predictor: ArtifactPredictor, family: str, device: str) -> bool:
    """Whether rows of a family on a device can calibrate a model: it was trained on such of the same kind of device."""
    return predictor.devices.get(device).kind in predictor.manifest["families"].get(family, {}).get("kinds", ())


def check_kind(model: FamilyModel, device: Device) -> None:
    """Refuse a device of a kind that the family was never measured on.

    Raises:
        SpecError: it is.
    """
    if device.kind not in model.kinds:
        raise SpecError(
            f"{device.name} is a {device.kind}, and the model knows {model.schema.family} of {listed(model.kinds)} only: "
            "there is nothing to start from. Train a model with rows of it instead",
            field="device",
        )


def _merged(rows: LabelledCases) -> LabelledCases:
    """Rows of one case as one row, with the medians of its labels: a case left out must not be answered by its own repeat."""
    cases = rows.cases
    words = [
        Categorical.encode(np.char.mod("%.17g", column))
        for column in (*cases.sizes.values(), *cases.config.values(), cases.threads)
    ]
    words += [cases.coded(name) for name in ("dtype", "kv_dtype", "variant", "impl", "cache_state", "timing")]
    code = np.unique(np.stack([word.code for word in words], axis=1), axis=0, return_inverse=True)[1].ravel()
    firsts = np.unique(code, return_index=True)[1]
    latency_s, power_w = group_medians(rows.latency_s, code), group_medians(rows.power_w, code)
    return replace(rows.take(firsts), latency_s=latency_s, power_w=power_w)
