"""Adapting a model to a device by a handful of its rows: what `kernelcast calibrate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.rows.splits import file_sha256
from ...features.batch.categorical import Categorical
from ...features.device import Catalogue, Device, catalogue
from ...features.errors import SpecError, listed
from ..family_model.artifact import Artifact, FamilyModel, load_family, read_manifest, save_artifact
from ..family_model.artifact_files import ArtifactError
from ..family_model.device_correction import Adaptation
from ..family_model.intervals import power_limits_w
from ..metrics import error_summary
from ..predict.predictor import FamilyPredictor
from .labelled_cases import LabelledCases
from .store_rows import group_medians

MOST_ROWS = 512
"""Rows of a device and family that an adaptation keeps; answering takes time in proportion."""

_SIZE_OF_MEASURED = 0.25
"""What is left over on a device that was in training, relative to one that was not: errors of 3–10 % against 20–40 % on public
tables."""

_MOST_OF_LIMIT = 1.2
"""Boards overshoot their limit by some percent for milliseconds; a fifth is another unit or another device."""

_RECORDED = ("format_version", "kernelcast", "created", "regressor", "files", "families")


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
) -> list[CalibratedDevice]:
    """Write to `out` the model of `model`, adapted to every device of the rows given; other devices answer as before.

    `files` are where the rows come from, for the model to remember. A family that the rows do not mention stays as it is. An
    earlier adaptation of a family to the same device is replaced.

    Raises:
        SpecError: no rows, or of a family the model was not trained on, or a device the catalogue does not know.
        ArtifactError: the model cannot be read or written.
    """
    manifest, known = read_manifest(model), devices or catalogue()
    if out.exists() and model.exists() and out.samefile(model):
        raise ArtifactError(f"--out {out} is the model that is adapted; give another folder")
    row_tables = [tables] if isinstance(tables, LabelledCases) else list(tables)
    if not any(len(rows) for rows in row_tables):
        raise SpecError("no measured rows to calibrate with; give a file with some, about 8 to 128", field="data")
    trained = tuple(manifest["families"])
    if strange := sorted({rows.cases.family.name for rows in row_tables} - set(trained)):
        raise SpecError(
            f"the model was not trained on {listed(strange)}; it knows {listed(trained)}. "
            "Calibrate with rows of those, or train a model",
            field="family",
        )
    for rows in row_tables:
        _check(rows, known)
    families = {name: load_family(model, manifest, name) for name in trained}
    reports: list[CalibratedDevice] = []
    for rows in row_tables:
        name = rows.cases.family.name
        rows = replace(rows, cases=rows.cases.with_catalogue_names(known).with_core_counts(known))
        for device in np.unique(rows.cases.device).tolist():
            check_kind(families[name], known.get(device))
            device_rows = _merged(rows.take(np.flatnonzero(rows.cases.device == device)))
            families[name], report = _adapt_one(families[name], device_rows, device, known, seed)
            reports.append(report)
    facts = {key: value for key, value in manifest.items() if key not in _RECORDED}
    done = [{"family": report.family, "device": report.device, "rows": report.rows} for report in reports]
    data = [{"name": path.name, "sha256": file_sha256(path)} for path in files]
    facts["calibrated"] = [*facts.get("calibrated", []), *({**entry, "data": data} for entry in done)]
    save_artifact(Artifact(str(manifest["regressor"]), families, facts), out)
    return reports


def _adapt_one(
    model: FamilyModel, rows: LabelledCases, device: str, devices: Catalogue, seed: int
) -> tuple[FamilyModel, CalibratedDevice]:
    """The family's model with its adaptation to one device, made of `rows` alone."""
    from threadpoolctl import threadpool_limits

    total = len(rows)
    if total > MOST_ROWS:
        rows = rows.take(np.sort(np.random.default_rng(seed).permutation(total)[:MOST_ROWS]))
    blank = replace(
        model, adaptations={name: adaptation for name, adaptation in model.adaptations.items() if name != device}
    )
    estimates = FamilyPredictor(blank, "", devices).estimate(rows.cases)
    adapt_one: dict[str, Adaptation] = {}
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    # Seconds, and the share of the power limit.
    log_labels = {"latency": np.log(rows.latency_s), "power": np.log(rows.power_w / estimates.limit_w)}
    for target, labels in log_labels.items():
        if target not in estimates.points or np.isnan(estimates.logs[target]).all():
            continue
        left_over = labels - estimates.logs[target]
        good = np.flatnonzero(~np.isnan(left_over))
        if not len(good):
            continue
        # Matrices this small only lose by being split among threads, and a machine that is busy waits for all of them.
        with threadpool_limits(1):
            measured = np.mean(estimates.regimes[target][good] == "seen") > 0.5
            size = _SIZE_OF_MEASURED if measured else 1.0
            adapt_one[target] = Adaptation.fit(estimates.points[target].take(good), left_over[good], size)
        before[target] = error_summary(left_over[good])
        after[target] = error_summary(adapt_one[target].left_out_errors())
    adapted = replace(model, adaptations={**model.adaptations, device: adapt_one})
    report = CalibratedDevice(rows.cases.family.name, device, len(rows), total, before, after)
    return adapted, report


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
        Categorical.encode(np.char.mod("%g", column))
        for column in (*cases.sizes.values(), *cases.config.values(), cases.threads)
    ]
    words += [cases.coded(name) for name in ("dtype", "kv_dtype", "variant", "impl", "cache_state")]
    code = np.unique(np.stack([word.code for word in words], axis=1), axis=0, return_inverse=True)[1].ravel()
    firsts = np.unique(code, return_index=True)[1]
    latency_s, power_w = group_medians(rows.latency_s, code), group_medians(rows.power_w, code)
    return replace(rows.take(firsts), latency_s=latency_s, power_w=power_w)
